"""What clients see of a node that is killed, and of one that is drained.

Three nodes track people in sixty streams of video. Clients send the frames through two gateways at an even
pace, 500 a second, whether earlier ones are answered or not. Again and again the node that owns twenty of the
streams is killed with SIGKILL, a fresh one takes its place, then one is drained, and is replaced too.
Models are warm: the nodes that remain have loaded them.

- stall: the longest time from when a frame was due to its answer, for each stream that the node owned, around
  its end. Undisturbed frames take ``undisturbed_p50_ms``.
- errors: frames that were answered with anything but a result.
- identity_switches: tracks that carry another id than in an undisturbed run of the same video;
  ``unequal_results`` counts whatever else differs from it.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Awaitable, Callable
from statistics import median
from typing import Any, NamedTuple

import msgspec

from benchmarks.cluster import ROOT, LoggedProcess, cluster
from benchmarks.failover import NODES, OWNED, Drill
from benchmarks.gateways import gateways
from benchmarks.pacing import PacedClients, Request
from benchmarks.report import Report, Unmeasurable, percentile
from examples.tracking.render import render_all
from examples.tracking.scene import Scene
from holdfast.testing import StreamTest
from holdfast.vision.handler import Frame, Tracking
from holdfast.vision.ingest import video_frames

GATEWAYS = 2
STREAMS = NODES * OWNED
PER_S = 500.0
SCENES = 4
SCENE_S = 24.0
"""Of film at 25 frames a second, far more than a default run sends; then it begins again."""

WIDTH, HEIGHT = 192, 108
SETTLE_S = 1.5
"""Traffic around disturbances, so that each starts from calm."""

LEAD_S = 0.2
"""Frames that were due so long before a disturbance may still be under way."""

TIMEOUT_S = 30.0


class Cameras(PacedClients):
    """The clients: the frames of every stream."""

    def __init__(self, addresses: list[str], films: list[list[bytes]]) -> None:
        super().__init__([name(stream) for stream in range(STREAMS)], PER_S)
        self._addresses = addresses
        self._films = films

    def request(self, stream: str, number: int) -> Request:
        index = int(stream.rpartition("-")[2])
        film = self._films[index % len(self._films)]
        url = f"{self._addresses[index % len(self._addresses)]}/process/{stream}"
        return Request(url, film[number % len(film)], "image/jpeg", number)

    def differences(self) -> tuple[int, int]:
        """Count the tracks with another id than in an undisturbed run, and all other results that differ."""
        expected = [undisturbed(film, max(map(len, self.answered.values()))) for film in self._films]
        switches = unequal = 0
        for index, (stream, frames) in enumerate(self.answered.items()):
            for answered in frames:
                if answered.status != 200:
                    continue
                result = msgspec.json.decode(answered.body)
                right = expected[index % len(expected)][result["frame"]]
                ids = {tuple(track["box"]): track["id"] for track in right["tracks"]}
                found = {tuple(track["box"]): track["id"] for track in result["tracks"]}
                switches += sum(ids.get(box, number) != number for box, number in found.items())
                unequal += result != right | {"video": stream}
        return switches, unequal


class Disturbance(NamedTuple):
    """Streams that lost their node between two monotonic times."""

    since: float
    until: float
    streams: list[str]

    def stalls_ms(self, cameras: Cameras) -> list[float]:
        """The longest wait in each stream. Raises Unmeasurable."""
        return [max(waits) for waits in self.waits_ms(cameras, self.since - LEAD_S)]

    def waits_ms(self, cameras: Cameras, since: float) -> list[list[float]]:
        """How long each frame took that was due from ``since`` on, by stream. Raises Unmeasurable."""
        return heard(self.streams, cameras.waits_ms(self.streams, since, self.until))


def heard(streams: list[str], waits_ms: list[list[float]]) -> list[list[float]]:
    """The waits of these streams. Raises Unmeasurable if one has none: clients that can't keep their pace
    fall behind by more than a disturbance's duration."""
    silent = [stream for stream, waits in zip(streams, waits_ms, strict=True) if not waits]
    if silent:
        raise Unmeasurable(
            f"{len(silent)} of {len(streams)} streams ({silent[0]} for one) had no frame while they were"
            f" watched, for this machine is too busy to send {PER_S:g} frames a second; run it where nothing"
            " else runs"
        )
    return waits_ms


def name(stream: int) -> str:
    """The id of a stream."""
    return f"cam-{stream}"


def undisturbed(film: list[bytes], count: int) -> list[dict[str, Any]]:
    """The results of a film's frames, sent to a handler without anything between."""
    objects = {str(number): jpeg for number, jpeg in enumerate(film)}
    frames = (Frame("undisturbed", 0, number, 0, str(number % len(film))) for number in range(count))
    results: list[dict[str, Any]] = StreamTest(Tracking, objects=objects).send(*frames)
    return results


def films(seconds: float) -> list[list[bytes]]:
    """The frames of each scene."""
    scenes = [Scene(seed=seed, seconds=seconds, width=WIDTH, height=HEIGHT) for seed in range(SCENES)]
    rendered = render_all(scenes, ROOT / ".cache" / "benchmarks" / "scenes")
    return [[frame.jpeg for frame in video_frames(film.video)] for film in rendered]


async def disturb(
    drill: Drill, node: LoggedProcess, end: Callable[[LoggedProcess], Awaitable[None]]
) -> Disturbance:
    """End a node, and let time pass."""
    streams = [key.partition("/")[2] for key in await drill.owned(node)]
    since = time.monotonic()
    await end(node)
    await asyncio.sleep(SETTLE_S)
    return Disturbance(since, time.monotonic() - LEAD_S, streams)  # what comes next is another matter


async def measure(report: Report, rounds: int, data_plane: str) -> None:
    """The drill, then the figures."""
    shown = await asyncio.to_thread(films, SCENE_S)
    kills, drains = [], []
    async with cluster("benchmarks.apps:watch", slots=2, balance_s=0) as nodes:
        await nodes.start_all(NODES)
        async with gateways(nodes, GATEWAYS, data_plane) as addresses:
            cameras = Cameras(addresses, shown)
            sending = asyncio.create_task(cameras.run())
            await asyncio.sleep(3 * SETTLE_S)
            drill = Drill(nodes, nodes.services.peer())
            calm = Disturbance(time.monotonic() - SETTLE_S, time.monotonic(), list(cameras.answered))
            for _ in range(rounds):
                kills.append(await disturb(drill, nodes.nodes[-1], drill.kill))
                await drill.replace()
                await asyncio.sleep(SETTLE_S)
                drains.append(await disturb(drill, nodes.nodes.pop(), LoggedProcess.stop))
                await drill.replace()
                await asyncio.sleep(SETTLE_S)
            cameras.end()
            await sending
        nodes.kill()
    tell(report, cameras, calm, kills, drains)


def tell(
    report: Report, cameras: Cameras, calm: Disturbance, kills: list[Disturbance], drains: list[Disturbance]
) -> None:
    """The figures."""
    stalls = [ms for kill in kills for ms in kill.stalls_ms(cameras)]
    drain_stalls = [ms for drain in drains for ms in drain.stalls_ms(cameras)]
    waits = [ms for frames in calm.waits_ms(cameras, calm.since) for ms in frames]
    errors = cameras.errors()
    switches, unequal = cameras.differences()
    report.figure("errors", errors.total(), "0")
    report.figure("stall_p50_ms", median(stalls))
    report.figure("stall_p99_ms", percentile(stalls, 99), "< 300")
    report.figure("drain_stall_p50_ms", median(drain_stalls))
    report.figure("drain_stall_p99_ms", percentile(drain_stalls, 99), "< 100")
    report.figure("identity_switches", switches, "0")
    report.figure("unequal_results", unequal, "0")
    report.figure("undisturbed_p50_ms", median(waits))
    report.figure("undisturbed_p99_ms", percentile(waits, 99))
    report.detail |= {
        "frames": sum(map(len, cameras.answered.values())),
        "stream_crashes": len(stalls),
        "stream_drains": len(drain_stalls),
        "what_failed": dict(errors.most_common(5)),
    }


def main() -> None:
    """Measure and report."""
    parser = argparse.ArgumentParser(prog="benchmarks gateway-failover", description=__doc__)
    parser.add_argument("--full", action="store_true", help="more rounds")
    parser.add_argument("--rounds", type=int, help="kills and drains (default 2, with --full 10)")
    parser.add_argument("--data-plane", choices=["haproxy", "python"], default="haproxy")
    asked = parser.parse_args()
    rounds = asked.rounds or (10 if asked.full else 2)
    report = Report("gateway-failover")
    report.say(
        f"gateway-failover: {NODES} nodes behind {GATEWAYS} gateways, {STREAMS} streams, {PER_S:g} frames/s"
        f" together; {rounds} times the owner of {OWNED} is killed, and another one drained"
    )
    try:
        asyncio.run(measure(report, rounds, asked.data_plane))
    except Unmeasurable as error:
        raise SystemExit(f"gateway-failover can't be measured: {error}") from None
    report.end(
        ["aiohttp", "numpy", "pillow", "av"],
        rounds=rounds,
        gateways=GATEWAYS,
        data_plane=asked.data_plane,
        pixels=f"{WIDTH}x{HEIGHT}",
        durability="full",
        evidence="peers and gateways",
    )
