"""How long it takes from a click on "Move" until the stream runs at its new owner.

Two nodes own sixty live streams, each fed ten messages a second, and a console runs beside them. One stream
after another is moved to the other node by the form of its page. A move counts from the sending of the form
to the first commit in the epoch that the new owner has opened; of this, up to a tenth of a second is the wait
for the stream's next message. ``answer_p99_ms`` is how long the form itself takes to be answered.
"""

from __future__ import annotations

import argparse
import asyncio
from statistics import median
from typing import NamedTuple

from benchmarks.browsing import Operator, entered
from benchmarks.cluster import Cluster, cluster, program
from benchmarks.failover import PACE_S, STREAM, Traffic
from benchmarks.report import Report, percentile

NODES = 2
KEYS = 60
SETTLE_S = 2.0
PAUSE_S = 0.02
TIMEOUT_S = 30.0


class Click(NamedTuple):
    """A click on "Move": of which stream, when (wall time), and how long its answer took."""

    key: str
    at: float
    answered_s: float


class Commits:
    """The first commit of each epoch, by stream, from the log of results; loss and disorder counted."""

    def __init__(self) -> None:
        self.first: dict[str, list[float]] = {}
        self.out_of_order = 0
        self.count = 0

    async def read(self, nodes: Cluster) -> None:
        """Read the whole log."""
        last = dict[str, tuple[int, int]]()
        async for logged in nodes.results():
            epoch, before = last.get(logged.key, (0, -1))
            number = int(logged.result.body.strip(b"[]").partition(b",")[0])
            self.out_of_order += number != before + 1
            if logged.epoch > epoch:
                self.first.setdefault(logged.key, []).append(logged.at)
            last[logged.key] = logged.epoch, number
            self.count += 1

    def move_ms(self, click: Click) -> float:
        """From a click to the first commit of the next epoch."""
        return 1000 * (min(at for at in self.first[click.key] if at > click.at) - click.at)


async def move_all(nodes: Cluster, operator: Operator, moves: int) -> list[Click]:
    """Move one stream after another to the node that doesn't have it."""
    coordinator, clock = nodes.services.coordinator(), nodes.services.clock
    names = {node.member: node.name for node in nodes.nodes}
    clicks = []
    for number in range(moves):
        key = f"{STREAM}/k{number % KEYS}"
        claim = await coordinator.lookup(key)
        assert claim is not None
        (target,) = (name for member, name in names.items() if member != claim.member)
        at, begun_at = clock.wall(), clock.monotonic()
        await operator.click("/stream/move", key=key, to=target)
        clicks.append(Click(key, at, clock.monotonic() - begun_at))
        await asyncio.sleep(PAUSE_S)
    return clicks


async def measure(report: Report, moves: int) -> None:
    """All figures."""
    keys = [f"k{number}" for number in range(KEYS)]
    async with cluster("benchmarks.apps:live", slots=2) as nodes:
        await nodes.start_all(NODES)
        environment = nodes.config.environment() | {"HOLDFAST_LOG_LEVEL": "warning"}
        async with program("holdfast", "console", "--port", "0", environment=environment) as console:
            line = (await console.output.readline()).decode()
            async with entered(line) as operator, operator.session.get("/events"):
                traffic = Traffic(nodes, keys)
                sending = asyncio.create_task(traffic.run())
                await asyncio.sleep(SETTLE_S)
                clicks = await move_all(nodes, operator, moves)
                await asyncio.sleep(SETTLE_S)
                traffic.end()
                await sending
        await nodes.drained(STREAM, TIMEOUT_S)
        commits = Commits()
        await commits.read(nodes)
        nodes.kill()
    moved = [commits.move_ms(click) for click in clicks]
    answered = [1000 * click.answered_s for click in clicks]
    report.figure("move_ms", percentile(moved, 99), "< 500")
    report.figure("move_p50_ms", median(moved))
    report.figure("answer_p50_ms", median(answered))
    report.figure("answer_p99_ms", percentile(answered, 99))
    report.figure("lost", len(traffic.sent_at) - commits.count, "0")
    report.figure("out_of_order", commits.out_of_order, "0")
    report.detail["move_max_ms"] = round(max(moved), 1)


def main() -> None:
    """Measure and report."""
    parser = argparse.ArgumentParser(prog="benchmarks move", description=__doc__)
    parser.add_argument("--full", action="store_true", help="more moves")
    parser.add_argument("--moves", type=int, help="default 150, with --full 1,000")
    asked = parser.parse_args()
    moves = asked.moves or (1000 if asked.full else 150)
    report = Report("move")
    report.say(f"move: {NODES} nodes, {KEYS} streams at {1 / PACE_S:g} messages/s each, {moves} clicks")
    asyncio.run(measure(report, moves))
    report.end(["aiohttp"], moves=moves, streams=KEYS, pace_s=PACE_S, durability="full")
