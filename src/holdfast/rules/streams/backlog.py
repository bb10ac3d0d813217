"""Decides what an owner does about messages that it has no room for.

A queue that knows keys keeps the undelivered messages of a key for its owner, once the owner has reserved
the key. The owner reserves when its inbox is full for the first time. It takes the next messages, in order
of arrival, while half of its inbox is free, and gives the reservation up when the queue is empty. While a
message is missing, the owner reads on: it takes further messages, keeps the lowest and puts the others back,
until it has seen all that the queue has.

A message that was turned away may still be under way, in the custody of another node or back to the queue.
Until it comes back, later messages wait for it where no seq is missing without it, and it doesn't count as
missing.
"""

from __future__ import annotations

import bisect

import msgspec

Order = tuple[int, int]
"""The place of a message in its stream: run and seq, or 0 and its turn in the queue."""

TAKE_MAX = 128
"""The most messages in one take: enough to keep a slot busy while the next take is under way."""

AWAY_S = 60.0
"""Seconds in which a message that was turned away is expected back: longer than its delivery is hidden, and
than any pause before it is offered again."""

AWAY_MAX = 50_000
"""The most messages of a stream that are remembered as turned away: a few megabytes. The lowest ones stay."""

LOOK_AGAIN_S = 1.0
"""Seconds between two passes over the queue for a missing message."""

SOON_S = 0.05
"""Seconds of the first pause after a take that brought nothing although a message is awaited."""


class Reserve(msgspec.Struct, frozen=True):
    """Reserve the key at the queue. Answer: ``reserved``."""


class Take(msgspec.Struct, frozen=True):
    """Take up to ``limit`` reserved messages with a turn above ``after``, and offer them. Answer: ``took``,
    or ``reservation_lost``."""

    limit: int
    after: int = 0


class Unreserve(msgspec.Struct, frozen=True):
    """Give the reservation up. It has no answer."""


class Backlog:
    """The backlog of one stream. ``by_key``: the queue knows keys. ``is_deep``: the owner before had reserved
    the key, so this one reserves it before it runs a message without a seq. ``by_turn``: messages have no
    seqs and run in order of turn."""

    __slots__ = (
        "_again_at",
        "_at_end",
        "_away_since",
        "_by_key",
        "_by_turn",
        "_first",
        "_is_asking",
        "_is_doubtful",
        "_is_taking",
        "_mark",
        "_more",
        "_pass_at",
        "_pauses",
        "_reads_on",
        "_reserved_at",
        "away",
        "is_reserved",
        "is_used",
        "may_stand",
    )

    def __init__(self, *, by_key: bool = False, is_deep: bool = False, by_turn: bool = False) -> None:
        self._by_key = by_key
        self._by_turn = by_turn
        self.is_reserved = False
        """True while the queue keeps the key's messages for this owner, as far as the owner knows."""
        self.may_stand = False
        """True while the queue may have a reservation of this owner."""
        self._is_asking = False
        self._is_doubtful = False
        """True if a message was received that the queue should have kept."""
        self._reserved_at = 0.0
        self._is_taking = False
        self.is_used = self._first = by_key and is_deep
        """``is_used``: the key is reserved or is to be."""
        self._more = True
        self._at_end = False
        """True once all that the queue has was seen for the present gap."""
        self._reads_on = False
        """True while the present take is one of a pass, for a message that is missing."""
        self._mark = 0
        """The highest turn seen in the present pass."""
        self._pass_at = 0.0
        """The monotonic time at which the present pass began."""
        self._again_at = 0.0
        self._pauses = 0
        self.away: list[Order] = []
        """The messages that were turned away, in their order."""
        self._away_since: dict[Order, float] = {}

    # -- what the owner may ask

    @property
    def is_pending(self) -> bool:
        """True while an answer of the queue is awaited."""
        return self._is_taking or self._is_asking

    @property
    def is_unread(self) -> bool:
        """True while the queue may have messages that this owner hasn't seen since the present gap began."""
        return self.is_used and not self._at_end

    @property
    def begins(self) -> bool:
        """True until a deep backlog was taken from for the first time: what comes first isn't known yet."""
        return self._first

    def awaited(self, now: float, above: Order | None = None) -> tuple[Order, float] | None:
        """Return the lowest message above ``above`` that was turned away and is expected back, and the time
        limit; None if no message is."""
        while self.away:
            lowest = self.away[0]
            until = self._away_since[lowest] + AWAY_S
            if now < until and (above is None or lowest > above):
                return lowest, until
            self.came(lowest)
        return None

    def is_awaited_before(self, order: Order) -> bool:
        """Return True if a message that comes before ``order`` is expected back."""
        return bool(self.away) and self.away[0] < order

    # -- what happens

    def turned_away(self, order: Order | None, now: float) -> None:
        """Note that a message found no room. The ``order`` is None if nothing has to wait for it."""
        self.is_used = self._by_key
        self._more = True
        if self.is_reserved and not self._is_taking and now >= self._reserved_at + LOOK_AGAIN_S:
            self._is_doubtful = True  # it goes back, and would be received again at once
        if order is None:
            return
        if order not in self._away_since:
            bisect.insort(self.away, order)
        self._away_since[order] = now
        if len(self.away) > AWAY_MAX:
            del self._away_since[self.away.pop()]

    def came(self, order: Order | None) -> None:
        """Note that a message was accepted, or is done with."""
        if order is not None and self._away_since.pop(order, None) is not None:
            del self.away[bisect.bisect_left(self.away, order)]

    def gap_began(self) -> None:
        """Note that the stream waits for another missing message: nothing was seen yet for this one."""
        self._at_end, self._mark = False, 0

    def reserved(self, granted: bool, now: float) -> None:
        """Answer to Reserve."""
        self.is_reserved = self.may_stand = granted
        self.is_used = self.is_used or granted
        self._is_asking = self._is_doubtful = False
        self._reserved_at = now
        self._again_at = now if granted else now + LOOK_AGAIN_S

    def lost(self, now: float) -> None:
        """Note that the reservation is gone, such as when it lapsed: ask for it again."""
        self.is_used = True
        self.is_reserved = self._is_taking = self.may_stand = False
        self._again_at = now
        self.gap_began()

    def reopened(self) -> None:
        """Note that the opening is over, and with it all that was under way. The next one reserves again."""
        self.is_reserved = self._is_asking = self._is_taking = False
        self._more = True
        self.gap_began()

    def took(self, count: int, highest: int, more: bool, now: float) -> None:
        """Answer to Take: ``count`` messages were offered, up to the turn ``highest``."""
        self._is_taking = False
        self._first = self._first and more and not count
        self._more = self._more or more
        self._pauses = 0 if count and not self._reads_on else self._pauses + 1
        self._again_at = now
        if self._reads_on and not self._by_turn and (count or not more):
            self._mark = max(self._mark, highest)
            if not more:
                self._at_end, self._mark = True, 0
                self._again_at = now + max(LOOK_AGAIN_S, now - self._pass_at)
        elif self._pauses:
            self._again_at = now + min(LOOK_AGAIN_S, SOON_S * 2.0 ** min(self._pauses, 10))

    # -- what to do

    def plan(
        self, now: float, *, waiting: int, limit: int, missing: bool, may_take: bool
    ) -> Reserve | Take | Unreserve | None:
        """Return what to do now; None if nothing, or not before ``wake_at``. ``waiting`` messages are held,
        and there is room for ``limit``. ``missing``: the stream waits for a message that isn't among them.
        ``may_take``: what it holds will run."""
        asks = self._is_doubtful if self.is_reserved else self.is_used and now >= self._again_at
        if asks and not self._is_asking:
            self._is_asking = self.may_stand = True
            return Reserve()
        if not self.is_reserved or self.is_pending or not may_take:
            return None
        if not missing:
            self.gap_began()
        room = limit - waiting
        if now < self._again_at or (not missing and 2 * room < limit):
            return None
        if missing and not self._mark:
            self._pass_at = now
        if missing or self._more or self.awaited(now):
            self._is_taking, self._reads_on, self._more = True, missing, missing
            return Take(TAKE_MAX if missing else min(room, TAKE_MAX), self._mark)
        self.is_reserved = self.is_used = self.may_stand = False
        return Unreserve()

    @property
    def wake_at(self) -> float | None:
        """The time at which to plan again, if nothing happens before; None if only an event changes
        the plan."""
        return self._again_at if self.is_used and not self.is_pending else None
