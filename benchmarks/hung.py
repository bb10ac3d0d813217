"""Tasks that hang for ever, in C with the interpreter's lock held, among others: how soon each is known to
have timed out, and what the others notice of it.

Tasks come at an even pace to twelve workers; every tenth hangs. Its time is up after 2 s, and from when it
began to when its producer reads that it timed out is ``timeout_brief_max_s``. The others, which take 20 ms,
are compared with a run in which none hangs: ``others_p99_ratio``. Celery has soft and hard time limits,
Dramatiq a time limit; both are on Redis with results.

Run as ``python -m benchmarks.hung``.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.cluster import ROOT, cluster, workplace
from benchmarks.peers.hanging import NOTES, TIMEOUT_S, WORKERS, Plan, Seen, drive
from benchmarks.peers.redis_server import redis_server
from benchmarks.peers.task_queues import APPEND_ONLY, REDIS, running
from benchmarks.report import Report, percentile
from holdfast.rules.tasks.task import State
from holdfast.tasks.opening import make_producer
from holdfast.tasks.order import Order
from holdfast.tasks.producer import Producer

PEERS: dict[str, Sequence[str]] = {
    "celery": (
        "celery", "--app", "benchmarks.peers.celery_hung:app", "worker", "--pool", "prefork",
        "--concurrency", str(WORKERS), "--without-gossip", "--without-mingle", "--without-heartbeat",
        "--loglevel", "CRITICAL",
    ),
    "dramatiq": (
        "dramatiq", "benchmarks.peers.dramatiq_hung", "--processes", str(WORKERS), "--threads", "1",
    ),
}  # fmt: skip

TOLD = {
    "holdfast": f"SQLite, durability=full; a node with {WORKERS} slots; timeout_s={TIMEOUT_S:g}, tries=1",
    "celery": f"{REDIS}; prefork, {WORKERS} processes, one task fetched ahead each; task_time_limit"
    f" {TIMEOUT_S:g} s, task_soft_time_limit {0.75 * TIMEOUT_S:g} s",
    "dramatiq": f"{REDIS}; {WORKERS} processes with one thread, one message fetched ahead each; time_limit"
    f" {TIMEOUT_S:g} s, looked at every 100 ms",
}


@dataclass(frozen=True, slots=True)
class Took:
    """What became of the tasks of one run. Those without an end are missing."""

    hangs_s: list[float]
    others_ms: list[float]
    hangs_lost: int
    others_lost: int

    def told(self) -> dict[str, Any]:
        """All of it, for the report."""
        return {
            "hangs_s": [round(s, 2) for s in self.hangs_s],
            "hangs_without_end": self.hangs_lost,
            "others_p50_ms": round(percentile(self.others_ms, 50), 1),
            "others_p99_ms": round(percentile(self.others_ms, 99), 1),
            "others_without_end": self.others_lost,
        }


def took(plan: Plan, seen: Seen, notes: Path) -> Took:
    """From begin to end of those that hang, from sending to end of the others."""
    begun_at = {int(n): float(at) for n, at in (line.split() for line in notes.read_text().splitlines())}
    hangs = [n for n in range(plan.tasks) if plan.hang(n)]
    others = [n for n in range(plan.tasks) if not plan.hang(n)]
    ended = seen.ended_at
    return Took(
        [ended[n] - begun_at[n] for n in hangs if n in ended],
        [1000 * (ended[n] - seen.sent_at[n]) for n in others if n in ended],
        sum(n not in ended for n in hangs),
        sum(n not in ended for n in others),
    )


class OnHoldfast:
    """Sends to a node, and reads briefs."""

    def __init__(self, producer: Producer) -> None:
        self._producer = producer
        self._ended: list[int] = []
        self._hangs: set[int] = set()
        self._reading = asyncio.create_task(self._read())

    async def send(self, n: int, hang: bool) -> None:
        """Send a task."""
        if hang:
            self._hangs.add(n)
        await self._producer.send([Order(task_type="work", body={"n": n, "hang": hang}, trace_id=f"t{n}")])

    async def ended(self) -> list[int]:
        """Whose brief has come."""
        if self._reading.done():
            self._reading.result()
        ended, self._ended = self._ended, []
        return ended

    async def close(self) -> None:
        """Read no more."""
        self._reading.cancel()
        await asyncio.wait((self._reading,))

    async def _read(self) -> None:
        async with contextlib.aclosing(self._producer.briefs()) as briefs:
            async for brief in briefs:
                n = int(brief.outcome.trace_id.removeprefix("t"))
                state = State.TIMEOUT if n in self._hangs else State.SUCCEED
                if brief.outcome.state is not state:
                    raise AssertionError(f"{brief.outcome}")
                brief.ack()
                self._ended.append(n)


async def _holdfast(plan: Plan, notes: Path) -> Seen:
    async with cluster(
        "benchmarks.task_apps:hung", environment={NOTES: str(notes)}, task_slots=WORKERS
    ) as nodes:
        await nodes.start_all(1)
        contender = OnHoldfast(make_producer(nodes.services, "hung"))
        seen = await drive(contender, plan)
        await contender.close()
        nodes.kill()
        return seen


def holdfast(plan: Plan) -> Took:
    """One run on a node."""
    with workplace() as place:
        notes = place / "notes"
        return took(plan, asyncio.run(_holdfast(plan, notes)), notes)


def peer(name: str, plan: Plan) -> Took:
    """One run of a peer."""
    with workplace() as place, redis_server(place, *APPEND_ONLY) as port:
        notes = place / "notes"
        environment: Mapping[str, str] = os.environ | {
            "BENCHMARK_REDIS": f"redis://127.0.0.1:{port}",
            "dramatiq_queue_prefetch": "1",
            NOTES: str(notes),
        }
        with running(PEERS[name], environment, place):
            ran = subprocess.run(
                [sys.executable, "-m", f"benchmarks.peers.{name}_hung", msgspec.json.encode(plan).decode()],
                cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, check=True,
            )  # fmt: skip
        return took(plan, msgspec.json.decode(ran.stdout.splitlines()[-1], type=Seen), notes)


def main() -> None:
    """Measure and report."""
    parser = argparse.ArgumentParser(prog="benchmarks.hung", description=__doc__)
    parser.add_argument("--full", action="store_true", help="400 tasks")
    parser.add_argument("--tasks", type=int, help="default 100")
    parser.add_argument("--per-s", type=float, default=50.0)
    parser.add_argument("--peers", nargs="*", choices=PEERS, default=list(PEERS))
    asked = parser.parse_args()
    tasks = asked.tasks or (400 if asked.full else 100)
    report = Report("hung")
    report.say(
        f"hung: {tasks} tasks at {asked.per_s:g}/s, every tenth hangs; timeout {TIMEOUT_S:g} s,"
        f" {WORKERS} workers"
    )
    for name in ("holdfast", *asked.peers):
        report.say(f"  {name}: {TOLD[name]}")
    runs: dict[str, Took] = {}
    plans = {"without": Plan(tasks, asked.per_s, 0), "hangs": Plan(tasks, asked.per_s, 10)}
    for kind, plan in plans.items():
        runs[f"holdfast_{kind}"] = holdfast(plan)
    for name in asked.peers:
        for kind, plan in plans.items():
            runs[f"{name}_{kind}"] = peer(name, plan)
    for name, run in runs.items():
        report.say(f"  {name}: {run.told()}")
    for name in ("holdfast", *asked.peers):
        hangs, without = runs[f"{name}_hangs"], runs[f"{name}_without"]
        prefix, ours = ("", True) if name == "holdfast" else (f"{name}_", False)
        if hangs.hangs_s:
            report.figure(f"{prefix}timeout_brief_max_s", max(hangs.hangs_s), "≤ 3" if ours else "")
        report.figure(f"{prefix}hangs_without_end", hangs.hangs_lost, "0" if ours else "")
        report.figure(f"{prefix}others_without_end", hangs.others_lost, "0" if ours else "")
        report.figure(f"{prefix}others_p99_ms", percentile(hangs.others_ms, 99))
        report.figure(
            f"{prefix}others_p99_ratio",
            percentile(hangs.others_ms, 99) / percentile(without.others_ms, 99),
        )
    report.end(
        ["celery", "dramatiq", "redis"],
        tasks=tasks,
        per_s=asked.per_s,
        timeout_s=TIMEOUT_S,
        workers=WORKERS,
        runs={name: run.told() for name, run in runs.items()},
        durability={name: TOLD[name] for name in ("holdfast", *asked.peers)},
    )


if __name__ == "__main__":
    main()
