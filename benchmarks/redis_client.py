"""What calls of Redis cost through Holdfast's pipe, beside redis-py's own clients.

The same script runs on one server and on a Cluster of three, called by 64 callers at once, as a node's
owners call it. Processor time of the client is what is compared: the server runs on the same cores. With
``--full`` a master that Sentinels watch is killed as well, and the time without an answer is taken.

Run as ``python -m benchmarks.redis_client``.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys

from benchmarks.cluster import ROOT, program
from benchmarks.report import Report
from simulator.servers import RedisCluster, RedisSentinel, RedisServer

CONTENDERS = ("holdfast", "redis-py")
KINDS = {"single": RedisServer, "cluster": RedisCluster}
TIMEOUT_S = 120.0
PEER = "benchmarks.peers.redis_calls"


async def one(contender: str, kind: str, calls: int) -> dict[str, float]:
    """Processor time and rate of one client."""
    async with (
        KINDS[kind]() as server,
        program(PEER, contender, kind, server.url, str(calls)) as started,
    ):
        told: dict[str, float] = json.loads(await asyncio.wait_for(started.output.readline(), TIMEOUT_S))
        return told


async def failover(contender: str) -> dict[str, float]:
    """How long one client gets no answer after its master was killed."""
    async with RedisSentinel() as server:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", PEER, contender, "sentinel", server.url, "0"),
            cwd=ROOT, env=os.environ, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        assert process.stdin is not None
        assert process.stdout is not None
        await asyncio.wait_for(process.stdout.readline(), TIMEOUT_S)
        master = await server.master()
        master.kill()
        await server.failed_over(master)
        process.stdin.write(b"\n")
        told: dict[str, float] = json.loads(await asyncio.wait_for(process.stdout.readline(), TIMEOUT_S))
        await process.wait()
        return told


async def measure(calls: int, rounds: int, full: bool, report: Report) -> None:
    """Both clients in turn; the least processor time and the highest rate count."""
    best: dict[str, dict[str, float]] = {}
    for kind in KINDS:
        for _ in range(rounds):
            for contender in CONTENDERS:
                told = await one(contender, kind, calls)
                report.say(f"    {kind}, {contender}: {told['per_s']:,.0f} a second, {told['cpu_us']:.0f} µs")
                known = best.setdefault(f"{kind}, {contender}", told)
                known["per_s"] = max(known["per_s"], told["per_s"])
                known["cpu_us"] = min(known["cpu_us"], told["cpu_us"])
        ours, theirs = best[f"{kind}, holdfast"], best[f"{kind}, redis-py"]
        report.figure(f"{kind}_cpu_us", ours["cpu_us"])
        report.figure(f"{kind}_cpu_vs_redis_py", ours["cpu_us"] / theirs["cpu_us"], "≤ 0.8")
        report.figure(f"{kind}_rate_vs_redis_py", ours["per_s"] / theirs["per_s"], "≥ 1.2")
    if full:
        for contender in CONTENDERS:
            best[f"sentinel, {contender}"] = told = await failover(contender)
            name = contender.replace("-", "_")
            report.figure(f"{name}_stall_s", told["stall_s"])
    report.detail["best"] = {name: {k: round(v, 3) for k, v in told.items()} for name, told in best.items()}


def main() -> None:
    """Measure and report."""
    parser = argparse.ArgumentParser(prog="benchmarks.redis_client", description=__doc__)
    parser.add_argument("--full", action="store_true", help="more calls and rounds, and a fail-over")
    parser.add_argument("--calls", type=int, help="of each kind (default 20,000, with --full 100,000)")
    parser.add_argument("--rounds", type=int, help="the best counts (default 2, with --full 3)")
    asked = parser.parse_args()
    calls = asked.calls or (100_000 if asked.full else 20_000)
    rounds = asked.rounds or (3 if asked.full else 2)
    report = Report("redis_client")
    report.say(f"redis-client: {calls:,} scripts with 1 kB each, 64 at once")
    asyncio.run(measure(calls, rounds, asked.full, report))
    report.end(["redis", "hiredis"], calls=calls, rounds=rounds, durability="Redis in memory, for both")


if __name__ == "__main__":
    main()
