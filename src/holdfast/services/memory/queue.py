"""The queue in memory. It checks receipts strictly, and logs every event of a message."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from holdfast.common.message import SeqKind
from holdfast.common.queue_calls import check_batch, check_bodies, make_receipt
from holdfast.errors import OperationRefused
from holdfast.ports.clock import Clock
from holdfast.ports.queue import DeadLetter, Delivery, Depth, Outgoing, PutBack, Taken, WaitingMessage
from holdfast.system.bell import Bell


class QueueEvent(msgspec.Struct, frozen=True):
    """One thing that happened to one message.

    ``kind``: sent, received, extended, deleted, given back, put back, freed, stale (a receipt was refused),
    buried, redriven, purged or expired. ``at`` is the queue's monotonic time.
    """

    kind: str
    at: float
    id: str
    body: bytes = b""
    attributes: dict[str, str] = {}
    receipt: str = ""
    holder: str = ""
    letter: DeadLetter | None = None


@dataclass(slots=True)
class StoredMessage:
    """A message as the queue keeps it; invisible until ``visible_at``."""

    number: int
    id: str
    body: bytes
    attributes: dict[str, str]
    visible_at: float
    sent_at: float
    turn: int
    key: str = ""
    receives: int = 0
    excused: int = 0
    """The receives that don't count, because the message was put back."""
    received_at: float = 0.0
    receipt: str = ""
    """The receipt of the valid delivery; else empty."""
    holder: str = ""
    priority: int = 0
    """Until its first delivery."""


@dataclass(slots=True)
class Reservation:
    """A reservation of a key, which lives until ``ends_at``."""

    holder: str
    epoch: int
    ends_at: float


class MemoryQueue:
    """One queue, for all nodes.

    Args:
        clock: its time.
        log: where events go; share one list between services to have one order of all events.
        by_key: know the keys of messages.
        fifo: keep the order of a key: none of its messages is delivered while one is in flight.
        choose: takes the visible messages, oldest first, and returns those to deliver in their order.
            It may drop some, or add messages in flight, which are then delivered twice.
    """

    def __init__(
        self,
        clock: Clock,
        *,
        max_batch: int = 10,
        max_bytes: int = 262_144,
        frees_on_evict: bool = True,
        hold_max_s: float = math.inf,
        fifo: bool = False,
        by_key: bool = True,
        delay_max_s: float = math.inf,
        log: list[Any] | None = None,
        choose: Callable[[list[StoredMessage]], list[StoredMessage]] | None = None,
    ) -> None:
        self.max_batch = max_batch
        self.max_bytes = max_bytes
        self.max_receives = 1
        self.linger_s = 0.0
        self.hold_max_s = hold_max_s
        self.fifo = fifo
        self.sends_in_order = True
        self.seq_kind: SeqKind = "increasing"
        self.delay_max_s = delay_max_s
        self.tells_lag = True
        self.hides_dead_letters = False
        self.tells_stale = True
        self.frees_on_evict = frees_on_evict
        self.by_key = by_key
        self.log: list[Any] = [] if log is None else log
        self.choose = choose
        self.messages: dict[int, StoredMessage] = {}
        self.letters: dict[str, DeadLetter] = {}
        self.reservations: dict[str, Reservation] = {}
        self._clock = clock
        self._bell = Bell(clock)
        self._closings = 0
        self._numbers = 0
        # Heaps with entries that may be out of date: checked against the message when they come up.
        self._visible: list[tuple[int, int]] = []
        """The messages that can be delivered, as (negative priority, number)."""
        self._hidden: list[tuple[float, int]] = []

    # --- messages

    async def send(self, messages: Sequence[Outgoing]) -> list[str]:
        check_batch(messages, self.max_batch)
        check_bodies((message.body for message in messages), self.max_bytes)
        return [
            self._add(m.body, m.attributes, m.delay_s, m.key, priority=0 if m.delay_s > 0 else m.priority).id
            for m in messages
        ]

    async def receive(self, limit: int, wait_s: float, visibility_s: float, holder: str) -> list[Delivery]:
        check_batch(range(limit), self.max_batch)
        deadline, closings = self._clock.monotonic() + wait_s, self._closings
        while True:
            deliveries = [self._deliver(m, visibility_s, holder) for m in self._pick(limit)]
            remaining_s = deadline - self._clock.monotonic()
            if deliveries or remaining_s <= 0 or self._closings != closings:
                return deliveries
            await self._bell.wait(min(remaining_s, self._next_visible_s()))

    def wake(self) -> None:
        self._closings += 1
        self._bell.ring()

    async def extend(self, receipts: Sequence[str], visibility_s: float) -> list[str]:
        standing, stale = self._resolve(receipts)
        until = self._clock.monotonic() + visibility_s
        for message in standing:
            if until > message.received_at + self.hold_max_s:
                stale.append(message.receipt)
            else:
                self._hide(message, visibility_s)
                self._note("extended", message)
        return stale

    async def delete(self, receipts: Sequence[str]) -> list[str]:
        standing, stale = self._resolve(receipts)
        for message in standing:
            self.messages.pop(message.number, None)
            self._note("deleted", message)
        if self.fifo:
            self._bell.ring()  # messages behind them may be delivered
        return [receipt for receipt in stale if self._find(receipt)]

    async def give_back(self, receipts: Sequence[str], delay_s: float) -> list[str]:
        standing, stale = self._resolve(receipts)
        for message in standing:
            self._note("given back", message)
            self._show(message, delay_s)
        return stale

    async def free(self, holder: str) -> int:
        for key in [key for key, each in self.reservations.items() if each.holder == holder]:
            self._end(key)
        if not self.frees_on_evict:
            return 0
        now = self._clock.monotonic()
        held = [m for m in self.messages.values() if m.receipt and m.holder == holder and m.visible_at > now]
        for message in held:
            self._note("freed", message)
            self._hide(message, 0)
        return len(held)

    async def depth(self) -> Depth:
        now = self._clock.monotonic()
        hidden = [m for m in self.messages.values() if m.visible_at > now]
        in_flight = sum(1 for m in hidden if m.receipt)
        ready = len(self.messages) - len(hidden)
        oldest_at = min((m.sent_at for m in self.messages.values()), default=now)
        return Depth(ready, in_flight, len(hidden) - in_flight, len(self.letters), now - oldest_at)

    # --- reservations

    async def reserve(self, key: str, holder: str, epoch: int, for_s: float) -> bool:
        standing = self._reservation(key)
        if standing is not None and standing.holder != holder and standing.epoch > epoch:
            return False
        if standing is not None and standing.holder == holder:
            epoch = max(epoch, standing.epoch)
        self.reservations[key] = Reservation(holder, epoch, self._clock.monotonic() + for_s)
        return True

    async def keep(self, keys: Sequence[str], holder: str, for_s: float) -> list[str]:
        lost = []
        for key in keys:
            standing = self._reservation(key)
            if standing is not None and standing.holder == holder:
                standing.ends_at = self._clock.monotonic() + for_s
            else:
                lost.append(key)
        return lost

    async def unreserve(self, key: str, holder: str) -> None:
        standing = self._reservation(key)
        if standing is not None and standing.holder == holder:
            self._end(key)

    async def take(
        self, key: str, holder: str, limit: int, visibility_s: float, after: int = 0
    ) -> Taken | None:
        check_batch(range(limit), self.max_batch)
        standing = self._reservation(key)
        if standing is None or standing.holder != holder:
            return None
        kept = sorted(
            (m for n, m in self.messages.items() if m.key == key and m.turn > after and self._is_visible(n)),
            key=lambda message: (message.turn, message.number),
        )
        taken = [self._deliver(message, visibility_s, holder) for message in kept[:limit]]
        return Taken(taken, len(kept) > limit)

    async def put_back(self, returned: Sequence[PutBack]) -> list[str]:
        standing, stale = self._resolve([each.receipt for each in returned])
        by_receipt = {each.receipt: each for each in returned}
        for message in standing:
            each = by_receipt[message.receipt]
            message.key = each.key or message.key
            message.excused += not each.counted
            self._note("put back", message)
            self._show(message, 0)
        return stale

    def _reservation(self, key: str) -> Reservation | None:
        """Return the living reservation of a key."""
        standing = self.reservations.get(key)
        if standing is not None and standing.ends_at <= self._clock.monotonic():
            self._end(key)
            return None
        return standing

    def _end(self, key: str) -> None:
        """End a reservation: its messages are visible to all."""
        del self.reservations[key]
        for number, message in self.messages.items():
            if message.key == key and self._is_visible(number):
                heapq.heappush(self._visible, (-message.priority, number))
        self._bell.ring()

    # --- dead letters

    async def bury(self, letters: Sequence[DeadLetter]) -> None:
        check_batch(letters, self.max_batch)
        for letter in letters:
            if letter.id not in self.letters:
                self.letters[letter.id] = msgspec.structs.replace(letter, at=self._clock.wall())
            self._note_dead_letter("buried", letter)

    async def dead_letters(self, limit: int, after: str = "", key: str | None = None) -> list[DeadLetter]:
        ids = sorted(i for i, letter in self.letters.items() if i > after and key in (None, letter.key))
        return [self.letters[i] for i in ids[:limit]]

    async def redrive(self, ids: Sequence[str]) -> int:
        check_batch(ids, self.max_batch)
        letters = self._pop_dead_letters(ids)
        for letter in letters:
            self._note_dead_letter("redriven", letter)
            self._add(letter.body, letter.attributes, 0, letter.key, letter.turn)
        return len(letters)

    async def purge(self, ids: Sequence[str]) -> int:
        check_batch(ids, self.max_batch)
        letters = self._pop_dead_letters(ids)
        for letter in letters:
            self._note_dead_letter("purged", letter)
        return len(letters)

    async def expire(self, dead_before: float) -> int:
        letters = self._pop_dead_letters([i for i, letter in self.letters.items() if letter.at < dead_before])
        for letter in letters:
            self._note_dead_letter("expired", letter)
        return len(letters)

    async def close(self) -> None:
        self.wake()

    # --- transfer

    async def waiting(self, limit: int, after: str = "") -> list[WaitingMessage]:
        now, last = self._clock.monotonic(), int(after.removeprefix("m") or 0)
        return [
            WaitingMessage(
                m.id,
                m.body,
                dict(m.attributes),
                0.0 if m.receipt else max(0.0, m.visible_at - now),
                m.receives - m.excused,
                m.number,
                m.key,
            )
            for number, m in sorted(self.messages.items())
            if number > last
        ][:limit]

    async def restore(self, messages: Sequence[WaitingMessage], above: int = 0) -> None:
        check_bodies((message.body for message in messages), self.max_bytes)
        for taken in (m for m in messages if m.number in self.messages):
            raise OperationRefused(f"message number {taken.number} is taken")
        for message in messages:
            last = self._numbers
            self._numbers = message.number - 1 if message.number is not None else last
            added = self._add(message.body, message.attributes, message.delay_s, message.key)
            added.receives = message.receives
            self._numbers = max(self._numbers, last)
        self._numbers = max(self._numbers, above)

    async def restore_dead_letters(self, letters: Sequence[DeadLetter]) -> None:
        for letter in letters:
            self.letters.setdefault(letter.id, letter)

    # --- how it is done

    def _add(
        self,
        body: bytes,
        attributes: dict[str, str],
        delay_s: float,
        key: str,
        turn: int | None = None,
        priority: int = 0,
    ) -> StoredMessage:
        self._numbers += 1
        number, now = self._numbers, self._clock.monotonic()
        turn = number if turn is None else min(turn, number)
        message = StoredMessage(number, f"m{number}", body, dict(attributes), 0, now, turn, key)
        message.priority = 0 if self.fifo else max(0, priority)
        self.messages[message.number] = message
        self._hide(message, delay_s)
        self._note("sent", message)
        return message

    def _hide(self, message: StoredMessage, seconds: float) -> None:
        """Make a message invisible for ``seconds`` from now; 0 shows it."""
        message.visible_at = self._clock.monotonic() + seconds
        entry = (message.visible_at, message.number)
        heapq.heappush(self._hidden, entry)
        if self._hidden[0] == entry:  # sooner than anyone waits for
            self._bell.ring()

    def _show(self, message: StoredMessage, delay_s: float) -> None:
        """End a delivery: its message becomes visible later, and its receipt is stale."""
        message.receipt = message.holder = ""
        self._hide(message, delay_s)

    def _turn_visible(self) -> None:
        now = self._clock.monotonic()
        while self._hidden and self._hidden[0][0] <= now:
            visible_at, number = heapq.heappop(self._hidden)
            message = self.messages.get(number)
            if message and message.visible_at == visible_at:
                heapq.heappush(self._visible, (-message.priority, number))

    def _next_visible_s(self) -> float:
        """Return the seconds until a message becomes visible or a reservation ends."""
        times = [at for at, _ in self._hidden[:1]] + [each.ends_at for each in self.reservations.values()]
        return min(times, default=math.inf) - self._clock.monotonic()

    def _pick(self, limit: int) -> list[StoredMessage]:
        self._turn_visible()
        for key in list(self.reservations):
            self._reservation(key)
        if self.fifo or self.choose is not None:
            self._visible = sorted({each for each in self._visible if self._is_visible(each[1])})
            visible = self._unlocked([self.messages[n] for _, n in self._visible])
            visible = [message for message in visible if message.key not in self.reservations]
            return (self.choose(visible) if self.choose else visible)[:limit]
        taken: list[StoredMessage] = []
        while self._visible and len(taken) < limit:
            _, number = heapq.heappop(self._visible)
            if not self._is_visible(number) or (taken and taken[-1].number == number):
                continue
            if self.messages[number].key not in self.reservations:  # else its end shows it again
                taken.append(self.messages[number])
        return taken

    def _unlocked(self, visible: list[StoredMessage]) -> list[StoredMessage]:
        """Return the messages whose key has nothing in flight, if the queue keeps order."""
        if not self.fifo:
            return visible
        locked = {m.key for n, m in self.messages.items() if m.key and not self._is_visible(n)}
        return [message for message in visible if message.key not in locked]

    def _is_visible(self, number: int) -> bool:
        message = self.messages.get(number)
        return message is not None and message.visible_at <= self._clock.monotonic()

    def _deliver(self, message: StoredMessage, visibility_s: float, holder: str) -> Delivery:
        message.receives += 1
        message.received_at = self._clock.monotonic()
        message.receipt = make_receipt(message.number, message.receives)
        message.holder = holder
        message.priority = 0
        self._hide(message, visibility_s)
        self._note("received", message)
        return Delivery(
            message.receipt,
            message.id,
            message.body,
            dict(message.attributes),
            message.receives - message.excused,
            message.number,
            message.turn,
        )

    def _is_stale(self, message: StoredMessage, receipt: str) -> bool:
        return message.receipt != receipt

    def _resolve(self, receipts: Sequence[str]) -> tuple[list[StoredMessage], list[str]]:
        """Return the messages of valid receipts, and the stale receipts."""
        check_batch(receipts, self.max_batch)
        standing: list[StoredMessage] = []
        stale: list[str] = []
        for receipt in receipts:
            message = self._find(receipt)
            if message is None or self._is_stale(message, receipt):
                stale.append(receipt)
                self.log.append(
                    QueueEvent(
                        "stale", self._clock.monotonic(), message.id if message else "", receipt=receipt
                    )
                )
            else:
                standing.append(message)
        return standing, stale

    def _find(self, receipt: str) -> StoredMessage | None:
        number = receipt.partition(".")[0]
        return self.messages.get(int(number)) if number.isdecimal() else None

    def _pop_dead_letters(self, ids: Iterable[str]) -> list[DeadLetter]:
        return [letter for letter in (self.letters.pop(i, None) for i in ids) if letter]

    def _note(self, kind: str, message: StoredMessage) -> None:
        self.log.append(
            QueueEvent(
                kind,
                self._clock.monotonic(),
                message.id,
                message.body,
                message.attributes,
                message.receipt,
                message.holder,
            )
        )

    def _note_dead_letter(self, kind: str, letter: DeadLetter) -> None:
        self.log.append(QueueEvent(kind, self._clock.monotonic(), letter.id, letter.body, letter=letter))
