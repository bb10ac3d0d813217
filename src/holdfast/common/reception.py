"""The time for which a node has received nothing from a queue."""

from __future__ import annotations

import math


class Reception:
    """The time for which a node receives nothing from a queue: it isn't a member, or the queue fails or
    doesn't answer within ``answer_s``. An empty queue answers. All times are monotonic seconds."""

    __slots__ = ("_answer_s", "_answered_at", "_fails", "_silent_s", "_stopped_at")

    def __init__(self, now: float = 0.0, answer_s: float = math.inf) -> None:
        self._answer_s = answer_s
        self._answered_at = now
        self._stopped_at: float | None = None
        self._fails = False
        self._silent_s = 0.0

    def paused(self, now: float) -> None:
        """Note that the node may ask for no message now."""
        if self._stopped_at is None:
            self._stopped_at = now

    def full(self, now: float) -> None:
        """Note that the node has no room. This time counts as received: the messages that fill the node may
        wait for such a time to end."""
        if not self._fails:
            self.answered(now)

    def failed(self, now: float) -> None:
        """Note that the queue has failed."""
        self.paused(now)
        self._fails = True

    def asked(self, now: float) -> None:
        """Note that a receive begins, which ends a pause. Only an answer ends a failure."""
        if self._stopped_at is not None and not self._fails:
            self.answered(now)

    def answered(self, now: float) -> None:
        """Note that the queue has answered."""
        self._silent_s = self.silent_s(now)
        self._answered_at, self._stopped_at, self._fails = now, None, False

    def is_silent(self, now: float) -> bool:
        """Return True while the node receives nothing."""
        return now > self._silent_since

    def silent_s(self, now: float) -> float:
        """Return the total seconds in which the node has received nothing."""
        return self._silent_s + max(0.0, now - self._silent_since)

    @property
    def _silent_since(self) -> float:
        return self._answered_at + self._answer_s if self._stopped_at is None else self._stopped_at
