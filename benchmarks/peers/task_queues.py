"""Runs the task queues that tasks are compared with, each with results, at its best settings for that."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.cluster import ROOT, workplace
from benchmarks.peers.redis_server import redis_server
from simulator.servers import PostgresqlServer

DRAMATIQ_THREADS, DRAMATIQ_PREFETCH = 8, 100

APPEND_ONLY = {"appendonly": "yes", "appendfsync": "everysec"}
REDIS = (
    "Redis with an append-only file, to disk every second: survives a crash of any process, a power cut"
    " takes back the last moments"
)


POSTGRES = "PostgreSQL with fsync and synchronous_commit: survives a power cut"


@dataclass(frozen=True, slots=True)
class TaskQueue:
    """A contender: ``arguments`` start its workers, where ``{processes}`` stands for how many. ``share`` of
    the tasks are enough to measure it by, and ``environment`` is set for its workers. Its service is a Redis
    or a ``database``."""

    module: str
    arguments: Sequence[str]
    settings: str
    packages: Sequence[str]
    share: float = 1.0
    database: bool = False
    environment: Mapping[str, str] = field(default_factory=dict)


def dramatiq(threads: int, prefetch: int) -> TaskQueue:
    """With so many threads a process, each of which fetches so many messages ahead."""
    return TaskQueue(
        "dramatiq_tasks_app",
        (
            "dramatiq", "benchmarks.peers.dramatiq_tasks_app",
            "--processes", "{processes}", "--threads", str(threads),
        ),
        f"{REDIS}; results in Redis; no other middleware, {threads} threads a process, {prefetch} messages"
        " fetched ahead",
        ("dramatiq", "redis"),
        share=0.5,
        environment={"dramatiq_queue_prefetch": str(prefetch)},
    )  # fmt: skip


QUEUES = {
    "celery": TaskQueue(
        "celery_app",
        (
            "celery", "--app", "benchmarks.peers.celery_app:app", "worker", "--pool", "prefork",
            "--concurrency", "{processes}", "--without-gossip", "--without-mingle", "--without-heartbeat",
            "--loglevel", "CRITICAL",
        ),
        f"{REDIS}; results in Redis; acknowledged after the task (task_acks_late), 64 fetched ahead a process"
        ", prefork, a further process that fetches; no gossip, mingle, heartbeat, events",
        ("celery", "redis"),
        share=0.3,
    ),
    "dramatiq": dramatiq(DRAMATIQ_THREADS, DRAMATIQ_PREFETCH),
    "saq": TaskQueue(
        "saq_app",
        ("saq", "benchmarks.peers.saq_app.settings", "--workers", "{processes}", "--quiet"),
        f"{REDIS}; the job keeps its result; async tasks, 50 at once a process, uvloop",
        ("saq", "redis"),
        share=0.3,
    ),
    "procrastinate": TaskQueue(
        "procrastinate_app",
        ("benchmarks.peers.procrastinate_app", "{processes}"),
        f"{POSTGRES}; async tasks, 20 at once a process, psycopg's pool; the job keeps its status",
        ("procrastinate", "psycopg"),
        share=0.05,
        database=True,
    ),
    "pgqueuer": TaskQueue(
        "pgqueuer_app",
        ("benchmarks.peers.pgqueuer_app", "{processes}"),
        f"{POSTGRES}, all tables logged; async tasks, 200 fetched at once, asyncpg, uvloop; statuses go to"
        " the log",
        ("pgqueuer", "asyncpg"),
        database=True,
    ),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Measured:
    """Tasks a second of one round, how long single tasks took, and the processor time of all processes for a
    task of the round. ``pick_ups_ms``: how long single tasks took from before they were sent until they
    began, if that is known."""

    per_s: float
    latencies_ms: Sequence[float]
    cpu_us: float = 0.0
    pick_ups_ms: Sequence[float] = ()


def measure(
    queue: TaskQueue, tasks: int, processes: int, ones: int, server: Mapping[str, str] = APPEND_ONLY
) -> Measured:
    """Measure one, with so many worker processes. ``server``: the settings of its Redis."""
    with workplace() as place, contextlib.ExitStack() as stack:
        environment = os.environ | queue.environment
        if queue.database:
            environment["BENCHMARK_POSTGRES"] = stack.enter_context(postgresql_server()).url
        else:
            port = stack.enter_context(redis_server(server))
            environment["BENCHMARK_REDIS"] = f"redis://127.0.0.1:{port}"
        arguments = [argument.format(processes=processes) for argument in queue.arguments]
        stack.enter_context(running(arguments, environment, place))
        count = max(1, round(tasks * queue.share))
        ran = subprocess.run(
            [sys.executable, "-m", "benchmarks.peers.task_driver", queue.module, str(count), str(ones)],
            cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, check=True,
        )  # fmt: skip
    return Measured(**json.loads(ran.stdout.splitlines()[-1]))


@contextlib.contextmanager
def postgresql_server() -> Iterator[PostgresqlServer]:
    """Run a server whose commits the disk confirms."""
    server = PostgresqlServer(fsync=True)
    asyncio.run(server.start())
    try:
        yield server
    finally:
        asyncio.run(server.stop())


@contextlib.contextmanager
def running(arguments: Sequence[str], environment: Mapping[str, str], place: Path) -> Iterator[None]:
    """Run a Python program with all its processes, which end together."""
    with (place / "workers.log").open("w") as log:
        program = subprocess.Popen(
            [sys.executable, "-m", *arguments],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        try:
            yield
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(program.pid, signal.SIGKILL)
            program.wait()
