"""Frames a second from SQS with one node, against consumers made with boto3 and aiobotocore.

All receive, process and delete the same no-op frames over the same server. The frames gather while whoever
takes them stands still; the clock runs from when it goes on until the last is deleted. The consumers do no
more than that, each in one process with its best number of threads or tasks. The node also orders them, and
stores state and results in Redis, in two processes (node and slot).

``server_cpu`` is how busy the server was, which is the limit on some machines.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import psutil

from benchmarks.cluster import cluster, program
from benchmarks.frames import FrameQueue, sqs_server
from benchmarks.peers.sqs_consumer import SETTINGS
from benchmarks.report import Report
from simulator.servers import RedisServer, Server

VIDEOS = 8
"""What one of four nodes has of 32."""

VISIBILITY_S = 60
TTL_S = 60.0
"""Of the node's membership: it stands still while frames are sent."""

TIMEOUT_S = 120.0
WARM_UP = 10
PEERS: Mapping[str, Sequence[int]] = {"boto3": (1, 2, 4), "aiobotocore": (2, 8, 4, 16, 32)}
"""Threads or tasks that are tried, the best first."""


@dataclass(frozen=True, slots=True)
class Rate:
    """What a contender reached. ``server_cpu`` is the server's share of one core meanwhile."""

    per_s: float
    cpu_us: float
    server_cpu: float

    def numbers(self) -> dict[str, float]:
        """For the report."""
        return {
            "frames_per_s": round(self.per_s),
            "cpu_us_per_frame": round(self.cpu_us, 1),
            "server_cpu": round(self.server_cpu, 2),
        }


class Usage:
    """Processor time of processes that live throughout, with their children."""

    def __init__(self, *pids: int) -> None:
        roots = [psutil.Process(pid) for pid in pids]
        self._processes = [process for root in roots for process in (root, *root.children(recursive=True))]
        self._before_s = self._now_s()

    def spent_s(self) -> float:
        """Since it was made."""
        return self._now_s() - self._before_s

    def _now_s(self) -> float:
        times = [process.cpu_times() for process in self._processes]
        return sum(spent.user + spent.system for spent in times)


async def gathered(queue: FrameQueue, frames: int, pid: int) -> float:
    """Let frames gather while the process that takes them stands still; returns when it goes on."""
    os.kill(pid, signal.SIGSTOP)
    try:
        await queue.backlog(frames)
        return time.monotonic()
    finally:
        os.kill(pid, signal.SIGCONT)


async def node(server: Server, name: str, frames: int, slots: int) -> Rate:
    """One node of Holdfast, on a queue of that name."""
    async with (
        RedisServer() as store,
        FrameQueue(name, VIDEOS, visibility_s=VISIBILITY_S) as queue,
        cluster(
            "benchmarks.apps:cameras",
            queue_url=queue.url,
            coordinator_url=store.url,
            state_url=store.url,
            visibility_s=VISIBILITY_S,
            ttl_s=TTL_S,
            slots=slots,
        ) as nodes,
    ):
        await nodes.start_all(1)
        await queue.backlog(VIDEOS * WARM_UP)
        await queue.empty(TIMEOUT_S)
        begin_at = await gathered(queue, frames, nodes.nodes[0].pid)
        ours, servers = Usage(nodes.nodes[0].pid), Usage(server.pid)
        await queue.empty(TIMEOUT_S)
        took_s = time.monotonic() - begin_at
        rate = Rate(frames / took_s, 1e6 * ours.spent_s() / frames, servers.spent_s() / took_s)
        nodes.kill()
        return rate


async def consumer(server: Server, name: str, queue_name: str, frames: int, workers: int) -> Rate:
    """A consumer with so many threads or tasks."""
    async with (
        FrameQueue(queue_name, VIDEOS, visibility_s=VISIBILITY_S) as queue,
        program(f"benchmarks.peers.sqs_{name}", queue.url, str(frames), str(workers)) as started,
    ):
        await started.output.readline()
        begin_at = await gathered(queue, frames, started.pid)
        servers = Usage(server.pid)
        ended = json.loads(await asyncio.wait_for(started.output.readline(), TIMEOUT_S))
        took_s = ended["end_at"] - begin_at
        return Rate(frames / took_s, 1e6 * ended["cpu_s"] / frames, servers.spent_s() / took_s)


async def measure(frames: int, slots: int, rounds: int, full: bool, report: Report) -> None:
    """All contenders, then the figures."""
    rates: dict[str, list[Rate]] = {}
    async with sqs_server() as server:
        for number in range(rounds):
            for name, rate in contenders(server, frames, slots, full, number).items():
                rates.setdefault(name, []).append(await rate())
                report.say(f"    {name} {rates[name][-1].numbers()}")
    best = {name: max(many, key=lambda rate: rate.per_s) for name, many in rates.items()}
    ours = best.pop("holdfast")
    name, theirs = max(best.items(), key=lambda item: item[1].per_s)
    report.figure("frames_per_s", ours.per_s)
    report.figure("best_consumer_per_s", theirs.per_s)
    report.figure("vs_best_consumer", ours.per_s / theirs.per_s, "≥ 2")
    report.figure("server_cpu", ours.server_cpu)
    report.detail |= {
        "best_consumer": name,
        "rates": {name: [rate.numbers() for rate in many] for name, many in rates.items()},
    }


def contenders(
    server: Server, frames: int, slots: int, full: bool, number: int
) -> dict[str, Callable[[], Awaitable[Rate]]]:
    """How each is measured, by its name."""
    rated: dict[str, Callable[[], Awaitable[Rate]]] = {}
    rated["holdfast"] = partial(node, server, f"node-{number}", frames, slots)
    for name, many in PEERS.items():
        for workers in many if full else many[:2]:
            queue = f"{name}-{workers}-{number}"
            rated[f"{name}, {workers}"] = partial(consumer, server, name, queue, frames // 4, workers)
    return rated


def main() -> None:
    """Measure and report."""
    parser = argparse.ArgumentParser(prog="benchmarks sqs-throughput", description=__doc__)
    parser.add_argument("--full", action="store_true", help="more rounds, more threads and tasks")
    parser.add_argument("--frames", type=int, default=40_000, help="a quarter for each consumer")
    parser.add_argument("--slots", type=int, default=1, help="of the node")
    parser.add_argument("--rounds", type=int, help="the best counts (default 1, with --full 3)")
    asked = parser.parse_args()
    rounds = asked.rounds or (3 if asked.full else 1)
    report = Report("sqs-throughput")
    report.say(
        f"sqs-throughput: {asked.frames:,} no-op frames of {VIDEOS} videos;"
        f" one node with {asked.slots} slot(s)"
    )
    report.say(f"  consumers: {SETTINGS}")
    asyncio.run(measure(asked.frames, asked.slots, rounds, asked.full, report))
    report.end(
        ["boto3", "aiobotocore", "redis"],
        frames=asked.frames,
        videos=VIDEOS,
        slots=asked.slots,
        durability="SQS server and Redis in memory",
    )
