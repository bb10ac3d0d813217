"""Scenes as H.264 videos with their ground truth, rendered once and cached."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

import av
import msgspec
from av.video.reformatter import VideoReformatter

from examples.tracking.scene import Scene, stage
from holdfast.extend import Machine
from holdfast.vision.boxes import Box

_LOOK = 1
"""Raise it when the same scene gives other pixels or truth, so that cached videos are rendered again."""


class Truth(msgspec.Struct, frozen=True):
    """The truth of a video: for each frame, the box of each visible object by its id."""

    fps: int
    width: int
    height: int
    frames: list[dict[int, Box]]


@dataclass(frozen=True, slots=True)
class Rendered:
    """A video file and the file of its truth."""

    video: Path
    truth_file: Path

    def truth(self) -> Truth:
        """Read the truth."""
        return msgspec.json.decode(self.truth_file.read_bytes(), type=Truth)


def render(scene: Scene, folder: Path) -> Rendered:
    """Give the scene's video from ``folder``, rendering it if it isn't there yet.

    File names carry a digest of all parameters. Files appear whole or not at all, so several processes
    may render into one folder.
    """
    digest = hashlib.sha256(repr((_LOOK, sorted(asdict(scene).items()))).encode()).hexdigest()[:12]
    rendered = Rendered(folder / f"scene-{digest}.mp4", folder / f"scene-{digest}.truth.json")
    if rendered.video.exists() and rendered.truth_file.exists():
        return rendered
    folder.mkdir(parents=True, exist_ok=True)
    part = folder / f"scene-{digest}.{os.getpid()}.part"
    try:
        truth = _encode(scene, part)
        part.replace(rendered.video)
        part.write_bytes(msgspec.json.encode(truth))
        part.replace(rendered.truth_file)
    finally:
        part.unlink(missing_ok=True)
    return rendered


def render_all(scenes: Sequence[Scene], folder: Path, threads: int | None = None) -> list[Rendered]:
    """Render several scenes at once, by default on all cores."""
    with ThreadPoolExecutor(threads or Machine().whole_cores) as pool:
        return list(pool.map(lambda scene: render(scene, folder), scenes))


def _encode(scene: Scene, path: Path) -> Truth:
    frames = []
    converter = VideoReformatter()
    # One thread and no B-frames: x264's choice between them was seen to differ from run to run, and the
    # bytes are to depend on the scene alone.
    options = {"preset": "superfast", "crf": "28", "bf": "0", "threads": "1"}
    with av.open(str(path), "w", format="mp4", options={"movflags": "+faststart"}) as container:
        stream = container.add_stream("libx264", rate=scene.fps, options=options)
        stream.width, stream.height, stream.pix_fmt = scene.width, scene.height, "yuv420p"
        for staged in stage(scene):
            frames.append(staged.truth)
            picture = av.VideoFrame.from_ndarray(staged.pixels, format="rgb24")
            container.mux(stream.encode(converter.reformat(picture, format="yuv420p", threads=1)))
        container.mux(stream.encode(None))
    return Truth(scene.fps, scene.width, scene.height, frames)
