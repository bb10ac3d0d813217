"""No-op tasks a second, and the time from sending one to its outcome, against task queues.

One rule for all: the tasks are enqueued, the workers run and are warm, and then all tasks show at one
instant. The clock stops when the last one is acknowledged and its result can be read. Then single tasks are
sent, each after the result of the one before. Every contender has the same number of worker processes;
Holdfast's are its nodes and their slots, which isolate each task from its node. Every contender keeps
results, and is compared with Holdfast at the same durability: what is on Redis with an append-only file (to
disk every second) with ``durability=normal``, which both survive the crash of any process; with ``--on
postgres`` what is on the same PostgreSQL, where both survive a power cut.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import math
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from statistics import median
from typing import Any

from benchmarks.cluster import Cluster, Spent, cluster
from benchmarks.peers.task_queues import QUEUES, Measured
from benchmarks.peers.task_queues import measure as measure_peer
from benchmarks.report import Report, percentile
from holdfast.rules.tasks.task import State
from holdfast.tasks.names import event_queue, task_queue
from holdfast.tasks.opening import make_producer
from holdfast.tasks.order import Order
from holdfast.tasks.producer import Brief, Producer
from simulator.servers import PostgresqlServer

APP, TYPE = "bare", "noop"
TARGETS = {"celery": "> 1", "dramatiq": "> 1", "saq": "> 1", "procrastinate": "≥ 3", "pgqueuer": "≥ 1"}
TIMEOUT_S = 120.0
BUDGET_S = 40.0
CHECK_S = 0.02
WARM_UP = 400
CHUNK = 500
"""Tasks that are sent together: the time until they become visible is computed for each batch."""

LEAD_S, LEADS = 0.3, 3.0
"""Tasks show so long after their sending begins, and so many times longer than it should take."""

DURABLE = {
    "normal": "SQLite (WAL), durability=normal: survives a crash of any process, a power cut takes back the"
    " last moments",
    "full": "SQLite (WAL), durability=full, the default: outcomes are confirmed by the disk before a task is"
    " deleted",
    "postgres": "PostgreSQL with fsync and synchronous_commit, durability as for SQLite in full",
}


class Site:
    """An app's node on a cluster's services, and its producer."""

    def __init__(self, nodes: Cluster) -> None:
        self._nodes = nodes
        self._producer: Producer = make_producer(nodes.services, APP)
        self._clock = nodes.services.clock
        self._briefs = nodes.services.queue(event_queue(APP))
        self._sending_s = 1e-3

    async def rate(self, count: int, spent: Spent | None = None) -> float:
        """Tasks a second, of so many that show at one instant. Their outcomes are left to be read. ``spent``
        is from then until they are done."""
        left_before = (await self._briefs.depth()).ready
        sends_at = self._clock.monotonic()
        begin_at = sends_at + LEAD_S + LEADS * count * self._sending_s
        for start in range(0, count, CHUNK):
            delay_s = begin_at - self._clock.monotonic()
            if delay_s <= 0:
                raise RuntimeError(f"sending a task took longer than {LEADS * self._sending_s:g} s")
            numbers = range(start, min(start + CHUNK, count))
            await self._producer.send(
                [Order(task_type=TYPE, body={"n": n}, delay_s=delay_s) for n in numbers]
            )
        self._sending_s = (self._clock.monotonic() - sends_at) / count
        await self._clock.sleep(begin_at - self._clock.monotonic())
        if spent is not None:
            spent.begin()
        end_at = await self._nodes.drained(task_queue(APP, TYPE), TIMEOUT_S, CHECK_S)
        if spent is not None:
            spent.end()
        depth = await self._briefs.depth()
        if depth.ready != left_before + count:
            raise AssertionError(f"{depth.ready - left_before} outcomes of {count} tasks can be read")
        return count / (end_at - begin_at)

    async def one_by_one(self, count: int) -> tuple[list[float], list[float]]:
        """Of single tasks, from before each is sent: to its outcome, and to its begin, in milliseconds. All
        that lies unread is read before."""
        latencies_ms, pick_ups_ms = [], []
        async with contextlib.aclosing(self._producer.briefs(follow=False)) as unread:
            async for brief in unread:
                _check(brief).ack()
        async with contextlib.aclosing(self._producer.briefs()) as briefs:
            for n in range(count):
                begin_at, sent_at = time.monotonic(), self._clock.wall()
                (trace,) = await self._producer.send([Order(task_type=TYPE, body={"n": n})])
                brief = _check(await anext(briefs))
                latencies_ms.append(1000 * (time.monotonic() - begin_at))
                pick_ups_ms.append(1000 * (brief.outcome.started_at - sent_at))
                if brief.outcome.task_id != trace:
                    raise AssertionError(
                        f"the outcome of {brief.outcome.task_id} came, and not that of {trace}"
                    )
                brief.ack()
        return latencies_ms, pick_ups_ms


def _check(brief: Brief) -> Brief:
    if brief.outcome.state is not State.SUCCEEDED:
        raise AssertionError(f"{brief.outcome}")
    return brief


@contextlib.asynccontextmanager
async def services(kind: str) -> AsyncIterator[dict[str, Any]]:
    """Settings that name them: ``normal`` or ``full`` on SQLite, or ``postgres``."""
    if kind == "postgres":
        async with PostgresqlServer(fsync=True) as server:
            yield {"url": server.url}
    else:
        yield {"durability": kind}


async def holdfast(kind: str, tasks: int, count: int, slots: int, ones: int) -> Measured:
    """So many nodes, each with so many slots."""
    async with (
        services(kind) as settings,
        cluster("benchmarks.task_apps:bare", task_slots=slots, **settings) as nodes,
    ):
        await nodes.start_all(count)
        site = Site(nodes)
        await site.rate(WARM_UP)
        per_s = await site.rate(tasks)
        latencies_ms, pick_ups_ms = await site.one_by_one(ones)
        measured = Measured(per_s, latencies_ms, pick_ups_ms=pick_ups_ms)
        nodes.kill()
        return measured


@dataclass(slots=True)
class Rounds:
    """What a contender took, in all rounds."""

    rates: list[float] = field(default_factory=list)
    latencies_ms: list[float] = field(default_factory=list)
    pick_ups_ms: list[float] = field(default_factory=list)

    @property
    def per_s(self) -> float:
        """Tasks a second in the middle round."""
        return median(self.rates)

    def numbers(self) -> dict[str, Any]:
        """All of it, for the report."""
        return {
            "tasks_per_s": [round(rate) for rate in self.rates],
            "p50_ms": round(median(self.latencies_ms), 2),
            "p99_ms": round(percentile(self.latencies_ms, 99), 2),
        }


Contend = Callable[[], Measured]


def measure(
    contenders: Mapping[str, Contend], rounds: int, budget_s: float, report: Report
) -> dict[str, Rounds]:
    """All contenders in turn, for as many rounds as fit into ``budget_s``, at least one."""
    begun_at = time.monotonic()
    found = {name: Rounds() for name in contenders}
    for done in range(rounds):
        if done and (time.monotonic() - begun_at) * (done + 1) / done > budget_s:
            break
        for name, contend in contenders.items():
            measured = contend()
            found[name].rates.append(measured.per_s)
            found[name].latencies_ms.extend(measured.latencies_ms)
            found[name].pick_ups_ms.extend(measured.pick_ups_ms)
            report.say(
                f"    {name} {measured.per_s:,.0f}/s; one by one p50 {median(measured.latencies_ms):.1f} ms"
            )
    return found


def main() -> None:
    """Measure and report."""
    parser = argparse.ArgumentParser(prog="benchmarks tasks", description=__doc__)
    parser.add_argument("--on", choices=["sqlite", "postgres"], default="sqlite")
    parser.add_argument("--full", action="store_true", help="more rounds")
    parser.add_argument("--tasks", type=int, default=10_000, help="of Holdfast; slower ones get fewer")
    parser.add_argument("--ones", type=int, default=200, help="tasks that are sent one by one")
    parser.add_argument("--nodes", type=int, default=2, help="the peers have as many processes as all nodes")
    parser.add_argument("--slots", type=int, default=1, help="of each node")
    parser.add_argument("--rounds", type=int, help="the median counts (default up to 3; 5 with --full)")
    parser.add_argument("--peers", nargs="*", choices=QUEUES, help="compare with these only")
    asked = parser.parse_args()
    on_postgres = asked.on == "postgres"
    among = [name for name, queue in QUEUES.items() if queue.database == on_postgres]
    peers = among if asked.peers is None else asked.peers
    processes = asked.nodes * (1 + asked.slots)
    report = Report("tasks-postgres" if on_postgres else "tasks")
    report.say(
        f"{report.name}: {asked.tasks:,} no-op tasks; {processes} processes each"
        f" (Holdfast: {asked.nodes} nodes with {asked.slots} slot(s))"
    )
    contenders: dict[str, Contend] = {}
    durability: dict[str, str] = {}
    for kind in ["postgres"] if on_postgres else ["normal", "full"]:
        ours = partial(holdfast, kind, asked.tasks, asked.nodes, asked.slots, asked.ones)
        contenders[kind] = lambda ours=ours: asyncio.run(ours())  # type: ignore[misc]
        durability[kind] = DURABLE[kind]
    for name in peers:
        contenders[name] = partial(measure_peer, QUEUES[name], asked.tasks, processes, asked.ones)
        durability[name] = QUEUES[name].settings
    for name, text in durability.items():
        report.say(f"  {name}: {text}")
    rounds = asked.rounds or (5 if asked.full else 3)
    found = measure(contenders, rounds, math.inf if asked.full or asked.rounds else BUDGET_S, report)
    quick, safe = (found["postgres"],) * 2 if on_postgres else (found["normal"], found["full"])
    report.figure("tasks_per_s", quick.per_s)
    if not on_postgres:
        report.figure("durable_tasks_per_s", safe.per_s)
    for name in peers:
        report.figure(f"vs_{name}", quick.per_s / found[name].per_s, TARGETS[name])
    p50_ms = {name: median(found[name].latencies_ms) for name in peers}
    report.figure("p50_ms", median(safe.latencies_ms), "< 10")
    report.figure("p99_ms", percentile(safe.latencies_ms, 99))
    report.figure("pick_up_p50_ms", median(safe.pick_ups_ms), "< 10")
    if p50_ms:
        report.figure("p50_vs_best", median(safe.latencies_ms) / min(p50_ms.values()), "≤ 1")
    for name, took_ms in p50_ms.items():
        report.figure(f"{name}_p50_ms", took_ms)
    report.end(
        sorted({package for name in peers for package in QUEUES[name].packages}),
        tasks=asked.tasks,
        tasks_of={name: max(1, round(asked.tasks * QUEUES[name].share)) for name in peers},
        nodes=asked.nodes,
        slots=asked.slots,
        worker_processes=processes,
        measured={name: rounds.numbers() for name, rounds in found.items()},
        durability=durability,
    )
