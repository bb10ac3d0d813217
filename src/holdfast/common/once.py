"""Says what was not said lately, so that a log isn't flooded by what happens all the time."""

from __future__ import annotations

from collections.abc import Hashable


class Once:
    """Remembers the last ``limit`` things that were said."""

    def __init__(self, limit: int = 10_000) -> None:
        self._limit = limit
        self._said: dict[Hashable, None] = {}

    def first(self, thing: Hashable) -> bool:
        """True the first time, and again once it has been forgotten."""
        if thing in self._said:
            return False
        if len(self._said) == self._limit:
            del self._said[next(iter(self._said))]
        self._said[thing] = None
        return True
