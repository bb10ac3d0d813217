"""Decisions about receives: how many to have open at a queue, and when the next one is worth its call.

One receive waits while the queue is empty. Two full batches in a row open another one; a small batch closes
one. Where calls cost money, a receive that brought few messages pauses, so that messages share the next call.
At a very low rate it doesn't pause, because no messages would share it.
"""

from __future__ import annotations

CROWDED_S = 0.1
"""Seconds between receives whose messages must wait for room."""

MEMORY = 10
"""Number of longest pauses over which the rate is averaged: other receivers make one receive's count
random."""


class Polling:
    """The receives of one queue: at most ``batch`` messages each, ``most`` open, pauses of ``linger_s``."""

    def __init__(self, batch: int, most: int, linger_s: float) -> None:
        self._batch = batch
        self._most = most
        self._linger_s = linger_s
        self._rate = 0.0
        self._full = 0
        self.wanted = 1

    def received(self, count: int, seconds: float) -> float:
        """Note that a receive brought ``count`` messages, ``seconds`` after the one before. Returns the pause
        in seconds before the next."""
        memory_s = MEMORY * self._linger_s
        if memory_s:
            self._rate = (self._rate * memory_s + count) / (memory_s + seconds)
        self._full = self._full + 1 if count >= self._batch else 0
        if self._full > 1:
            self.wanted = min(self._most, self.wanted + 1)
            return 0.0
        if 2 * count < self._batch:
            self.wanted = max(1, self.wanted - 1)
        if self._rate * self._linger_s < 1:
            return 0.0
        return min(self._linger_s, self._batch / self._rate)

    def failed(self) -> None:
        """Note that the queue didn't answer. One open receive is then enough."""
        self.wanted = 1

    def crowded(self) -> float:
        """Note that many messages find no room at their owners. Receives go on slowly, because the owners may
        wait for a message that is still in the queue. Returns the pause in seconds."""
        self.wanted = 1
        return CROWDED_S
