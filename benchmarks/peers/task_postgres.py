"""What the apps on PostgreSQL share: tasks are parked in a transaction that isn't committed yet."""

from __future__ import annotations

import os
import time
from typing import Any

import psycopg

URL = os.environ.get("BENCHMARK_POSTGRES", "postgresql://postgres@127.0.0.1/postgres")
CHECK_S = 0.001
CHUNK = 1000


class PostgresDriver:
    """Enqueues in one transaction, which ``show`` commits. ``left`` asks whether a task isn't done yet. The
    workers make the ``table``."""

    left = ""
    table = ""

    def __init__(self) -> None:
        self.connection = psycopg.connect(URL, autocommit=True)
        while not self._is_installed():
            time.sleep(CHECK_S)
        self._aside = psycopg.connect(URL)

    def park(self, count: int) -> None:
        """Enqueue, without a commit."""
        for first in range(0, count, CHUNK):
            self.enqueue(self._aside, range(first, min(first + CHUNK, count)))

    def enqueue(self, connection: psycopg.Connection[Any], numbers: range) -> None:
        """Enqueue tasks with these numbers, in one statement."""
        raise NotImplementedError

    def show(self) -> None:
        """Commit."""
        self._aside.commit()

    def _is_installed(self) -> bool:
        row = self.connection.execute("SELECT to_regclass(%s) IS NOT NULL", (self.table,)).fetchone()
        return row == (True,)

    def has_left(self) -> bool:
        """True if a task isn't done."""
        row = self.connection.execute(self.left.encode()).fetchone()
        assert row is not None
        return bool(row[0])

    def is_done(self) -> bool:
        """True once all are done, and their outcomes stored."""
        return not self.has_left()
