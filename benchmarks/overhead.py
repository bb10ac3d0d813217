"""What Holdfast costs a real handler: frames a second through nodes and slots, against bare loops.

The handler is the vision app's, on rendered video. The loops do nothing else: they read a frame's file and
process it. As many processes run handlers on either side: one less than there are cores, as a node has by
itself. Given as many as there are cores, nodes and handlers contend for them (--processes, and --full).
Holdfast also keeps order, commits each stream's state and results with fsync, and deletes from the queue.
The results of both must be equal.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import time
from asyncio.subprocess import PIPE, Process
from statistics import median
from typing import Any

import msgspec

from benchmarks.cluster import ROOT, Cluster, cluster
from benchmarks.report import Report
from examples.tracking.render import Rendered, render_all
from examples.tracking.scene import Scene
from holdfast.vision.handler import Frame
from holdfast.vision.ingest import video_frames

TIMEOUT_S = 300.0
LEAD_S = 1.0
SCENES = 4
BUDGET_S = 45.0

Videos = dict[str, list[str]]
"""The frame URLs of each video."""

Results = dict[str, list[Any]]


async def store(nodes: Cluster, rendered: list[Rendered], streams: int) -> Videos:
    """Put the frames in the object store; several streams may show the same scene."""
    objects = nodes.services.objects()

    async def put(number: int, video: Rendered) -> list[str]:
        found = await asyncio.to_thread(lambda: list(video_frames(video.video)))
        return [await objects.put(f"{number}/{at:05d}.jpg", frame.jpeg) for at, frame in enumerate(found)]

    scenes = await asyncio.gather(*(put(number, video) for number, video in enumerate(rendered)))
    return {f"cam-{n}": scenes[n % len(scenes)] for n in range(streams)}


async def bare(videos: Videos, processes: int) -> tuple[float, Results]:
    """Seconds that so many loops take, and their results."""
    shares = [dict(list(videos.items())[n::processes]) for n in range(processes)]
    loops = [await _start_loop(share) for share in shares]
    for loop in loops:
        await _said(loop, "ready")
    begin_at = time.monotonic()
    for loop in loops:
        _tell(loop, "go")
    await asyncio.gather(*(_said(loop, "done") for loop in loops))
    seconds = time.monotonic() - begin_at
    results: Results = {}
    for loop in loops:
        out, _ = await loop.communicate()
        results |= json.loads(out)
    return seconds, results


async def _start_loop(share: Videos) -> Process:
    loop = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "benchmarks.bare", cwd=ROOT, stdin=PIPE, stdout=PIPE
    )
    _tell(loop, json.dumps(share))
    return loop


def _tell(loop: Process, line: str) -> None:
    assert loop.stdin is not None
    loop.stdin.write(f"{line}\n".encode())


async def _said(loop: Process, word: str) -> None:
    assert loop.stdout is not None
    line = await loop.stdout.readline()
    if line.decode().strip() != word:
        raise RuntimeError(f"a bare loop said {line!r} instead of {word!r}")


async def through(nodes: Cluster, videos: Videos, name: str) -> tuple[float, Results]:
    """Seconds that the nodes take for all videos, as new streams with ``name`` before theirs, and their
    results."""
    length = max(len(urls) for urls in videos.values())
    bodies = [
        msgspec.json.encode(Frame(f"{name}.{video}", 0, number, number * 40, urls[number]))
        for number in range(length)
        for video, urls in videos.items()
        if number < len(urls)
    ]
    after = 0
    async for logged in nodes.results():
        after = logged.cursor
    await nodes.settled()
    with nodes.sending(LEAD_S) as begin_at:
        await nodes.send("frames", bodies, begin_at)
    seconds = await nodes.drained("frames", TIMEOUT_S) - begin_at
    results: Results = {video: [] for video in videos}
    async for logged in nodes.results(after):
        video = logged.key.partition(".")[2]
        results[video].append(json.loads(logged.result.body) | {"video": video})
    return seconds, results


async def measure(asked: argparse.Namespace, report: Report, processes: int) -> dict[str, list[float]]:
    """Alternate between both for some rounds; returns the frames a second of each."""
    begun_at = time.monotonic()
    scenes = [
        Scene(seed=seed, seconds=asked.seconds, width=asked.width, height=asked.width * 9 // 16)
        for seed in range(SCENES)
    ]
    rendered = await asyncio.to_thread(render_all, scenes, ROOT / ".cache" / "benchmarks" / "scenes")
    rates: dict[str, list[float]] = {"bare": [], "holdfast": []}
    slots = processes // asked.nodes
    async with cluster("benchmarks.apps:vision", slots=slots) as nodes:
        videos = await store(nodes, rendered, asked.streams)
        frames = sum(len(urls) for urls in videos.values())
        await nodes.start_all(asked.nodes)
        await through(nodes, {video: urls[:5] for video, urls in videos.items()}, "warm")
        report.say(
            f"overhead: tracking in {frames:,} frames of {asked.width}x{asked.width * 9 // 16} pixels from"
            f" {asked.streams} streams; {processes} processes run handlers on either side"
            f" (Holdfast: {asked.nodes} node(s) with {slots} slot(s) each)"
        )
        report_at = time.monotonic()
        for done in range(asked.rounds):
            spent_s = time.monotonic() - report_at
            if done and not asked.full and time.monotonic() - begun_at + spent_s / done > BUDGET_S:
                break
            seconds, expected = await bare(videos, processes)
            rates["bare"].append(frames / seconds)
            seconds, results = await through(nodes, videos, str(done))
            rates["holdfast"].append(frames / seconds)
            if results != expected:
                raise AssertionError("the results through Holdfast are not those of the bare loops")
            report.say(
                f"  bare loops {rates['bare'][-1]:,.0f} frames/s, Holdfast {rates['holdfast'][-1]:,.0f}"
            )
    report.detail["frames"] = frames
    return rates


def main() -> None:
    """Measure and report."""
    parser = argparse.ArgumentParser(prog="benchmarks overhead", description=__doc__)
    parser.add_argument("--full", action="store_true", help="longer videos and more rounds")
    parser.add_argument("--rounds", type=int, help="at most; default 3, with --full 7")
    parser.add_argument("--seconds", type=float, help="of each video; default 8, with --full 20")
    parser.add_argument("--width", type=int, default=1280, help="of the videos, in pixels")
    parser.add_argument("--streams", type=int, default=24)
    parser.add_argument("--nodes", type=int, default=1)
    parser.add_argument("--processes", type=int, help="that run handlers; default one less than cores")
    asked = parser.parse_args()
    asked.rounds = asked.rounds or (7 if asked.full else 3)
    asked.seconds = asked.seconds or (20.0 if asked.full else 8.0)
    cores = os.cpu_count() or 2
    processes = asked.processes or max(1, cores - 1)
    report = Report("overhead")
    rates = asyncio.run(measure(asked, report, processes))
    report.figure("frames_per_s", median(rates["holdfast"]))
    report.figure("vs_bare_loop", median(rates["holdfast"]) / median(rates["bare"]), "≥ 0.90")
    if asked.full:
        crowded = asyncio.run(measure(asked, report, cores))
        report.figure("vs_bare_loop_all_cores", median(crowded["holdfast"]) / median(crowded["bare"]))
    report.end(
        ["numpy", "pillow", "av"],
        streams=asked.streams,
        pixels=f"{asked.width}x{asked.width * 9 // 16}",
        handler_processes=processes,
        nodes=asked.nodes,
        rounds=len(rates["bare"]),
        rates={name: [round(rate, 1) for rate in measured] for name, measured in rates.items()},
        durability="Holdfast: full, state and results of each commit fsynced; bare loops: none",
    )
