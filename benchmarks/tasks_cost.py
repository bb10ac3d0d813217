"""SQS calls for each task, from its sending to the reading of its outcome, against one call for each step.

Producer, node and reader of outcomes all reach the server through a tap that counts calls there. Without
batches a task takes six: send, receive and delete, for the task and for its outcome. Two loads, one after the
other:

- load: tasks come as fast as they can be sent. From here: ``calls_per_task``.
- paced: tasks come a few at a time at an even pace. From here: ``paced_calls_per_task``.

Run as ``python -m benchmarks.tasks_cost``.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import time
from collections import Counter
from functools import partial
from typing import Any

from benchmarks.cluster import cluster
from benchmarks.frames import sqs_server
from benchmarks.peers.sqs_unbatched import Unbatched
from benchmarks.report import Report
from benchmarks.tap import Tap, tap
from holdfast.rules.tasks.task import State
from holdfast.tasks.opening import make_producer
from holdfast.tasks.order import Order
from holdfast.tasks.producer import Producer
from simulator.servers import RedisServer

TIMEOUT_S = 120.0
TOGETHER = 500
"""Tasks that one call of ``send`` takes, under load."""

DOLLARS_PER_MILLION_CALLS = 0.40
"""List price of requests to a standard queue."""


class Reader:
    """Reads and acknowledges all outcomes."""

    def __init__(self, producer: Producer) -> None:
        self._producer = producer
        self._read = 0
        self._came = asyncio.Event()
        self._reading = asyncio.create_task(self._run())

    async def until(self, count: int) -> None:
        """Wait until so many have been read, in all."""
        async with asyncio.timeout(TIMEOUT_S):
            while self._read < count:
                self._came.clear()
                await self._came.wait()

    async def close(self) -> None:
        """Acknowledge what was read, and stop."""
        self._reading.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._reading

    async def _run(self) -> None:
        async with contextlib.aclosing(self._producer.briefs()) as briefs:
            async for brief in briefs:
                if brief.outcome.state is not State.SUCCEED:
                    raise AssertionError(f"{brief.outcome}")
                brief.ack()
                self._read += 1
                self._came.set()


async def holdfast(asked: argparse.Namespace, counting: Tap, redis_url: str) -> dict[str, Counter[str]]:
    """The calls of each load."""
    async with cluster(
        "benchmarks.task_apps:bare",
        queue_url="sqs://eu-west-1/",
        create_queues=True,
        coordinator_url=redis_url,
        state_url=redis_url,
        task_slots=asked.slots,
    ) as nodes:
        await nodes.start_all(asked.nodes)
        producer = make_producer(nodes.services, "bare")
        calls: dict[str, Counter[str]] = {}
        for name, count, load in (
            ("load", asked.tasks, partial(at_once, producer, asked.tasks)),
            ("paced", asked.paced, partial(paced, producer, asked.paced, asked.per_s, asked.each)),
        ):
            before = await counting.counts()
            reader = Reader(producer)
            await load()
            await reader.until(count)
            await reader.close()
            calls[name] = await counting.counts() - before
        nodes.kill()
        return calls


async def at_once(producer: Producer, count: int) -> None:
    """As fast as it goes."""
    for start in range(0, count, TOGETHER):
        numbers = range(start, min(start + TOGETHER, count))
        await producer.send([Order(task_type="noop", body={"n": n}) for n in numbers])


async def paced(producer: Producer, count: int, per_s: float, each: int) -> None:
    """``each`` at a time."""
    due_at = time.monotonic()
    for start in range(0, count, each):
        numbers = range(start, min(start + each, count))
        await producer.send([Order(task_type="noop", body={"n": n}) for n in numbers])
        due_at += each / per_s
        await asyncio.sleep(max(0.0, due_at - time.monotonic()))


async def unbatched(tasks: int, counting: Tap) -> Counter[str]:
    """The calls without batches."""
    peer = await asyncio.to_thread(Unbatched)
    before = await counting.counts()
    await asyncio.to_thread(peer.run, tasks)
    return await counting.counts() - before


def told(calls: Counter[str], tasks: int) -> dict[str, float]:
    """Calls for each task, by operation."""
    return {name: round(count / tasks, 4) for name, count in sorted(calls.items()) if count}


async def measure(asked: argparse.Namespace, report: Report) -> None:
    """Both sides, then the figures."""
    async with sqs_server() as sqs, RedisServer() as redis, tap(sqs.port) as counting:
        os.environ["AWS_ENDPOINT_URL"] = counting.endpoint
        calls = await holdfast(asked, counting, redis.url)
        calls["unbatched"] = await unbatched(asked.unbatched, counting)
    tasks = {"load": asked.tasks, "paced": asked.paced, "unbatched": asked.unbatched}
    each: dict[str, Any] = {name: told(calls[name], tasks[name]) for name in calls}
    for name, kinds in each.items():
        total = sum(kinds.values())
        kinds_told = ", ".join(f"{kind} {count}" for kind, count in kinds.items())
        dollars = total * DOLLARS_PER_MILLION_CALLS
        report.say(f"  {name}: {total:.3f} calls a task, ${dollars:.2f} a million ({kinds_told})")
    report.figure("calls_per_task", calls["load"].total() / asked.tasks, "≤ 0.7")
    report.figure("paced_calls_per_task", calls["paced"].total() / asked.paced)
    report.figure("unbatched_calls_per_task", calls["unbatched"].total() / asked.unbatched, "6")
    report.end(["boto3", "redis"], calls_per_task=each, durability="Redis and SQS server in memory, for both")


def main() -> None:
    """Measure and report."""
    parser = argparse.ArgumentParser(prog="benchmarks.tasks_cost", description=__doc__)
    parser.add_argument("--full", action="store_true", help="20,000 tasks")
    parser.add_argument("--tasks", type=int, help="as fast as they can be sent (default 4,000)")
    parser.add_argument("--paced", type=int, default=1000, help="tasks at an even pace")
    parser.add_argument("--per-s", type=float, default=200.0, help="of those")
    parser.add_argument("--each", type=int, default=5, help="of those that are sent together")
    parser.add_argument("--unbatched", type=int, default=200, help="tasks of the peer")
    parser.add_argument("--nodes", type=int, default=1)
    parser.add_argument("--slots", type=int, default=3, help="of each node")
    asked = parser.parse_args()
    asked.tasks = asked.tasks or (20_000 if asked.full else 4000)
    report = Report("tasks_cost")
    report.say(
        f"tasks-cost: {asked.tasks:,} no-op tasks at once, {asked.paced:,} at {asked.per_s:g}/s,"
        f" {asked.nodes} node(s) with {asked.slots} slots"
    )
    asyncio.run(measure(asked, report))


if __name__ == "__main__":
    main()
