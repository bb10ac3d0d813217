"""The quality of tracks: MOTA and IDF1 against the truth, and identity switches between two runs.

- MOTA and identity switches: CLEAR MOT, Bernardin & Stiefelhagen, 2008.
- IDF1: Ristani et al., "Performance Measures and a Data Set for Multi-Target, Multi-Camera Tracking", 2016.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, fields

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from holdfast.vision.boxes import Box, ious

Frames = Sequence[Mapping[int, Box]]
"""For each frame, boxes by object id or track id."""

IOU_MIN = 0.5
"""Boxes that overlap less (intersection over union) are never the same object."""


@dataclass(frozen=True, slots=True)
class Score:
    """Counts over all frames, and what follows from them."""

    objects: int
    """Boxes in the truth."""
    misses: int
    false_alarms: int
    switches: int
    """How often an object was matched by another track than last time it was matched."""
    identity_matches: int
    """Boxes explained by the best one-to-one mapping of objects to tracks over the whole video."""
    tracked: int
    """Boxes in the tracks."""

    @property
    def mota(self) -> float:
        """1 less the rate of all errors; below 0 with more errors than objects. NaN without objects."""
        errors = self.misses + self.false_alarms + self.switches
        return 1 - errors / self.objects if self.objects else float("nan")

    @property
    def idf1(self) -> float:
        """Share of boxes, in truth and tracks, with the right identity, in 0..1. NaN without any."""
        total = self.objects + self.tracked
        return 2 * self.identity_matches / total if total else float("nan")


def score(truth: Frames, tracks: Frames) -> Score:
    """Judge ``tracks`` by ``truth``, frame by frame. Raises ValueError if they differ in length."""
    if len(truth) != len(tracks):
        raise ValueError(f"truth has {len(truth)} frames, tracks have {len(tracks)}")
    object_ids = sorted({name for frame in truth for name in frame})
    track_ids = sorted({name for frame in tracks for name in frame})
    together = np.zeros((len(object_ids), len(track_ids)), np.int64)
    row_of = {name: row for row, name in enumerate(object_ids)}
    column_of = {name: column for column, name in enumerate(track_ids)}
    before: dict[int, int] = {}  # track by object, in the frame before
    last: dict[int, int] = {}  # and when last matched
    matched = switches = 0
    for true, tracked in zip(truth, tracks, strict=True):
        rows, columns = list(true), list(tracked)
        near = ious(_boxes(true), _boxes(tracked))
        near[near < IOU_MIN] = 0
        for row, column in zip(*np.nonzero(near), strict=True):
            together[row_of[rows[row]], column_of[columns[column]]] += 1
        # A pair of the frame before stays together while it is near enough, however near others are.
        kept = np.array([[before.get(row) == column for column in columns] for row in rows], bool)
        worth = near + len(rows) * (kept.reshape(near.shape) & (near > 0))
        pairs = zip(*linear_sum_assignment(worth, maximize=True), strict=True)
        before = {rows[row]: columns[column] for row, column in pairs if near[row, column]}
        switches += sum(last.get(name, track) != track for name, track in before.items())
        matched += len(before)
        last |= before
    objects, count = sum(map(len, truth)), sum(map(len, tracks))
    mapping = linear_sum_assignment(together, maximize=True)
    return Score(
        objects=objects,
        misses=objects - matched,
        false_alarms=count - matched,
        switches=switches,
        identity_matches=int(together[mapping].sum()),
        tracked=count,
    )


def total(scores: Iterable[Score]) -> Score:
    """The counts of several videos added up."""
    counts = np.array([astuple(score) for score in scores], np.int64).reshape(-1, len(fields(Score)))
    return Score(*counts.sum(axis=0).tolist())


def identity_switches(reference: Frames, tracks: Frames) -> int:
    """Count how often an object of ``reference`` goes on under another id in ``tracks``; 0 for equal runs.

    Both are tracks over the same frames; ids may be named differently, but each must stay the same.
    """
    return score(reference, tracks).switches


def _boxes(frame: Mapping[int, Box]) -> NDArray[np.float64]:
    return np.array(list(frame.values()), np.float64).reshape(-1, 4)
