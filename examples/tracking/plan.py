"""The plan of the demo: which videos, at what pace, on how many nodes, and when one is killed or drained."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from examples.tracking.render import render_all
from examples.tracking.scene import Scene
from holdfast.errors import ConfigError, HoldfastError

FPS = 12
RUN = 1
PEOPLE_A_SECOND = 0.4

KILL_AT = 0.35
DRAIN_AT = 0.65
LATEST = 0.85
"""When a node is killed and another drained, as shares of the whole. The drain waits for the killed node to
be back, but not past the latest."""


class DemoFailed(HoldfastError):
    """The demo could not be shown; the text says why."""


class DemoCamera(NamedTuple):
    """A stream and the video that stands for its camera."""

    key: str
    video: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoPlan:
    """One demo. ``seconds`` is how much of each video is sent, at its own pace and ``FPS`` at most;
    ``services`` are what is used beside the database."""

    cameras: Sequence[DemoCamera]
    seconds: float
    nodes: int
    faults: bool
    services: Sequence[str] = ()


def make_plan(
    folder: Path,
    *,
    videos: Sequence[Path],
    streams: int | None,
    seconds: float,
    nodes: int,
    faults: bool,
    services: Sequence[str] = (),
) -> DemoPlan:
    """Plan with the videos given, over and over if there are more ``streams``, or with rendered ones, which
    are kept in ``folder``. Raises ConfigError for numbers that make no demo."""
    if nodes < 1 or (streams is not None and streams < 1) or not seconds >= 1:
        raise ConfigError(
            f"--nodes {nodes}, --streams {streams}, --seconds {seconds:g}: each must be at least 1"
        )
    count = streams or len(videos) or 12
    if not videos:
        videos = [rendered.video for rendered in render_all(scenes(count, seconds), folder)]
    digits = max(2, len(str(count)))
    cameras = [DemoCamera(f"cam-{n + 1:0{digits}}", videos[n % len(videos)]) for n in range(count)]
    return DemoPlan(
        cameras=cameras, seconds=seconds, nodes=nodes, faults=faults and nodes > 1, services=services
    )


def scenes(count: int, seconds: float) -> list[Scene]:
    """As many scenes, all different and always the same."""
    people = max(3, round(seconds * PEOPLE_A_SECOND))
    return [
        Scene(seed=seed, seconds=seconds, fps=FPS, people=people, pillars=1 + seed % 2)
        for seed in range(1, count + 1)
    ]


def cache_folder() -> Path:
    """Return the folder where rendered videos and the contact sheet stay: below the working directory if it
    may be written, else below that for temporary files. Raises ConfigError if neither may."""
    for folder in (Path(".cache/holdfast").absolute(), Path(tempfile.gettempdir(), "holdfast")):
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError:
            continue
        return folder
    raise ConfigError("neither the working directory nor the directory for temporary files can be written")
