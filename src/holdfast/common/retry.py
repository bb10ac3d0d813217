"""Pauses between tries: exponential backoff with full jitter.

Source: the "full jitter" scheme (a delay drawn evenly below an exponential cap), which spreads retries
of many clients better than jitter around the cap.
"""

from __future__ import annotations

import msgspec

from holdfast.common.settings import Fraction, Seconds


class Backoff(msgspec.Struct, frozen=True):
    """Delays between tries. The delay is drawn at random below a limit that begins at ``first_s`` and doubles
    up to ``max_s``; it is at least the share ``floor`` (0 to 1) of that limit."""

    first_s: Seconds = 0.2
    max_s: Seconds = 30.0
    floor: Fraction = 0.5

    def delay_s(self, failures: int, random: float) -> float:
        """Return the seconds before the next try after ``failures`` (≥ 1) in a row; ``random`` is in [0,
        1)."""
        cap = min(self.max_s, self.first_s * 2.0 ** min(failures - 1, 60))
        return cap * (self.floor + (1.0 - self.floor) * random)
