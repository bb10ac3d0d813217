"""Videos become frames and messages; bad files become errors that say what to do."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path

import av
import msgspec
import numpy as np
import pytest

from examples.tracking.render import Rendered, render
from examples.tracking.scene import Scene
from holdfast.ports.queue import Outgoing
from holdfast.services.memory.objects import MemoryObjects
from holdfast.services.memory.queue import MemoryQueue
from holdfast.vision import jpeg, live
from holdfast.vision.handler import Frame
from holdfast.vision.ingest import UnreadableVideo, ingest, video_frames
from holdfast.vision.jpeg import decode_cells
from holdfast.vision.places import object_name


class Sent(MemoryQueue):
    """A queue that keeps what was sent, and when."""

    def __init__(self, clock: Stopwatch) -> None:
        super().__init__(clock)
        self.clock = clock
        self.batches: list[tuple[float, Sequence[Outgoing]]] = []

    async def send(self, messages: Sequence[Outgoing]) -> list[str]:
        self.batches.append((self.clock.now, messages))
        return await super().send(messages)

    @property
    def frames(self) -> list[Frame]:
        return [msgspec.json.decode(out.body, type=Frame) for _, batch in self.batches for out in batch]


class Stopwatch:
    """A clock that only sleeping moves."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now

    def wall(self) -> float:
        return self.now

    def random(self) -> float:
        return 0.5

    def new_id(self) -> str:
        return "id"

    async def sleep(self, seconds: float) -> None:
        self.now += seconds

    async def wait(self, event: asyncio.Event, timeout_s: float | None) -> bool:
        return event.is_set()


@pytest.fixture(scope="session")
def short(folder: Path) -> Rendered:
    return render(Scene(seed=2, seconds=1), folder)


@pytest.fixture
def clock() -> Stopwatch:
    return Stopwatch()


@pytest.fixture
def queue(clock: Stopwatch) -> Sent:
    return Sent(clock)


def test_frames_of_a_file_have_their_times(short: Rendered) -> None:
    found = list(video_frames(short.video))
    assert [frame.timestamp_ms for frame in found] == list(range(0, 1000, 40))
    assert decode_cells(found[0].jpeg, "")[:2] == (320, 180)


@pytest.mark.parametrize(
    "fps, seconds, times",
    [
        (10, None, [0, 120, 200, 320, 400, 520, 600, 720, 800, 920]),
        (5, 0.5, [0, 200, 400]),
        (1000, 0.1, [0, 40, 80]),
    ],
)
def test_frames_are_taken_at_the_given_rate_and_length(
    short: Rendered, fps: float, seconds: float | None, times: list[int]
) -> None:
    found = list(video_frames(short.video, fps=fps, seconds=seconds))
    assert [frame.timestamp_ms for frame in found] == times


async def test_ingest_stores_frames_before_it_sends_their_messages(
    short: Rendered, queue: Sent, clock: Stopwatch
) -> None:
    objects = MemoryObjects()
    progress: list[int] = []
    sent = await ingest(
        short.video,
        "cam/1",
        4,
        objects=objects,
        queue=queue,
        clock=clock,
        attributes={"source": "test"},
        progress=progress.append,
    )
    assert sent == 25
    assert progress == [10, 20, 25]
    assert [(f.video, f.run, f.frame, f.timestamp_ms) for f in queue.frames] == [
        ("cam/1", 4, number, 40 * number) for number in range(25)
    ]
    assert all(out.attributes == {"source": "test"} for _, batch in queue.batches for out in batch)
    jpegs = [frame.jpeg for frame in video_frames(short.video)]
    assert [await objects.get(frame.url) for frame in queue.frames] == jpegs
    assert clock.now == 100, "nothing is paced unasked"


async def test_ingest_in_real_time_sends_each_frame_when_its_time_has_come(
    short: Rendered, queue: Sent, clock: Stopwatch
) -> None:
    await ingest(
        short.video, "cam", 0, objects=MemoryObjects(), queue=queue, clock=clock, fps=5, realtime=True
    )
    assert [(round(at - 100, 3), len(batch)) for at, batch in queue.batches] == [
        (0.0, 1), (0.2, 1), (0.4, 1), (0.6, 1), (0.8, 1)
    ]  # fmt: skip


async def test_ingesting_again_gives_the_same_messages(short: Rendered, clock: Stopwatch) -> None:
    objects = MemoryObjects()
    first, second = Sent(clock), Sent(clock)
    for queue in (first, second):
        await ingest(short.video, "cam", 0, objects=objects, queue=queue, clock=clock)
    assert first.frames == second.frames
    assert len(objects.objects) == 25


@pytest.mark.parametrize(
    "video", ["../../etc/passwd", "..", ".", "", "a\nb", "x" * 10_000, ".put-x", "größe", "a b"]
)
def test_odd_video_ids_make_plain_object_names(video: str) -> None:
    assert re.fullmatch(r"frames/[0-9a-f]{32}/3/00000007\.jpg", object_name(video, 3, 7))
    assert object_name(video, 3, 7) != object_name(video + "!", 3, 7)


def test_plain_video_ids_stay_readable() -> None:
    assert object_name("cam-1.north", 3, 7) == "frames/cam-1.north/3/00000007.jpg"


def bad_file(kind: str, folder: Path, whole: Path) -> Path:
    data = whole.read_bytes()
    path = folder / f"{kind}.mp4"
    match kind:
        case "missing":
            pass
        case "folder":
            path.mkdir()
        case "empty":
            path.write_bytes(b"")
        case "text":
            path.write_bytes(b"not a video\n" * 1000)
        case "beginning":
            path.write_bytes(data[: len(data) // 20])
        case "sound":
            path = path.with_suffix(".wav")
            with av.open(str(path), "w") as container:
                stream = container.add_stream("pcm_s16le", rate=8000, layout="mono")
                sound = av.AudioFrame.from_ndarray(np.zeros((1, 8000), np.int16), layout="mono")
                sound.sample_rate = 8000
                container.mux(stream.encode(sound))
    return path


@pytest.mark.parametrize(
    "kind, says",
    [
        ("missing", "no video file"),
        ("folder", "is a folder"),
        ("empty", "opy the file again"),
        ("text", "opy the file again"),
        ("beginning", "opy the file again"),
        ("sound", "has no video"),
    ],
)
async def test_a_file_that_is_no_video_is_named(
    kind: str, says: str, short: Rendered, tmp_path: Path, queue: Sent, clock: Stopwatch
) -> None:
    path = bad_file(kind, tmp_path, short.video)
    with pytest.raises(UnreadableVideo, match=says) as caught:
        await ingest(path, "cam", 0, objects=MemoryObjects(), queue=queue, clock=clock)
    assert str(path) in str(caught.value)
    assert queue.batches == []


def test_a_video_of_too_many_pixels_is_refused_before_it_is_decoded(
    short: Rendered, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jpeg, "PIXELS_MAX", 100)
    with pytest.raises(UnreadableVideo, match=r"frames of \d+ x \d+ pixels; 100 is the most"):
        next(video_frames(short.video))


def test_a_camera_of_too_many_pixels_is_refused_before_anything_is_decoded(
    short: Rendered, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jpeg, "PIXELS_MAX", 100)
    with pytest.raises(live.CameraLost, match=r"sends \d+ x \d+ pixels; 100 is the most"):
        next(live.camera_frames(str(short.video)))


def encoded(path: Path, times: Sequence[int], *, width: int = 16, title: str = "") -> Path:
    """A video of frames at ``times``, in thirtieths of a second."""
    with av.open(str(path), "w") as container:
        if title:
            container.metadata["title"] = title
        stream = container.add_stream("ffv1", rate=30)
        stream.width, stream.height, stream.pix_fmt = width, 2, "yuv420p"
        for time in times:
            frame = av.VideoFrame(width, 2, "yuv420p")
            frame.pts, frame.time_base = time, Fraction(1, 30)
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return path


def test_no_more_frames_a_second_are_taken_after_a_gap(tmp_path: Path) -> None:
    video = encoded(tmp_path / "gap.mkv", [*range(30), *range(330, 420)])
    taken = Counter(frame.timestamp_ms // 1000 for frame in video_frames(video, fps=5))
    assert taken == {0: 5, 11: 6, 12: 5, 13: 5}  # the first that comes late, and then at the rate


def test_a_title_in_another_encoding_hides_no_video(tmp_path: Path) -> None:
    video = encoded(tmp_path / "titled.mkv", range(3), title="Strasse")
    video.write_bytes(video.read_bytes().replace(b"Strasse", "Straßen".encode("latin-1")))
    assert len(list(video_frames(video))) == 3
    assert len(list(live.camera_frames(str(video)))) == 3


async def test_frames_that_no_jpeg_holds_are_told_of_their_video(
    tmp_path: Path, queue: Sent, clock: Stopwatch
) -> None:
    video = encoded(tmp_path / "wide.mkv", range(3), width=70_000)
    with pytest.raises(UnreadableVideo, match=r"wide.mkv can't be read: OSError"):
        await ingest(video, "cam", 0, objects=MemoryObjects(), queue=queue, clock=clock)


@pytest.mark.parametrize("into_frame", [0, 10])
async def test_what_a_truncated_video_still_holds_is_sent(
    into_frame: int, short: Rendered, tmp_path: Path, queue: Sent, clock: Stopwatch
) -> None:
    with av.open(str(short.video)) as container:
        starts = [packet.pos for packet in container.demux(video=0) if packet.pos is not None]
    cut = tmp_path / "cut.mp4"
    cut.write_bytes(short.video.read_bytes()[: starts[15] + into_frame])
    with pytest.raises(UnreadableVideo, match=r"cut.mp4 is truncated .* with the same run"):
        await ingest(cut, "cam", 0, objects=MemoryObjects(), queue=queue, clock=clock)
    assert [frame.frame for frame in queue.frames] == list(range(len(queue.frames)))
    assert len(queue.frames) >= 10


async def test_a_damaged_frame_ends_the_video(
    short: Rendered, tmp_path: Path, queue: Sent, clock: Stopwatch
) -> None:
    whole = tmp_path / "whole.ts"
    with av.open(str(short.video)) as source, av.open(str(whole), "w", format="mpegts") as target:
        stream = target.add_stream_from_template(source.streams.video[0])
        for packet in source.demux(video=0):
            if packet.dts is not None:
                packet.stream = stream
                target.mux(packet)
    data = bytearray(whole.read_bytes())
    packet_size = 188
    middle = len(data) // 2 // packet_size * packet_size
    data[middle + 1] |= 0x80  # the format's own mark of a packet that arrived damaged
    damaged = tmp_path / "damaged.ts"
    damaged.write_bytes(data)
    with pytest.raises(UnreadableVideo, match=r"damaged.ts is truncated or damaged: a frame is damaged"):
        await ingest(damaged, "cam", 0, objects=MemoryObjects(), queue=queue, clock=clock)
    assert queue.frames
