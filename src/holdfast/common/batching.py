"""The batcher decides how long something that is ready waits, so that several share one call. It matters
where calls cost money. Something waits only while its call will soon be full, and others are known that
may join it."""

from __future__ import annotations

MEMORY = 10
"""Over how many of the longest waits the rate is averaged."""

ALONE = 8
"""How many times shorter the longest wait is while nobody is known who may join."""


class Batcher:
    """Decides for the calls of one kind. ``batch`` is what one takes at most, ``linger_s`` how long something
    may wait, 0 where nothing is to."""

    def __init__(self, batch: int, linger_s: float) -> None:
        self._batch = batch
        self._linger_s = linger_s
        self._rate = 0.0
        self._at = 0.0

    def came(self, now: float) -> None:
        """One is ready."""
        if memory_s := MEMORY * self._linger_s:
            seconds = max(0.0, now - self._at)
            self._rate = (self._rate * memory_s + 1) / (memory_s + seconds)
            self._at = now

    def patience_s(self, waiting: int, others: int) -> float:
        """How long the first of those ``waiting`` may wait in all. ``others`` are at work, and will be ready
        at some time."""
        linger_s = self._linger_s if others else self._linger_s / ALONE
        return linger_s if 0 < self._batch - waiting <= self._rate * linger_s else 0.0
