"""Boxes from the outputs of detecting networks: the layouts of common exports, non-maximum suppression.

A layout describes a network's output for one image, in pixels of its input:

| layout | shape | a candidate is |
|---|---|---|
| ``columns`` | (1, 4 + classes, n) | a column: middle x, middle y, width, height, a score for each class |
| ``objectness`` | (1, n, 5 + classes) | a row: such a box, how likely it is any, a score for each class |
| ``final`` | (1, n, 6) | a row: left, top, right, bottom, score, class; suppressed already |

``columns`` is what YOLOv8 and its successors export, ``objectness`` YOLOv5 and v7, ``final`` YOLOv10 and
exports with suppression built in.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from holdfast.errors import ConfigError
from holdfast.vision.boxes import Boxes, ious

Layout: TypeAlias = Literal["columns", "objectness", "final"]
LAYOUTS: tuple[str, ...] = get_args(Layout)

CANDIDATES_MAX = 1000
"""Candidates with the highest scores that are kept: suppression compares each pair."""

_SHAPES = {"columns": "(1, 4 + classes, n)", "objectness": "(1, n, 5 + classes)", "final": "(1, n, 6)"}


class Candidates(NamedTuple):
    """Boxes (left, top, right, bottom), shape (n, 4), with their scores and classes, shape (n,)."""

    boxes: Boxes
    scores: NDArray[np.float64]
    classes: NDArray[np.int64]

    def take(self, chosen: NDArray[np.bool_] | NDArray[np.int64]) -> Candidates:
        """Return some of them, by mask or by number."""
        return Candidates(self.boxes[chosen], self.scores[chosen], self.classes[chosen])


def check_layout(layout: str, shape: Sequence[int]) -> None:
    """Raise ConfigError if an output of this shape can't have that layout."""
    if layout not in LAYOUTS:
        raise ConfigError(f"layout is {layout!r}; it must be one of {', '.join(LAYOUTS)}")
    if len(shape) == 3 and shape[0] == 1 and _fits(layout, shape[1], shape[2]):
        return
    others = [other for other in LAYOUTS if len(shape) == 3 and _fits(other, shape[1], shape[2])]
    hint = f"; layout={others[0]!r} would fit" if others else "; export the network in one of the layouts"
    raise ConfigError(
        f"the network's output has the shape {tuple(shape)}, but layout {layout!r} is {_SHAPES[layout]}{hint}"
    )


def _fits(layout: str, rows: int, columns: int) -> bool:
    if layout == "columns":
        return 5 <= rows < columns
    if layout == "final":
        return columns == 6
    return columns >= 6 and rows > columns


def candidates(layout: Layout, output: NDArray[np.generic], score_min: float) -> Candidates:
    """Return the boxes of an output with a score of at least ``score_min`` and finite numbers."""
    table = output[0].astype(np.float64)
    if layout == "final":
        boxes, scores, classes = table[:, :4], table[:, 4], np.nan_to_num(table[:, 5]).astype(np.int64)
    else:
        rows = table.T if layout == "columns" else table
        each = rows[:, 4:] if layout == "columns" else rows[:, 5:] * rows[:, 4:5]
        classes = each.argmax(axis=1)
        scores = each[np.arange(len(each)), classes]
        middles, halves = rows[:, :2], rows[:, 2:4] / 2
        boxes = np.concatenate([middles - halves, middles + halves], axis=1)
    good = (scores >= score_min) & np.isfinite(scores) & np.isfinite(boxes).all(axis=1)
    return Candidates(boxes, scores, classes).take(good)


def suppress(found: Candidates, iou_max: float) -> Candidates:
    """Return, of boxes of one class that overlap by more than ``iou_max``, the one with the highest score;
    highest first."""
    order = np.argsort(-found.scores, kind="stable")[:CANDIDATES_MAX]
    found = found.take(order)
    rivals = (ious(found.boxes, found.boxes) > iou_max) & (found.classes[:, None] == found.classes[None, :])
    kept = np.ones(len(order), bool)
    for index in range(len(order)):
        if kept[index]:
            kept[index + 1 :] &= ~rivals[index, index + 1 :]
    return found.take(kept)
