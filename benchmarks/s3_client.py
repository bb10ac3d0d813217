"""What calls of S3 cost with Holdfast's own client, beside aiobotocore.

Objects of 100 kB, as frames are, are put and read by sixteen callers at once, then one of 40 MiB is put
in parts. Both clients sign each call, send or ask for a checksum, and compare it. Processor time of the
client is what is compared: rates are those of the server, which runs on the same cores. ``first_call`` is
what a process pays until its first object is there, imports included: each slot that reads frames does.

Run as ``python -m benchmarks.s3_client``.
"""

from __future__ import annotations

import argparse
import asyncio
import json

import aiohttp

from benchmarks.cluster import program
from benchmarks.report import Report
from simulator.servers import FauxqsServer

BUCKET = "frames"
CONTENDERS = ("holdfast", "aiobotocore")
TIMEOUT_S = 300.0


async def one(contender: str, calls: int, size: int) -> dict[str, float]:
    """The figures of one client, in a process of its own and beside a fresh server."""
    async with FauxqsServer() as server:
        async with aiohttp.ClientSession() as http, http.put(f"{server.endpoint}/{BUCKET}") as answer:
            answer.raise_for_status()
        arguments = (contender, BUCKET, str(calls), str(size))
        async with program(
            "benchmarks.peers.s3_calls", *arguments, environment=server.environment()
        ) as started:
            told: dict[str, float] = json.loads(
                await asyncio.wait_for(started.output.readline(), TIMEOUT_S) or "{}"
            )
            if not told:
                raise RuntimeError(f"{contender} ended without its figures")
            return told


async def measure(calls: int, size: int, rounds: int, report: Report) -> None:
    """Both clients in turn; of each figure the least counts, of rates the most."""
    rows: dict[str, list[dict[str, float]]] = {contender: [] for contender in CONTENDERS}
    for _ in range(rounds):
        for contender, told in rows.items():
            told.append(await one(contender, calls, size))
            report.say(f"    {contender}: {', '.join(f'{k} {v:,.3g}' for k, v in told[-1].items())}")
    best = {
        contender: {name: (max if "per_s" in name else min)(row[name] for row in told) for name in told[0]}
        for contender, told in rows.items()
    }
    ours, theirs = best["holdfast"], best["aiobotocore"]
    report.figure("get_us", ours["get_us"])
    report.figure("get_cpu_vs_aiobotocore", ours["get_us"] / theirs["get_us"], "≤ 0.8")
    report.figure("put_us", ours["put_us"])
    report.figure("put_cpu_vs_aiobotocore", ours["put_us"] / theirs["put_us"], "≤ 0.8")
    report.figure("parts_cpu_vs_aiobotocore", ours["part_ms_per_mib"] / theirs["part_ms_per_mib"])
    report.figure("first_call_cpu_vs_aiobotocore", ours["first_call_cpu_s"] / theirs["first_call_cpu_s"])
    report.figure("first_call_mb_vs_aiobotocore", ours["first_call_mb"] / theirs["first_call_mb"])
    report.detail["best"] = {
        contender: {name: round(value, 3) for name, value in figures.items()}
        for contender, figures in best.items()
    }


def main() -> None:
    """Measure and report."""
    parser = argparse.ArgumentParser(prog="benchmarks.s3_client", description=__doc__)
    parser.add_argument("--full", action="store_true", help="more calls and rounds")
    parser.add_argument("--calls", type=int, help="of each kind (default 1,000, with --full 5,000)")
    parser.add_argument("--kb", type=int, default=100, help="of an object")
    parser.add_argument("--rounds", type=int, help="the best counts (default 2, with --full 5)")
    asked = parser.parse_args()
    calls = asked.calls or (5_000 if asked.full else 1_000)
    rounds = asked.rounds or (5 if asked.full else 2)
    report = Report("s3_client")
    report.say(f"s3-client: {calls:,} objects of {asked.kb} kB put and read; the server is fauxqs, in memory")
    asyncio.run(measure(calls, asked.kb * 1024, rounds, report))
    report.end(
        ["aiobotocore", "botocore", "aiohttp"],
        calls=calls,
        kb=asked.kb,
        rounds=rounds,
        durability="S3 in memory, for both",
    )


if __name__ == "__main__":
    main()
