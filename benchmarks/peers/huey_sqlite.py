"""Huey on SQLite with ``fsync=True``: durability equal to Holdfast's."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.cluster import ROOT, workplace
from benchmarks.peers.tally import Tally

SETTINGS = (
    "SQLite (WAL), fsync=True; unordered, deleted before it runs, no results; a quarter of the messages, with"
    " as many worker processes or with one, which wait less for each other: the faster counts; no periodic"
    " tasks, an idle worker polls every 5 ms"
)
TIMEOUT_S = 300.0
WARM_UP = 200
PARKED = "parked"

ENQUEUE = """\
import sys
from benchmarks.peers.huey_app import huey, nothing
with huey.storage.db(commit=True) as cursor:
    tasks = (nothing.s(f"k{n % 64}", n // 64) for n in range(int(sys.argv[1])))
    rows = [("parked", huey.serialize_task(task)) for task in tasks]
    cursor.executemany("INSERT INTO task (queue, data, priority) VALUES (?, ?, 0)", rows)
for n in range(int(sys.argv[2])):
    nothing("warm", n)
"""


def measure(messages: int, processes: int) -> float:
    """Tasks a second with so many worker processes, or fewer if that is faster."""
    return max(_rate(messages // 4, workers) for workers in (processes, 1))


def _rate(messages: int, processes: int) -> float:
    with workplace() as place:
        environment = os.environ | {"BENCHMARK_PLACE": str(place)}
        subprocess.run(
            [sys.executable, "-c", ENQUEUE, str(messages), str(WARM_UP)],
            cwd=ROOT,
            env=environment,
            check=True,
        )
        consumer = subprocess.Popen(
            [
                sys.executable, "-m", "huey.bin.huey_consumer", "benchmarks.peers.huey_app.huey",
                "--workers", str(processes), "--worker-type", "process",
                "--delay", "0.005", "--backoff", "1", "--max-delay", "0.005",
                "--disable-health-check", "--no-periodic", "--quiet",
            ],
            cwd=ROOT,
            env=environment,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            tally = Tally(place / "tally")
            tally.wait_for(WARM_UP, TIMEOUT_S)
            begin_at = _show(place)
            end_at = tally.wait_for(WARM_UP + messages, TIMEOUT_S)
        finally:
            consumer.terminate()
            consumer.wait()
        if tally.counted != WARM_UP + messages:
            raise AssertionError(f"{tally.counted} tasks were done, not {WARM_UP + messages}")
        return messages / (end_at - begin_at)


def _show(place: Path) -> float:
    """Move the jobs that were enqueued aside into the workers' queue, all together; returns when."""
    connection = sqlite3.connect(place / "huey.db", timeout=30, isolation_level=None)
    try:
        connection.execute("UPDATE task SET queue = 'bench' WHERE queue = ?", (PARKED,))
        return time.monotonic()
    finally:
        connection.close()
