"""The example app counts visitors, and goes on counting after a restore."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast.common.codec import decoder
from holdfast.common.message import NO_RUN
from holdfast.errors import InvalidMessage
from holdfast.streams.addressing import address
from holdfast.streams.spec import StreamSpec
from holdfast.vision.handler import Frame, frame_of
from holdfast.vision.video import VideoFrame

EXAMPLE = Path(__file__).parents[2] / "examples" / "cameras.py"


@pytest.fixture
def frames_stream() -> StreamSpec:
    spec = importlib.util.spec_from_file_location("cameras", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    declared: StreamSpec = module.app.streams["frames"]
    return declared


class Slot:
    """The context of one stream: a frame's URL ends with its number."""

    key, run, seq = "cam", 0, 0

    def __init__(self, frames: list[VideoFrame]) -> None:
        self.frames = frames

    def fetch(self, url: str) -> bytes:
        return self.frames[int(url.rpartition("/")[2])].jpeg


def test_messages_are_addressed_by_video_run_and_frame(frames_stream: StreamSpec) -> None:
    sent = Frame("cam-1", 3, 7, 280, "7")
    body = msgspec.json.encode(sent)
    key, place = address(frames_stream, body, {}, "id", None)
    assert (key, place.run, place.seq) == ("cam-1", 3, 7)
    assert frame_of(decoder(frames_stream.message)(body), Slot([])) == sent  # type: ignore[arg-type]


@pytest.mark.parametrize("frame_id", [7, "7", "000007", "frame-000007", "frame_7"])
@pytest.mark.parametrize("timestamp", [1700000000, 1700000000.25, "2024-01-31T12:00:00Z", None])
def test_frames_in_a_bucket_are_addressed_as_others_sent_them(
    frames_stream: StreamSpec, frame_id: object, timestamp: object
) -> None:
    sent = {
        "message_id": "5b0c",
        "video_id": "cam-1",
        "frame_id": frame_id,
        "timestamp": timestamp,
        "s3_bucket": "frames",
        "s3_key": "cam-1/a frame?#%1.jpg",
    }
    body = msgspec.json.encode(sent)
    key, place = address(frames_stream, body, {}, "id", None)
    assert (key, place.run, place.seq) == ("cam-1", NO_RUN, 7)
    slot: Any = Slot([])
    slot.key, slot.seq = key, place.seq
    url = "s3://frames/cam-1/a%20frame%3F%23%251.jpg"
    assert frame_of(decoder(frames_stream.message)(body), slot) == Frame("cam-1", 0, 7, 0, url)


@pytest.mark.parametrize(
    "message, wrong",
    [
        ({"video": "v"}, "run"),
        ({"s3_key": "k"}, "missing required field `s3_bucket`"),
        ({"s3_bucket": "b", "video_id": "v"}, "missing required field `s3_key`"),
        ({"s3_bucket": 3, "s3_key": "k"}, "s3_bucket"),
        ({}, "url, or s3_bucket and s3_key"),
    ],
)
def test_what_is_no_frame_says_what_is_missing(message: dict[str, Any], wrong: str) -> None:
    slot: Any = Slot([])
    with pytest.raises(InvalidMessage, match=f"the message isn't a frame, .*{wrong}"):
        frame_of(message, slot)


@pytest.mark.slow
@pytest.mark.parametrize("form", ["native", "bucket"])
def test_visitors_are_counted_and_remembered(
    frames_stream: StreamSpec, frames: list[VideoFrame], form: str
) -> None:
    slot: Any = Slot(frames)
    state: bytes | None = None
    counts = []
    for start in range(0, len(frames), 50):
        handler = frames_stream.handler()
        handler.open(slot, state)
        for number in range(start, start + 50):
            slot.seq = number
            native = msgspec.to_builtins(Frame("cam", 0, number, 0, str(number)))
            bucket = {"video_id": "cam", "frame_id": number, "s3_bucket": "b", "s3_key": f"k/{number}"}
            result = handler.process(native if form == "native" else bucket, slot)
            counts.append(result["visitors"])
        state = handler.snapshot()
    assert counts == sorted(counts)
    assert counts[0] == 0
    assert counts[-1] >= 5
