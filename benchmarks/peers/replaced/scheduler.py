"""The design that the outbox replaces: every 500 ms scan all open rows, sort them, group them by device, and
send the first of each that isn't sent yet. Answers close rows one by one, as they come."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Container
from pathlib import Path

POLL_S = 0.5

SCAN = """
SELECT id, device, state FROM holdfast_outbox_command
WHERE outbox = 'faces' AND state IN ('scheduled', 'published')"""


def measure(path: Path, answering: Container[str] | None, seconds: float) -> float:
    """Commands closed a second, of at least two polls, where the devices ``answering`` (None: all) answer."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA synchronous = NORMAL")
    closed, polls, begun_at = 0, 0, time.perf_counter()
    while polls < 2 or time.perf_counter() < begun_at + seconds:
        polled_at = time.perf_counter()
        first: dict[str, tuple[int, str]] = {}
        for number, device, state in sorted(
            connection.execute(SCAN).fetchall(), key=lambda row: (row[1], row[0])
        ):
            first.setdefault(device, (number, state))
        for device, (number, state) in first.items():
            if state == "scheduled":
                _set(connection, number, "published")
            if answering is None or device in answering:
                _set(connection, number, "acknowledged")
                closed += 1
        polls += 1
        time.sleep(max(0.0, POLL_S - (time.perf_counter() - polled_at)))
    rate = closed / (time.perf_counter() - begun_at)
    connection.close()
    return rate


def _set(connection: sqlite3.Connection, number: int, state: str) -> None:
    connection.execute("UPDATE holdfast_outbox_command SET state = ? WHERE id = ?", (state, number))
