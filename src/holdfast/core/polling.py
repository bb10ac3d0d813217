"""How many receives to have under way, and when the next one is worth its call.

One waits while the queue is empty. A full batch says that more is there, so another joins; a thin one sends
one home. Where calls cost, a receive that brought little rests for a moment if, at the rate just seen, what
comes meanwhile shares the next call; at a trickle it doesn't rest, for nothing would be shared.
"""

from __future__ import annotations


class Polling:
    """Decides for the receives of one queue. ``batch`` is what one call brings at most, ``most`` how many
    may be under way, ``linger_s`` how long one may rest."""

    def __init__(self, batch: int, most: int, linger_s: float) -> None:
        self._batch = batch
        self._most = most
        self._linger_s = linger_s
        self.wanted = 1

    def received(self, count: int, seconds: float) -> float:
        """A receive brought ``count`` messages, ``seconds`` after its predecessor did. Returns for how long
        it rests before the next."""
        if count >= self._batch:
            self.wanted = min(self._most, self.wanted + 1)
            return 0.0
        if 2 * count < self._batch:
            self.wanted = max(1, self.wanted - 1)
        rate = count / seconds if seconds > 0 else 0.0
        return min(self._linger_s, self._batch / rate) if rate * self._linger_s >= 1 else 0.0

    def failed(self) -> None:
        """The queue did not answer: one receive is enough to learn when it does."""
        self.wanted = 1
