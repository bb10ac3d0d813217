"""A wall time that no jump of the clock shifts: what is due stays due when it should be."""

from __future__ import annotations

SLEW = 0.05
"""How much faster or slower than time itself it goes, to come back to the clock."""


class SteadyTime:
    """Begins with the wall clock, goes with the monotonic one, and closes the gap between them slowly."""

    def __init__(self, wall: float, monotonic: float) -> None:
        self._now = wall
        self._at = monotonic

    def now(self, wall: float, monotonic: float) -> float:
        """The time, given what both clocks say. It never goes back."""
        passed = max(0.0, monotonic - self._at)
        self._at = max(self._at, monotonic)
        self._now += passed
        gap = wall - self._now
        self._now += max(-SLEW * passed, min(SLEW * passed, gap))
        return self._now
