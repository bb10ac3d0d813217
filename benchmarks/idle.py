"""What a node costs that has nothing to do: processor time, and memory of streams that it owns."""

from __future__ import annotations

import argparse
import asyncio

import psutil

from benchmarks.apps import STATE_BYTES
from benchmarks.cluster import Cluster, cluster
from benchmarks.report import Report

TIMEOUT_S = 120.0
SETTLE_S = 3.0
"""Time for allocators and garbage collectors to come to rest before anything is read."""

KEYS_A_ROUND = 2_500


def family(pid: int) -> list[psutil.Process]:
    """A node with its fork server and slots."""
    node = psutil.Process(pid)
    return [node, *node.children(recursive=True)]


def cpu_s(processes: list[psutil.Process]) -> float:
    """Processor seconds used so far."""
    return sum(sum(process.cpu_times()[:2]) for process in processes)


def memory_bytes(processes: list[psutil.Process]) -> int:
    """Memory that would be free without these processes: pages shared between them count once (PSS), where
    the system tells; else what each has for itself (USS)."""
    infos = [process.memory_full_info() for process in processes]
    return sum(getattr(info, "pss", info.uss) for info in infos)


async def cpu_percent(nodes: Cluster, seconds: float) -> float:
    """Percent of one core that the first node uses while nothing happens."""
    processes = family(nodes.nodes[0].pid)
    before, begun_at = cpu_s(processes), nodes.services.clock.monotonic()
    await asyncio.sleep(seconds)
    return 100 * (cpu_s(processes) - before) / (nodes.services.clock.monotonic() - begun_at)


async def own(nodes: Cluster, first: int, last: int) -> None:
    """Have streams begun: one message each."""
    await nodes.send("idle", (b'{"key":"k%d","n":0}' % key for key in range(first, last)))
    await nodes.drained("idle", TIMEOUT_S)


async def measure(report: Report, streams: int, seconds: float) -> None:
    """Both figures, on one node."""
    async with cluster("benchmarks.apps:idle", slots=2) as nodes:
        await nodes.start_all(1)
        await own(nodes, 0, 100)  # the code paths are warm, and their memory is not the streams'
        await asyncio.sleep(SETTLE_S)
        processes = family(nodes.nodes[0].pid)
        empty = memory_bytes(processes)
        report.figure("cpu_percent", await cpu_percent(nodes, seconds), "< 1")
        for first in range(100, streams + 100, KEYS_A_ROUND):
            await own(nodes, first, min(first + KEYS_A_ROUND, streams + 100))
        await asyncio.sleep(SETTLE_S)
        owned = await nodes.services.coordinator().claims(nodes.nodes[0].member)
        if len(owned) != streams + 100:
            raise AssertionError(f"{len(owned)} streams are owned, not {streams + 100}")
        full = memory_bytes(processes)
        report.figure("bytes_per_stream", (full - empty) / streams, "≤ 8192")
        report.figure("cpu_percent_owning", await cpu_percent(nodes, seconds))
        report.detail |= {"node_bytes_without_streams": empty, "processes": len(processes)}


def main() -> None:
    """Measure and report."""
    parser = argparse.ArgumentParser(prog="benchmarks idle", description=__doc__)
    parser.add_argument("--full", action="store_true", help="watch the processor for a minute")
    parser.add_argument("--streams", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, help="how long the processor is watched")
    asked = parser.parse_args()
    seconds = asked.seconds or (60.0 if asked.full else 12.0)
    report = Report("idle")
    report.say(
        f"idle: one node with 2 slots and a spare, nothing to do for {seconds:g} s;"
        f" then {asked.streams:,} owned streams of {STATE_BYTES} bytes of state"
    )
    asyncio.run(measure(report, asked.streams, seconds))
    report.end(["psutil"], streams=asked.streams, state_bytes=STATE_BYTES, durability="full", seconds=seconds)
