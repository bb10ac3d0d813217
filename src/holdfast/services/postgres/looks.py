"""From where the queue's statements look for messages, and how far they have looked.

While somebody holds a transaction open, PostgreSQL can't remove what is deleted, and every scan of an index
passes over all of it. So receives look only from where the last one ended, less a margin for what was
committed late. Now and then one looks back farther, and from the beginning, for what was committed later
still: not so often that it matters, however long it takes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

MARGIN_S = 0.25
"""How late a commit may be for the next receive to see its messages."""

WIDE_MARGIN_S = 10.0
"""How late it may be for those receives that look back farther: longer than most transactions of callers."""

WIDE_S = 1.0
"""The least time between two receives of a queue that look back farther, or from the beginning."""

WIDE_SHARE = 0.02
"""The largest part of the time that receives spend on looking so."""

SORT_MAX = 1000
"""How many ready messages one statement looks at to set aside what is of reserved keys."""

EPOCH_MS = 1_577_836_800_000
COUNT_BITS = 20


class FoundRow(NamedTuple):
    """A message that a receive has delivered or set aside. Without a ``turn`` of its own it has the place of
    its number. What is set aside has no ``body``. ``total`` is how many messages were found, and ``now`` the
    server's time in microseconds. ``visible_at`` is when it came again, in microseconds; None if it is new,
    or ``kept`` by a reservation that has ended. ``known`` is how many reservations the queue knows."""

    number: int
    receives: int
    excused: int
    turn: int | None
    attributes: str | None
    body: bytes | None
    total: int
    now: int
    visible_at: int | None
    kept: bool = False
    known: int = 0

    def place(self) -> tuple[bool, bool, int, int]:
        """Return the order in which messages are delivered: kept ones, what comes again, and new ones."""
        if self.kept:
            return False, False, self.number if self.turn is None else self.turn, self.number
        return True, self.visible_at is None, self.visible_at or 0, self.number


class SortAnswer(NamedTuple):
    """The messages that were looked at to set aside those of reserved keys: how many that come again and that
    are new, the time and the id of the last of them, and the server's time in microseconds."""

    due: int
    last_due: int | None
    fresh: int
    last_fresh: int | None
    now: int


@dataclass(slots=True)
class Marks:
    """From where receives look: two times in microseconds, and an id. ``seen_at`` is the server's time of the
    last look, in microseconds; ``wide_at`` and ``full_at`` are when the next one looks back farther."""

    due_from: int = 0
    fresh_from: int = 0
    ended_from: int = 0
    """Reservations that ended until then have nothing left."""
    seen_at: int = 0
    known: int = 0
    """The number of reservations that the queue knows, with those that have ended."""
    tidy_at: float = -math.inf
    wide_at: float = -math.inf
    full_at: float = -math.inf

    def start(self, now: float) -> None:
        """Begin a look."""
        if now >= self.full_at or now >= self.wide_at:
            since = 0 if now >= self.full_at else self.seen_at - round(WIDE_MARGIN_S * 1e6)
            self.due_from = min(self.due_from, since)
            self.fresh_from = min(self.fresh_from, least_id(since))
            self.ended_from = min(self.ended_from, since)

    def end(self, began_at: float, now: float) -> None:
        """End a look: the longer it took, the later is the next one of its kind."""
        next_at = now + max(WIDE_S, (now - began_at) / WIDE_SHARE)
        if began_at >= self.full_at:
            self.full_at = self.wide_at = next_at
        elif began_at >= self.wide_at:
            self.wide_at = next_at

    def move(self, rows: Sequence[FoundRow], limit: int, seen_at: int) -> None:
        """Move over what a look has passed."""
        self.seen_at = seen_at
        until = seen_at - round(MARGIN_S * 1e6)
        due = [row.visible_at for row in rows if row.visible_at is not None]
        fresh = [row.number for row in rows if row.visible_at is None and not row.kept]
        all_ended, all_due, all_fresh = until, until, least_id(until)
        if rows and (len(rows) == limit or len(rows) < rows[0].total):  # there may be more
            all_ended = all_ended if due or fresh else 0
            all_due = all_due if fresh else min(all_due, max(due, default=1) - 1)
            all_fresh = min(all_fresh, max(fresh, default=0))
        self.ended_from = max(self.ended_from, all_ended)
        self.due_from = max(self.due_from, all_due)
        self.fresh_from = max(self.fresh_from, all_fresh)


@dataclass(slots=True)
class Sorting:
    """A look through all ready messages, in parts, to set aside those of reserved keys. Ended, it goes on
    with what is new, and from the beginning at ``again_at``, for what was committed late."""

    due_from: int = 0
    fresh_from: int = 0
    ended: bool = False
    spent_s: float = 0.0
    again_at: float = -math.inf

    def start(self, now: float) -> None:
        """Begin a look."""
        if self.ended and now >= self.again_at:
            self.due_from = self.fresh_from = 0
            self.ended, self.spent_s = False, 0.0

    def move(self, looked: SortAnswer, began_at: float, now: float) -> None:
        """Move over what a look has passed."""
        self.spent_s += now - began_at
        if looked.due + looked.fresh >= SORT_MAX:
            last_due = looked.last_due or 0
            self.due_from = last_due - 1 if last_due > self.due_from + 1 else max(self.due_from, last_due)
            self.fresh_from = max(self.fresh_from, looked.last_fresh or 0)
            return
        until = looked.now - round(MARGIN_S * 1e6)
        self.due_from, self.fresh_from = max(self.due_from, until), max(self.fresh_from, least_id(until))
        if not self.ended:
            self.ended, self.again_at = True, now + max(WIDE_S, self.spent_s / WIDE_SHARE)


def least_id(at: int) -> int:
    """The least id that a message may have that was sent then or later."""
    return max(0, (at // 1000 - EPOCH_MS) << COUNT_BITS)
