"""The load of streams: seconds of handling per second, and messages per second, smoothed."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from holdfast.ports.clock import Clock
from holdfast.rules.cluster.balance import STREAM_LOAD

ROLL_S = 2.0
SMOOTHING = 0.5
"""The weight of the newest period in the average."""

FORGOTTEN_ROLLS = 20
"""The number of periods without a message after which an average, then a millionth, is forgotten."""


class MeasuredLoad(NamedTuple):
    """The measured load of a stream: the slots that its handler keeps busy, and its messages per second."""

    slots_busy: float
    messages_per_s: float


UNMEASURED = MeasuredLoad(0.0, 0.0)


class _Average(NamedTuple):
    """An average as it was in one period. Later values follow from it."""

    period: int
    slots_busy: float
    messages_per_s: float

    def at(self, period: int) -> MeasuredLoad:
        left = (1 - SMOOTHING) ** (period - self.period)
        return MeasuredLoad(self.slots_busy * left, self.messages_per_s * left)


class Loads:
    """The loads of the streams on one node, in busy slots. Streams at rest cost nothing."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._rolled_at = clock.monotonic()
        self._period = 0
        self._noted: dict[str, tuple[float, int]] = {}
        self._averages: dict[str, _Average] = {}  # by key, the one that was noted longest ago first
        self._busy = 0.0

    def note(self, key: str, seconds: float, count: int) -> None:
        """Add the time that a handler worked for a stream, and how many messages it handled."""
        before_s, before = self._noted.get(key, (0.0, 0))
        self._noted[key] = before_s + seconds, before + count

    def roll(self, at_work: Mapping[str, float] = MappingProxyType({})) -> None:
        """Update the averages with what was added since the last call. ``at_work`` has the streams whose
        handlers are at work, and for how many seconds they have been: a long call counts while it lasts, and
        not all at once when it ends."""
        now = self._clock.monotonic()
        passed_s, self._rolled_at = now - self._rolled_at, now
        if passed_s <= 0:
            return
        self._period += 1
        self._busy *= 1 - SMOOTHING
        for key, seconds in at_work.items():
            self.note(key, seconds, 0)
        noted, self._noted = self._noted, {}
        for key, (seconds, count) in noted.items():
            slots_busy, messages_per_s = min(seconds, passed_s) / passed_s, count / passed_s
            if key in self._averages:
                faded = self._drop(key)
                slots_busy = faded.slots_busy + SMOOTHING * slots_busy
                messages_per_s = faded.messages_per_s + SMOOTHING * messages_per_s
            self._averages[key] = _Average(self._period, slots_busy, messages_per_s)
            self._busy += slots_busy
        while self._averages:
            oldest = next(iter(self._averages))
            if self._averages[oldest].period + FORGOTTEN_ROLLS > self._period:
                break
            self._drop(oldest)

    def _drop(self, key: str) -> MeasuredLoad:
        faded = self._averages.pop(key).at(self._period)
        # Without streams there is no load: what rounding has left is taken away.
        self._busy = self._busy - faded.slots_busy if self._averages else 0.0
        return faded

    def forget(self, key: str) -> None:
        """Forget a stream that this node no longer owns."""
        self._noted.pop(key, None)
        if key in self._averages:
            self._drop(key)

    def of(self, key: str) -> float:
        """Return the load of one stream that this node owns."""
        return STREAM_LOAD + self.measured(key).slots_busy

    def measured(self, key: str) -> MeasuredLoad:
        """Return what was measured of one stream."""
        average = self._averages.get(key)
        return UNMEASURED if average is None else average.at(self._period)

    @property
    def active(self) -> list[str]:
        """The streams whose handlers have worked lately."""
        return list(self._averages)

    @property
    def busy(self) -> float:
        """The load of all streams together."""
        return max(0.0, self._busy)
