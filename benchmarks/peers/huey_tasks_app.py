"""The Huey app with results, imported by its consumer, on Redis or, where ``BENCHMARK_HUEY`` names a file, on
SQLite with ``fsync=True``."""

from __future__ import annotations

import os
import sqlite3
from typing import Any

from huey import RedisHuey, SqliteHuey

from benchmarks.peers.task_redis import QUEUE_URL, RedisDriver, parked

QUEUE, RESULTS = "huey.redis.bench", "huey.results.bench"
FILE = os.environ.get("BENCHMARK_HUEY", "")

huey: Any = SqliteHuey("bench", filename=FILE, fsync=True) if FILE else RedisHuey("bench", url=QUEUE_URL)


def nothing(n: int) -> int:
    """Does nothing."""
    return n


task: Any = huey.task()(nothing)


class OnRedis(RedisDriver):
    """As ``task_driver`` needs it."""

    keys = (QUEUE,)

    def enqueue(self, count: int) -> None:
        """What the client does for each task, without a round trip for each."""
        self.redis.delete(RESULTS)
        with self.redis.pipeline() as together:
            for n in range(count):
                together.lpush(parked(QUEUE), huey.serialize_task(task.s(n)))
            together.execute()

    def is_done(self) -> bool:
        """True once all results are there: a task is deleted before it runs."""
        return int(self.redis.hlen(RESULTS)) >= self.expected

    def once(self, n: int) -> None:
        """Send one, and wait for its result."""
        _once(n)


class OnSqlite:
    """The same on SQLite."""

    def __init__(self) -> None:
        self._expected = 0
        self._connection = sqlite3.connect(FILE, timeout=30, isolation_level=None)

    def park(self, count: int) -> None:
        """Enqueue under another name."""
        self._expected = count
        with huey.storage.db(commit=True) as cursor:
            cursor.execute("DELETE FROM kv")
            rows = [("parked", huey.serialize_task(task.s(n))) for n in range(count)]
            cursor.executemany("INSERT INTO task (queue, data, priority) VALUES (?, ?, 0)", rows)

    def show(self) -> None:
        """Give them the name that is worked on."""
        self._connection.execute("UPDATE task SET queue = 'bench' WHERE queue = 'parked'")

    def is_done(self) -> bool:
        """True once all results are there: a task is deleted before it runs."""
        (count,) = self._connection.execute("SELECT count(*) FROM kv").fetchone()
        return int(count) >= self._expected

    def once(self, n: int) -> None:
        """Send one, and wait for its result."""
        _once(n)


def _once(n: int) -> None:
    task(n).get(blocking=True, timeout=30, backoff=1, max_delay=0.002)


Driver = OnSqlite if FILE else OnRedis
