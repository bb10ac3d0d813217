"""From a video file to frames in the object store and messages in the queue."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import av
import av.error
import msgspec
from av.video.reformatter import VideoReformatter
from PIL import Image

from holdfast.errors import HoldfastError
from holdfast.extend import Clock, Objects, Outgoing, Queue
from holdfast.vision import jpeg
from holdfast.vision.handler import Frame
from holdfast.vision.jpeg import encode
from holdfast.vision.places import object_name
from holdfast.vision.rate import FrameRate


class UnreadableVideo(HoldfastError):
    """A video file can't be read, or not to its end; the text names it and says what to do."""


class Still(NamedTuple):
    """One frame of a video file. ``number`` counts from 0, ``timestamp_ms`` from the video's start."""

    number: int
    timestamp_ms: int
    jpeg: bytes


def stills(path: Path, *, fps: float | None = None, seconds: float | None = None) -> Iterator[Still]:
    """The frames of a video file, in order.

    ``fps`` leaves frames out so that at most so many remain of each second; ``seconds`` ends early.
    Raises UnreadableVideo for a file that is missing or no video, and at the end of a truncated one if
    its format tells how many frames there should be.
    """
    try:
        # Texts in another encoding, such as a title, are no reason to refuse a video.
        with av.open(str(path), metadata_errors="replace") as container:
            if not container.streams.video:
                raise UnreadableVideo(f"{path} holds no video; give a file with a video stream")
            yield from _sampled(path, container, fps, seconds)
    except FileNotFoundError as error:
        raise UnreadableVideo(f"there is no video file {path}; check its name") from error
    except IsADirectoryError as error:
        raise UnreadableVideo(f"{path} is a folder; name the video files in it") from error
    except PermissionError as error:
        raise UnreadableVideo(f"{path} may not be read; check its permissions") from error
    except av.error.FFmpegError as error:
        raise UnreadableVideo(
            f"{path} is not a video that can be read ({error.strerror});"
            " copy the file again, or convert it to MP4"
        ) from error
    except UnreadableVideo:
        raise
    except Exception as error:
        raise UnreadableVideo(f"{path} can't be read: {error!r}; convert it to MP4") from error


def _sampled(
    path: Path, container: av.container.InputContainer, fps: float | None, seconds: float | None
) -> Iterator[Still]:
    stream = container.streams.video[0]
    if stream.width * stream.height > jpeg.PIXELS_MAX:  # nothing is decoded yet
        raise UnreadableVideo(
            f"{path} has frames of {stream.width} x {stream.height} pixels; {jpeg.PIXELS_MAX} is the most:"
            " scale it down"
        )
    # One converter, of one thread, for all frames: making its threads anew takes far longer than its work.
    converter = VideoReformatter()
    rate = FrameRate(fps)
    packets = number = 0
    start_s: float | None = None
    try:
        for packet in container.demux(stream):
            packets += packet.size > 0
            for frame in packet.decode():
                if packet.is_corrupt or frame.is_corrupt:
                    raise UnreadableVideo(_cut(path, number, "a frame is damaged"))
                if frame.pts is None or frame.time_base is None:
                    raise UnreadableVideo(f"{path} has frames without a time; convert it to MP4")
                time_s = float(frame.pts * frame.time_base)
                start_s = time_s if start_s is None else start_s
                time_s -= start_s
                if seconds is not None and time_s >= seconds:
                    return
                if rate.takes(time_s):
                    image = converter.reformat(frame, format="rgb24", threads=1).to_ndarray()
                    yield Still(number, round(time_s * 1000), encode(Image.fromarray(image)))
                    number += 1
    except av.error.FFmpegError as error:
        raise UnreadableVideo(_cut(path, number, error.strerror or "it can't be decoded")) from error
    if packets < stream.frames:
        raise UnreadableVideo(_cut(path, number, f"it has {packets} of {stream.frames} frames"))


def _cut(path: Path, number: int, why: str) -> str:
    return (
        f"{path} is truncated or damaged: {why}; {number} frames before that were read."
        " Copy the file again and ingest it with the same run: frames already there are not processed twice"
    )


async def ingest(
    path: Path,
    video: str,
    run: int,
    *,
    objects: Objects,
    queue: Queue,
    clock: Clock,
    attributes: Mapping[str, str] | None = None,
    fps: float | None = None,
    seconds: float | None = None,
    realtime: bool = False,
    progress: Callable[[int], None] = lambda frames: None,
) -> int:
    """Store a video's frames, then send their messages; returns how many.

    Messages are :class:`Frame` as JSON, with ``attributes``. In ``realtime`` each frame is sent when its
    time has come, else as fast as possible. ``progress`` hears the number of frames sent so far. Doing it
    again with the same ``run`` is harmless: the messages have the same identities.
    Raises UnreadableVideo (see :func:`stills`); what was read before is sent first.
    """
    frames = stills(path, fps=fps, seconds=seconds)
    batch_size = 1 if realtime else queue.max_batch
    began_s = clock.monotonic()
    sent = 0
    failure: UnreadableVideo | None = None
    while failure is None:
        batch, failure = await asyncio.to_thread(_batch, frames, batch_size)
        if not batch:
            break
        if realtime:
            await clock.sleep(max(began_s + batch[0].timestamp_ms / 1000 - clock.monotonic(), 0))
        urls = await asyncio.gather(
            *(objects.put(object_name(video, run, still.number), still.jpeg) for still in batch)
        )
        messages = [
            Frame(video, run, still.number, still.timestamp_ms, url)
            for still, url in zip(batch, urls, strict=True)
        ]
        await queue.send([Outgoing(msgspec.json.encode(m), dict(attributes or {})) for m in messages])
        sent += len(batch)
        progress(sent)
    if failure is not None:
        raise failure
    return sent


def _batch(frames: Iterator[Still], size: int) -> tuple[list[Still], UnreadableVideo | None]:
    """The next frames, and what ended them early."""
    batch: list[Still] = []
    try:
        batch.extend(itertools.islice(frames, size))
    except UnreadableVideo as error:
        return batch, error
    return batch, None
