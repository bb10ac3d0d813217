"""Cameras are pulled: each connection is a run, and what goes wrong is waited out."""

from __future__ import annotations

import asyncio
import io
import re
import socket
import threading
from collections.abc import Callable, Sequence
from itertools import pairwise

import av
import msgspec
import numpy as np
import pytest

from holdfast.common.retry import Backoff
from holdfast.errors import TooLarge, Unavailable
from holdfast.ports.clock import Clock
from holdfast.ports.queue import Outgoing
from holdfast.services.memory.objects import MemoryObjects
from holdfast.services.memory.queue import MemoryQueue
from holdfast.system.clock import SystemClock
from holdfast.vision import video
from holdfast.vision.handler import Frame
from holdfast.vision.jpeg import decode_image
from holdfast.vision.live import WAITING_MAX, Camera, CameraLost, CameraRun, CameraSource, camera_frames
from tests.vision.rtsp import FPS, HEIGHT, WIDTH, Server

PATIENCE_S = 60.0


class Sent(MemoryQueue):
    """Keeps what was sent; may fail first, or take its time."""

    def __init__(self) -> None:
        super().__init__(SystemClock())
        self.bodies: list[bytes] = []
        self.failing: list[Exception] = []
        self.open = asyncio.Event()
        self.open.set()

    async def send(self, messages: Sequence[Outgoing]) -> list[str]:
        await self.open.wait()
        if self.failing:
            raise self.failing.pop(0)
        self.bodies += [message.body for message in messages]
        return await super().send(messages)

    @property
    def frames(self) -> list[Frame]:
        return [msgspec.json.decode(body, type=Frame) for body in self.bodies]


class SetBack(SystemClock):
    """A clock that is far ahead when it is first asked for the time, and then set right."""

    def __init__(self) -> None:
        super().__init__()
        self._asked = 0

    def wall(self) -> float:
        self._asked += 1
        return 1e12 if self._asked == 1 else super().wall()


class Rig:
    """One camera, and its reports."""

    def __init__(
        self,
        url: str,
        *,
        fps: float | None = None,
        timeout_s: float = PATIENCE_S,
        clock: Clock | None = None,
    ) -> None:
        self.queue, self.objects = Sent(), MemoryObjects()
        self.over: list[CameraRun] = []
        self.troubles: list[str] = []
        self.changed = asyncio.Event()
        self.camera = Camera(
            CameraSource(url, "cam-1", fps, timeout_s),
            objects=self.objects,
            queue=self.queue,
            clock=clock or SystemClock(),
            backoff=Backoff(0.001, 0.01),
            on_run=self._note,
            on_trouble=self._trouble,
        )

    def _note(self, run: CameraRun) -> None:
        if run.over:
            self.over.append(run)
        self.changed.set()

    def _trouble(self, why: str, again_s: float) -> None:
        self.troubles.append(why)
        self.changed.set()

    async def until(self, holds: Callable[[], bool]) -> None:
        """Pull until it is so, then stop."""
        running = asyncio.ensure_future(self.camera.run())
        async with asyncio.timeout(PATIENCE_S):
            while not (holds() or running.done()):
                changed = asyncio.ensure_future(self.changed.wait())
                await asyncio.wait((changed, running), return_when=asyncio.FIRST_COMPLETED)
                changed.cancel()
                self.changed.clear()
            self.camera.stop()
            await running


async def test_each_connection_is_a_run_of_dense_frames() -> None:
    with Server([(7, "cut"), (0, "refuse"), (5, "cut"), (3, "cut")]) as server:
        rig = Rig(server.url)
        await rig.until(lambda: len(rig.over) == 3)
    assert [run.frames for run in rig.over] == [7, 5, 3]
    numbers = [run.number for run in rig.over]
    assert all(before < after for before, after in pairwise(numbers))
    sent = [(frame.run, frame.frame) for frame in rig.queue.frames]
    assert sent == [(run.number, number) for run in rig.over for number in range(run.frames)]
    times = [frame.timestamp_ms for frame in rig.queue.frames[:7]]
    assert times[0] == 0
    # FFmpeg knows no time for the first frame of such a stream: they count from the second.
    assert [after - before for before, after in pairwise(times[1:])] == [1000 // FPS] * 5
    first = rig.queue.frames[0]
    assert first.video == "cam-1"
    assert decode_image(await rig.objects.get(first.url), first.url).shape == (HEIGHT, WIDTH, 3)
    assert any("can't be read" in trouble for trouble in rig.troubles), "the one that was refused"


async def test_a_run_is_numbered_above_all_before_though_the_clock_goes_back() -> None:
    with Server([(2, "cut")] * 2) as server:
        rig = Rig(server.url, clock=SetBack())
        await rig.until(lambda: len(rig.over) == 2)
    assert [run.number for run in rig.over] == [10**15, 10**15 + 1]


@pytest.mark.slow
async def test_a_camera_that_says_nothing_is_lost_and_tried_again() -> None:
    with Server([(5, "stall"), (4, "cut")]) as server:
        rig = Rig(server.url, timeout_s=0.5)
        await rig.until(lambda: len(rig.over) == 2)
    assert re.match(r"rtsp://127\.0\.0\.1\S* sent nothing for 0.5 s", rig.over[0].lost)
    assert [run.frames for run in rig.over] == [5, 4]


async def test_frames_are_left_out_beyond_the_rate() -> None:
    with Server([(2 * FPS, "cut")]) as server:
        rig = Rig(server.url, fps=5)
        await rig.until(lambda: len(rig.over) == 1)
    assert rig.over[0].frames == 10
    times = [frame.timestamp_ms for frame in rig.queue.frames]
    assert [after - before for before, after in pairwise(times)] == [200] * 9


async def test_a_queue_that_is_away_is_waited_for_and_nothing_is_lost() -> None:
    with Server([(6, "cut")]) as server:
        rig = Rig(server.url)
        rig.queue.failing = [Unavailable("no queue")] * 3
        await rig.until(lambda: len(rig.over) == 1)
    assert rig.troubles[:3] == ["no queue"] * 3
    assert [frame.frame for frame in rig.queue.frames] == list(range(6))


async def test_what_no_retry_helps_ends_it() -> None:
    with Server([(6, "cut")]) as server:
        rig = Rig(server.url)
        rig.queue.failing = [TooLarge("too large")]
        with pytest.raises(TooLarge):
            await rig.until(lambda: False)


async def test_a_camera_whose_frames_fail_unforeseen_is_lost_and_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def failing(*_: object) -> bytes:
        raise OSError("no room for http://user:secret-word@127.0.0.1/")

    monkeypatch.setattr(video, "encode", failing)
    with Server([(3, "cut")] * 2) as server:
        rig = Rig(server.url)
        async with asyncio.timeout(PATIENCE_S / 4):
            await rig.until(lambda: len(rig.troubles) == 2)
    assert all("can't be read: OSError('no room" in trouble for trouble in rig.troubles)
    assert "secret-word" not in "".join(rig.troubles)


async def test_while_sending_lags_frames_are_left_out_and_counted() -> None:
    count = 3 * WAITING_MAX
    with Server([(count, "cut")]) as server:
        rig = Rig(server.url)
        rig.queue.open.clear()
        running = asyncio.ensure_future(rig.camera.run())
        async with asyncio.timeout(PATIENCE_S):
            await asyncio.to_thread(server.playing.wait)
            assert rig.camera.reader is not None
            await rig.camera.reader.gone.wait()
            rig.queue.open.set()
            while not rig.over:
                await rig.changed.wait()
                rig.changed.clear()
            rig.camera.stop()
            await running
    (run,) = rig.over
    assert run.left_out > 0
    assert run.frames + run.left_out == count
    assert [frame.frame for frame in rig.queue.frames] == list(range(run.frames)), "numbered without gaps"


async def test_stopping_does_not_wait_for_a_silent_camera() -> None:
    with Server([(30, "stall")]) as server:
        rig = Rig(server.url)
        running = asyncio.ensure_future(rig.camera.run())
        async with asyncio.timeout(PATIENCE_S / 2):  # the camera would be waited for twice as long
            await asyncio.to_thread(server.playing.wait)
            rig.camera.stop()
            await running
    assert rig.troubles == []


@pytest.mark.parametrize(
    "url, text",
    [
        (
            "rtsp://user:secret-word@127.0.0.1:1/live",
            "127.0.0.1:1/live can't be read: Connection refused; check",
        ),
        ("nonsense://camera", "can't be read: Protocol not found"),
    ],
)
def test_errors_say_where_and_hide_passwords(url: str, text: str) -> None:
    with pytest.raises(CameraLost) as error:
        list(camera_frames(url, timeout_s=PATIENCE_S))
    assert text in str(error.value)
    assert "secret-word" not in str(error.value)


def test_frames_of_any_live_source_are_read() -> None:
    stream = io.BytesIO()
    with av.open(stream, "w", format="mpegts") as container:
        video = container.add_stream("libx264", rate=FPS)
        video.width, video.height, video.pix_fmt = WIDTH, HEIGHT, "yuv420p"
        for number in range(10):
            picture = np.full((HEIGHT, WIDTH, 3), 20 * number, np.uint8)
            container.mux(video.encode(av.VideoFrame.from_ndarray(picture)))
        container.mux(video.encode())

    def serve() -> None:
        peer, _ = listener.accept()
        with peer:
            peer.sendall(stream.getvalue())

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        found = list(camera_frames(f"tcp://127.0.0.1:{listener.getsockname()[1]}", timeout_s=PATIENCE_S))
        thread.join()
    assert [taken.timestamp_ms for taken in found] == [40 * number for number in range(10)]


def test_a_camera_that_wants_a_password() -> None:
    with Server([(3, "cut")] * 2, password="x") as server:
        with pytest.raises(CameraLost, match="demands another user"):
            list(camera_frames(server.url, timeout_s=PATIENCE_S))
        url = server.url.replace("rtsp://", "rtsp://user:x@")
        assert len(list(camera_frames(url, timeout_s=PATIENCE_S))) == 3
