"""Dramatiq on a local Redis."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import redis

from benchmarks.cluster import ROOT, workplace
from benchmarks.peers.redis_server import redis_server
from benchmarks.peers.tally import CHECK_S, Tally

THREADS = 4
"""Of each process; the best of 1, 2, 4, 8 and 16 where this was tuned."""

DURABILITY = "Redis as it comes: in memory, snapshots to disk now and then, no fsync"
SETTINGS = f"no middleware, no results, {THREADS} threads a process"
TIMEOUT_S = 300.0
WARM_UP = 200
QUEUE = "dramatiq:default"

ENQUEUE = """\
import sys
from benchmarks.peers.dramatiq_app import nothing
for n in range(int(sys.argv[1])):
    nothing.send(f"k{n % 64}", n // 64)
"""


def measure(
    messages: int, processes: int, threads: int = THREADS, redis_options: tuple[str, ...] = ()
) -> float:
    """Tasks a second with so many worker processes."""
    with workplace() as place, redis_server(place, *redis_options) as port, redis.Redis(port=port) as client:
        environment = os.environ | {
            "BENCHMARK_PLACE": str(place),
            "BENCHMARK_REDIS": f"redis://127.0.0.1:{port}/0",
        }

        def enqueue(count: int) -> None:
            command = [sys.executable, "-c", ENQUEUE, str(count)]
            subprocess.run(command, cwd=ROOT, env=environment, check=True)

        enqueue(messages)
        client.rename(QUEUE, "parked")
        client.rename(f"{QUEUE}.msgs", "parked.msgs")
        enqueue(WARM_UP)
        workers = subprocess.Popen(
            [
                sys.executable, "-m", "dramatiq", "benchmarks.peers.dramatiq_app",
                "--processes", str(processes), "--threads", str(threads),
            ],
            cwd=ROOT,
            env=environment,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            tally = Tally(place / "tally")
            tally.wait_for(WARM_UP, TIMEOUT_S)
            _wait_until_acknowledged(client)
            begin_at = time.monotonic()
            with client.pipeline() as together:
                together.rename("parked.msgs", f"{QUEUE}.msgs").rename("parked", QUEUE).execute()
            end_at = tally.wait_for(WARM_UP + messages, TIMEOUT_S)
            end_at = max(end_at, _wait_until_acknowledged(client))
        finally:
            workers.terminate()
            workers.wait()
        if tally.counted != WARM_UP + messages:
            raise AssertionError(f"{tally.counted} tasks were done, not {WARM_UP + messages}")
        return messages / (end_at - begin_at)


def _wait_until_acknowledged(client: redis.Redis) -> float:
    while client.hlen(f"{QUEUE}.msgs"):
        time.sleep(CHECK_S)
    return time.monotonic()
