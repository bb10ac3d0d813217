"""Floats of 16 and 32 bits."""

from __future__ import annotations

import math
import struct

HALF, SINGLE = "e", "f"
"""Formats of ``struct`` for 16 and 32 bits."""

_SURE_DIGITS = {HALF: 3, SINGLE: 6}
"""Significant digits that each such float keeps."""


def shortest(value: float, form: str) -> float:
    """Return the number with the fewest digits that is stored as the same float: 0.1 for the 0.0999755859375
    of 16 bits. Whole numbers stay the same."""
    if not math.isfinite(value) or value.is_integer():
        return value
    stored = struct.pack(form, value)
    digits = _SURE_DIGITS[form]
    while struct.pack(form, number := float(f"{value:.{digits}g}")) != stored:
        digits += 1
    return number
