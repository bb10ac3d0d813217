"""When to try again: exponential backoff with full jitter.

Source: the "full jitter" scheme (a delay drawn evenly below an exponential cap), which spreads retries
of many clients better than jitter around the cap.
"""

from __future__ import annotations

import msgspec

from holdfast.common.settings import Fraction, Seconds


class Backoff(msgspec.Struct, frozen=True):
    """Delays of ``first_s`` doubling up to ``max_s``, of which at least ``floor`` (0 to 1) is kept."""

    first_s: Seconds = 0.2
    max_s: Seconds = 30.0
    floor: Fraction = 0.5

    def delay_s(self, failures: int, random: float) -> float:
        """Seconds before the next try after ``failures`` (≥ 1) in a row; ``random`` is in [0, 1)."""
        cap = min(self.max_s, self.first_s * 2.0 ** min(failures - 1, 60))
        return cap * (self.floor + (1.0 - self.floor) * random)
