"""Tracks of many objects: a Kalman filter each, and the best assignment of detections to them.

After SORT (Bewley et al., 2016), with the second look at faint detections of ByteTrack (Zhang et al.,
2022). Process and measurement noise are taken as independent for the four numbers of a box, so that its
filter falls apart into four small ones. They are computed elementwise, which rounds the same on every
machine: the same detections give the same bits, after a restore too.

A background model sees one patch where people cross, and a part of a person behind a pillar. So one
detection may be shared by several tracks, and where its size disagrees with the track's, its place is
taken from the edge that moved as predicted: an outer edge of the patch, or the one not hidden.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from holdfast.vision.boxes import Box, Boxes, areas, intersections, ious
from holdfast.vision.detector import Detection

LOST_FRAMES = 30
"""Frames after which an unseen track ends."""
CONFIRM_FRAMES = 3
"""Frames in a row in which a new track must be seen before it gets an id and is reported."""
SHARE_FRAMES = 30
"""Frames without an own detection after which a track may not share one."""

_CLEAR = 0.3
"""Detections of at least this score start tracks; fainter ones only continue them."""
_IOU_MIN = 0.25
_IOU_FAINT_MIN = 0.4
_REGAIN_MIN = 0.1
"""Overlap of a lost track with a detection, as a share of the smaller one ..."""
_INSIDE_MIN = 0.5
"""... and of a track with a detection that it shares, as a share of its own area."""
_PARTLY = 0.15
"""A detection that is smaller than the object by this share shows only a part of it."""

# Standard deviations, as shares of the object's height:
_MEASURED = 1 / 8  # of a measurement
_MEASURED_PARTLY = 1.0  # of a size when only a part, or more than the object, was measured
_SHIFT = 1 / 80  # of the change of place in a frame
_PUSH = 1 / 160  # of the change of velocity in a frame
_BEGUN = 1 / 4, 1 / 16  # of place and velocity of a new track

_ID, _SEEN, _MISSED, _SHARED = range(4)
_VALUE, _VELOCITY, _VARIANCE, _MIXED, _VELOCITY_VARIANCE = range(5)
_MOVES = slice(0, 2)
"""Middle x and middle y have a velocity; width and height don't."""


class Track(NamedTuple):
    """An object in one frame. ``id`` counts from 1; the box is in pixels."""

    id: int
    box: Box
    score: float


class Tracks(msgspec.Struct, frozen=True, array_like=True):
    """A tracker's whole state: raw little-endian arrays, one row a track."""

    frame: int
    next_id: int
    counts: bytes
    filters: bytes


class Tracker:
    """Follows the objects of one stream."""

    def __init__(self) -> None:
        self._frame: int | None = None
        self._next_id = 1
        # Per track: id (0 until confirmed), frames seen, frames since, frames shared in a row.
        self._counts = np.zeros((0, 4), "<i8")
        # Per track, for middle x, middle y, width, height: value, velocity, and their covariance.
        self._filters = np.zeros((0, 4, 5), "<f8")

    @classmethod
    def restore(cls, state: Tracks) -> Tracker:
        """Return the tracker of a snapshot. Raises ValueError if its arrays don't fit together."""
        tracker = cls()
        tracker._frame, tracker._next_id = None if state.frame < 0 else state.frame, state.next_id
        tracker._counts = np.frombuffer(state.counts, "<i8").reshape(-1, 4).copy()
        tracker._filters = np.frombuffer(state.filters, "<f8").reshape(len(tracker._counts), 4, 5).copy()
        return tracker

    def snapshot(self) -> Tracks:
        """Return the whole state; ``restore`` continues from it bit for bit."""
        frame = -1 if self._frame is None else self._frame
        return Tracks(frame, self._next_id, self._counts.tobytes(), self._filters.tobytes())

    def update(self, frame: int, detections: Sequence[Detection]) -> list[Track]:
        """Go on to ``frame``, and return its confirmed objects, by id. Raises ValueError if frames don't
        ascend."""
        if self._frame is not None and frame <= self._frame:
            raise ValueError(f"frame {frame} comes after frame {self._frame}; frames must ascend")
        self._predict(1 if self._frame is None else min(frame - self._frame, LOST_FRAMES + 1))
        self._frame = frame
        found = np.array([detection.box for detection in detections], np.float64).reshape(-1, 4)
        clear = np.array([detection.score >= _CLEAR for detection in detections], bool)
        taken, shared = self._assign(found, clear)
        self._correct(found, taken, shared)
        self._confirm()
        reported = []
        for row in np.flatnonzero((self._counts[:, _ID] > 0) & (taken >= 0)):
            box, score = detections[taken[row]]
            if shared[row]:
                box = _common(box, self._boxes()[row])
            reported.append(Track(int(self._counts[row, _ID]), box, score))
        self._keep((self._counts[:, _ID] > 0) | (taken >= 0))
        clear[taken[taken >= 0]] = False
        self._begin(found[clear])
        return sorted(reported)

    def _boxes(self) -> Boxes:
        values = self._filters[..., _VALUE]
        return np.concatenate((values[:, :2] - values[:, 2:] / 2, values[:, :2] + values[:, 2:] / 2), axis=1)

    def _heights(self) -> NDArray[np.float64]:
        return self._filters[:, 3:, _VALUE]

    def _predict(self, frames: int) -> None:
        """Move all tracks at their velocities, and widen their variances. End tracks that are lost for too
        long."""
        self._counts[:, _MISSED] += frames
        self._keep(self._counts[:, _MISSED] <= LOST_FRAMES)
        state, height = self._filters, self._heights()
        state[..., _VALUE] += frames * state[..., _VELOCITY]
        state[..., _VARIANCE] += frames * (2 * state[..., _MIXED] + frames * state[..., _VELOCITY_VARIANCE])
        state[..., _VARIANCE] += frames * (_SHIFT * height) ** 2
        state[..., _MIXED] += frames * state[..., _VELOCITY_VARIANCE]
        state[:, _MOVES, _VELOCITY_VARIANCE] += frames * (_PUSH * height) ** 2

    def _assign(self, found: Boxes, clear: NDArray[np.bool_]) -> tuple[NDArray[np.intp], NDArray[np.bool_]]:
        """Return the row of each track's detection, or -1, and whether other tracks share it."""
        boxes = self._boxes()
        common, own, other = intersections(boxes, found), areas(boxes)[:, None], areas(found)[None, :]
        overlap = ious(boxes, found)
        known, current = self._counts[:, _ID] > 0, self._counts[:, _MISSED] <= 1
        taken = np.full(len(boxes), -1, np.intp)
        _take(taken, overlap, _IOU_MIN, known, clear)
        _take(taken, overlap, _IOU_FAINT_MIN, known & current, ~clear)
        _take(taken, common / np.minimum(own, other), _REGAIN_MIN, known & ~current, clear)
        _take(taken, overlap, _IOU_MIN, ~known, clear)
        # Tracks left over may share a detection that others took and that covers them.
        mates = known & current & (taken < 0) & (self._counts[:, _SHARED] < SHARE_FRAMES)
        for row in np.flatnonzero(mates):
            covering = np.where(np.isin(np.arange(len(found)), taken), common[row], 0)
            if covering.size and covering.max() >= _INSIDE_MIN * own[row]:
                taken[row] = covering.argmax()
        takers = np.bincount(taken + 1, minlength=len(found) + 1)
        return taken, (taken >= 0) & (takers[taken + 1] > 1)

    def _correct(self, found: Boxes, taken: NDArray[np.intp], shared: NDArray[np.bool_]) -> None:
        """Move the seen tracks towards their measurements."""
        seen = taken >= 0
        state, measured = self._filters[seen], found[taken[seen]]
        middle, size = state[:, :2, _VALUE], state[:, 2:, _VALUE]
        low, high = measured[:, :2], measured[:, 2:]
        partly = (high - low < (1 - _PARTLY) * size) | (shared[seen, None] & (high - low > size))
        by_low, by_high = low + size / 2, high - size / 2
        by_edge = np.where(np.abs(by_low - middle) < np.abs(by_high - middle), by_low, by_high)
        values = np.concatenate((np.where(partly, by_edge, (low + high) / 2), high - low), axis=1)
        noise = np.full((len(state), 4), _MEASURED)
        noise[:, 2:][partly] = _MEASURED_PARTLY
        total = state[..., _VARIANCE] + (noise * self._heights()[seen]) ** 2
        gain, velocity_gain = state[..., _VARIANCE] / total, state[..., _MIXED] / total
        surprise = values - state[..., _VALUE]
        state[..., _VALUE] += gain * surprise
        state[..., _VELOCITY] += velocity_gain * surprise
        state[..., _VELOCITY_VARIANCE] -= velocity_gain * state[..., _MIXED]
        state[..., _VARIANCE] *= 1 - gain
        state[..., _MIXED] *= 1 - gain
        self._filters[seen] = state
        self._counts[seen, _SEEN] += 1
        self._counts[seen, _MISSED] = 0
        self._counts[seen, _SHARED] = np.where(shared[seen], self._counts[seen, _SHARED] + 1, 0)

    def _confirm(self) -> None:
        for row in np.flatnonzero((self._counts[:, _ID] == 0) & (self._counts[:, _SEEN] >= CONFIRM_FRAMES)):
            self._counts[row, _ID] = self._next_id
            self._next_id += 1

    def _keep(self, kept: NDArray[np.bool_]) -> None:
        self._counts, self._filters = self._counts[kept], self._filters[kept]

    def _begin(self, boxes: Boxes) -> None:
        """Start a track, unconfirmed and at rest, at each box."""
        counts = np.zeros((len(boxes), 4), "<i8")
        counts[:, _SEEN] = 1
        filters = np.zeros((len(boxes), 4, 5), "<f8")
        filters[:, :2, _VALUE] = (boxes[:, :2] + boxes[:, 2:]) / 2
        filters[:, 2:, _VALUE] = boxes[:, 2:] - boxes[:, :2]
        place, velocity = _BEGUN
        filters[..., _VARIANCE] = (place * filters[:, 3:, _VALUE]) ** 2
        filters[:, _MOVES, _VELOCITY_VARIANCE] = (velocity * filters[:, 3:, _VALUE]) ** 2
        self._counts = np.concatenate((self._counts, counts))
        self._filters = np.concatenate((self._filters, filters))


def _take(
    taken: NDArray[np.intp],
    worth: NDArray[np.float64],
    least: float,
    tracks: NDArray[np.bool_],
    wanted: NDArray[np.bool_],
) -> None:
    """Assign free ``wanted`` detections to ``tracks`` without one, for the greatest total."""
    free = wanted.copy()
    free[taken[taken >= 0]] = False
    rows, columns = np.flatnonzero(tracks & (taken < 0)), np.flatnonzero(free)
    worth = worth[np.ix_(rows, columns)]
    for row, column in zip(*linear_sum_assignment(worth, maximize=True), strict=True):
        if worth[row, column] >= least:
            taken[rows[row]] = columns[column]


def _common(box: Box, estimate: NDArray[np.float64]) -> Box:
    """Return the part of a shared detection that overlaps the track's estimate; all of it without an
    overlap."""
    left, top, right, bottom = estimate.tolist()
    part = max(box[0], left), max(box[1], top), min(box[2], right), min(box[3], bottom)
    return part if part[0] < part[2] and part[1] < part[3] else box
