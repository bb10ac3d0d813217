"""The queue in Redis: each queue lies in one slot, and scripts move its messages."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import msgspec

from holdfast.common.queue_calls import (
    CALL_BYTES,
    NumberedQueue,
    by_bytes,
    check_batch,
    check_bodies,
    decode_attributes,
    encode_attributes,
    make_receipt,
    micros,
    read_receipt,
)
from holdfast.errors import OperationRefused, OutcomeUnknown, Unavailable
from holdfast.ports.clock import Clock
from holdfast.ports.queue import (
    DeadLetter,
    Delivery,
    Depth,
    Outgoing,
    PutBack,
    Taken,
    WaitingMessage,
    decode_dead_letter,
    delivered,
    encode_dead_letter,
)
from holdfast.services.redis.connection import RedisConnection, Script
from holdfast.services.redis.feed import ChannelFeed
from holdfast.services.redis.lane import Word
from holdfast.services.redis.replicas import ConfirmedConnection


def _script(name: str, *parts: str) -> Script:
    """Load a script of a queue with the functions that it needs, which each call of it defines again."""
    return Script.load(f"queue_{name}", "queue", *(f"queue_{part}" for part in parts))


SEND = _script("send", "ready", "add")
RECEIVE = _script("receive", "ready", "kept", "deliver")
SHIFT = _script("shift", "ready")
DELETE = _script("delete", "trim")
FREE = _script("free", "ready", "kept")
DEPTH = _script("depth", "ready", "trim")
RESERVE = _script("reserve", "ready", "kept")
KEEP = _script("keep", "ready", "kept")
UNRESERVE = _script("unreserve", "ready", "kept")
TAKE = _script("take", "ready", "kept", "deliver")
PUT_BACK = _script("put_back", "ready")
BURY = _script("bury")
DEAD_LETTERS = _script("dead_letters")
DROP = _script("drop", "ready", "add", "forget")
EXPIRE = _script("expire", "forget")
WAITING = _script("waiting")
RESTORE = _script("restore", "ready", "add")

PRIORITY_MAX = 5_000
"""The highest priority that counts: scores of sorted sets are exact up to 2^53."""

SAFETY_S = 2.0
"""Seconds for which a waiting receive relies on being woken. The process that was to be woken may have
died."""

DEAD_LETTERS_A_CALL = 100
EXPIRE_BATCH = 1000
KEYS_A_CALL = 500


class RedisQueue(NumberedQueue):
    """One named queue in a namespace of a Redis, and its dead letters.

    Times are the server's. Calls raise as a ``RedisConnection`` does. With ``wait_replicas`` in its
    address, a message or dead letter that fewer replicas have is of unknown outcome. ``bell`` wakes waiting
    receives of this process. It and the connections are shared with other queues, and closed by their maker.
    """

    def __init__(
        self,
        connection: RedisConnection,
        name: str,
        clock: Clock,
        bell: ChannelFeed,
        *,
        confirmed: ConfirmedConnection | None = None,
        max_batch: int = 500,
        max_bytes: int = 1 << 20,
    ) -> None:
        self.max_batch = max_batch
        self.max_bytes = max_bytes
        self._connection = connection
        self._confirmed = confirmed or connection
        self._clock = clock
        self._bell = bell
        self._name = name
        self._root = root_of(connection, name)
        self._wakes = 0
        self._known = False

    # --- messages

    async def send(self, messages: Sequence[Outgoing]) -> list[str]:
        check_batch(messages, self.max_batch)
        check_bodies((message.body for message in messages), self.max_bytes)
        await self._enter()
        ids: list[str] = []
        for some in by_bytes(messages, lambda message: len(message.body), CALL_BYTES):
            words = [word for m in some for word in (_delay(m), m.body, _encode(m.attributes, m.key))]
            try:
                _, numbers = await self._confirmed.script(SEND, (self._root,), *words)
            except Unavailable as error:
                if ids:
                    raise OutcomeUnknown(f"{len(ids)} of {len(messages)} were sent: {error}") from error
                raise
            ids += [number.decode() for number in numbers]
        return ids

    async def receive(self, limit: int, wait_s: float, visibility_s: float, holder: str) -> list[Delivery]:
        check_batch(range(limit), self.max_batch)
        deadline, wakes = self._clock.monotonic() + wait_s, self._wakes
        while True:
            waits_s = deadline - self._clock.monotonic() if self._wakes == wakes else 0.0
            if waits_s > 0:
                await self._bell.begin()
            heard = self._bell.last
            deliveries, due_s = await self._pick(limit, visibility_s, holder, waits_s)
            if deliveries or waits_s <= 0:
                return deliveries
            await self._wait(heard, wakes, min(due_s, waits_s, SAFETY_S))

    async def extend(self, receipts: Sequence[str], visibility_s: float) -> list[str]:
        return await self._shift(receipts, visibility_s, ends=False)

    async def delete(self, receipts: Sequence[str]) -> list[str]:
        check_batch(receipts, self.max_batch)
        numbered = [(receipt, row) for receipt in receipts if (row := read_receipt(receipt))]
        if not numbered:
            return []
        words = [word for _, row in numbered for word in row]
        _, stale = await self._connection.script(DELETE, (self._root,), *words)
        return [numbered[place][0] for place in stale]

    async def give_back(self, receipts: Sequence[str], delay_s: float) -> list[str]:
        return await self._shift(receipts, delay_s, ends=True)

    async def free(self, holder: str) -> int:
        _, freed = await self._connection.script(FREE, (self._root,), holder)
        return int(freed)

    async def depth(self) -> Depth:
        total, in_flight, delayed, dead, age = await self._connection.script(DEPTH, (self._root,))
        return Depth(total - in_flight - delayed, in_flight, delayed, dead, int(age) / 1e6)

    # --- reservations

    async def reserve(self, key: str, holder: str, epoch: int, for_s: float) -> bool:
        _, given = await self._connection.script(
            RESERVE, (self._root,), _word(key), holder, epoch, micros(for_s)
        )
        return bool(int(given))

    async def keep(self, keys: Sequence[str], holder: str, for_s: float) -> list[str]:
        lost: list[str] = []
        for begin in range(0, len(keys), KEYS_A_CALL):
            some = keys[begin : begin + KEYS_A_CALL]
            words = [_word(key) for key in some]
            _, places = await self._connection.script(KEEP, (self._root,), holder, micros(for_s), *words)
            lost += [some[place] for place in places]
        return lost

    async def unreserve(self, key: str, holder: str) -> None:
        await self._connection.script(UNRESERVE, (self._root,), _word(key), holder)

    async def take(
        self, key: str, holder: str, limit: int, visibility_s: float, after: int = 0
    ) -> Taken | None:
        check_batch(range(limit), self.max_batch)
        words: tuple[Word, ...] = (limit, CALL_BYTES, micros(visibility_s), holder, _word(key), after)

        async def put_back(reply: Sequence[Any]) -> None:
            if taken := _taken(reply):
                await self.put_back([PutBack(d.receipt, key) for d in taken.deliveries])

        return _taken(await delivered(self._connection.script(TAKE, (self._root,), *words), put_back))

    async def put_back(self, returned: Sequence[PutBack]) -> list[str]:
        check_batch(returned, self.max_batch)
        numbered = [(each, row) for each in returned if (row := read_receipt(each.receipt))]
        stale = [each.receipt for each in returned if not read_receipt(each.receipt)]
        if numbered:
            words = [
                word
                for each, row in numbered
                for word in (*row, int(each.counted), _word(each.key) if each.key else b"")
            ]
            _, places = await self._connection.script(PUT_BACK, (self._root,), *words)
            stale += [numbered[place][0].receipt for place in places]
        return stale

    # --- dead letters

    async def bury(self, letters: Sequence[DeadLetter]) -> None:
        check_batch(letters, self.max_batch)
        await self._enter()
        for letter in letters:
            await self._confirmed.script(BURY, (self._root,), *_dead_letter_words(letter), "")

    async def dead_letters(self, limit: int, after: str = "", key: str | None = None) -> list[DeadLetter]:
        listed: list[DeadLetter] = []
        while len(listed) < limit:
            count = min(DEAD_LETTERS_A_CALL, limit if key is None else DEAD_LETTERS_A_CALL)
            reply = await self._connection.script(DEAD_LETTERS, (self._root,), count, after)
            page = [_dead_letter(reply[at : at + 5]) for at in range(0, len(reply), 5)]
            listed += [letter for letter in page if key in (None, letter.key)]
            if len(page) < count:
                break
            after = page[-1].id
        return listed[:limit]

    async def redrive(self, ids: Sequence[str]) -> int:
        return await self._drop(ids, again=True)

    async def purge(self, ids: Sequence[str]) -> int:
        return await self._drop(ids, again=False)

    async def expire(self, dead_before: float) -> int:
        dropped = 0
        while True:
            _, some = await self._connection.script(
                EXPIRE, (self._root,), max(0, round(dead_before * 1e6)), EXPIRE_BATCH
            )
            dropped += int(some)
            if some < EXPIRE_BATCH:
                return dropped

    # --- transfer

    async def waiting(self, limit: int, after: str = "") -> list[WaitingMessage]:
        _, *reply = await self._connection.script(WAITING, (self._root,), limit, CALL_BYTES, after or "0")
        return [
            WaitingMessage(
                number.decode(),
                body,
                _decode(attributes),
                int(delay) / 1e6,
                int(receives),
                int(number),
                _key(attributes),
            )
            for number, receives, delay, body, attributes in zip(
                *(reply[at::5] for at in range(5)), strict=True
            )
        ]

    async def restore(self, messages: Sequence[WaitingMessage], above: int = 0) -> None:
        check_bodies((message.body for message in messages), self.max_bytes)
        await self._enter()
        words: list[Word] = [above]
        for m in messages:
            number = "" if m.number is None else m.number
            words += (number, m.receives, micros(m.delay_s), m.body, _encode(m.attributes, m.key))
        status, *reply = await self._confirmed.script(RESTORE, (self._root,), *words)
        if status == b"taken":
            raise OperationRefused(
                f"queue {self._name!r}: message number {reply[0].decode()} is not above the present ones;"
                " empty the queue first"
            )

    async def restore_dead_letters(self, letters: Sequence[DeadLetter]) -> None:
        await self._enter()
        for letter in letters:
            words = (*_dead_letter_words(letter), round(letter.at * 1e6))
            await self._confirmed.script(BURY, (self._root,), *words)

    def wake(self) -> None:
        self._wakes += 1
        self._bell.ring()

    async def close(self) -> None:
        self.wake()

    # --- how it is done

    async def _enter(self) -> None:
        """Note the queue's name where all of the namespace are listed."""
        if not self._known:
            names = names_of(self._connection)
            await self._connection.command(names, "SADD", names, self._name)
            self._known = True

    async def _pick(
        self, limit: int, visibility_s: float, holder: str, waits_s: float
    ) -> tuple[list[Delivery], float]:
        """Return the messages that can be delivered at once, and otherwise the seconds until one can be,
        which are infinite if the queue is empty. With ``waits_s``, a message that comes within that time
        wakes this process. If cancelled, gives back what it got."""
        words: tuple[Word, ...] = (limit, CALL_BYTES, micros(visibility_s), holder)
        waiter = (self._bell.channel, micros(waits_s)) if waits_s > 0 else ("", 0)

        async def give_back(reply: Sequence[Any]) -> None:
            _, _, marks, *rows = reply
            await self.give_back([d.receipt for d in _deliveries(rows, marks)], 0)

        taking = self._connection.script(RECEIVE, (self._root,), *words, *waiter)
        _, due, marks, *rows = await delivered(taking, give_back)
        return _deliveries(rows, marks), int(due) / 1e6 if int(due) >= 0 else math.inf

    async def _wait(self, heard: int, wakes: int, seconds: float) -> None:
        """Wait until a message may be there, the receive is woken, or the time is over."""
        end_at, name = self._clock.monotonic() + seconds, self._root.encode()
        while self._wakes == wakes:
            rung, queues = self._bell.rung, self._bell.after(heard)
            if queues is None or name in queues:
                return
            heard = self._bell.last
            if (remaining_s := end_at - self._clock.monotonic()) <= 0:
                return
            await self._clock.wait(rung, remaining_s)

    async def _shift(self, receipts: Sequence[str], seconds: float, *, ends: bool) -> list[str]:
        check_batch(receipts, self.max_batch)
        numbered = [(receipt, row) for receipt in receipts if (row := read_receipt(receipt))]
        stale = [receipt for receipt in receipts if not read_receipt(receipt)]
        if numbered:
            words = [word for _, row in numbered for word in row]
            _, places = await self._connection.script(
                SHIFT, (self._root,), micros(seconds), int(ends), micros(SAFETY_S), *words
            )
            stale += [numbered[place][0] for place in places]
        return stale

    async def _drop(self, ids: Sequence[str], *, again: bool) -> int:
        check_batch(ids, self.max_batch)
        _, dropped = await self._confirmed.script(DROP, (self._root,), int(again), *ids)
        return int(dropped)


def bell_of(connection: RedisConnection, clock: Clock) -> ChannelFeed:
    """Return a channel of this process, on which scripts announce messages in queues that it waits for."""
    channel = f"{{{connection.address.namespace}}}:bell:{clock.new_id()}"
    return ChannelFeed(connection, channel, channel)


def root_of(connection: RedisConnection, name: str) -> str:
    """Return the beginning of all keys of a queue: they lie in one slot."""
    return f"{{{connection.address.namespace}:queue:{name}}}"


def names_of(connection: RedisConnection) -> str:
    """Return the key of the set of all queues' names."""
    return f"{connection.address.namespace}:queues"


async def all_names(connection: RedisConnection) -> list[str]:
    """Return the names of all queues to which messages were ever sent, in order."""
    key = names_of(connection)
    return sorted(name.decode() for name in await connection.command(key, "SMEMBERS", key))


async def filled(connection: RedisConnection) -> list[str]:
    """Return the names of all queues that hold messages, in order."""
    names = await all_names(connection)
    bodies = [f"{root_of(connection, name)}:bodies" for name in names]
    counts = await asyncio.gather(*(connection.command(each, "HLEN", each) for each in bodies))
    return [name for name, count in zip(names, counts, strict=True) if count]


def _delay(message: Outgoing) -> int:
    """Return the delay of a message that is sent, in microseconds; its priority, negative, if it has one."""
    return micros(message.delay_s) or -min(max(0, message.priority), PRIORITY_MAX)


def _encode(attributes: dict[str, str], key: str) -> bytes:
    """Return the attributes as they are stored, with the key of the message before them (see queue.lua)."""
    if not key:
        return encode_attributes(attributes) if attributes else b""
    if not attributes:
        return _mark(None, key)
    return _mark(next(iter(attributes)), key) + encode_attributes(attributes)[1:]


@lru_cache(maxsize=4096)
def _mark(name: str | None, key: str) -> bytes:
    """Return the key as it is stored before attributes, the first of which is ``name``, or alone."""
    return b"{\t\n%b\n" % _word(key) if name is None else b"{\t%b:\n%b\n," % (_word(name), _word(key))


def _word(key: str) -> bytes:
    """Return a key as scripts get it: as JSON, without line ends."""
    return msgspec.json.encode(key)


def _key(attributes: bytes) -> str:
    """Return the key that is stored with the attributes of a message; "" without one."""
    return str(msgspec.json.decode(attributes.split(b"\n", 2)[1])) if attributes[:2] == b"{\t" else ""


def _decode(attributes: bytes) -> dict[str, str]:
    return {} if attributes.startswith(b"{\t\n") else decode_attributes(attributes)


def _taken(reply: Sequence[Any]) -> Taken | None:
    if reply[0] == b"gone":
        return None
    _, more, marks, *rest = reply
    return Taken(_deliveries(rest, marks), bool(int(more)))


def _deliveries(rows: Sequence[bytes], marks: Sequence[bytes]) -> list[Delivery]:
    deliveries = []
    for number, receives, body, attributes in zip(rows[::4], rows[1::4], rows[2::4], rows[3::4], strict=True):
        name, count, turn = number.decode(), int(receives), int(number)
        deliveries.append(
            Delivery(make_receipt(name, count), name, body, _decode(attributes), count, turn, turn)
        )
    if any(marks):
        return [_marked(*each) for each in zip(deliveries, marks, strict=True)]
    return deliveries


def _marked(delivery: Delivery, mark: bytes) -> Delivery:
    """Return a delivery with the receives and the turn that its message has by its mark."""
    excused, turn = map(int, mark.split()) if mark else (0, delivery.turn)
    return msgspec.structs.replace(delivery, receives=delivery.receives - excused, turn=turn)


def _dead_letter_words(letter: DeadLetter) -> tuple[Word, ...]:
    record = encode_dead_letter(letter, letter.turn)
    return letter.id, letter.body, _encode(letter.attributes, letter.key), record


def _dead_letter(reply: Sequence[Any]) -> DeadLetter:
    letter, body, attributes, record, at = reply
    return decode_dead_letter(letter.decode(), body, record, _decode(attributes), int(at))
