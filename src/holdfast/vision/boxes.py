"""Boxes: areas and overlaps."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Box: TypeAlias = tuple[float, float, float, float]
"""Left, top, right, bottom in pixels; right and bottom are exclusive."""

Boxes: TypeAlias = NDArray[np.float64]
"""Many, of shape (n, 4)."""


def areas(boxes: Boxes) -> NDArray[np.float64]:
    return np.asarray((boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1]))


def intersections(some: Boxes, others: Boxes) -> NDArray[np.float64]:
    """Return the common area of each of ``some`` with each of ``others``, shape (n, m)."""
    low = np.maximum(some[:, None, :2], others[None, :, :2])
    high = np.minimum(some[:, None, 2:], others[None, :, 2:])
    sides = np.maximum(high - low, 0.0)
    return np.asarray(sides[..., 0] * sides[..., 1])


def ious(some: Boxes, others: Boxes) -> NDArray[np.float64]:
    """Return intersection over union of each of ``some`` with each of ``others``, shape (n, m), in 0..1."""
    common = intersections(some, others)
    union = areas(some)[:, None] + areas(others)[None, :] - common
    return np.asarray(common / np.maximum(union, 1e-9))
