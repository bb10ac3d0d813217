"""Memories of the newest entries: a node runs for months, and new keys appear all the time."""

from __future__ import annotations

from collections.abc import Hashable
from typing import TypeVar

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


def remember(known: dict[K, T], key: K, value: T, most: int) -> None:
    """Keep a value as the newest one, and forget the oldest beyond ``most``."""
    known.pop(key, None)
    known[key] = value
    if len(known) > most:
        del known[next(iter(known))]


class Once:
    """The last ``limit`` things that were logged, so that repeated events don't flood the log."""

    def __init__(self, limit: int = 10_000) -> None:
        self._limit = limit
        self._logged: dict[Hashable, None] = {}

    def first(self, thing: Hashable) -> bool:
        """Return True the first time, and again after the thing was forgotten."""
        if thing in self._logged:
            return False
        remember(self._logged, thing, None, self._limit)
        return True
