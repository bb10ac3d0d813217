"""The clocks of a dispatcher: one notices when the host's clock is set, one measures silence."""

from __future__ import annotations

from holdfast.extend import Clock

CHECKS_S = 60.0
"""Seconds for which sweeps correct due times, after they may have become wrong."""

JUMP_S = 0.5
"""Seconds by which the wall clock may differ unnoticed."""


class ClockWatch:
    """Notices that the wall clock was set, so that stored times can follow.

    Attributes:
        shift_s: the seconds by which the next turn shifts due times.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._checks_until = 0.0
        self.shift_s = 0.0
        self.restart()

    def restart(self) -> None:
        """Take the wall clock's present time for right."""
        self._offset_s = self._clock.wall() - self._clock.monotonic()

    def notice_jump(self, now: float, monotonic: float) -> float:
        """Return the seconds by which the wall clock was set since the last call; 0 if it wasn't."""
        jump_s = now - monotonic - self._offset_s
        self._offset_s += jump_s
        if abs(jump_s) <= JUMP_S:
            return 0.0
        self.shift_s += jump_s
        self._checks_until = monotonic + CHECKS_S
        return jump_s

    def doubt(self) -> None:
        """Have sweeps correct due times for a while."""
        self._checks_until = self._clock.monotonic() + CHECKS_S

    def is_doubted(self, monotonic: float) -> bool:
        """Return whether a sweep at this time corrects due times."""
        return monotonic < self._checks_until


class ListeningClock:
    """A clock that stops while a shard has no connection, because silence then has another cause."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._stopped_s = 0.0
        self._stopped_at: float | None = clock.monotonic()

    def now(self) -> float:
        """Return the seconds for which it has run."""
        until = self._clock.monotonic() if self._stopped_at is None else self._stopped_at
        return until - self._stopped_s

    def run(self, runs: bool) -> None:
        """Start or stop it."""
        if not runs and self._stopped_at is None:
            self._stopped_at = self._clock.monotonic()
        elif runs and self._stopped_at is not None:
            self._stopped_s += self._clock.monotonic() - self._stopped_at
            self._stopped_at = None
