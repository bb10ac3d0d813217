"""Procrastinate on PostgreSQL. As a program it is so many workers, each a process of its own.

The environment says where the server is.
"""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import sys
import time
from typing import Any

import procrastinate
import psycopg

from benchmarks.peers.task_postgres import CHECK_S, URL, PostgresDriver

CONCURRENCY = 20
CONNECTIONS = 8
"""Concurrent tasks and connections of each process: the fastest of those that were tried (1 to 100 tasks)."""

app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=URL, max_size=CONNECTIONS))


async def nothing(n: int) -> int:
    """Does nothing."""
    return n


task: Any = app.task(nothing, queue="default")


class Driver(PostgresDriver):
    """As ``task_driver`` needs it. A job stays, with its status in it."""

    table = "procrastinate_jobs"
    left = "SELECT EXISTS (SELECT FROM procrastinate_jobs WHERE status IN ('todo', 'doing'))"

    def enqueue(self, connection: psycopg.Connection[Any], numbers: range) -> None:
        """As ``batch_defer`` does."""
        rows = [f"('default', '{task.name}', 0, NULL, NULL, '{{\"n\": {n}}}', NULL)" for n in numbers]
        jobs = f"ARRAY[{', '.join(f'ROW{row}::procrastinate_job_to_defer_v1' for row in rows)}]"
        connection.execute(f"SELECT count(*) FROM unnest(procrastinate_defer_jobs_v1({jobs}))")

    def once(self, n: int) -> None:
        """Send one, and poll for its status: Procrastinate reports no more of outcomes."""
        self.enqueue(self.connection, range(n, n + 1))
        while self.has_left():
            time.sleep(CHECK_S)


async def work() -> None:
    """Work without end."""
    logging.disable(logging.CRITICAL)
    async with app.open_async():
        await app.run_worker_async(concurrency=CONCURRENCY, install_signal_handlers=False)


def install() -> None:
    """Make the tables."""
    with psycopg.connect(URL, autocommit=True) as connection:
        connection.execute(procrastinate.schema.SchemaManager.get_schema())


def run() -> None:
    """One worker."""
    asyncio.run(work())


if __name__ == "__main__":
    install()
    for _ in range(int(sys.argv[1])):
        multiprocessing.get_context("spawn").Process(target=run).start()
