"""Messages a second through one queue in PostgreSQL while transactions are held open, at the end of many
messages against their start.

As long as a transaction is open, PostgreSQL can remove nothing that was deleted since it began. Two are open
here from the beginning to the end: one reads all tables as of one moment, as a dump does, and one has sent a
message that isn't committed yet. A sender stays a little ahead of a receiver, which deletes what it gets;
bodies have 200 bytes, and the disk confirms what is sent.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from statistics import median
from typing import NamedTuple

import psutil
import psycopg
import uvloop

from benchmarks.report import Report
from holdfast.config.sources import load
from holdfast.ports.queue import Outgoing, Queue
from holdfast.wiring.services import Services
from simulator.servers import PostgresqlServer

BATCH = 100
BODY = bytes(200)
AHEAD = 20
"""Batches that are sent and not yet received, at most."""

PARTS = 25
"""The messages pass in so many parts, of which the first is not counted: caches are filled in it."""

COUNTED = 5
"""The median of so many parts counts, at the start and at the end."""

HELD = b"held"
PATIENCE_S = 60.0

SNAPSHOT = "SELECT count(*) FROM holdfast.messages"
DEAD = """
SELECT n_dead_tup, pg_total_relation_size(relid) FROM pg_stat_user_tables
WHERE schemaname = 'holdfast' AND relname = 'messages'"""


@contextlib.asynccontextmanager
async def held_open(url: str) -> AsyncIterator[psycopg.AsyncConnection]:
    """Both transactions; yields the connection of the one that has sent."""
    async with (
        await psycopg.AsyncConnection.connect(url) as reader,
        await psycopg.AsyncConnection.connect(url) as sends,
    ):
        await reader.set_isolation_level(psycopg.IsolationLevel.REPEATABLE_READ)
        await reader.execute(SNAPSHOT)
        await sends.execute(
            "INSERT INTO holdfast.messages (queue, attributes, body) VALUES (%s, %s, %s)",
            ("horizon", "{}", HELD),
        )
        yield sends


async def run(sender: Queue, receiver: Queue, messages: int) -> float:
    """So many messages through the queue; returns the rate."""
    room, batches = asyncio.Semaphore(AHEAD), messages // BATCH
    begin_at = time.monotonic()

    async def send() -> None:
        for _ in range(batches):
            await room.acquire()
            await sender.send([Outgoing(BODY)] * BATCH)

    async def receive() -> None:
        done, deletes = 0, set()
        while done < batches * BATCH:
            deliveries = await receiver.receive(5 * BATCH, PATIENCE_S, PATIENCE_S, "node")
            delete = asyncio.ensure_future(receiver.delete([d.receipt for d in deliveries]))
            deletes.add(delete)
            delete.add_done_callback(deletes.discard)
            before, done = done, done + len(deliveries)
            for _ in range(done // BATCH - before // BATCH):
                room.release()
        await asyncio.gather(*deletes)

    await asyncio.gather(send(), receive())
    return batches * BATCH / (time.monotonic() - begin_at)


def cpu_s(server: PostgresqlServer) -> float:
    """What the server's processes and this one have computed so far."""
    server_process = psutil.Process(server.pid)
    spent = [process.cpu_times() for process in (psutil.Process(), *server_process.children(recursive=True))]
    return sum(each.user + each.system for each in spent)


class Course(NamedTuple):
    """Messages a second, and microseconds of CPU a message, of each part."""

    rates: list[float]
    cpu_us: list[float]

    def end_vs_start(self) -> tuple[float, float]:
        """What the last parts' median is of the first ones'."""
        rates, cpu_us = (median(numbers[-COUNTED:]) / median(numbers[1 : 1 + COUNTED]) for numbers in self)
        return rates, cpu_us


async def measure(messages: int, *, held: bool, report: Report) -> Course:
    """Have all messages pass on a server of its own."""
    async with contextlib.AsyncExitStack() as stack:
        server = await stack.enter_async_context(PostgresqlServer(fsync=True))
        config = load({"queue_url": server.url})
        sender, receiver = [
            (await stack.enter_async_context(Services(config))).queue("horizon") for _ in range(2)
        ]
        await run(sender, receiver, BATCH)
        sends = await stack.enter_async_context(held_open(server.url)) if held else None
        course = Course([], [])
        for _ in range(PARTS):
            before_s = cpu_s(server)
            course.rates.append(await run(sender, receiver, messages // PARTS))
            course.cpu_us.append((cpu_s(server) - before_s) / (messages // PARTS) * 1e6)
        rates = ", ".join(f"{rate:,.0f} ({cpu:.0f} µs)" for rate, cpu in zip(*course, strict=True))
        report.say(f"    {'held' if held else 'free'}: {rates}")
        async with await psycopg.AsyncConnection.connect(server.url) as connection:
            await connection.execute("SELECT pg_stat_force_next_flush()")
            dead, size = await (await connection.execute(DEAD)).fetchone() or (0, 0)
        begin_at = time.monotonic()
        await receiver.depth()
        depth_s = time.monotonic() - begin_at
        report.say(
            f"    {dead:,} dead rows, {size / 2**20:,.0f} MiB; counting what is left took {depth_s:.3f} s"
        )
        if sends is not None:
            await sends.commit()
            committed_at = time.monotonic()
            [delivery] = await receiver.receive(1, PATIENCE_S, PATIENCE_S, "node")
            assert delivery.body == HELD, "another message than the one that was held back"
            report.figure("late_commit_s", time.monotonic() - committed_at)
        return course


def main() -> None:
    """Measure and report."""
    parser = argparse.ArgumentParser(prog="benchmarks postgres-horizon", description=__doc__)
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--full", action="store_true", help="a million messages")
    asked = parser.parse_args()
    messages = 1_000_000 if asked.full else asked.messages
    report = Report("postgres-horizon")
    report.say(f"postgres-horizon: {messages:,} messages while transactions are open, and without")
    held = uvloop.run(measure(messages, held=True, report=report))
    rate, cpu = held.end_vs_start()
    report.figure("messages_per_s", median(held.rates[1:]))
    report.figure("rate_end_vs_start", rate, "≥ 0.7")
    report.figure("cpu_end_vs_start", cpu)
    free = uvloop.run(measure(messages, held=False, report=report))
    report.figure("vs_free", median(held.rates[-COUNTED:]) / median(free.rates[-COUNTED:]))
    report.end(
        ["psycopg"],
        messages=messages,
        batch=BATCH,
        body_bytes=len(BODY),
        durability="fsync on",
    )
