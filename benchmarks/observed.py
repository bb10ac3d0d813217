"""What it costs nodes to be watched: streams while the metrics of every node are read each second and one of
them runs a console with an open page, against the same without; and once with 200 open pages.

Two clusters are given the same bursts of messages in turns, all of a burst shown at one instant; the first
has no console. The figures compare the processor time of all nodes and slots for a message, which says the
same on a busy machine. An open page receives the console's events, and loads its part of the overview again
whenever that has changed, as browsers do.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import math
import time
from collections.abc import AsyncIterator, Coroutine
from statistics import mean
from typing import Any

import aiohttp

from benchmarks import streams
from benchmarks.browsing import Operator, entered
from benchmarks.cluster import Cluster, cluster
from benchmarks.idle import cpu_s, family
from benchmarks.report import Report

BUDGET_S = 45.0
EVERY_S = 1.0
PAGES = 200


class Watchers:
    """Look at nodes while they work: ``pages`` open pages of the first one's console, and the metrics of all
    nodes, if asked to. Counts how often metrics and parts of pages were read."""

    def __init__(self, pages: int, *, metrics: bool) -> None:
        self.metrics_read = 0
        self.metrics_kb = 0.0
        self.parts_read = 0
        self._pages = pages
        self._metrics = metrics

    @contextlib.asynccontextmanager
    async def beside(self, nodes: Cluster) -> AsyncIterator[None]:
        """Measure while the nodes work. All pages have received and shown events by then."""
        pages = [member.load.metrics for member in await nodes.services.coordinator().members()]
        opened = [asyncio.Event() for _ in range(self._pages)]
        async with aiohttp.ClientSession() as session, entered(nodes.nodes[0].console) as operator:
            looking: list[Coroutine[Any, Any, None]] = [self._look(operator, event) for event in opened]
            if self._metrics:
                looking += [self._read(session, page) for page in pages]
            running = [asyncio.create_task(each) for each in looking]
            try:
                await asyncio.gather(*(event.wait() for event in opened))
                yield
            finally:
                for task in running:
                    task.cancel()
                for ended in await asyncio.gather(*running, return_exceptions=True):
                    if isinstance(ended, Exception):
                        raise ended

    async def _look(self, operator: Operator, opened: asyncio.Event) -> None:
        async with operator.session.get("/events") as news:
            news.raise_for_status()
            async for line in news.content:
                if line == b"event: overview\n":
                    async with operator.session.get("/parts/overview") as part:
                        part.raise_for_status()
                        await part.read()
                        self.parts_read += 1
                    opened.set()

    async def _read(self, session: aiohttp.ClientSession, page: str) -> None:
        while True:
            async with session.get(page) as answer:
                answer.raise_for_status()
                self.metrics_kb = max(self.metrics_kb, len(await answer.read()) / 1000)
                self.metrics_read += 1
            await asyncio.sleep(EVERY_S)


class Contender:
    """A cluster that gets the same bursts of messages as another one, in turns."""

    def __init__(self, nodes: Cluster, asked: argparse.Namespace) -> None:
        self._nodes = nodes
        self._asked = asked
        self._sent = asked.keys

    async def start(self, *first: str) -> None:
        """Start the nodes, the first one with these arguments, and have each stream begun."""
        await self._nodes.start_all(streams.NODES, *first)
        await streams.show(self._nodes, range(self._sent), self._asked.keys, self._asked.lead_s)
        await self._nodes.drained("noop", streams.TIMEOUT_S)

    async def burst(self, watchers: Watchers | None = None) -> float:
        """Handle one burst; returns the processor time for one message, in microseconds."""
        asked, nodes = self._asked, self._nodes
        async with watchers.beside(nodes) if watchers is not None else contextlib.nullcontext():
            numbers = range(self._sent, self._sent + asked.messages)
            await streams.show(nodes, numbers, asked.keys, asked.lead_s)
            self._sent = numbers.stop
            processes = [each for node in nodes.nodes for each in family(node.pid)]
            before = cpu_s(processes)
            await nodes.drained("noop", streams.TIMEOUT_S)
            spent_s = cpu_s(processes) - before
        return 1e6 * spent_s / float(asked.messages)

    async def end(self) -> None:
        """Check all results, and end the nodes."""
        await streams.verify(self._nodes, self._sent, self._asked.keys)
        self._nodes.kill()


async def measure(report: Report, asked: argparse.Namespace) -> None:
    """Both figures."""
    rounds, budget_s = asked.rounds or (12 if asked.full else 4), math.inf if asked.full else BUDGET_S
    watched, crowded = Watchers(1, metrics=True), Watchers(asked.pages, metrics=False)
    ways = {"without": None, "watched": watched, "crowded": crowded}
    took: dict[str, list[float]] = {name: [] for name in ways}
    begun_at = time.monotonic()
    async with (
        cluster("benchmarks.apps:noop", slots=1) as one,
        cluster("benchmarks.apps:noop", slots=1) as other,
    ):
        alone, seen = Contender(one, asked), Contender(other, asked)
        await alone.start()
        await seen.start("--console")
        await alone.burst()  # the first of each is not like the others
        await seen.burst(Watchers(1, metrics=False))
        for done in range(rounds):
            if done and time.monotonic() - begun_at > budget_s * (done + 1) / (done + 2):
                break
            for name, watchers in ways.items():
                contender = alone if watchers is None else seen
                took[name].append(await contender.burst(watchers))
            report.say("    " + ", ".join(f"{name} {times[-1]:,.0f} µs" for name, times in took.items()))
        await alone.end()
        await seen.end()
    for figure, name, target in (
        ("vs_without", "watched", "≥ 0.97"),
        ("pages_vs_without", "crowded", "≥ 0.95"),
    ):
        report.figure(figure, mean(took["without"]) / mean(took[name]), target)
    report.end(
        messages=asked.messages,
        keys=asked.keys,
        pages=asked.pages,
        metrics_read=watched.metrics_read,
        metrics_kb=round(watched.metrics_kb, 1),
        parts_read={"watched": watched.parts_read, "crowded": crowded.parts_read},
        durability="full, state and results of each commit fsynced, in all",
        cpu_us={name: [round(each) for each in times] for name, times in took.items()},
    )


def main() -> None:
    """Measure and report."""
    parser = argparse.ArgumentParser(prog="benchmarks observed", description=__doc__)
    parser.add_argument("--full", action="store_true", help="more rounds")
    parser.add_argument("--messages", type=int, default=20_000)
    parser.add_argument("--keys", type=int, default=64)
    parser.add_argument("--pages", type=int, default=PAGES)
    parser.add_argument("--rounds", type=int, help="at most; means count (default 4, with --full 12)")
    parser.add_argument("--lead-s", type=float, default=streams.LEAD_S, help="for sending, before all show")
    asked = parser.parse_args()
    report = Report("observed")
    report.say(f"observed: {asked.messages:,} messages of {asked.keys} keys on {streams.NODES} nodes")
    asyncio.run(measure(report, asked))
