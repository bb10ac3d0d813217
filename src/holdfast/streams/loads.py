"""The load of streams: seconds of handling per second, and messages per second, smoothed."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from holdfast.cluster.rules.balance import STREAM_LOAD
from holdfast.ports.clock import Clock

ROLL_S = 2.0
SMOOTHING = 0.5
"""The weight of the newest period in the average."""

FORGOTTEN = 1e-6


class MeasuredLoad(NamedTuple):
    """The measured load of a stream: the slots that its handler keeps busy, and its messages per second."""

    slots_busy: float
    messages_per_s: float


UNMEASURED = MeasuredLoad(0.0, 0.0)


class StreamActivity(msgspec.Struct):
    """The activity of a stream: how many slots its handler keeps busy, how many messages it handles a second,
    how long it takes for each, how many wait, and how long its node has had the oldest."""

    key: str
    load: float
    rate: float
    time_s: float
    waiting: int
    lag_s: float


FIGURES = ("load", "rate", "time_s", "waiting", "lag_s")
"""The fields by which streams are compared."""


class Loads:
    """The loads of the streams on one node, in busy slots."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._rolled_at = clock.monotonic()
        self._noted: dict[str, tuple[float, int]] = {}
        self._loads: dict[str, MeasuredLoad] = {}

    def note(self, key: str, seconds: float, count: int) -> None:
        """Add the time that a handler worked for a stream, and how many messages it handled."""
        before_s, before = self._noted.get(key, (0.0, 0))
        self._noted[key] = before_s + seconds, before + count

    def roll(self) -> None:
        """Update the averages with what was added since the last call."""
        now = self._clock.monotonic()
        passed_s, self._rolled_at = now - self._rolled_at, now
        if passed_s <= 0:
            return
        noted, self._noted = self._noted, {}
        for key in {*self._loads, *noted}:
            seconds, count = noted.get(key, (0.0, 0))
            newest = MeasuredLoad(seconds / passed_s, count / passed_s)
            before = self._loads.get(key, newest)
            load = MeasuredLoad(*map(_smoothed, before, newest))
            if load.slots_busy < FORGOTTEN:
                self._loads.pop(key, None)
            else:
                self._loads[key] = load

    def forget(self, key: str) -> None:
        """Forget a stream that this node no longer owns."""
        self._noted.pop(key, None)
        self._loads.pop(key, None)

    def of(self, key: str) -> float:
        """Return the load of one stream that this node owns."""
        return STREAM_LOAD + self.measured(key).slots_busy

    def measured(self, key: str) -> MeasuredLoad:
        """Return what was measured of one stream."""
        return self._loads.get(key, UNMEASURED)

    @property
    def active(self) -> list[str]:
        """Return the streams whose handlers have worked lately."""
        return list(self._loads)

    @property
    def busy(self) -> float:
        """Return the load of all streams together."""
        return sum(load.slots_busy for load in self._loads.values())


def _smoothed(before: float, newest: float) -> float:
    return before * (1 - SMOOTHING) + newest * SMOOTHING
