"""The detector finds what moves, whatever the light does, and continues exactly from a snapshot."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from holdfast.vision.detector import Background, Cells, Detector, grid_of
from holdfast.vision.jpeg import decode_cells
from holdfast.vision.video import VideoFrame

PERSON = (80.0, 40.0, 100.0, 88.0)


def backdrop() -> Cells:
    """A quiet wall of 80 by 45 cells."""
    x, y = np.meshgrid(np.arange(80), np.arange(45))
    return (90 + x // 2 + y).astype(np.uint8)


def with_person(cells: Cells, column: int, row: int = 10, level: int = 20) -> Cells:
    """The same with a person 5 cells wide and 12 high."""
    peopled = cells.copy()
    peopled[row : row + 12, column : column + 5] = level
    return peopled


def taught(frames: int = 30) -> Detector:
    detector = Detector(320, 180)
    for _ in range(frames):
        assert not detector.detect(backdrop())
    return detector


def test_somebody_who_walks_in_gets_a_box_in_pixels() -> None:
    detector = taught()
    (found,) = detector.detect(with_person(backdrop(), column=20))
    assert found.box == PERSON
    assert found.score > 0.9


def test_two_people_apart_get_two_boxes() -> None:
    peopled = with_person(with_person(backdrop(), 10), 40, row=20)
    assert sorted(found.box[0] for found in taught().detect(peopled)) == [40, 160]


def test_a_gap_between_head_and_body_is_closed() -> None:
    peopled = with_person(backdrop(), 20)
    peopled[13:15] = backdrop()[13:15]
    (found,) = taught().detect(peopled)
    assert found.box == PERSON


def test_specks_are_not_detected_as_people() -> None:
    speckled = backdrop()
    speckled[10:12, 10:12] = speckled[30, 60] = 20
    assert taught().detect(speckled) == []


@pytest.mark.parametrize("gain", [0.5, 0.8, 1.25])
def test_a_lamp_that_switches_is_not_somebody(gain: float) -> None:
    detector = taught()

    def lit(cells: Cells) -> Cells:
        return (cells * gain).astype(np.uint8)

    assert detector.detect(lit(backdrop())) == []
    (found,) = detector.detect(lit(with_person(backdrop(), 20)))
    assert found.box == PERSON


@pytest.mark.slow
def test_what_stays_in_place_becomes_background() -> None:
    detector = taught()
    parked = with_person(backdrop(), 20)
    seen = [bool(detector.detect(parked)) for _ in range(1500)]
    assert all(seen[:100])
    assert not any(seen[-100:])


def test_a_detector_goes_on_after_black_and_white_frames() -> None:
    detector = Detector(320, 180)
    for level in (0, 0, 255, 0, 128):
        detector.detect(np.full((45, 80), level, np.uint8))


@pytest.mark.parametrize(
    "size, grid",
    [((320, 180), (80, 45)), ((1920, 1080), (80, 45)), ((180, 320), (45, 80)), ((4000, 2), (80, 1))],
)
def test_the_grid_has_the_shape_of_the_frame(size: tuple[int, int], grid: tuple[int, int]) -> None:
    assert grid_of(*size) == grid


@pytest.mark.slow
def test_a_restored_detector_continues_bit_for_bit_from_every_frame(frames: list[VideoFrame]) -> None:
    whole = Detector(320, 180)
    for frame in frames[:100]:
        cells = decode_cells(frame.jpeg, "")[2]
        wire = msgspec.msgpack.encode(whole.snapshot())
        assert len(wire) < 20_000
        restored = Detector.restore(msgspec.msgpack.decode(wire, type=Background))
        assert restored.detect(cells) == whole.detect(cells)
        assert restored.snapshot() == whole.snapshot()


@pytest.mark.nightly
@given(st.lists(arrays.arrays(np.uint8, (45, 80)), min_size=2, max_size=8), st.data())
def test_any_frames_continue_bit_for_bit(frames: list[Cells], data: st.DataObject) -> None:
    cut = data.draw(st.integers(1, len(frames) - 1))
    whole = Detector(320, 180)
    for cells in frames[:cut]:
        whole.detect(cells)
    restored = Detector.restore(whole.snapshot())
    for cells in frames[cut:]:
        assert restored.detect(cells) == whole.detect(cells)
    assert restored.snapshot() == whole.snapshot()


@pytest.mark.parametrize("field, value", [("mean", b"123"), ("variance", b""), ("width", 200)])
def test_state_that_does_not_fit_is_refused(field: str, value: object) -> None:
    with pytest.raises(ValueError, match=r"buffer|reshape"):
        Detector.restore(msgspec.structs.replace(taught(1).snapshot(), **{field: value}))
