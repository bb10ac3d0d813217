"""Timers of many streams that are due within a minute: how late they fire, and what waiting for them costs.

Every stream is told once to set its timers, spread evenly over the minute; then no message comes. Lateness is
from a timer's time to its handler's call. The processor time and the memory are those of all processes of
all nodes. ``--keys`` says how many streams share the timers: a stream can have 64.

The idle cost is counted by a Redis server that keeps nothing but the state of nodes that have nothing to do.

Run as ``python -m benchmarks.timers``.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time

from benchmarks.cluster import cluster
from benchmarks.idle import cpu_s, family, memory_bytes
from benchmarks.report import Report, percentile
from simulator.servers import RedisServer

NODES = 2
IDLE_NODES = 3
PAGE = 5_000
SETTLE_S = 5.0
LOOK_S = 1.0
LATE_S = 120.0
"""How long after the last timer's time all must have fired."""


async def lateness(timers: int, keys: int, lead_s: float, spread_s: float, report: Report) -> None:
    """Set timers, and report how late each came."""
    each = timers // keys
    async with cluster("benchmarks.apps:timers", slots=1) as nodes:
        await nodes.start_all(NODES)
        first_at = time.time() + lead_s
        step_s = spread_s / timers
        bodies = (
            json.dumps(
                {"key": f"k{key}", "at": [first_at + step_s * (key + keys * n) for n in range(each)]}
            ).encode()
            for key in range(keys)
        )
        await nodes.send("alarms", bodies)
        await nodes.drained("alarms", lead_s)
        if (spare_s := first_at - time.time()) < 0:
            raise RuntimeError(f"setting them took {-spare_s:.1f} s longer than --lead-s")
        processes = [process for node in nodes.nodes for process in family(node.pid)]
        await asyncio.sleep(spare_s)
        cpu_before_s, memory = cpu_s(processes), [memory_bytes(processes)]
        late_ms: list[float] = []
        after, deadline = 0, first_at + spread_s + LATE_S
        state = nodes.services.state()
        while len(late_ms) < each * keys and time.time() < deadline:
            found = await state.results(after, PAGE, wait_s=1.0)
            for logged in found:
                after = logged.cursor
                due_at, came_at = json.loads(logged.result.body)
                late_ms.append(1000 * (came_at - due_at))
            memory.append(memory_bytes(processes))
            await asyncio.sleep(LOOK_S)
        took_s = time.time() - first_at
        if len(late_ms) != each * keys:
            raise RuntimeError(f"{len(late_ms)} of {each * keys} timers have fired after {took_s:.0f} s")
        if min(late_ms) < 0:
            raise AssertionError(f"a timer fired {-min(late_ms):.1f} ms before its time")
        report.figure("late_p50_ms", percentile(late_ms, 50))
        report.figure("late_p99_ms", percentile(late_ms, 99), "≤ 1000")
        report.figure("late_max_ms", max(late_ms))
        report.figure("timers_per_s", each * keys / spread_s)
        report.figure("done_per_s", each * keys / took_s)
        report.figure("cpu_us_per_timer", 1e6 * (cpu_s(processes) - cpu_before_s) / (each * keys))
        report.figure("memory_growth", max(memory) / memory[0], "≤ 1.1")
        report.detail["memory_mb"] = [round(size / 2**20) for size in memory]


async def idle_calls(seconds: float, report: Report) -> None:
    """Report how often idle nodes call their state store."""
    async with RedisServer() as server, server.client() as redis:
        async with cluster("benchmarks.apps:timers", slots=1, state_url=server.url) as nodes:
            await nodes.start_all(IDLE_NODES)
            await asyncio.sleep(SETTLE_S)
            before = await redis.info("commandstats")
            await asyncio.sleep(seconds)
            after = await redis.info("commandstats")
        calls = {
            name.removeprefix("cmdstat_"): told["calls"] - before.get(name, {"calls": 0})["calls"]
            for name, told in after.items()
        }
        calls = {name: count for name, count in calls.items() if count and name != "info"}
        report.detail["idle_calls"] = calls
        report.figure("idle_calls_per_node_5s", 5 * sum(calls.values()) / seconds / IDLE_NODES, "≤ 1")


def main() -> None:
    """Measure and report."""
    parser = argparse.ArgumentParser(prog="benchmarks.timers", description=__doc__)
    parser.add_argument("--full", action="store_true", help="watch idle nodes for longer")
    parser.add_argument("--timers", type=int, default=100_000)
    parser.add_argument("--keys", type=int, default=2_000)
    parser.add_argument("--lead-s", type=float, default=30.0, help="for setting them")
    parser.add_argument("--spread-s", type=float, default=50.0)
    parser.add_argument(
        "--idle-s", type=float, help="how long idle nodes are watched (default 30, with --full 120)"
    )
    asked = parser.parse_args()
    report = Report("timers")
    report.say(f"timers: {asked.timers:,} of {asked.keys:,} streams, due within {asked.spread_s:g} s")
    asyncio.run(lateness(asked.timers, asked.keys, asked.lead_s, asked.spread_s, report))
    asyncio.run(idle_calls(asked.idle_s or (120.0 if asked.full else 30.0), report))
    report.end(
        timers=asked.timers,
        keys=asked.keys,
        nodes=NODES,
        durability="SQLite, full: each firing is confirmed by the disk",
    )


if __name__ == "__main__":
    main()
