"""The load of streams: seconds of handling per second, smoothed."""

from __future__ import annotations

from holdfast.cluster.rules.balance import STREAM_LOAD
from holdfast.ports.clock import Clock

ROLL_S = 2.0
SMOOTHING = 0.5
"""The weight of the newest period in the average."""

FORGOTTEN = 1e-6


class Loads:
    """The loads of the streams on one node, in busy slots."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._rolled_at = clock.monotonic()
        self._seconds: dict[str, float] = {}
        self._busy: dict[str, float] = {}

    def note(self, key: str, seconds: float) -> None:
        """Add the time that a handler worked for a stream."""
        self._seconds[key] = self._seconds.get(key, 0.0) + seconds

    def roll(self) -> None:
        """Update the averages with the times added since the last call."""
        now = self._clock.monotonic()
        passed_s, self._rolled_at = now - self._rolled_at, now
        if passed_s <= 0:
            return
        seconds, self._seconds = self._seconds, {}
        for key in {*self._busy, *seconds}:
            newest = seconds.get(key, 0.0) / passed_s
            self._busy[key] = self._busy.get(key, newest) * (1 - SMOOTHING) + newest * SMOOTHING
            if self._busy[key] < FORGOTTEN:
                del self._busy[key]

    def forget(self, key: str) -> None:
        """Forget a stream that this node no longer owns."""
        self._seconds.pop(key, None)
        self._busy.pop(key, None)

    def of(self, key: str) -> float:
        """Return the load of one stream that this node owns."""
        return STREAM_LOAD + self._busy.get(key, 0.0)

    @property
    def busy(self) -> float:
        """Return the load of all streams together."""
        return sum(self._busy.values())
