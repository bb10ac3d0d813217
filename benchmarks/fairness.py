"""What a customer with a thousand large tasks costs fifty others with ten small ones each.

One node with sixteen slots. The large tasks, 0.3 s each, are sent first; once they run, all small ones, 20 ms
each, are sent at once, several times over. ``small_p99_ratio`` compares the time from their sending to their
outcomes with that in a system where there is nothing else to do, in the same run. The task type names the
customer as its group, and lets one customer have a quarter of the slots (``group_limit``); next to it stands
the same without groups.

Run as ``python -m benchmarks.fairness``.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from benchmarks.cluster import cluster, until
from benchmarks.report import Report, percentile
from benchmarks.task_apps import GROUP_LIMIT
from holdfast.ports.queue import Queue
from holdfast.rules.tasks.task import State
from holdfast.tasks.names import task_queue
from holdfast.tasks.opening import make_producer
from holdfast.tasks.order import Order
from holdfast.tasks.producer import Producer

LARGE_S, SMALL_S = 0.3, 0.02
SLOTS = 16
LARGE = "large"
TIMEOUT_S = 180.0


@dataclass(frozen=True, slots=True)
class Plan:
    """``large`` tasks of one customer, and ``customers`` with ``each`` small ones, which come ``rounds``
    times."""

    large: int
    customers: int
    each: int
    rounds: int


@dataclass(frozen=True, slots=True)
class Took:
    """The times of all small tasks, by round: with nothing else to do, and beside the large ones."""

    alone_ms: Sequence[Sequence[float]]
    beside_ms: Sequence[Sequence[float]]

    @property
    def p99s_ms(self) -> tuple[float, float]:
        """In the middle round of each."""
        alone, beside = (
            median(percentile(ms, 99) for ms in rounds) for rounds in (self.alone_ms, self.beside_ms)
        )
        return alone, beside


class Customers:
    """Those with small tasks."""

    def __init__(self, producer: Producer, plan: Plan) -> None:
        self._producer = producer
        self._orders = [
            Order(task_type="report", body={"customer": f"c{n}", "seconds": SMALL_S})
            for _ in range(plan.each)
            for n in range(plan.customers)
        ]

    async def round(self) -> list[float]:
        """How long each task took from sending to outcome."""
        sent_at = time.monotonic()
        wanted = set(await self._producer.send(self._orders))
        took_ms = []
        async with (
            asyncio.timeout(TIMEOUT_S),
            contextlib.aclosing(self._producer.briefs()) as briefs,
        ):
            while wanted:
                brief = await anext(briefs)
                if brief.outcome.state is not State.SUCCEED:
                    raise AssertionError(f"{brief.outcome}")
                brief.ack()
                if brief.outcome.trace_id in wanted:
                    wanted.remove(brief.outcome.trace_id)
                    took_ms.append(1000 * (time.monotonic() - sent_at))
        return took_ms


async def measure(app: str, plan: Plan) -> Took:
    """One node of the app."""
    async with cluster(f"benchmarks.task_apps:{app}", task_slots=SLOTS) as nodes:
        await nodes.start_all(1)
        producer = make_producer(nodes.services, app)
        customers = Customers(producer, plan)
        await customers.round()
        alone_ms = [await customers.round() for _ in range(plan.rounds)]
        large = [Order(task_type="report", body={"customer": LARGE, "seconds": LARGE_S})] * plan.large
        await producer.send(large)
        await _until_begun(nodes.services.queue(task_queue(app, "report")))
        # Without groups each round waits for all large tasks: one is enough.
        rounds = plan.rounds if app == "grouped" else 1
        beside_ms = [await customers.round() for _ in range(rounds)]
        nodes.kill()
        return Took(alone_ms, beside_ms)


async def _until_begun(queue: Queue) -> None:
    async def has_begun() -> bool:
        depth = await queue.depth()
        return bool(depth.in_flight) or not depth.ready

    await until(has_begun, TIMEOUT_S)
    await asyncio.sleep(LARGE_S)


def main() -> None:
    """Measure and report."""
    parser = argparse.ArgumentParser(prog="benchmarks.fairness", description=__doc__)
    parser.add_argument("--full", action="store_true", help="more rounds")
    parser.add_argument("--large", type=int, default=1000)
    parser.add_argument("--customers", type=int, default=50)
    parser.add_argument("--each", type=int, default=10)
    parser.add_argument("--rounds", type=int, help="the median counts (default 3, with --full 9)")
    asked = parser.parse_args()
    plan = Plan(asked.large, asked.customers, asked.each, asked.rounds or (9 if asked.full else 3))
    report = Report("fairness")
    report.say(
        f"fairness: {plan.large:,} tasks of {LARGE_S:g} s of one customer, then {plan.customers} others with"
        f" {plan.each} of {SMALL_S:g} s each; {SLOTS} slots, group_limit {GROUP_LIMIT}"
    )
    found = {app: asyncio.run(measure(app, plan)) for app in ("grouped", "ungrouped")}
    for app, took in found.items():
        alone, beside = took.p99s_ms
        report.say(f"  {app}: p99 alone {alone:,.0f} ms, beside the large ones {beside:,.0f} ms")
    alone, beside = found["grouped"].p99s_ms
    report.figure("small_p99_ratio", beside / alone, "≤ 2")
    report.figure("small_p99_ms", beside)
    report.figure("small_alone_p99_ms", alone)
    alone, beside = found["ungrouped"].p99s_ms
    report.figure("ungrouped_small_p99_ratio", beside / alone)
    report.figure("ungrouped_small_p99_ms", beside)
    report.end(
        [],
        large=plan.large,
        large_s=LARGE_S,
        customers=plan.customers,
        each=plan.each,
        small_s=SMALL_S,
        slots=SLOTS,
        group_limit=GROUP_LIMIT,
        p99s_ms={
            app: {
                "alone": [round(percentile(ms, 99), 1) for ms in took.alone_ms],
                "beside": [round(percentile(ms, 99), 1) for ms in took.beside_ms],
            }
            for app, took in found.items()
        },
        durability="SQLite, durability=full",
    )


if __name__ == "__main__":
    main()
