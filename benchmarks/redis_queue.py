"""Streams and tasks a second with Redis as the only service, against Dramatiq on the same Redis.

One rule for all: the messages are enqueued, the workers run and are warm, and then all messages show at one
instant. The clock stops when the last one is done and off the queue. Contenders take turns. Each has a Redis
of its own, started alike, with an append-only file, and at most as many worker processes as the other:
Holdfast's are its nodes and their slots.

Streams: Holdfast commits place and result of each message in the order of its key, and a run is refused
unless all results are there and in order. Dramatiq orders nothing and keeps no results. Tasks: both keep
results, and the clock stops when the last one can be read.

Run as ``python -m benchmarks.redis_queue``.
"""

from __future__ import annotations

import argparse
import asyncio
import math
from collections.abc import Callable, Sequence
from functools import partial
from statistics import median

from benchmarks import streams, tasks
from benchmarks.cluster import cluster
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


async def streams_of_holdfast(messages: int, keys: int, lead_s: float, fsync: str) -> float:
    """Messages a second."""
    async with RedisServer(appendonly=True, settings={"appendfsync": fsync}) as redis:
        return await streams.holdfast(messages, keys, 1, lead_s, redis.url)


async def tasks_of_holdfast(count: int, fsync: str) -> float:
    """Tasks a second."""
    async with (
        RedisServer(appendonly=True, settings={"appendfsync": fsync}) as redis,
        cluster("benchmarks.task_apps:bare", url=redis.url, task_slots=1) as nodes,
    ):
        await nodes.start_all(streams.NODES)
        site = tasks.Site(nodes)
        await site.rate(tasks.WARM_UP)
        rate = await site.rate(count)
        nodes.kill()
        return rate


def streams_of_dramatiq(
    messages: int, server: Sequence[str], processes: int, threads: int, prefetch: int
) -> float:
    """Messages a second."""
    return dramatiq_redis.measure(messages, processes, threads=threads, prefetch=prefetch, server=server)


def tasks_of_dramatiq(
    count: int, server: Sequence[str], processes: int, threads: int, prefetch: int
) -> float:
    """Tasks a second."""
    queue = task_queues.dramatiq(threads, prefetch)
    return task_queues.measure(queue, count, processes, ONES, server).per_s


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
    ours: dict[str, Callable[[], float]] = {
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
    contenders: dict[str, Callable[[], float]] = {}
    settings: dict[str, tuple[int, int, int]] = {}
    for kind in kinds:
        contenders[f"holdfast {kind}"] = ours[kind]
        if asked.only == "holdfast":
            continue
        settings[kind] = best(kind, theirs[kind], report) if asked.full else TRIED[kind][0]
        contenders[f"dramatiq {kind}"] = partial(theirs[kind], *settings[kind])
    rounds = asked.rounds or (7 if asked.full else 3)
    rates = streams.measure(contenders, rounds, math.inf if asked.full else BUDGET_S, report)
    for kind, target in (("streams", "≥ 1.5"), ("tasks", "≥ 1.2")):
        if f"holdfast {kind}" in rates:
            report.figure(f"{kind}_per_s", median(rates[f"holdfast {kind}"]))
        if kind in settings:
            ratio = median(rates[f"holdfast {kind}"]) / median(rates[f"dramatiq {kind}"])
            report.figure(f"{kind}_vs_dramatiq", ratio, target)
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
        rates={name: [round(rate) for rate in measured] for name, measured in rates.items()},
        durability=f"Redis for both, append-only, {REDIS[asked.appendfsync]}",
    )


def best(kind: str, measure: Callable[[int, int, int], float], report: Report) -> tuple[int, int, int]:
    """The settings at which Dramatiq is fastest."""
    rates = {}
    for tried in TRIED[kind]:
        rates[tried] = measure(*tried)
        told = "{} processes, {} threads each, {} fetched ahead".format(*tried)
        report.say(f"    dramatiq {kind}, {told}: {rates[tried]:,.0f}/s")
    return max(rates, key=lambda tried: rates[tried])


if __name__ == "__main__":
    main()
