"""How many receives to have under way, and when the next one is worth its call.

One waits while the queue is empty. Two full batches in a row say that more is there, so another joins; a
thin one sends one home. Where calls cost, a receive that brought little rests for a moment if, at the rate
of late, what comes meanwhile shares the next call; at a trickle it doesn't rest, for nothing would be
shared.
"""

from __future__ import annotations

CROWDED_S = 0.1
"""Pause between receives whose messages have to wait for room."""

MEMORY = 10
"""Over how many of the longest rests the rate is averaged: with others at the same queue what one receive
brings is mostly chance."""


class Polling:
    """Decides for the receives of one queue. ``batch`` is what one call brings at most, ``most`` how many
    may be under way, ``linger_s`` how long one may rest."""

    def __init__(self, batch: int, most: int, linger_s: float) -> None:
        self._batch = batch
        self._most = most
        self._linger_s = linger_s
        self._rate = 0.0
        self._full = 0
        self.wanted = 1

    def received(self, count: int, seconds: float) -> float:
        """A receive brought ``count`` messages, ``seconds`` after its predecessor did. Returns for how long
        it rests before the next."""
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
        """The queue did not answer: one receive is enough to learn when it does."""
        self.wanted = 1

    def crowded(self) -> float:
        """Much of what came finds no room with its owners. Receiving goes on, or what they wait for never
        comes, but no faster than is needed to find that. Returns for how long the receive rests."""
        self.wanted = 1
        return CROWDED_S
