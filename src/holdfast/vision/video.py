"""Frames of video files and cameras: sampled, encoded, stored, and sent as messages."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec
from av import VideoFrame as DecodedFrame
from av.video.reformatter import VideoReformatter
from PIL import Image

from holdfast.extend import Objects, Outgoing, Queue
from holdfast.vision.handler import Frame
from holdfast.vision.jpeg import encode
from holdfast.vision.places import object_name


class VideoFrame(NamedTuple):
    """One sampled frame. ``timestamp_ms`` counts from the first frame of the video or connection."""

    timestamp_ms: int
    jpeg: bytes


class FrameSampler:
    """Samples and encodes the frames of one video: up to ``fps`` of each second; None: all."""

    def __init__(self, fps: float | None) -> None:
        self._fps = fps
        self._due_s = self._last_s = 0.0
        # One converter of one thread: to start its threads for each frame takes longer than the conversion.
        self._converter = VideoReformatter()

    def takes(self, time_s: float) -> bool:
        """Return whether the frame at ``time_s``, counted from the first frame, is part of the sample."""
        if self._fps is None:
            return True
        # Timestamps are rounded, so a frame may come a millisecond early. A clock may be set back.
        if self._last_s <= time_s < self._due_s - 1e-3:
            return False
        # Frames that a gap left out are not made up for.
        due_s = self._due_s + 1 / self._fps
        self._due_s = max(due_s, time_s) if time_s >= self._last_s else time_s + 1 / self._fps
        self._last_s = time_s
        return True

    def encode(self, frame: DecodedFrame, time_s: float) -> VideoFrame:
        image = self._converter.reformat(frame, format="rgb24", threads=1).to_ndarray()
        return VideoFrame(max(0, round(time_s * 1000)), encode(Image.fromarray(image)))


async def send_frames(
    frames: Sequence[VideoFrame],
    video: str,
    run: int,
    first: int,
    objects: Objects,
    queue: Queue,
    attributes: Mapping[str, str] | None = None,
) -> None:
    """Store frames, numbered from ``first``, then send their messages."""
    numbered = list(enumerate(frames, first))
    urls = await asyncio.gather(
        *(objects.put(object_name(video, run, number), frame.jpeg) for number, frame in numbered)
    )
    messages = [
        Frame(video, run, number, frame.timestamp_ms, url)
        for (number, frame), url in zip(numbered, urls, strict=True)
    ]
    await queue.send([Outgoing(msgspec.json.encode(m), dict(attributes or {})) for m in messages])
