"""The undisturbed run: the same handler over the same frames in bare loops, without Holdfast."""

from __future__ import annotations

import math
import multiprocessing
import os
import signal
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from typing import Any, cast

import msgspec

from examples.tracking.plan import FPS, RUN, DemoCamera, DemoFailed, DemoPlan
from holdfast import Context
from holdfast.extend import Machine
from holdfast.slots.lifeline import die_with
from holdfast.vision.handler import Frame, Tracking
from holdfast.vision.ingest import video_frames

FRAMES_A_PROCESS = 500
"""Fewer take less time than a process needs to start."""

Results = list[dict[str, Any]]
"""What the handler returned for each frame of a stream, in order."""


def undisturbed(plan: DemoPlan) -> Mapping[str, Results]:
    """The results of each stream, by its key. Raises UnreadableVideo, DemoFailed."""
    run = partial(track, seconds=plan.seconds)
    frames = plan.seconds * FPS * len(plan.cameras)
    if frames <= FRAMES_A_PROCESS:
        return {camera.key: run(camera) for camera in plan.cameras}
    workers = math.ceil(min(Machine().whole_cores, len(plan.cameras), frames / FRAMES_A_PROCESS))
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, context, initializer=_bind, initargs=(os.getpid(),)) as pool:
        try:
            results = list(pool.map(run, plan.cameras))
        except BrokenProcessPool as error:
            raise DemoFailed("a process of the undisturbed run was killed; is there memory left?") from error
    return {camera.key: done for camera, done in zip(plan.cameras, results, strict=True)}


def track(camera: DemoCamera, seconds: float) -> Results:
    """One stream in a loop."""
    frames = _Frames(camera.key)
    context = cast("Context", frames)  # it has what tracking asks for
    handler = Tracking()
    handler.open(context, None)
    results = []
    for number, frame in enumerate(video_frames(camera.video, fps=FPS, seconds=seconds)):
        frames.jpeg = frame.jpeg
        message = Frame(camera.key, RUN, number, frame.timestamp_ms, "")
        results.append(handler.process(message, context))
    return msgspec.json.decode(msgspec.json.encode(results), type=Results)  # as the results log has them


class _Frames:
    """A context that has the frame in hand."""

    run = RUN
    seq = 0
    attempt = 1

    def __init__(self, key: str) -> None:
        self.key = key
        self.jpeg = b""

    def model(self, wanted: str | Callable[[], Any]) -> Any:
        raise NotImplementedError("tracking asks for no model")

    def fetch(self, url: str) -> bytes:
        return self.jpeg

    async def fetch_async(self, url: str) -> bytes:
        return self.jpeg

    def progress(self, note: str = "") -> None:
        pass


def _bind(parent: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent stops, and this process with it
    die_with(parent)
