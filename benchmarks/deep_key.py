"""The rate at which a backlog of one key is handled, against the same number of messages over 100 keys.

One node is warm and stands still (SIGSTOP) while the messages are sent. The clock runs from when it goes on
until the last message is off the queue. ``inversions`` counts results of one key that come after a later
one, for a stream without seqs (for SQS's standard queue, which is unordered, for one with seqs).
``set_aside`` counts dead letters, and ``delayed_max`` is the most messages that the queue had delayed.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import signal
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import boto3
import psutil

from benchmarks.cluster import EMPTY_CHECK_S, Cluster, cluster
from benchmarks.frames import sqs_server
from benchmarks.report import Report
from simulator.servers import PostgresqlServer, RedisServer

MESSAGES = 20_000
FULL = 100_000
KEYS = 100
STREAMS = ("seqs", "arrival")
TIMEOUT_S = 300.0
LOOK_S = 0.25
TTL_S = 60.0
"""Of the node's membership: it stands still while messages are sent."""

SERVICES = ("sqlite", "postgres", "redis", "sqs", "sqs-fifo")
TARGETS = {"sqlite": 0.5, "postgres": 0.5, "redis": 0.5, "sqs": 0.25, "sqs-fifo": 0.25}
DURABILITY = {
    "sqlite": "a commit is on the disk before its messages are deleted",
    "postgres": "fsync and synchronous_commit on: the same",
    "redis": "appendonly, fsync every second",
    "sqs": "a local server (fauxqs), with messages in memory; state in SQLite, on the disk",
    "sqs-fifo": "the same",
}


@dataclass(frozen=True, slots=True)
class Run:
    """What came of one backlog."""

    per_s: float
    inversions: int
    set_aside: int
    delayed_max: int
    memory_mb: float


@contextlib.asynccontextmanager
async def settings_of(service: str) -> AsyncIterator[dict[str, Any]]:
    """Run the servers of a service; gives the settings that lead there."""
    async with contextlib.AsyncExitStack() as stack:
        if service == "postgres":
            server = await stack.enter_async_context(PostgresqlServer(fsync=True))
            yield {"url": server.url}
        elif service == "redis":
            yield {"url": (await stack.enter_async_context(RedisServer())).url}
        elif service == "sqlite":
            yield {}
        else:
            await stack.enter_async_context(sqs_server())
            yield {"queue_url": _sqs_queues(fifo=service == "sqs-fifo"), "visibility_s": 60.0}


def _sqs_queues(*, fifo: bool) -> str:
    """Make the queues of the streams, and their dead letter queues; returns the address of all of them."""
    sqs: Any = boto3.client("sqs")
    end = ".fifo" if fifo else ""
    attributes = {"FifoQueue": "true"} if fifo else {}
    for stream in STREAMS:
        for name in (f"{stream}-dlq{end}", f"{stream}{end}"):
            sqs.create_queue(QueueName=name, Attributes=attributes)
    return f"sqs://{os.environ['AWS_DEFAULT_REGION']}/{{stream}}{end}"


async def run(service: str, stream: str, messages: int, keys: int) -> Run:
    """Handle one backlog."""
    async with (
        settings_of(service) as settings,
        cluster("benchmarks.apps:deep", slots=1, ttl_s=TTL_S, **settings) as nodes,
    ):
        await nodes.start_all(1)
        await _send(nodes, service, stream, [_body(key, 0) for key in range(keys)])
        await nodes.drained(stream, TIMEOUT_S)
        process = psutil.Process(nodes.nodes[0].pid)
        before = process.memory_info().rss
        os.kill(process.pid, signal.SIGSTOP)
        try:
            bodies = [_body(n % keys, n // keys) for n in range(keys, keys + messages)]
            await _send(nodes, service, stream, bodies)
        finally:
            os.kill(process.pid, signal.SIGCONT)
        begin_at = time.monotonic()
        delayed = Delayed()
        watching = asyncio.create_task(delayed.watch(nodes, stream))
        try:
            end_at = await nodes.drained(stream, TIMEOUT_S, LOOK_S if "sqs" in service else EMPTY_CHECK_S)
        finally:
            watching.cancel()
        memory_mb = (process.memory_info().rss - before) / 2**20
        depth = await nodes.services.queue(stream).depth()
        done = Run(
            messages / (end_at - begin_at),
            await _inversions(nodes, messages + keys),
            depth.dead,
            delayed.most,
            memory_mb,
        )
        nodes.kill()
        return done


class Delayed:
    """The most messages that a queue had delayed."""

    def __init__(self) -> None:
        self.most = 0

    async def watch(self, nodes: Cluster, stream: str) -> None:
        """Look until cancelled."""
        queue = nodes.services.queue(stream)
        while True:
            self.most = max(self.most, (await queue.depth()).delayed)
            await asyncio.sleep(LOOK_S)


async def _send(nodes: Cluster, service: str, stream: str, bodies: list[bytes]) -> None:
    """Send a backlog, in order if the queue is ordered."""
    if service != "sqs-fifo":
        await nodes.send(stream, bodies, key_of=_key_of)
        return
    sqs: Any = boto3.client("sqs")
    url = sqs.get_queue_url(QueueName=f"{stream}.fifo")["QueueUrl"]
    for start in range(0, len(bodies), 10):
        entries = [
            {
                "Id": str(n),
                "MessageBody": body.decode(),
                "MessageGroupId": _key_of(body),
                "MessageDeduplicationId": body.decode(),
            }
            for n, body in enumerate(bodies[start : start + 10])
        ]
        await asyncio.to_thread(sqs.send_message_batch, QueueUrl=url, Entries=entries)


def _body(key: int, n: int) -> bytes:
    return b'{"key":"k%d","n":%d}' % (key, n)


def _key_of(body: bytes) -> str:
    return str(json.loads(body)["key"])


async def _inversions(nodes: Cluster, messages: int) -> int:
    """Count the results that come after a later one of their key. Raises AssertionError if one is missing or
    stands there twice."""
    wrong, last, seen = 0, dict[str, int](), set[tuple[str, bytes]]()
    async for logged in nodes.results():
        n = int(logged.result.body)
        wrong += n < last.get(logged.key, -1)
        last[logged.key] = max(n, last.get(logged.key, -1))
        seen.add((logged.key, logged.result.body))
    if len(seen) != messages:
        raise AssertionError(f"{len(seen)} results for {messages} messages")
    return wrong


async def measure(report: Report, service: str, messages: int) -> None:
    """One service: the same backlog over many keys, of one key, and of one key without seqs."""
    many = await run(service, "seqs", messages, KEYS)
    one = await run(service, "seqs", messages, 1)
    unnumbered = one if service == "sqs" else await run(service, "arrival", messages, 1)
    name = service.replace("-", "_")
    report.say(f"  {service}: {DURABILITY[service]}")
    report.figure(f"one_key_vs_100_{name}", one.per_s / many.per_s, f"≥ {TARGETS[service]}")
    report.figure(f"one_key_per_s_{name}", one.per_s)
    report.figure(f"inversions_{name}", unnumbered.inversions, "0")
    report.figure(f"set_aside_{name}", one.set_aside + unnumbered.set_aside, "0")
    report.figure(f"delayed_max_{name}", max(one.delayed_max, unnumbered.delayed_max))
    report.figure(f"memory_mb_{name}", max(one.memory_mb, unnumbered.memory_mb))
    report.detail[service] = {"many": round(many.per_s), "one": round(one.per_s)}
    report.detail[service] |= {"unnumbered": round(unnumbered.per_s)}


async def _measure_all(report: Report, services: list[str], messages: int) -> None:
    for service in services:
        await measure(report, service, messages)


def main() -> None:
    """Measure and report."""
    parser = argparse.ArgumentParser(prog="benchmarks deep-key", description=__doc__)
    parser.add_argument("--full", action="store_true", help=f"{FULL:,} messages, not {MESSAGES:,}")
    parser.add_argument("--messages", type=int, help="so many")
    parser.add_argument("--services", default=",".join(SERVICES), help="of these, with commas")
    asked = parser.parse_args()
    messages = asked.messages or (FULL if asked.full else MESSAGES)
    services = [name for name in asked.services.split(",") if name]
    if unknown := set(services) - {*SERVICES}:
        parser.error(f"no such services: {', '.join(sorted(unknown))}")
    report = Report("deep-key")
    report.say(f"deep-key: {messages:,} no-op messages of one key, and over {KEYS} keys; one node")
    asyncio.run(_measure_all(report, services, messages))
    report.end(
        ["psycopg", "redis"],
        messages=messages,
        keys=KEYS,
        durability={name: DURABILITY[name] for name in services},
    )
