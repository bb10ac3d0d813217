"""What an archive costs: the same stream with and without one, in files.

All messages show at one instant to warm nodes; the clock stops when the last one is deleted from its queue.
With an archive that comes after it is written there.

Run as ``python -m benchmarks.archive``.
"""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path
from statistics import median

from benchmarks.cluster import cluster, workplace
from benchmarks.report import Report

NODES = 2
TIMEOUT_S = 120.0
STREAMS = ("archived", "plain")


async def rate(stream: str, messages: int, keys: int, lead_s: float) -> tuple[float, int]:
    """Messages a second, until the last one is deleted; and how many objects the archive has."""
    bodies = (b'{"key":"k%d","n":%d}' % (n % keys, n // keys) for n in range(keys, keys + messages))
    with workplace() as place:
        environment = {"BENCHMARK_ARCHIVE": f"file:{place}"}
        async with cluster("benchmarks.apps:archive", slots=1, environment=environment) as nodes:
            await nodes.start_all(NODES)
            await nodes.send(stream, (b'{"key":"k%d","n":0}' % key for key in range(keys)))
            await nodes.drained(stream, TIMEOUT_S)
            before = objects(place)
            with nodes.sending(lead_s) as begin_at:
                await nodes.send(stream, bodies, begin_at)
            took_s = await nodes.drained(stream, TIMEOUT_S) - begin_at
            return messages / took_s, objects(place) - before


def objects(place: Path) -> int:
    """How many objects are in an archive of files."""
    return sum(1 for _ in place.rglob("*.jsonl"))


def main() -> None:
    """Measure and report."""
    parser = argparse.ArgumentParser(prog="benchmarks.archive", description=__doc__)
    parser.add_argument("--full", action="store_true", help="more rounds")
    parser.add_argument("--messages", type=int, default=10_000)
    parser.add_argument("--keys", type=int, default=64)
    parser.add_argument("--rounds", type=int, help="the median counts (default 3, with --full 7)")
    parser.add_argument("--lead-s", type=float, default=2.0, help="for sending, before all show")
    asked = parser.parse_args()
    report = Report("archive")
    report.say(f"archive: {asked.messages:,} messages of {asked.keys} keys, with an archive and without")
    rates: dict[str, list[float]] = {stream: [] for stream in STREAMS}
    written = 0
    for _ in range(asked.rounds or (7 if asked.full else 3)):
        for stream, measured in rates.items():
            found, count = asyncio.run(rate(stream, asked.messages, asked.keys, asked.lead_s))
            measured.append(found)
            written = count or written
            report.say(f"    {stream} {found:,.0f}/s")
    report.figure("messages_per_s", median(rates["archived"]))
    report.figure("vs_without", median(rates["archived"]) / median(rates["plain"]))
    report.figure("messages_per_object", asked.messages / written)
    report.end(
        messages=asked.messages,
        keys=asked.keys,
        nodes=NODES,
        rates=rates,
        durability="SQLite, full; each object of the archive is confirmed by the disk",
    )


if __name__ == "__main__":
    main()
