"""What it costs nodes to be watched: streams while the metrics of every node are read each second, against
the same without.

The rule is that of ``streams``; the figure is the processor time of all nodes and slots for a message, which
says the same on a busy machine. Runs take turns, so that both meet the same machine.

Run as ``python -m benchmarks.observed``.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import math
import time
from collections.abc import AsyncIterator
from statistics import median

import aiohttp

from benchmarks import streams
from benchmarks.cluster import Cluster, Spent
from benchmarks.report import Report

BUDGET_S = 45.0
EVERY_S = 1.0


class Reader:
    """Reads the metrics of all nodes again and again; ``pages`` counts how often, ``kb`` is the largest."""

    def __init__(self) -> None:
        self.pages = 0
        self.kb = 0.0

    @contextlib.asynccontextmanager
    async def beside(self, nodes: Cluster) -> AsyncIterator[None]:
        """Read while the nodes work."""
        addresses = [member.address for member in await nodes.services.coordinator().members()]
        async with aiohttp.ClientSession() as session:
            reading = [asyncio.create_task(self._read(session, address)) for address in addresses]
            try:
                yield
            finally:
                for task in reading:
                    task.cancel()
                await asyncio.gather(*reading, return_exceptions=True)

    async def _read(self, session: aiohttp.ClientSession, address: str) -> None:
        while True:
            async with session.get(f"{address}/metrics") as answer:
                answer.raise_for_status()
                self.kb = max(self.kb, len(await answer.read()) / 1000)
                self.pages += 1
            await asyncio.sleep(EVERY_S)


def cpu_us(messages: int, keys: int, lead_s: float, reader: Reader | None) -> float:
    """The processor time for one message, in microseconds."""
    spent = Spent()
    beside = None if reader is None else reader.beside
    asyncio.run(streams.holdfast(messages, keys, 1, lead_s, spent=spent, beside=beside))
    return 1e6 * spent.seconds / messages


def main() -> None:
    """Measure and report."""
    parser = argparse.ArgumentParser(prog="benchmarks.observed", description=__doc__)
    parser.add_argument("--full", action="store_true", help="more rounds")
    parser.add_argument("--messages", type=int, default=20_000)
    parser.add_argument("--keys", type=int, default=64)
    parser.add_argument("--rounds", type=int, help="at most; medians count (default 3, with --full 9)")
    parser.add_argument("--lead-s", type=float, default=streams.LEAD_S, help="for sending, before all show")
    asked = parser.parse_args()
    report, reader = Report("observed"), Reader()
    report.say(f"observed: {asked.messages:,} messages of {asked.keys} keys on {streams.NODES} nodes")
    rounds, budget_s = asked.rounds or (9 if asked.full else 3), math.inf if asked.full else BUDGET_S
    begun_at = time.monotonic()
    without: list[float] = []
    watched: list[float] = []
    for done in range(rounds):
        if done and (time.monotonic() - begun_at) * (done + 1) / done > budget_s:
            break
        without.append(cpu_us(asked.messages, asked.keys, asked.lead_s, None))
        watched.append(cpu_us(asked.messages, asked.keys, asked.lead_s, reader))
        report.say(
            f"    {without[-1]:,.0f} µs for a message, {watched[-1]:,.0f} µs while its metrics are read"
        )
    report.figure("vs_without", median(without) / median(watched), "≥ 0.97")
    report.end(
        messages=asked.messages,
        keys=asked.keys,
        pages=reader.pages,
        page_kb=round(reader.kb, 1),
        durability="full, state and results of each commit fsynced, in both",
        cpu_us={"without": [round(each) for each in without], "watched": [round(each) for each in watched]},
    )


if __name__ == "__main__":
    main()
