"""Moving objects before a learnt background: a running mean and variance for each cell, in integers.

The frame is averaged down to a small grid of grey cells. Each cell keeps a running mean and variance of
its level (as in Wren et al., "Pfinder", 1997); a cell far off its mean is foreground, and neighbouring
foreground cells make a box. All arithmetic is in integers, so the arrays in memory *are* the snapshot
and the same frames give the same bits on every machine.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from holdfast.vision.boxes import Box

Cells: TypeAlias = NDArray[np.uint8]
Numbers: TypeAlias = NDArray[np.int32]
Mask: TypeAlias = NDArray[np.bool_]

GRID = 80
"""Cells along the longer side of a frame. The state of 80 by 45 cells takes 14.4 kB."""

_FRACTION = 8
"""Levels (0..255) and variances are kept in fixed point, with 8 bits of fraction."""
_LEARN = 6
"""A background cell moves by 1/2^6 of its difference each frame ..."""
_ABSORB = 8
"""... a foreground cell by 1/2^8: an object that stays becomes background."""
_WARM_UP = 5
"""Frames at the beginning that are only learnt from."""
_VARIANCE_MIN = 6 << _FRACTION
_VARIANCE_MAX = 255 << _FRACTION
_SURE = 8**2
"""A cell beyond 8 standard deviations is surely foreground ..."""
_MAYBE = 5**2
"""... and one beyond 5 is so if connected to a sure one."""
_CELLS_MIN = 6
"""The smallest patch of foreground, in cells. Smaller patches are noise."""
_DARK = 12 << _FRACTION
"""Cells darker than this are left out of the ratio of light."""
_RATIO = 12
"""Bits of fraction of the ratio of light."""
_CONTRAST_FULL = 64 << _FRACTION
"""A box whose cells are this far off on average has the score 1."""
_TOUCHING = np.ones((3, 3), bool)
_UPRIGHT = np.ones((3, 1), bool)
"""Closes gaps of up to two cells between head, body and legs."""


class Detection(NamedTuple):
    """A box in pixels (left, top, right, bottom) and its score, in 0..1."""

    box: Box
    score: float


class Background(msgspec.Struct, frozen=True, array_like=True):
    """A detector's whole state: raw little-endian uint16 arrays, and the number of frames seen."""

    width: int
    height: int
    frames: int
    mean: bytes
    variance: bytes


def grid_of(width: int, height: int) -> tuple[int, int]:
    """Return columns and rows of the grid for frames of this size in pixels."""
    longer = max(width, height)
    return max(round(GRID * width / longer), 1), max(round(GRID * height / longer), 1)


class Detector:
    """Finds moving objects in the frames of one fixed camera; ``width`` and ``height`` are in pixels."""

    def __init__(self, width: int, height: int) -> None:
        self.width, self.height = width, height
        self.columns, self.rows = grid_of(width, height)
        self._frames = 0
        self._mean = np.zeros((self.rows, self.columns), "<u2")
        self._variance = np.full((self.rows, self.columns), 4 * _VARIANCE_MIN, "<u2")

    @classmethod
    def restore(cls, state: Background) -> Detector:
        """Return the detector of a snapshot. Raises ValueError if the arrays don't fit the frame's size."""
        detector = cls(state.width, state.height)
        shape = (detector.rows, detector.columns)
        detector._frames = state.frames
        detector._mean = np.frombuffer(state.mean, "<u2").reshape(shape).copy()
        detector._variance = np.frombuffer(state.variance, "<u2").reshape(shape).copy()
        return detector

    def snapshot(self) -> Background:
        """Return the whole state; ``restore`` continues from it bit for bit."""
        mean, variance = self._mean.tobytes(), self._variance.tobytes()
        return Background(self.width, self.height, self._frames, mean, variance)

    def detect(self, cells: Cells, /) -> list[Detection]:
        """Return the moving objects in a frame of grey cells, shape (rows, columns), and learn from the
        frame."""
        level = cells.astype(np.int32) << _FRACTION
        if self._frames == 0:
            self._mean[:] = level
        mean, variance = self._mean.astype(np.int32), self._variance.astype(np.int32)
        off = _relit(level, mean) - mean
        squared = (off >> _FRACTION // 2) ** 2
        maybe = squared > _MAYBE * variance
        found = self._boxes(maybe, squared > _SURE * variance, off) if self._frames >= _WARM_UP else []
        self._learn(mean, variance, off, squared, maybe)
        return found

    def _boxes(self, maybe: Mask, sure: Mask, off: Numbers) -> list[Detection]:
        """Return a box around each patch of ``maybe`` cells with a ``sure`` one."""
        patches, _ = ndimage.label(maybe | ndimage.binary_closing(maybe, _UPRIGHT), _TOUCHING)
        certain = set(np.unique(patches[sure]).tolist())
        found = []
        across, down = self.width / self.columns, self.height / self.rows
        for number, window in enumerate(ndimage.find_objects(patches), start=1):
            patch = patches[window] == number
            count = int(np.count_nonzero(patch))
            if number not in certain or count < _CELLS_MIN:
                continue
            rows, columns = window
            box = (columns.start * across, rows.start * down, columns.stop * across, rows.stop * down)
            contrast = int(np.abs(off[window][patch]).sum()) / count
            found.append(Detection(box, min(contrast / _CONTRAST_FULL, 1.0)))
        return found

    def _learn(
        self, mean: Numbers, variance: Numbers, off: Numbers, squared: Numbers, foreground: Mask
    ) -> None:
        self._frames += 1
        if self._frames <= _WARM_UP:
            foreground = np.zeros_like(foreground)
        # A plain average at first, which then turns into a running one.
        pace = min(self._frames, 1 << _LEARN)
        step = np.where(foreground, off >> _ABSORB, off // pace)
        spread = np.where(foreground, 0, (squared - variance) // pace)
        self._mean[:] = mean + step
        self._variance[:] = np.clip(variance + spread, _VARIANCE_MIN, _VARIANCE_MAX)


def _relit(level: Numbers, mean: Numbers) -> Numbers:
    """Return the levels in the background's light: divided by the median ratio of all cells."""
    bright = mean > _DARK
    if not bright.any():
        return level
    ratios = (level[bright] << _RATIO) // mean[bright]
    middle = ratios.size // 2
    light = max(int(np.partition(ratios, middle)[middle]), 1)
    return np.asarray(np.minimum((level << _RATIO) // light, 255 << _FRACTION))
