"""The messages in custody that wait for room at their owners: one line for each key, in the stream's order.

Where a queue doesn't know keys, an owner gets the messages of a deep backlog from such a line: the lowest are
offered first, as many as the owner had room for of late, and the others stay hidden in custody.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Line(Generic[T]):
    """The line of one key. ``order`` gives the place of an item, and ``waits`` says whether it still waits:
    it may leave in other ways. At most ``most`` are offered at once."""

    __slots__ = (
        "_accepted",
        "_items",
        "_most",
        "_order",
        "_refused",
        "_waits",
        "_window",
        "is_behind_gap",
        "refusals",
    )

    def __init__(self, order: Callable[[T], tuple[int, ...]], waits: Callable[[T], bool], most: int) -> None:
        self._order = order
        self._waits = waits
        self._items: list[T] = []
        self._accepted = self._refused = False
        self._most = self._window = most
        self.is_behind_gap = False
        """True if the owner waits for a missing message, as of the last item that it refused."""
        self.refusals = 0
        """The number of offers in a row that found no room at all."""

    def __len__(self) -> int:
        return len(self._items)

    def add(self, item: T) -> None:
        """Add an item in its place."""
        bisect.insort(self._items, item, key=self._order)

    def is_before(self, item: T) -> bool:
        """Return True if an item is in line that comes before this one, or came earlier in the same place."""
        return bool(self._items) and self._order(self._items[0]) <= self._order(item)

    def accepted(self) -> None:
        """Note that the owner took an item."""
        self._accepted = True

    def refused(self) -> None:
        """Note that the owner had no room for an item."""
        self._refused = True

    def pop_highest(self) -> T | None:
        """Remove the highest item and return it; None if none waits."""
        self._prune()
        return self._items.pop() if self._items else None

    def offer(self) -> list[T]:
        """Remove the items to offer now and return them, the lowest first."""
        self._prune()
        if self._refused:
            self._window = max(1, self._window // 2) if self._accepted else 1
            self.refusals = 0 if self._accepted else self.refusals + 1
        elif self._accepted:
            self._window, self.refusals = min(self._most, 2 * self._window), 0
        self._accepted = self._refused = False
        offered = self._items[: self._window]
        del self._items[: self._window]
        return offered

    def _prune(self) -> None:
        self._items = [item for item in self._items if self._waits(item)]
