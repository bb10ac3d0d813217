"""The batcher decides how long something that is ready waits, so that several share one call. This matters
where calls cost money. A thing waits only while its call will soon be full, and others are known that may
join it."""

from __future__ import annotations

MEMORY = 10
"""Over how many of the longest waits the rate is averaged."""

ALONE = 8
"""How many times shorter the longest wait is while no other is known that may join."""


class Batcher:
    """Decides for the calls of one kind. ``batch`` is how many things one call takes at most, ``linger_s``
    how long one may wait."""

    def __init__(self, batch: int, linger_s: float) -> None:
        self._batch = batch
        self._linger_s = linger_s
        self._rate = 0.0
        self._at = 0.0

    def came(self, now: float) -> None:
        """Note that one thing is ready."""
        memory_s = MEMORY * self._linger_s
        seconds = max(0.0, now - self._at)
        self._rate = (self._rate * memory_s + 1) / (memory_s + seconds)
        self._at = now

    def patience_s(self, waiting: int, others: int) -> float:
        """Return how long the first of the ``waiting`` things may wait in total. ``others`` are at work, and
        will be ready at some time."""
        linger_s = self._linger_s if others else self._linger_s / ALONE
        return linger_s if 0 < self._batch - waiting <= self._rate * linger_s else 0.0
