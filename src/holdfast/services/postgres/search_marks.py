"""The places where the queue's searches for messages start, and how far they have come.

While a transaction is open, PostgreSQL can't remove deleted rows, and every scan of an index passes over
them. So a receive starts where the last one ended, less a margin for late commits. Now and then one starts
farther back, or at the beginning, for commits that were even later. The longer that takes, the less often it
happens.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

MARGIN_S = 0.25
"""Seconds by which a commit may be late for the next receive to find its messages."""

WIDE_MARGIN_S = 10.0
"""Seconds by which it may be late for receives that start farther back: longer than most transactions of
callers."""

WIDE_S = 1.0
"""Seconds at least between two receives of a queue that start farther back, or at the beginning."""

WIDE_SHARE = 0.02
"""Share of the time that such receives may take."""

SORT_MAX = 1000
"""Ready messages that one statement checks to set aside messages of reserved keys."""

EPOCH_MS = 1_577_836_800_000
COUNT_BITS = 20


class FoundRow(NamedTuple):
    """A message that a receive has delivered or set aside. Without a ``turn`` its number is its turn. One
    that was set aside has no ``body``. ``total`` is the number of messages found, and ``now`` the server's
    time in microseconds. ``visible_at`` is when a repeated one became visible, in microseconds; None if it is
    new, or ``kept`` by a reservation that has ended. ``known`` is the number of known reservations."""

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
        """Return the sort key of the delivery order: kept messages, repeated ones, new ones."""
        if self.kept:
            return False, False, self.number if self.turn is None else self.turn, self.number
        return True, self.visible_at is None, self.visible_at or 0, self.number


class SortResult(NamedTuple):
    """The result of a search for messages of reserved keys: how many repeated and how many new ones were
    checked, the time and the id of the last of them, and the server's time in microseconds."""

    due: int
    last_due: int | None
    fresh: int
    last_fresh: int | None
    now: int


@dataclass(slots=True)
class Marks:
    """The places where receives start: two times in microseconds, and an id. ``seen_at`` is the server's time
    of the last search, in microseconds. At ``wide_at`` and ``full_at`` the next one starts farther back."""

    due_from: int = 0
    fresh_from: int = 0
    ended_from: int = 0
    """Reservations that ended until then have nothing left."""
    seen_at: int = 0
    known: int = 0
    """The number of known reservations, also of ended ones."""
    tidy_at: float = -math.inf
    wide_at: float = -math.inf
    full_at: float = -math.inf

    def start(self, now: float) -> None:
        """Begin a search."""
        if now >= self.full_at or now >= self.wide_at:
            since = 0 if now >= self.full_at else self.seen_at - round(WIDE_MARGIN_S * 1e6)
            self.due_from = min(self.due_from, since)
            self.fresh_from = min(self.fresh_from, least_id(since))
            self.ended_from = min(self.ended_from, since)

    def end(self, began_at: float, now: float) -> None:
        """End a search: the longer it took, the later is the next one of its kind."""
        next_at = now + max(WIDE_S, (now - began_at) / WIDE_SHARE)
        if began_at >= self.full_at:
            self.full_at = self.wide_at = next_at
        elif began_at >= self.wide_at:
            self.wide_at = next_at

    def move(self, rows: Sequence[FoundRow], limit: int, seen_at: int) -> None:
        """Move the places beyond what a search has passed."""
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
    """A search through all ready messages, in parts, to set aside messages of reserved keys. After its end it
    continues with new messages; at ``again_at`` it starts again, for late commits."""

    due_from: int = 0
    fresh_from: int = 0
    ended: bool = False
    spent_s: float = 0.0
    again_at: float = -math.inf

    def start(self, now: float) -> None:
        """Begin a search."""
        if self.ended and now >= self.again_at:
            self.due_from = self.fresh_from = 0
            self.ended, self.spent_s = False, 0.0

    def move(self, looked: SortResult, began_at: float, now: float) -> None:
        """Move the places beyond what a search has passed."""
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
    """Return the least id that a message may have that was sent then or later."""
    return max(0, (at // 1000 - EPOCH_MS) << COUNT_BITS)
