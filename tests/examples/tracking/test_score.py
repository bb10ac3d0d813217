"""Scores by hand, and against the implementation of a tracking library."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples.tracking.score import Score, identity_switches, score, total
from holdfast.vision.boxes import Box, Boxes, ious

HERE, THERE = (0.0, 0.0, 10.0, 20.0), (50.0, 0.0, 60.0, 20.0)


def test_tracks_that_equal_the_truth_score_one() -> None:
    truth = [{1: HERE, 2: THERE}] * 4
    found = score(truth, [{7: THERE, 9: HERE}] * 4)
    assert found == Score(objects=8, misses=0, false_alarms=0, switches=0, identity_matches=8, tracked=8)
    assert found.mota == found.idf1 == 1


def test_misses_false_alarms_and_switches_are_counted() -> None:
    truth = [{1: HERE}] * 4
    tracks = [{5: HERE}, {5: HERE, 6: THERE}, {}, {8: HERE}]
    found = score(truth, tracks)
    assert (found.misses, found.false_alarms, found.switches) == (1, 1, 1)
    assert found.mota == pytest.approx(1 - 3 / 4)
    assert found.idf1 == pytest.approx(2 * 2 / (4 + 4))


def test_a_pair_stays_together_while_it_is_near_enough() -> None:
    nearer = (1.0, 0.0, 11.0, 20.0)
    truth = [{1: HERE}, {1: HERE}]
    assert score(truth, [{5: HERE}, {5: nearer, 6: HERE}]).switches == 0


def test_an_empty_video_has_no_score() -> None:
    nothing = score([{}], [{}])
    assert math.isnan(nothing.mota)
    assert math.isnan(nothing.idf1)
    assert total([]) == nothing == Score(0, 0, 0, 0, 0, 0)


def test_truth_and_tracks_of_different_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match="truth has 2 frames, tracks have 1"):
        score([{}, {}], [{}])


def test_the_score_of_videos_is_their_sum() -> None:
    one = score([{1: HERE}], [{1: HERE}])
    assert total([one, one, score([{1: HERE}], [{}])]) == Score(3, 1, 0, 0, 2, 2)


def test_equal_runs_have_no_identity_switches() -> None:
    tracks = [{1: HERE, 2: THERE}, {1: HERE}, {2: THERE, 1: HERE}]
    assert identity_switches(tracks, tracks) == 0
    renamed = [{name + 10: box for name, box in frame.items()} for frame in tracks]
    assert identity_switches(tracks, renamed) == 0
    assert identity_switches(tracks, [*tracks[:2], {2: HERE, 1: THERE}]) == 2


BOXES = st.builds(lambda left, width: (left, 0.0, left + width, 20.0), st.integers(0, 12), st.integers(8, 12))
FRAMES = st.lists(
    st.tuples(*[st.dictionaries(st.integers(1, 4), BOXES, min_size=1, max_size=4) for _ in range(2)]),
    min_size=1,
)


def boxes(frame: dict[int, Box]) -> Boxes:
    return np.array(list(frame.values()), float)


@pytest.mark.nightly
@given(FRAMES)
@pytest.mark.usefixtures("peer")
def test_scores_agree_with_a_tracking_library(frames: list[tuple[dict[int, Box], dict[int, Box]]]) -> None:
    from trackers.eval import compute_clear_metrics, compute_identity_metrics

    truth, tracks = [one for one, _ in frames], [other for _, other in frames]
    names = [np.array(list(frame)) for frame in truth], [np.array(list(frame)) for frame in tracks]
    near = [ious(boxes(one), boxes(other)) for one, other in frames]
    clear = compute_clear_metrics(*names, near)
    identity = compute_identity_metrics(*names, near)
    ours = score(truth, tracks)
    assert (ours.misses, ours.false_alarms, ours.switches) == (
        clear["CLR_FN"],
        clear["CLR_FP"],
        clear["IDSW"],
    )
    assert ours.identity_matches == identity["IDTP"]
    assert ours.mota == pytest.approx(clear["MOTA"])
    assert ours.idf1 == pytest.approx(identity["IDF1"])
