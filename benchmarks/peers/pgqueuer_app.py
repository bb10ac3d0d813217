"""PgQueuer on PostgreSQL. As a program it is so many workers, each a process of its own.

The environment says where the server is.
"""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import sys
import time
from datetime import timedelta
from typing import Any

import asyncpg
import psycopg
import uvloop
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgDriver
from pgqueuer.models import Job
from pgqueuer.queries import Queries

from benchmarks.peers.task_postgres import CHECK_S, URL, PostgresDriver

BATCH = 200
"""Jobs per fetch: the fastest of those that were tried (10 to 1000)."""

ENQUEUE = """
INSERT INTO pgqueuer (priority, entrypoint, payload, status)
SELECT 0, 'nothing', convert_to(n::text, 'UTF8'), 'queued' FROM unnest(%s::int[]) AS n"""


class Driver(PostgresDriver):
    """As ``task_driver`` needs it. A job that is done has gone to the log, with its status."""

    table = "pgqueuer"
    left = "SELECT EXISTS (SELECT FROM pgqueuer)"

    def enqueue(self, connection: psycopg.Connection[Any], numbers: range) -> None:
        """As the client does, without the log of what was enqueued."""
        connection.execute(ENQUEUE, (list(numbers),))

    def once(self, n: int) -> None:
        """Send one, and poll for its end."""
        self.enqueue(self.connection, range(n, n + 1))
        while self.has_left():
            time.sleep(CHECK_S)


async def nothing(job: Job) -> None:
    """Does nothing."""


async def work() -> None:
    """Work without end."""
    logging.disable(logging.CRITICAL)
    queue: Any = PgQueuer(AsyncpgDriver(await asyncpg.connect(URL)))
    queue.entrypoint("nothing")(nothing)
    await queue.run(batch_size=BATCH, dequeue_timeout=timedelta(seconds=5))


async def install() -> None:
    """Make the tables, with the settings that PgQueuer advises for a busy queue."""
    queries = Queries(AsyncpgDriver(await asyncpg.connect(URL)))
    await queries.install()
    await queries.optimize_autovacuum()


def run() -> None:
    """One worker."""
    uvloop.run(work())


if __name__ == "__main__":
    asyncio.run(install())
    for _ in range(int(sys.argv[1])):
        multiprocessing.get_context("spawn").Process(target=run).start()
