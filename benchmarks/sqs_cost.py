"""API calls, dollars, latency and dead letters on SQS, against the design that Holdfast replaces.

Both sides get the same frames of the same videos over the same server, with as many nodes as workers, and
store a result and a state for each frame in the same Redis. Calls are counted on their way to the server.
Two loads, one after the other:

- backlog: half of the frames gather while the server can't be reached, so that batches can be full. From
  here: ``calls_per_frame`` and ``replaced_calls_per_frame`` (receives and deletes).
- paced: the other half comes at an even pace, as cameras send. From here: ``p99_ms``, ``p50_ms`` (sending to
  commit) and ``p99_vs_replaced``.

Dead letters count over both. The replaced design is in ``benchmarks/peers/replaced``.

Run as ``python -m benchmarks.sqs_cost``.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

from redis.asyncio import Redis

from benchmarks.cluster import Cluster, cluster, program
from benchmarks.frames import FrameQueue, sqs_server
from benchmarks.peers.replaced.worker import RESULTS
from benchmarks.report import Report, percentile
from benchmarks.tap import Tap, tap
from simulator.servers import RedisServer

DOLLARS_PER_MILLION_CALLS = 0.40
"""List price of requests to a standard queue."""

RECEIVES_MAX = 5
LOCK_TTL_S, LOCK_RENEW_S, LOCK_IDLE_S = 30, 10, 30

Commits = Sequence[tuple[float, float]]
"""When each frame was sent, and when it was committed."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What both sides are given."""

    workers: int
    videos: int
    frames: int
    per_s: float
    visibility_s: int

    def queue(self, name: str) -> FrameQueue:
        """A queue for one side."""
        return FrameQueue(name, self.videos, visibility_s=self.visibility_s, receives_max=RECEIVES_MAX)

    @property
    def timeout_s(self) -> float:
        """How long one load may take: a frame that nobody takes is hidden so often, and some more."""
        return RECEIVES_MAX * self.visibility_s * 2 + 60.0


@dataclass(frozen=True, slots=True)
class Phase:
    """What one load took."""

    frames: int
    calls: Counter[str]
    latencies_ms: Sequence[float]

    def per_frame(self, *operations: str) -> float:
        """Calls of these operations, in batches or not, for each frame that was sent."""
        wanted = set(operations) | {f"{operation}Batch" for operation in operations}
        return sum(count for name, count in self.calls.items() if name in wanted) / self.frames

    @property
    def received_and_deleted(self) -> float:
        """Receives and deletes for each frame."""
        return self.per_frame("ReceiveMessage", "DeleteMessage")

    def told(self) -> dict[str, Any]:
        """All of it, for the report."""
        calls = {name: round(count / self.frames, 4) for name, count in sorted(self.calls.items())}
        all_calls = sum(self.calls.values()) / self.frames
        return {
            "frames": self.frames,
            "committed": len(self.latencies_ms),
            "calls_per_frame": calls,
            "dollars_per_million_frames": round(all_calls * DOLLARS_PER_MILLION_CALLS, 3),
            "p50_ms": round(median(self.latencies_ms), 1),
            "p99_ms": round(percentile(self.latencies_ms, 99), 1),
        }


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a contender took for both loads."""

    backlog: Phase
    paced: Phase
    dead: int

    @property
    def committed(self) -> int:
        """Frames that were committed, over both loads."""
        return len(self.backlog.latencies_ms) + len(self.paced.latencies_ms)


@dataclass(frozen=True, slots=True)
class Sites:
    """The services of both sides: an SQS server, the tap before it, and Redis."""

    tap: Tap
    redis: RedisServer


@contextlib.asynccontextmanager
async def open_sites() -> AsyncIterator[Sites]:
    """Start them."""
    async with sqs_server() as sqs, RedisServer() as redis, tap(sqs.port) as counting:
        yield Sites(counting, redis)


async def holdfast(plan: Plan, sites: Sites) -> Outcome:
    """Holdfast's nodes, one slot each."""
    async with (
        plan.queue("ours") as queue,
        cluster(
            "benchmarks.apps:cameras",
            environment={"AWS_ENDPOINT_URL": sites.tap.endpoint},
            queue_url=queue.url,
            coordinator_url=sites.redis.url,
            state_url=sites.redis.url,
            visibility_s=plan.visibility_s,
            slots=1,
        ) as nodes,
    ):
        await nodes.start_all(plan.workers)
        outcome = await drive(plan, queue, sites, partial(ordered_commits, nodes))
        nodes.kill()
    if outcome.committed != plan.frames:
        raise AssertionError(f"{outcome.committed} frames were committed, not {plan.frames}")
    return outcome


async def ordered_commits(nodes: Cluster) -> Commits:
    """All commits so far, after a check that those of each video are in order without gaps."""
    state, after, commits = nodes.services.state(), 0, []
    expected: Counter[str] = Counter()
    while page := await state.results(after, 5000):
        for logged in page:
            frame, sent_at = json.loads(logged.result.body)
            if frame != expected[logged.key]:
                raise AssertionError(f"{logged.key}: frame {frame} where {expected[logged.key]} is next")
            expected[logged.key] += 1
            commits.append((sent_at, logged.at))
        after = page[-1].cursor
    return commits


async def replaced(plan: Plan, sites: Sites) -> Outcome:
    """As many workers of the replaced design."""
    async with contextlib.AsyncExitStack() as stack:
        queue = await stack.enter_async_context(plan.queue("replaced"))
        client = await stack.enter_async_context(sites.redis.client())
        environment = {
            "AWS_ENDPOINT_URL": sites.tap.endpoint,
            "SQS_QUEUE_URL": queue.url,
            "REDIS_HOST": "127.0.0.1",
            "REDIS_PORT": str(sites.redis.port),
            "LOCK_TTL_SECONDS": str(LOCK_TTL_S),
            "LOCK_RENEWAL_INTERVAL_SECONDS": str(LOCK_RENEW_S),
            "PROCESSING_IDLE_TIMEOUT_SECONDS": str(LOCK_IDLE_S),
        }
        starting = [
            stack.enter_async_context(program("benchmarks.peers.replaced.worker", environment=environment))
            for _ in range(plan.workers)
        ]
        for started in await asyncio.gather(*starting):
            if await started.output.readline() != b"ready\n":
                raise RuntimeError("a worker of the replaced design did not start")
        return await drive(plan, queue, sites, partial(unordered_commits, client))


async def unordered_commits(client: Redis) -> Commits:
    """What the workers wrote so far."""
    rows = [json.loads(row) for row in await client.lrange(RESULTS, 0, -1)]
    return [(sent_at, at) for _, _, sent_at, at in rows]


async def drive(
    plan: Plan, queue: FrameQueue, sites: Sites, commits: Callable[[], Awaitable[Commits]]
) -> Outcome:
    """Both loads in turn, each until its last frame is off the queue."""
    half = plan.frames // 2
    phases: list[Phase] = []
    known = 0

    async def backlog() -> None:
        async with sites.tap.shut():
            await queue.backlog(half)

    for load in (backlog(), queue.paced(plan.frames - half, plan.per_s)):
        before, sent = await sites.tap.counts(), queue.sent
        await load
        await queue.empty(plan.timeout_s)
        calls = await sites.tap.counts() - before
        new = (await commits())[known:]
        known += len(new)
        latencies_ms = [1000 * (at - sent_at) for sent_at, at in new]
        phases.append(Phase(queue.sent - sent, calls, latencies_ms))
    return Outcome(phases[0], phases[1], await queue.dead())


async def measure(plan: Plan, report: Report) -> None:
    """Both sides, then the figures."""
    async with open_sites() as sites:
        ours, theirs = await holdfast(plan, sites), await replaced(plan, sites)
    for name, outcome in {"holdfast": ours, "replaced": theirs}.items():
        for load, phase in {"backlog": outcome.backlog, "paced": outcome.paced}.items():
            told = phase.told()
            kinds = ", ".join(f"{kind} {count}" for kind, count in told["calls_per_frame"].items())
            report.say(
                f"  {name}, {load}: ${told['dollars_per_million_frames']} a million frames ({kinds});"
                f" p50 {told['p50_ms']:,} ms, p99 {told['p99_ms']:,} ms"
            )
            report.detail[f"{name}_{load}"] = told
    p99_ms, replaced_p99_ms = (percentile(o.paced.latencies_ms, 99) for o in (ours, theirs))
    report.figure("calls_per_frame", ours.backlog.received_and_deleted, "≤ 0.25")
    report.figure("replaced_calls_per_frame", theirs.backlog.received_and_deleted)
    report.figure("paced_calls_per_frame", ours.paced.received_and_deleted)
    report.figure("replaced_paced_calls_per_frame", theirs.paced.received_and_deleted)
    report.figure("p50_ms", median(ours.paced.latencies_ms))
    report.figure("p99_ms", p99_ms)
    report.figure("replaced_p50_ms", median(theirs.paced.latencies_ms))
    report.figure("replaced_p99_ms", replaced_p99_ms)
    report.figure("p99_vs_replaced", replaced_p99_ms / p99_ms, "≥ 20")
    report.figure("dead_lettered", ours.dead, "0")
    report.figure("replaced_dead_lettered", theirs.dead)


def main() -> None:
    """Measure and report."""
    parser = argparse.ArgumentParser(prog="benchmarks.sqs_cost", description=__doc__)
    parser.add_argument("--full", action="store_true", help="10,000 frames, hidden for 30 s when received")
    parser.add_argument("--workers", type=int, default=4, help="nodes, and workers of the replaced design")
    parser.add_argument("--videos", type=int, default=32)
    parser.add_argument("--frames", type=int, help="half at once, half paced (default 4,000)")
    parser.add_argument("--per-s", type=float, default=400.0, help="frames a second of the paced half")
    parser.add_argument("--visibility-s", type=int, help="of both sides (default 2)")
    asked = parser.parse_args()
    plan = Plan(
        asked.workers,
        asked.videos,
        asked.frames or (10_000 if asked.full else 4000),
        asked.per_s,
        asked.visibility_s or (30 if asked.full else 2),
    )
    report = Report("sqs_cost")
    report.say(
        f"sqs-cost: {plan.frames:,} frames of {plan.videos} videos, {plan.workers} nodes or workers;"
        f" visibility {plan.visibility_s} s, maxReceiveCount {RECEIVES_MAX};"
        f" half at once, half at {plan.per_s:g}/s"
    )
    asyncio.run(measure(plan, report))
    report.end(
        ["boto3", "redis"],
        workers=plan.workers,
        videos=plan.videos,
        frames=plan.frames,
        paced_per_s=plan.per_s,
        visibility_s=plan.visibility_s,
        receives_max=RECEIVES_MAX,
        durability="Redis and SQS server in memory, for both",
    )


if __name__ == "__main__":
    main()
