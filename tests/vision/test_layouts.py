"""Suppression: of boxes of one class that overlap, the clearest is kept, and nothing else goes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.vision.boxes import ious
from holdfast.vision.layouts import CANDIDATES_MAX, Candidates, candidates, suppress

IOU_MAX = 0.4

found = st.lists(
    st.tuples(
        st.integers(0, 40),
        st.integers(0, 40),
        st.integers(1, 20),
        st.integers(1, 20),
        st.integers(0, 9),
        st.integers(0, 2),
    ),
    max_size=30,
)


def made(rows: list[tuple[int, int, int, int, int, int]]) -> Candidates:
    table = np.array(rows, np.float64).reshape(-1, 6)
    boxes = np.concatenate([table[:, :2], table[:, :2] + table[:, 2:4]], axis=1)
    return Candidates(boxes, table[:, 4] / 10, table[:, 5].astype(np.int64))


@given(found)
def test_what_is_kept_does_not_overlap_and_what_goes_overlaps_something_clearer(
    rows: list[tuple[int, int, int, int, int, int]],
) -> None:
    all_found = made(rows)
    kept = suppress(all_found, IOU_MAX)
    assert list(kept.scores) == sorted(kept.scores, reverse=True)
    for number in set(all_found.classes.tolist()):
        ours, theirs = kept.take(kept.classes == number), all_found.take(all_found.classes == number)
        overlap = ious(ours.boxes, ours.boxes)
        assert (overlap[~np.eye(len(overlap), dtype=bool)] <= IOU_MAX).all()
        for box, score in zip(theirs.boxes, theirs.scores, strict=True):
            near = ious(ours.boxes, box[None])[:, 0] > IOU_MAX
            assert (ours.scores[near] >= score).any()


def test_only_the_clearest_candidates_are_compared() -> None:
    count = CANDIDATES_MAX + 500
    boxes = np.arange(count)[:, None] * 10.0 + np.array([0, 0, 5, 5])
    kept = suppress(Candidates(boxes, np.arange(count) / count, np.zeros(count, np.int64)), IOU_MAX)
    assert len(kept.scores) == CANDIDATES_MAX
    assert kept.scores.min() == pytest.approx(500 / count)


def test_numbers_that_are_none_are_left_out() -> None:
    output = np.array(
        [
            [
                [0, 0, 5, 5, 0.9, 0],
                [0, 0, 5, np.nan, 0.9, 0],
                [0, 0, 5, 5, np.nan, 0],
                [0, 0, 5, 5, 0.9, np.nan],
            ]
        ]
    )
    assert len(candidates("final", output, 0.5).scores) == 2
