"""The messages that this node keeps for owners elsewhere, until these report that they are committed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import msgspec

from holdfast.common.held import Held, Receipt
from holdfast.common.message import Life
from holdfast.common.protocol import ForwardedDelivery, number
from holdfast.ports.clock import Clock
from holdfast.ports.queue import Queue


class PendingForward(msgspec.Struct, eq=False):
    """A message that this node keeps for an owner elsewhere.

    ``to`` is the membership that it was sent to, if any. ``accepted`` is true once that member holds it.
    ``suspect``: it may have killed an owner."""

    number: int
    stream: str
    key: str
    held: Held
    to: str = ""
    accepted: bool = False
    tries: int = 0
    offered_at: float = 0.0
    suspect: bool = False

    @property
    def order(self) -> tuple[int, int, int]:
        """The place in the order of its stream. Messages without a seq are in the order of their turn, if the
        queue knows it."""
        return self.held.place.run, self.held.place.seq, self.held.turn or 0


class PendingForwards:
    """The pending forwards of one node. ``extended_s``: how long a delivery lives at least once the owner
    that extended it has been lost."""

    def __init__(self, clock: Clock, queues: Mapping[str, Queue], extended_s: float) -> None:
        self._clock = clock
        self._queues = queues
        self._extended_s = extended_s
        self._number = 0
        self._items: dict[int, PendingForward] = {}
        self._held_back: set[int] = set()
        """The numbers of messages that an owner holds behind a gap, or behind effects that no target
        takes."""

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[PendingForward]:
        return iter(list(self._items.values()))

    def __contains__(self, item: PendingForward) -> bool:
        return item.number in self._items

    @property
    def kept(self) -> int:
        """The number of messages that their owners don't hold back. Messages behind an absent target or a gap
        don't count, because others must get in; owners take at most ``inbox_limit`` of them a stream."""
        return len(self._items) - len(self._held_back)

    def get(self, number: int) -> PendingForward | None:
        """Return the pending forward of a number."""
        return self._items.get(number)

    def take(self, stream: str, key: str, held: Held) -> PendingForward:
        """Begin to keep a message."""
        self._number += 1
        item = self._items[self._number] = PendingForward(self._number, stream, key, held)
        return item

    def end(self, number: int) -> PendingForward | None:
        """Keep a message no longer; return it."""
        self._held_back.discard(number)
        return self._items.pop(number, None)

    def sent(self, item: PendingForward, member: str) -> None:
        """Note that a message is sent to a member."""
        if not item.to:
            item.held.become(Life.FORWARDED)
        self._keep_alive(item)
        if member != item.to:
            self._held_back.discard(item.number)
        item.to, item.accepted = member, False

    def accepted(self, item: PendingForward, *, held_back: bool) -> None:
        """Note that the owner holds a message and extends its delivery. Body and receipt stay here until the
        owner reports the commit. ``held_back``: behind a gap, or behind effects that no target takes."""
        item.accepted = True
        (self._held_back.add if held_back else self._held_back.discard)(item.number)
        item.offered_at = self._clock.monotonic()

    def take_from_owner(self, item: PendingForward) -> None:
        """Note that no owner holds a message any more."""
        self._keep_alive(item)
        self._held_back.discard(item.number)
        item.to, item.accepted = "", False
        item.held.come_back()

    def _keep_alive(self, item: PendingForward) -> None:
        """Note that the deliveries were extended until now by the owner that held the message."""
        if item.accepted:
            alive_until = self._clock.monotonic() + self._extended_s
            for receipt in item.held.receipts:
                receipt.expires_at = max(receipt.expires_at, alive_until)

    def let_go(self, items: list[PendingForward]) -> list[PendingForward]:
        """End the custody of messages that go back to the queue. A queue that keeps order delivers nothing of
        a key while any of it is in flight. So what comes after such a message goes back with it, though an
        owner may hold it: that one waits for the message which goes back. Returns all that go back."""
        first: dict[str, tuple[int, int, int]] = {}
        for item in items:
            if self._queues[item.stream].fifo:
                first[item.key] = min(item.order, first.get(item.key, item.order))
        kept: Iterable[PendingForward] = self._items.values() if first else ()
        later = (item for item in kept if item.key in first and item.order > first[item.key])
        gone = {item.number: item for item in (*items, *later)}
        for item in gone.values():
            self.take_from_owner(item)
            self.end(item.number)
        return list(gone.values())


def lapsed(receipt: Receipt, now: float) -> bool:
    """Return True if the queue may deliver the message again."""
    return receipt.stale or receipt.expires_at <= now


def forwarded_delivery(item: PendingForward, now: float) -> ForwardedDelivery:
    """Return a message as it travels to its owner."""
    receipt = item.held.receipts[0]
    place = item.held.place
    return ForwardedDelivery(
        number=item.number,
        stream=item.stream,
        key=item.key,
        run=number(place.run),
        seq=number(place.seq),
        id=place.id,
        receipt=receipt.receipt,
        body=item.held.body,
        attributes=item.held.attributes,
        expires_in_s=receipt.expires_at - now,
        receives=item.held.receives,
        age_s=max(0.0, now - receipt.received_at),
        after=None if item.held.after is None else number(item.held.after),
        counted=item.held.counted,
        turn=None if item.held.turn is None else number(item.held.turn),
    )
