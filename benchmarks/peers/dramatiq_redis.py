"""Dramatiq on a local Redis."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import redis

from benchmarks.cluster import ROOT, Spent, workplace
from benchmarks.peers.redis_server import redis_server
from benchmarks.peers.tally import CHECK_S, Tally

THREADS = 4
PREFETCH = 1000
"""Threads and messages fetched ahead, of each process: together the fastest of those that were tried (1 to 16
threads, the default of twice the threads up to 1000 messages)."""

SETTINGS = (
    "Redis as it comes (in memory, snapshots to disk now and then, no fsync); unordered, no results;"
    f" no middleware, {THREADS} threads a process, {PREFETCH} messages fetched ahead"
)
TIMEOUT_S = 300.0
WARM_UP = 200
QUEUE = "dramatiq:default"

# What the broker does for each message, without a round trip for each.
ENQUEUE = """\
import sys
from uuid import uuid4
from benchmarks.peers.dramatiq_app import broker, nothing
with broker.client.pipeline() as together:
    for n in range(int(sys.argv[1])):
        name = str(uuid4())
        message = nothing.message(f"k{n % 64}", n // 64).copy(options={"redis_message_id": name})
        together.hset("dramatiq:default.msgs", name, message.encode())
        together.rpush("dramatiq:default", name)
    together.execute()
"""


def measure(
    messages: int,
    processes: int,
    *,
    threads: int = THREADS,
    prefetch: int = PREFETCH,
    spent: Spent | None = None,
) -> float:
    """Return tasks a second with so many worker processes. ``spent`` is from when they show until they are
    done."""
    with workplace() as place, redis_server() as port, redis.Redis(port=port) as client:
        environment = os.environ | {
            "BENCHMARK_PLACE": str(place),
            "BENCHMARK_REDIS": f"redis://127.0.0.1:{port}/0",
            "dramatiq_queue_prefetch": str(prefetch),
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
            if spent is not None:
                spent.begin()
            begin_at = time.monotonic()
            with client.pipeline() as together:
                together.rename("parked.msgs", f"{QUEUE}.msgs").rename("parked", QUEUE).execute()
            end_at = tally.wait_for(WARM_UP + messages, TIMEOUT_S)
            end_at = max(end_at, _wait_until_acknowledged(client))
            if spent is not None:
                spent.end()
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
