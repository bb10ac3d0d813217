"""Ingest of video files: frames in the object store, and messages in the queue."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import av
import av.error

from holdfast.errors import HoldfastError
from holdfast.extend import Clock, Objects, Queue
from holdfast.vision import jpeg
from holdfast.vision.video import FrameSampler, VideoFrame, send_frames


class UnreadableVideo(HoldfastError):
    """A video file can't be read, or not to its end; the text names the file and the remedy."""


def video_frames(
    path: Path, *, fps: float | None = None, seconds: float | None = None
) -> Iterator[VideoFrame]:
    """Yield the frames of a video file, in order: up to ``fps`` of each second, and only the first
    ``seconds``.

    Raises UnreadableVideo for a file that is missing or isn't a video, and at the end of a truncated one, if
    its format has the number of frames.
    """
    try:
        # A title in an unknown encoding doesn't matter.
        with av.open(str(path), metadata_errors="replace") as container:
            if not container.streams.video:
                raise UnreadableVideo(f"{path} has no video; give a file with a video stream")
            yield from _sampled(path, container, fps, seconds)
    except FileNotFoundError as error:
        raise UnreadableVideo(f"no video file {path}; check its name") from error
    except IsADirectoryError as error:
        raise UnreadableVideo(f"{path} is a folder; name the video files in it") from error
    except PermissionError as error:
        raise UnreadableVideo(f"{path} may not be read; check its permissions") from error
    except av.error.FFmpegError as error:
        raise UnreadableVideo(
            f"{path} can't be read as a video ({error.strerror}); copy the file again, or convert it to MP4"
        ) from error
    except UnreadableVideo:
        raise
    except Exception as error:
        raise UnreadableVideo(f"{path} can't be read: {error!r}; convert it to MP4") from error


def _sampled(
    path: Path, container: av.container.InputContainer, fps: float | None, seconds: float | None
) -> Iterator[VideoFrame]:
    stream = container.streams.video[0]
    if stream.width * stream.height > jpeg.PIXELS_MAX:  # before it is decoded
        raise UnreadableVideo(
            f"{path} has frames of {stream.width} x {stream.height} pixels; {jpeg.PIXELS_MAX} is the most:"
            " scale it down"
        )
    sampler = FrameSampler(fps)
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
                if sampler.takes(time_s):
                    yield sampler.encode(frame, time_s)
                    number += 1
    except av.error.FFmpegError as error:
        raise UnreadableVideo(_cut(path, number, error.strerror or "it can't be decoded")) from error
    if packets < stream.frames:
        raise UnreadableVideo(_cut(path, number, f"it has {packets} of {stream.frames} frames"))


def _cut(path: Path, number: int, why: str) -> str:
    return (
        f"{path} is truncated or damaged: {why}; {number} frames before it were read."
        " Copy the file again and ingest it with the same run: frames already sent are not processed twice"
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
    """Store a video's frames, send their messages, and return how many.

    Messages are :class:`Frame` as JSON, with ``attributes``. ``realtime``: each frame is sent at its time,
    else as fast as possible. ``progress`` gets the number of frames sent so far. To repeat the ingest with
    the same ``run`` is harmless: the messages have the same identities. Raises UnreadableVideo (see
    :func:`video_frames`), after the frames before the error are sent.
    """
    frames = video_frames(path, fps=fps, seconds=seconds)
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
        await send_frames(batch, video, run, sent, objects, queue, attributes)
        sent += len(batch)
        progress(sent)
    if failure is not None:
        raise failure
    return sent


def _batch(frames: Iterator[VideoFrame], size: int) -> tuple[list[VideoFrame], UnreadableVideo | None]:
    """Return the next frames, and the error that ended them."""
    batch: list[VideoFrame] = []
    try:
        batch.extend(itertools.islice(frames, size))
    except UnreadableVideo as error:
        return batch, error
    return batch, None
