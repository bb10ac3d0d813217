"""From a live camera to frames in the object store and messages in the queue.

A camera that is lost is tried again, and begins a new run when it is back, for nobody knows what it saw
meanwhile.
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
from av.video.reformatter import VideoReformatter
from PIL import Image

from holdfast.errors import HoldfastError, Retry
from holdfast.extend import Clock, Objects, Outgoing, Queue
from holdfast.extend.tools import Backoff, redact, redact_url
from holdfast.vision import jpeg
from holdfast.vision.handler import Frame
from holdfast.vision.jpeg import encode
from holdfast.vision.places import object_name
from holdfast.vision.rate import FrameRate

WAITING_MAX = 64
"""Frames that wait to be sent. While so many do, those that come are left out."""

END_TIMEOUT_S = 1.0
BACKOFF = Backoff(0.5, 30.0)


class CameraLost(HoldfastError):
    """A camera can't be reached, or gives no more frames; the text says what to do."""


class CameraRun(msgspec.Struct):
    """The record of one connection: the frames that were sent, those left out while too many waited to be,
    and once it is ``over`` why the camera was lost ("": it was stopped)."""

    number: int
    frames: int = 0
    left_out: int = 0
    over: bool = False
    lost: str = ""


class Taken(NamedTuple):
    """One frame of a camera; ``timestamp_ms`` counts from the connection's first."""

    timestamp_ms: int
    jpeg: bytes


class CameraSource(NamedTuple):
    """The source of a camera's frames, and which of them are taken.

    Attributes:
        url: where it is: ``rtsp://…``, or any other live source that FFmpeg reads.
        video: the stream's key.
        fps: leave frames out so that at most so many remain of each second.
        timeout_s: longest wait for the camera to answer, and then for each frame.
    """

    url: str
    video: str
    fps: float | None = None
    timeout_s: float = 10.0


class Camera:
    """Pulls one camera's frames until it is stopped.

    Args:
        source: the camera.
        objects: where frames are put.
        queue: where their messages are sent.
        backoff: pauses between tries to reach it.
        tell: is told each run, when its first frames are sent, when more are, and when it is over.
        trouble: is told what went wrong, with the camera or with sending, and in how many seconds it is tried
            again.
    """

    def __init__(
        self,
        source: CameraSource,
        *,
        objects: Objects,
        queue: Queue,
        clock: Clock,
        backoff: Backoff = BACKOFF,
        tell: Callable[[CameraRun], None] = lambda run: None,
        trouble: Callable[[str, float], None] = lambda why, again_s: None,
    ) -> None:
        self._source = source
        self._objects = objects
        self._queue = queue
        self._clock = clock
        self._backoff = backoff
        self._tell = tell
        self._trouble = trouble
        self._stopped = asyncio.Event()
        self.reader: _Reader | None = None
        self._newest_run = 0

    def stop(self) -> None:
        """End in good order: what was read is sent."""
        self._stopped.set()
        if self.reader is not None:
            self.reader.halt()

    async def run(self) -> None:
        """Pull until stopped."""
        failures = 0
        while not self._stopped.is_set():
            run = await self._connection()
            if self._stopped.is_set():
                break
            failures = 1 if run.frames else failures + 1
            await self._rest(run.lost, failures)

    async def _rest(self, why: str, failures: int) -> None:
        again_s = self._backoff.delay_s(failures, self._clock.random())
        self._trouble(why, again_s)
        await self._clock.wait(self._stopped, again_s)

    async def _connection(self) -> CameraRun:
        """One connection, from its beginning to its end. Its run is numbered by the time in milliseconds, so
        that it is above those that this or any other process began before."""
        run = CameraRun(max(self._newest_run + 1, round(self._clock.wall() * 1000)))
        reader = self.reader = _Reader(self._source)
        try:
            async for batch in reader.batches(self._queue.max_batch):
                self._newest_run = run.number
                run.left_out = reader.left_out
                await self._insist(run, batch)
                self._tell(run)
        finally:
            reader.halt()
        run.lost, run.over = "" if self._stopped.is_set() else reader.lost, True
        if run.frames:
            self._tell(run)
        await self._clock.wait(reader.gone, END_TIMEOUT_S)
        return run

    async def _insist(self, run: CameraRun, batch: list[Taken]) -> None:
        """Send until it is done, as long as that may be tried: twice is as once, by the frames' numbers."""
        failures = 0
        while True:
            try:
                return await self._send(run, batch)
            except HoldfastError as error:
                failures += 1
                if error.retry not in (Retry.SAFE, Retry.SAME) or self._stopped.is_set():
                    raise
                await self._rest(str(error), failures)

    async def _send(self, run: CameraRun, batch: list[Taken]) -> None:
        numbers = range(run.frames, run.frames + len(batch))
        urls = await asyncio.gather(
            *(
                self._objects.put(object_name(self._source.video, run.number, number), taken.jpeg)
                for number, taken in zip(numbers, batch, strict=True)
            )
        )
        messages = [
            Frame(self._source.video, run.number, number, taken.timestamp_ms, url)
            for number, taken, url in zip(numbers, batch, urls, strict=True)
        ]
        await self._queue.send([Outgoing(msgspec.json.encode(m)) for m in messages])
        run.frames += len(batch)


class _Reader:
    """One connection, read in a thread of its own: FFmpeg waits there, and can't be told to stop.

    Attributes:
        lost: why there is nothing more.
        left_out: frames for which there was no room.
        gone: set when the thread is about to end.
    """

    def __init__(self, source: CameraSource) -> None:
        self.lost = ""
        self.left_out = 0
        self.gone = asyncio.Event()
        self._source = source
        self._waiting: deque[Taken] = deque()
        self._changed = asyncio.Event()
        self._over = False
        self._loop = asyncio.get_running_loop()
        # A daemon: the process can end while a camera that says nothing is waited for.
        threading.Thread(target=self._read, name="holdfast-camera", daemon=True).start()

    async def batches(self, size: int) -> AsyncIterator[list[Taken]]:
        """Yield what was read, up to ``size`` frames at a time, until the end."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            while self._waiting:
                yield [self._waiting.popleft() for _ in range(min(size, len(self._waiting)))]
            if self._over:
                return

    def halt(self) -> None:
        """Take nothing more; the thread ends with the next frame or timeout."""
        self._over = True
        self._changed.set()

    def _read(self) -> None:
        lost = "its stream ended"
        try:
            source = self._source
            for taken in frames(source.url, fps=source.fps, timeout_s=source.timeout_s):
                if self._over or not self._say(self._take, taken):
                    break
        except CameraLost as error:
            lost = str(error)
        except Exception as error:  # noqa: BLE001 - nobody else hears that this thread ends
            lost = redact(f"{redact_url(self._source.url)} can't be read: {error!r}; check the camera")
        self._say(self._end, lost)

    def _say(self, what: Callable[..., None], *args: object) -> bool:
        """Have the loop do it; False if it is closed."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(what, *args)
            return True
        return False

    def _take(self, taken: Taken) -> None:
        if self._over:
            return
        if len(self._waiting) < WAITING_MAX:
            self._waiting.append(taken)
            self._changed.set()
        else:
            self.left_out += 1

    def _end(self, lost: str) -> None:
        self.lost = lost
        self.gone.set()
        self.halt()


def frames(url: str, *, fps: float | None = None, timeout_s: float = 10.0) -> Iterator[Taken]:
    """The frames of a live source, damaged ones left out, until it ends. Blocks. Raises CameraLost."""
    where = redact_url(url)
    # Over TCP nothing is lost on the way, and no port is opened here; but not every camera can do that.
    options = {"rtsp_flags": "prefer_tcp"} if url.startswith(("rtsp:", "rtsps:")) else {}
    try:
        # Texts in another encoding are no reason to see nothing.
        with av.open(url, options=options, timeout=timeout_s, metadata_errors="replace") as container:
            if not container.streams.video:
                raise CameraLost(f"{where} has no video; name the camera's video stream")
            video = container.streams.video[0]
            if video.width * video.height > jpeg.PIXELS_MAX:  # nothing is decoded yet
                raise CameraLost(
                    f"{where} sends {video.width} x {video.height} pixels; {jpeg.PIXELS_MAX} is the most: set"
                    " the camera to fewer"
                )
            yield from _sampled(container, fps)
    except av.error.ExitError as error:
        raise CameraLost(f"nothing came from {where} for {timeout_s:g} s; check the camera") from error
    except (av.error.HTTPUnauthorizedError, av.error.HTTPForbiddenError) as error:
        raise CameraLost(
            f"{where} wants a user and a password, or others; write them as in rtsp://USER:PASSWORD@HOST/…"
        ) from error
    except av.error.FFmpegError as error:
        raise CameraLost(
            f"{where} can't be read: {error.strerror}; check its address, and the camera"
        ) from error


def _sampled(container: av.container.InputContainer, fps: float | None) -> Iterator[Taken]:
    stream = container.streams.video[0]
    converter = VideoReformatter()
    rate = FrameRate(fps)
    first_s: float | None = None
    last_s = 0.0
    for packet in container.demux(stream):
        try:
            decoded = packet.decode()
        except av.error.InvalidDataError:
            continue  # what it needs was sent before we came, or was lost
        for frame in decoded:
            if packet.is_corrupt or frame.is_corrupt:
                continue
            time_s = last_s
            if frame.pts is not None and frame.time_base is not None:
                at_s = float(frame.pts * frame.time_base)
                first_s = at_s if first_s is None else first_s
                time_s = at_s - first_s
            if not rate.takes(time_s):
                continue
            last_s = time_s
            image = converter.reformat(frame, format="rgb24", threads=1).to_ndarray()
            yield Taken(max(0, round(time_s * 1000)), encode(Image.fromarray(image)))
