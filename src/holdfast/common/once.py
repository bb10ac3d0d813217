"""Remembers what was logged lately, so that repeated events don't flood the log."""

from __future__ import annotations

from collections.abc import Hashable


class Once:
    """Remembers the last ``limit`` things that were logged."""

    def __init__(self, limit: int = 10_000) -> None:
        self._limit = limit
        self._said: dict[Hashable, None] = {}

    def first(self, thing: Hashable) -> bool:
        """Return True the first time, and again after the thing was forgotten."""
        if thing in self._said:
            return False
        if len(self._said) == self._limit:
            del self._said[next(iter(self._said))]
        self._said[thing] = None
        return True
