"""Ends a membership that isn't renewed. kazoo's thread keeps a session alive even if the program hangs, so
another thread must end it."""

from __future__ import annotations

import threading
from collections.abc import Callable

from holdfast.ports.clock import Clock


class LapseTimer(threading.Thread):
    """Calls ``act`` once, in this thread, at the time that was set last."""

    def __init__(self, clock: Clock, at: float, act: Callable[[], None]) -> None:
        super().__init__(name="holdfast-lapse", daemon=True)
        self._clock = clock
        self._at = at
        self._act = act
        self._over = False
        self._changed = threading.Condition()

    def put_off(self, at: float) -> None:
        """Act at ``at`` on the clock instead."""
        with self._changed:
            self._at = at
            self._changed.notify()

    def cancel(self) -> None:
        """Don't act, unless it has begun."""
        with self._changed:
            self._over = True
            self._changed.notify()

    def run(self) -> None:
        with self._changed:
            while not self._over:
                remaining_s = self._at - self._clock.monotonic()
                if remaining_s <= 0:
                    break
                self._changed.wait(remaining_s)
            else:
                return
        self._act()
