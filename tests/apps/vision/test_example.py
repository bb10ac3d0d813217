"""The example app counts visitors, and goes on counting after a restore."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast.apps.vision.handler import Frame
from holdfast.apps.vision.ingest import Still
from holdfast.streams.codec import address, decoder
from holdfast.streams.spec import StreamSpec

EXAMPLE = Path(__file__).parents[3] / "examples" / "cameras.py"


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
    """The context of one stream: a frame's URL is its number."""

    def __init__(self, frames: list[Still]) -> None:
        self.frames = frames

    def fetch(self, url: str) -> bytes:
        return self.frames[int(url)].jpeg


def test_messages_are_addressed_by_video_run_and_frame(frames_stream: StreamSpec) -> None:
    sent = Frame("cam-1", 3, 7, 280, "7")
    body = msgspec.json.encode(sent)
    key, place = address(frames_stream, body, {}, "id", None)
    assert (key, place.run, place.seq) == ("cam-1", 3, 7)
    assert decoder(frames_stream.message)(body) == sent
    assert frames_stream.first_seq == 0


def test_visitors_are_counted_and_remembered(frames_stream: StreamSpec, frames: list[Still]) -> None:
    slot: Any = Slot(frames)
    state: bytes | None = None
    counts = []
    for start in range(0, len(frames), 50):
        handler = frames_stream.handler()
        handler.open(slot, state)
        for number in range(start, start + 50):
            result = handler.process(Frame("cam", 0, number, 0, str(number)), slot)
            counts.append(result["visitors"])
        state = handler.snapshot()
    assert counts == sorted(counts)
    assert counts[0] == 0
    assert counts[-1] >= 5
