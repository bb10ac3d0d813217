"""The handler: frames in, tracks out, state that continues exactly, errors that name the frame."""

from __future__ import annotations

import io
import tracemalloc
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from PIL import Image

from holdfast.errors import InvalidMessage
from holdfast.vision.handler import Frame, Tracking
from holdfast.vision.jpeg import encode
from holdfast.vision.video import VideoFrame


class Slot:
    """The context of one stream: serves frames by URL."""

    key, run, seq, attempt, traceparent = "cam", 0, 0, 1, ""

    def __init__(self, objects: dict[str, bytes]) -> None:
        self.objects = objects

    def fetch(self, url: str) -> bytes:
        if url not in self.objects:
            raise FileNotFoundError(url)
        return self.objects[url]

    async def fetch_async(self, url: str) -> bytes:
        return self.fetch(url)

    def send(self, target: str, body: Any, *, key: str | None = None, delay_s: float = 0.0) -> None:
        raise AssertionError("tracking sends nothing")

    def wake(self, name: str, *, at: Any = None, after_s: float | None = None, body: Any = None) -> None:
        raise AssertionError("tracking sets no timer")

    def unwake(self, name: str) -> None:
        raise AssertionError("tracking sets no timer")

    def model(self, wanted: Any) -> Any:
        raise NotImplementedError

    def progress(self, note: str = "") -> None:
        pass


@pytest.fixture
def slot(frames: list[VideoFrame]) -> Slot:
    return Slot({f"memory:///{number}": frame.jpeg for number, frame in enumerate(frames)})


def message(number: int, run: int = 0, url: str | None = None) -> Frame:
    return Frame("cam", run, number, 40 * number, url or f"memory:///{number}")


def opened(slot: Slot, state: bytes | None = None) -> Tracking:
    handler = Tracking()
    handler.open(slot, state)
    return handler


@pytest.mark.slow
def test_results_name_the_frame_and_its_tracks(slot: Slot) -> None:
    handler = opened(slot)
    results = [handler.process(message(number), slot) for number in range(100)]
    assert [(result["video"], result["run"], result["frame"]) for result in results] == [
        ("cam", 0, number) for number in range(100)
    ]
    assert msgspec.json.decode(msgspec.json.encode(results)) == results
    tracks = [track for result in results for track in result["tracks"]]
    assert {track["id"] for track in tracks} >= {1, 2}
    for track in tracks:
        left, top, right, bottom = track["box"]
        assert 0 <= left < right <= 320
        assert 0 <= top < bottom <= 180
        assert 0 <= track["score"] <= 1


@pytest.mark.slow
def test_a_restored_handler_continues_bit_for_bit_from_every_frame(slot: Slot) -> None:
    whole = opened(slot)
    state: bytes | None = None
    for number in range(len(slot.objects)):
        restored = opened(slot, state)
        assert restored.process(message(number), slot) == whole.process(message(number), slot)
        state = restored.snapshot()
        assert state == whole.snapshot()
        assert len(state) < 20_000


@pytest.mark.slow
def test_a_tracker_without_tracks_has_no_state(slot: Slot) -> None:
    assert opened(slot).snapshot() == b""
    assert opened(slot, b"").process(message(0), slot)["tracks"] == []


@pytest.mark.slow
def test_a_new_run_is_tracked_as_by_a_fresh_handler(slot: Slot) -> None:
    fresh, turned = opened(slot), opened(slot)
    for number in range(60):
        turned.process(message(number), slot)
    for number in range(60):
        url = f"memory:///{number + 40}"
        assert turned.process(message(number, 1, url), slot) == fresh.process(message(number, 1, url), slot)
    assert turned.snapshot() == fresh.snapshot()


def test_a_missing_frame_is_named(slot: Slot) -> None:
    with pytest.raises(FileNotFoundError, match=r"put it there again.*memory:///gone") as caught:
        opened(slot).process(message(3, url="memory:///gone"), slot)
    assert caught.value.filename == "memory:///gone"


def png(image: Image.Image) -> bytes:
    out = io.BytesIO()
    image.save(out, "PNG")
    return out.getvalue()


def gif(image: Image.Image) -> bytes:
    out = io.BytesIO()
    image.save(out, "GIF")
    return out.getvalue()


@pytest.mark.parametrize(
    "spoil",
    [
        lambda image: b"",
        lambda image: b"\xff\xd8\xff",
        lambda image: b"<html>404</html>",
        lambda image: encode(image)[:-100],
        lambda image: encode(image)[:700],
        lambda image: png(image)[:-30],
        gif,
    ],
    ids=["empty", "three bytes", "a page", "truncated", "cut in its header", "truncated PNG", "a GIF"],
)
def test_a_frame_that_is_no_whole_image_is_named_and_changes_nothing(
    slot: Slot, spoil: Callable[[Image.Image], bytes]
) -> None:
    image = Image.open(io.BytesIO(slot.objects["memory:///3"]))
    slot.objects["memory:///bad"] = spoil(image)
    handler = opened(slot)
    for number in range(3):
        handler.process(message(number), slot)
    before = handler.snapshot()
    with pytest.raises(InvalidMessage, match=r"frame memory:///bad is not a whole JPEG .* ingest") as caught:
        handler.process(message(3, url="memory:///bad"), slot)
    assert caught.value.field == "url"
    assert handler.snapshot() == before


def test_a_picture_too_large_to_decode_is_refused(
    slot: Slot, monkeypatch: pytest.MonkeyPatch, grey: Callable[[int, int], Image.Image]
) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10_000)
    slot.objects["memory:///huge"] = encode(grey(400, 200))
    with pytest.raises(InvalidMessage, match="memory:///huge"):
        opened(slot).process(message(0, url="memory:///huge"), slot)


def test_a_frame_of_too_many_pixels_is_refused_before_it_is_decoded(slot: Slot) -> None:
    """A few kilobytes that would be hundreds of megabytes."""
    bomb = png(Image.new("1", (9_000, 9_000)))
    assert len(bomb) < 50_000
    slot.objects["memory:///bomb"] = bomb
    tracemalloc.start()
    try:
        with pytest.raises(InvalidMessage, match=r"memory:///bomb has 9000 x 9000 pixels; \d+ is"):
            opened(slot).process(message(0, url="memory:///bomb"), slot)
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


def test_what_is_wrong_with_a_frame_is_told_without_addresses_in_memory(slot: Slot) -> None:
    slot.objects["memory:///junk"] = b"no image"
    with pytest.raises(InvalidMessage) as caught:
        opened(slot).process(message(0, url="memory:///junk"), slot)
    assert str(caught.value).startswith("frame memory:///junk is not a whole JPEG or PNG image (8 bytes); ")


def test_png_grey_and_large_frames_are_read(slot: Slot, grey: Callable[[int, int], Image.Image]) -> None:
    slot.objects |= {
        "memory:///png": png(grey(320, 180)),
        "memory:///grey": encode(grey(320, 180).convert("L")),
        "memory:///large": encode(grey(1920, 1080)),
        "memory:///tiny": encode(grey(7, 5)),
    }
    for run, url in enumerate(slot.objects):
        assert opened(slot).process(message(0, run, url), slot)["tracks"] == []


def test_a_frame_of_another_size_needs_a_new_run(slot: Slot, grey: Callable[[int, int], Image.Image]) -> None:
    slot.objects["memory:///wide"] = encode(grey(640, 180))
    handler = opened(slot)
    handler.process(message(0), slot)
    with pytest.raises(
        InvalidMessage, match=r"memory:///wide has 640x180 pixels.* has 320x180; .* a new run"
    ):
        handler.process(message(1, url="memory:///wide"), slot)
    assert handler.process(message(0, run=1, url="memory:///wide"), slot)["run"] == 1


@pytest.mark.parametrize(
    "state",
    [b"junk", b"\x93\x00\x01\x02", msgspec.msgpack.encode([0, [1, 1, 1, b"", b""], [0, 1, b"", b""]])],
)
def test_state_that_does_not_load_is_an_error(slot: Slot, state: bytes) -> None:
    with pytest.raises((ValueError, msgspec.DecodeError)):
        opened(slot, state)
