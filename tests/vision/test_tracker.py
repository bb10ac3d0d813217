"""The tracker keeps ids over crossings and absences, and continues exactly from a snapshot."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.vision.boxes import Box
from holdfast.vision.detector import Detection
from holdfast.vision.tracker import CONFIRM_FRAMES, LOST_FRAMES, SHARE_FRAMES, Track, Tracker, Tracks


def person(
    middle: float, top: float = 50, width: float = 20, height: float = 50, score: float = 0.9
) -> Detection:
    return Detection((middle - width / 2, top, middle + width / 2, top + height), score)


def patch(*people: Detection) -> Detection:
    """What a background model sees of people who overlap."""
    lows, highs = [p.box[:2] for p in people], [p.box[2:] for p in people]
    low, high = map(min, zip(*lows, strict=True)), map(max, zip(*highs, strict=True))
    left, top, right, bottom = *low, *high
    return Detection((left, top, right, bottom), 0.9)


def overlap(one: Box, other: Box) -> bool:
    return one[0] < other[2] and other[0] < one[2]


def test_an_object_is_reported_once_it_was_seen_often_enough() -> None:
    tracker = Tracker()
    reports = [tracker.update(frame, [person(50 + 2 * frame)]) for frame in range(CONFIRM_FRAMES + 1)]
    assert reports[: CONFIRM_FRAMES - 1] == [[]] * (CONFIRM_FRAMES - 1)
    assert reports[CONFIRM_FRAMES - 1] == [Track(1, person(50 + 2 * (CONFIRM_FRAMES - 1)).box, 0.9)]
    assert [track.id for track in reports[-1]] == [1]


def test_a_flicker_is_never_reported_and_takes_no_id() -> None:
    tracker = Tracker()
    reported: list[Track] = []
    for frame in range(30):
        flicker = [person(200)] if frame % 3 == 0 else []
        reported = tracker.update(frame, [person(50), *flicker])
    assert [track.id for track in reported] == [1]
    tracker.update(30, [])
    for frame in range(31, 34):
        reported = tracker.update(frame, [person(250, top=100)])
    assert [track.id for track in reported] == [2]


def test_a_faint_detection_continues_a_track_but_starts_none() -> None:
    tracker = Tracker()
    reported: list[Track] = []
    for frame in range(20):
        score = 0.9 if frame < 5 else 0.1
        reported = tracker.update(frame, [person(50 + frame, score=score), person(200, score=0.1)])
    assert [(track.id, track.score) for track in reported] == [(1, 0.1)]


def test_each_tracker_counts_its_ids_from_one() -> None:
    trackers = Tracker(), Tracker()
    for frame in range(5):
        for tracker in trackers:
            reported = tracker.update(frame, [person(50), person(150)])
            assert frame < 2 or [track.id for track in reported] == [1, 2]


@pytest.mark.parametrize("pace", [1.5, 4.0])
def test_people_who_cross_as_one_patch_keep_their_ids(pace: float) -> None:
    tracker = Tracker()
    for frame in range(round(200 / pace)):
        one, other = person(50 + pace * frame), person(250 - pace * frame, top=46)
        together = overlap(one.box, other.box)
        reported = tracker.update(frame, [patch(one, other)] if together else [one, other])
        if frame >= CONFIRM_FRAMES:
            assert [track.id for track in reported] == [1, 2]
            assert together or [track.box for track in reported] == [one.box, other.box]


def test_somebody_behind_a_pillar_comes_out_with_the_same_id() -> None:
    tracker = Tracker()
    ids = set()
    hidden = 0
    for frame in range(100):
        left, right = 20 + 2.0 * frame, 40 + 2.0 * frame
        pillar = (100, 130)
        parts = [(left, min(right, pillar[0])), (max(left, pillar[1]), right)]
        seen = [Detection((low, 50, high, 100), 0.9) for low, high in parts if high - low >= 3]
        reported = tracker.update(frame, seen)
        hidden += not seen
        ids |= {track.id for track in reported}
        assert len(reported) <= 1
    assert hidden
    assert ids == {1}


def test_a_track_is_given_up_when_lost_for_too_long() -> None:
    for away, same in ((LOST_FRAMES - 1, True), (LOST_FRAMES + 1, False)):
        tracker = Tracker()
        for frame in range(5):
            tracker.update(frame, [person(50)])
        for frame in range(5, 5 + away):
            assert tracker.update(frame, []) == []
        back = [tracker.update(5 + away + frame, [person(50)]) for frame in range(3)]
        assert [[track.id for track in reported] for reported in back] == (
            [[1]] * 3 if same else [[], [], [2]]
        )


def test_nobody_shares_a_detection_for_ever() -> None:
    tracker = Tracker()
    for frame in range(5):
        tracker.update(frame, [person(50), person(70)])
    counts = [len(tracker.update(frame, [patch(person(50), person(70))])) for frame in range(5, 100)]
    assert counts[:SHARE_FRAMES] == [2] * SHARE_FRAMES
    assert counts[-1] == 1


def test_a_track_survives_a_short_gap_of_frames_but_no_long_one() -> None:
    tracker = Tracker()
    reported: list[Track] = []
    for frame in [*range(10), *range(15, 20), *range(29, 31)]:
        reported = tracker.update(frame, [person(50 + 3 * frame)])
    assert [track.id for track in reported] == [1]
    for frame in range(2**62, 2**62 + 3):
        reported = tracker.update(frame, [person(140)])
    assert [track.id for track in reported] == [2]


@pytest.mark.parametrize("frame", [4, 5])
def test_a_frame_that_does_not_ascend_is_refused(frame: int) -> None:
    tracker = Tracker()
    tracker.update(5, [])
    with pytest.raises(ValueError, match=f"frame {frame} comes after frame 5"):
        tracker.update(frame, [])


SIDES = st.floats(1, 80, allow_nan=False)
DETECTIONS = st.builds(
    lambda left, top, width, height, score: Detection((left, top, left + width, top + height), score),
    st.floats(0, 240), st.floats(0, 120), SIDES, SIDES, st.floats(0, 1),
)  # fmt: skip


@pytest.mark.slow
@given(st.lists(st.lists(DETECTIONS, max_size=5), max_size=25))
def test_a_restored_tracker_continues_bit_for_bit_from_every_frame(seen: list[list[Detection]]) -> None:
    whole, restored = Tracker(), Tracker()
    for frame, detections in enumerate(seen):
        wire = msgspec.msgpack.encode(restored.snapshot())
        restored = Tracker.restore(msgspec.msgpack.decode(wire, type=Tracks))
        assert restored.update(frame, detections) == whole.update(frame, detections)
        assert restored.snapshot() == whole.snapshot()


def test_a_track_takes_little_state() -> None:
    tracker = Tracker()
    for frame in range(5):
        tracker.update(frame, [person(50 * place) for place in range(10)])
    assert len(msgspec.msgpack.encode(tracker.snapshot())) < 10 * 200 + 50


def test_state_that_does_not_fit_is_refused() -> None:
    tracker = Tracker()
    tracker.update(0, [person(50)])
    with pytest.raises(ValueError, match="reshape"):
        Tracker.restore(msgspec.structs.replace(tracker.snapshot(), filters=b"\0" * 8))
