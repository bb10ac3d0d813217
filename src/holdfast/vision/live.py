"""Ingest of live cameras: frames in the object store, and messages in the queue.

A lost camera is tried again. Once it is back it begins a new run, as the frames between are unknown.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from typing import NamedTuple

import av
import av.error
import msgspec

from holdfast.errors import HoldfastError, Retry
from holdfast.extend import Clock, Objects, Queue
from holdfast.extend.tools import Backoff, redact, redact_url
from holdfast.vision import jpeg
from holdfast.vision.video import FrameSampler, VideoFrame, send_frames

WAITING_MAX = 64
"""Frames that may wait to be sent. Further ones are left out."""

END_TIMEOUT_S = 1.0
BACKOFF = Backoff(0.5, 30.0)


class CameraLost(HoldfastError):
    """A camera can't be reached, or stopped sending frames; the text has the remedy."""


class CameraRun(msgspec.Struct):
    """The record of one connection: the frames sent, the frames left out while too many waited, and once it
    is ``over``, why the camera was lost ("": it was stopped)."""

    number: int
    frames: int = 0
    left_out: int = 0
    over: bool = False
    lost: str = ""


class CameraSource(NamedTuple):
    """The source of a camera's frames.

    Attributes:
        url: ``rtsp://…``, or any other live source that FFmpeg reads.
        video: the stream's key.
        fps: the limit of frames of each second; None: all.
        timeout_s: longest wait for the camera's answer, and then for each frame.
    """

    url: str
    video: str
    fps: float | None = None
    timeout_s: float = 10.0


class Camera:
    """Pulls one camera's frames until it is stopped.

    Args:
        on_run: gets the run whenever frames were sent, and when it is over.
        on_trouble: gets the error of the camera or of sending, and the seconds until the next try.
    """

    def __init__(
        self,
        source: CameraSource,
        *,
        objects: Objects,
        queue: Queue,
        clock: Clock,
        backoff: Backoff = BACKOFF,
        on_run: Callable[[CameraRun], None] = lambda run: None,
        on_trouble: Callable[[str, float], None] = lambda why, again_s: None,
    ) -> None:
        self._source = source
        self._objects = objects
        self._queue = queue
        self._clock = clock
        self._backoff = backoff
        self._on_run = on_run
        self._on_trouble = on_trouble
        self._stopped = asyncio.Event()
        self.reader: _Reader | None = None
        self._newest_run = 0

    def stop(self) -> None:
        """End after the frames that were read are sent."""
        self._stopped.set()
        if self.reader is not None:
            self.reader.halt()

    async def run(self) -> None:
        failures = 0
        while not self._stopped.is_set():
            run = await self._connection()
            if self._stopped.is_set():
                break
            failures = 1 if run.frames else failures + 1
            await self._rest(run.lost, failures)

    async def _rest(self, why: str, failures: int) -> None:
        again_s = self._backoff.delay_s(failures, self._clock.random())
        self._on_trouble(why, again_s)
        await self._clock.wait(self._stopped, again_s)

    async def _connection(self) -> CameraRun:
        """Pull over one connection until it ends. Its run is numbered by the time in milliseconds, so it is
        above all earlier runs, also of other processes."""
        run = CameraRun(max(self._newest_run + 1, round(self._clock.wall() * 1000)))
        reader = self.reader = _Reader(self._source)
        try:
            async for batch in reader.batches(self._queue.max_batch):
                self._newest_run = run.number
                run.left_out = reader.left_out
                await self._send_all(run, batch)
                self._on_run(run)
        finally:
            reader.halt()
        run.lost, run.over = "" if self._stopped.is_set() else reader.lost, True
        if run.frames:
            self._on_run(run)
        await self._clock.wait(reader.gone, END_TIMEOUT_S)
        return run

    async def _send_all(self, run: CameraRun, batch: list[VideoFrame]) -> None:
        """Send frames, again after each temporary error. Their numbers make repeated messages harmless."""
        failures = 0
        while True:
            try:
                await send_frames(
                    batch, self._source.video, run.number, run.frames, self._objects, self._queue
                )
                run.frames += len(batch)
                return
            except HoldfastError as error:
                failures += 1
                if error.retry not in (Retry.SAFE, Retry.SAME) or self._stopped.is_set():
                    raise
                await self._rest(str(error), failures)


class _Reader:
    """One connection, read in a thread of its own: FFmpeg blocks, and can't be interrupted.

    Attributes:
        lost: why the connection ended.
        left_out: frames for which there was no room.
        gone: set when the thread is about to end.
    """

    def __init__(self, source: CameraSource) -> None:
        self.lost = ""
        self.left_out = 0
        self.gone = asyncio.Event()
        self._source = source
        self._waiting: deque[VideoFrame] = deque()
        self._changed = asyncio.Event()
        self._over = False
        self._loop = asyncio.get_running_loop()
        # A daemon thread: the process can end while it waits for a silent camera.
        threading.Thread(target=self._read, name="holdfast-camera", daemon=True).start()

    async def batches(self, size: int) -> AsyncIterator[list[VideoFrame]]:
        """Yield the frames, up to ``size`` at a time, until the end."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            while self._waiting:
                yield [self._waiting.popleft() for _ in range(min(size, len(self._waiting)))]
            if self._over:
                return

    def halt(self) -> None:
        """Stop taking frames; the thread ends at the next frame or timeout."""
        self._over = True
        self._changed.set()

    def _read(self) -> None:
        lost = "its stream ended"
        try:
            source = self._source
            for frame in camera_frames(source.url, fps=source.fps, timeout_s=source.timeout_s):
                if self._over or not self._call(self._take, frame):
                    break
        except CameraLost as error:
            lost = str(error)
        except Exception as error:  # noqa: BLE001 - else the thread would end silently
            lost = redact(f"{redact_url(self._source.url)} can't be read: {error!r}; check the camera")
        self._call(self._end, lost)

    def _call(self, function: Callable[..., None], *args: object) -> bool:
        """Have the event loop call a function. Return False if the loop is closed."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(function, *args)
            return True
        return False

    def _take(self, frame: VideoFrame) -> None:
        if self._over:
            return
        if len(self._waiting) < WAITING_MAX:
            self._waiting.append(frame)
            self._changed.set()
        else:
            self.left_out += 1

    def _end(self, lost: str) -> None:
        self.lost = lost
        self.gone.set()
        self.halt()


def camera_frames(url: str, *, fps: float | None = None, timeout_s: float = 10.0) -> Iterator[VideoFrame]:
    """Yield the frames of a live source until it ends, without damaged ones. Blocks. Raises CameraLost."""
    where = redact_url(url)
    # TCP loses no packets and opens no port here, but some cameras don't support it.
    options = {"rtsp_flags": "prefer_tcp"} if url.startswith(("rtsp:", "rtsps:")) else {}
    try:
        # A title in an unknown encoding doesn't matter.
        with av.open(url, options=options, timeout=timeout_s, metadata_errors="replace") as container:
            if not container.streams.video:
                raise CameraLost(f"{where} has no video; name the camera's video stream")
            video = container.streams.video[0]
            if video.width * video.height > jpeg.PIXELS_MAX:  # before it is decoded
                raise CameraLost(
                    f"{where} sends {video.width} x {video.height} pixels; {jpeg.PIXELS_MAX} is the most: set"
                    " the camera to fewer"
                )
            yield from _sampled(container, fps)
    except av.error.ExitError as error:
        raise CameraLost(f"{where} sent nothing for {timeout_s:g} s; check the camera") from error
    except (av.error.HTTPUnauthorizedError, av.error.HTTPForbiddenError) as error:
        raise CameraLost(
            f"{where} demands another user and password; write them as in rtsp://USER:PASSWORD@HOST/…"
        ) from error
    except av.error.FFmpegError as error:
        raise CameraLost(
            f"{where} can't be read: {error.strerror}; check its address, and the camera"
        ) from error


def _sampled(container: av.container.InputContainer, fps: float | None) -> Iterator[VideoFrame]:
    stream = container.streams.video[0]
    sampler = FrameSampler(fps)
    first_s: float | None = None
    last_s = 0.0
    for packet in container.demux(stream):
        try:
            decoded = packet.decode()
        except av.error.InvalidDataError:
            continue  # an earlier packet that it needs is missing
        for frame in decoded:
            if packet.is_corrupt or frame.is_corrupt:
                continue
            time_s = last_s
            if frame.pts is not None and frame.time_base is not None:
                at_s = float(frame.pts * frame.time_base)
                first_s = at_s if first_s is None else first_s
                time_s = at_s - first_s
            if sampler.takes(time_s):
                last_s = time_s
                yield sampler.encode(frame, time_s)
