"""Streams and tasks a second with Redis as the only service, against Dramatiq on the same Redis.

One rule for all: the messages are enqueued, the workers run and are warm, and then all messages show at one
instant. The clock stops when the last one is done and off the queue. Contenders take turns. Each has a Redis
of its own, started alike, with an append-only file, and at most as many worker processes as the other:
Holdfast's are its nodes and their slots.

Streams: Holdfast commits place and result of each message in the order of its key, and a run is refused
unless all results are there and in order. Dramatiq orders nothing and keeps no results. Tasks: both keep
results, and the clock stops when the last one can be read.

Rates count on a machine that has nothing else to do; where it has, the processor time for one message, of all
processes and the server, says more (``_by_cpu``).

Run as ``python -m benchmarks.redis_queue``.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from statistics import median
from typing import NamedTuple

from benchmarks import streams, tasks
from benchmarks.cluster import Spent, cluster
from benchmarks.peers import dramatiq_redis, task_queues
from benchmarks.report import Report
from simulator.servers import RedisServer

BUDGET_S = 45.0
TRIED = {
    "streams": ((4, 4, 1000), (2, 8, 1000), (3, 4, 1000), (4, 8, 1000), (4, 4, 200)),
    "tasks": ((4, 8, 100), (2, 8, 100), (4, 4, 100), (4, 8, 1000), (4, 16, 200)),
}
"""Processes of Dramatiq, threads of each, and messages that each fetches ahead, the best first."""

ONES = 1
"""Tasks that Dramatiq is given one by one, which is not looked at here."""

REDIS = {
    "everysec": "to disk every second: survives a crash of any process, not quite a power cut",
    "always": "to disk before each answer: survives a power cut",
}


class Pace(NamedTuple):
    """Messages a second, and the processor time of all processes for one, in microseconds."""

    per_s: float
    cpu_us: float


async def streams_of_holdfast(messages: int, keys: int, lead_s: float, fsync: str) -> Pace:
    """In order, and committed."""
    spent = Spent()
    async with RedisServer(appendonly=True, settings={"appendfsync": fsync}) as redis:
        per_s = await streams.holdfast(messages, keys, 1, lead_s, redis.url, spent)
    return Pace(per_s, 1e6 * spent.seconds / messages)


async def tasks_of_holdfast(count: int, fsync: str) -> Pace:
    """With their outcomes."""
    async with (
        RedisServer(appendonly=True, settings={"appendfsync": fsync}) as redis,
        cluster("benchmarks.task_apps:bare", url=redis.url, task_slots=1) as nodes,
    ):
        await nodes.start_all(streams.NODES)
        site, spent = tasks.Site(nodes), Spent()
        await site.rate(tasks.WARM_UP)
        per_s = await site.rate(count, spent)
        nodes.kill()
        return Pace(per_s, 1e6 * spent.seconds / count)


def streams_of_dramatiq(
    messages: int, server: Sequence[str], processes: int, threads: int, prefetch: int
) -> Pace:
    """Neither in order nor with results."""
    spent = Spent()
    per_s = dramatiq_redis.measure(
        messages, processes, threads=threads, prefetch=prefetch, server=server, spent=spent
    )
    return Pace(per_s, 1e6 * spent.seconds / messages)


def tasks_of_dramatiq(count: int, server: Sequence[str], processes: int, threads: int, prefetch: int) -> Pace:
    """With results."""
    measured = task_queues.measure(task_queues.dramatiq(threads, prefetch), count, processes, ONES, server)
    return Pace(measured.per_s, measured.cpu_us)


def take_turns(
    contenders: Mapping[str, Callable[[], Pace]], rounds: int, budget_s: float, report: Report
) -> dict[str, list[Pace]]:
    """All contenders, for as many rounds as fit into ``budget_s``, at least one."""
    begun_at = time.monotonic()
    paces: dict[str, list[Pace]] = {name: [] for name in contenders}
    for done in range(rounds):
        if done and (time.monotonic() - begun_at) * (done + 1) / done > budget_s:
            break
        for name, contend in contenders.items():
            paces[name].append(pace := contend())
            report.say(f"    {name} {pace.per_s:,.0f}/s, {pace.cpu_us:,.0f} µs of processor time each")
    return paces


def main() -> None:
    """Measure and report."""
    parser = argparse.ArgumentParser(prog="benchmarks.redis_queue", description=__doc__)
    parser.add_argument("--full", action="store_true", help="Dramatiq at all settings, and more rounds")
    parser.add_argument("--messages", type=int, default=20_000)
    parser.add_argument("--tasks", type=int, default=10_000, help="of Holdfast; Dramatiq gets half")
    parser.add_argument("--keys", type=int, default=64)
    parser.add_argument("--rounds", type=int, help="at most; the median counts (default 3, with --full 7)")
    parser.add_argument("--lead-s", type=float, default=2.0, help="for sending, before all show")
    parser.add_argument("--appendfsync", choices=REDIS, default="everysec", help="of every Redis")
    parser.add_argument("--only", choices=["holdfast", "streams", "tasks"], help="measure a part")
    asked = parser.parse_args()
    report = Report("redis_queue")
    report.say(
        f"redis-queue: {asked.messages:,} no-op messages of {asked.keys} keys, {asked.tasks:,} no-op tasks;"
        f" Redis with an append-only file, {REDIS[asked.appendfsync]}"
    )
    server = ("--appendonly", "yes", "--appendfsync", asked.appendfsync, "--save", "")
    ours: dict[str, Callable[[], Pace]] = {
        "streams": lambda: asyncio.run(
            streams_of_holdfast(asked.messages, asked.keys, asked.lead_s, asked.appendfsync)
        ),
        "tasks": lambda: asyncio.run(tasks_of_holdfast(asked.tasks, asked.appendfsync)),
    }
    theirs = {
        "streams": partial(streams_of_dramatiq, asked.messages, server),
        "tasks": partial(tasks_of_dramatiq, asked.tasks // 2, server),
    }
    kinds = [asked.only] if asked.only in ours else list(ours)
    contenders: dict[str, Callable[[], Pace]] = {}
    settings: dict[str, tuple[int, int, int]] = {}
    for kind in kinds:
        contenders[f"holdfast {kind}"] = ours[kind]
        if asked.only == "holdfast":
            continue
        settings[kind] = best(kind, theirs[kind], report) if asked.full else TRIED[kind][0]
        contenders[f"dramatiq {kind}"] = partial(theirs[kind], *settings[kind])
    rounds = asked.rounds or (7 if asked.full else 3)
    paces = take_turns(contenders, rounds, math.inf if asked.full or asked.rounds else BUDGET_S, report)
    for kind, target in (("streams", "≥ 1.5"), ("tasks", "≥ 1.2")):
        if kind not in kinds:
            continue
        us = middle(paces[f"holdfast {kind}"])
        report.figure(f"{kind}_per_s", us.per_s)
        if kind in settings:
            them = middle(paces[f"dramatiq {kind}"])
            report.figure(f"{kind}_vs_dramatiq", us.per_s / them.per_s, target)
            report.figure(f"{kind}_vs_dramatiq_by_cpu", them.cpu_us / us.cpu_us, target)
    report.end(
        ["dramatiq", "redis"],
        messages=asked.messages,
        keys=asked.keys,
        tasks=asked.tasks,
        nodes=streams.NODES,
        dramatiq={
            kind: dict(zip(("processes", "threads", "prefetch"), found, strict=True))
            for kind, found in settings.items()
        },
        measured={
            name: [{"per_s": round(pace.per_s), "cpu_us": round(pace.cpu_us)} for pace in some]
            for name, some in paces.items()
        },
        durability=f"Redis for both, append-only, {REDIS[asked.appendfsync]}",
    )


def middle(paces: Sequence[Pace]) -> Pace:
    """The medians."""
    return Pace(median(pace.per_s for pace in paces), median(pace.cpu_us for pace in paces))


def best(kind: str, measure: Callable[[int, int, int], Pace], report: Report) -> tuple[int, int, int]:
    """The settings at which Dramatiq is fastest."""
    rates = {}
    for tried in TRIED[kind]:
        rates[tried] = measure(*tried).per_s
        told = "{} processes, {} threads each, {} fetched ahead".format(*tried)
        report.say(f"    dramatiq {kind}, {told}: {rates[tried]:,.0f}/s")
    return max(rates, key=lambda tried: rates[tried])


if __name__ == "__main__":
    main()
