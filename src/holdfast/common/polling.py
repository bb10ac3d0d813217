"""Decides how many receives to have open at a queue, and when the next one is worth its call.

One receive waits while the queue is empty. After two full batches in a row, another one is opened; after a
small batch, one is closed. Where calls cost money, a receive that brought few messages pauses for a moment,
if messages will come meanwhile, at the recent rate, to share the next call. At a very low rate it doesn't
pause, because nothing would be shared.
"""

from __future__ import annotations

CROWDED_S = 0.1
"""The pause between receives whose messages must wait for room."""

MEMORY = 10
"""Over how many of the longest pauses the rate is averaged. With other receivers at the queue, the number of
messages in one receive is mostly random."""


class Polling:
    """Decides for the receives of one queue. ``batch`` is how many messages one call brings at most, ``most``
    how many receives may be open, ``linger_s`` how long one may pause."""

    def __init__(self, batch: int, most: int, linger_s: float) -> None:
        self._batch = batch
        self._most = most
        self._linger_s = linger_s
        self._rate = 0.0
        self._full = 0
        self.wanted = 1

    def received(self, count: int, seconds: float) -> float:
        """Note that a receive brought ``count`` messages, ``seconds`` after the one before. Returns how long
        to pause before the next."""
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
        """Note that the queue didn't answer. One open receive is then enough to see when it does."""
        self.wanted = 1

    def crowded(self) -> float:
        """Note that many messages find no room at their owners. Receiving goes on slowly, because the owners
        may wait for a message that is still in the queue. Returns how long the receive pauses."""
        self.wanted = 1
        return CROWDED_S
