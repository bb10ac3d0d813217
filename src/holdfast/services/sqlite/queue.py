"""The queue in SQLite."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Callable, Generator, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec

from holdfast.common.queue_calls import (
    NumberedQueue,
    check_batch,
    check_bodies,
    decode_attributes,
    encode_attributes,
    make_receipt,
    read_receipt,
)
from holdfast.errors import ConfigError, OperationRefused
from holdfast.ports.clock import Clock
from holdfast.ports.queue import (
    Addition,
    CallerStatement,
    DeadLetter,
    Delivery,
    Depth,
    Outgoing,
    PutBack,
    Taken,
    WaitingMessage,
    delivered,
)
from holdfast.services.sqlite.database import Database, Transaction, number_above
from holdfast.services.sqlite.reservations import Reservations
from holdfast.services.sqlite.thread import LINGER_S
from holdfast.system.doorbell import SAFETY_S

T = TypeVar("T")

READY, DELIVERED, DELAYED = 0, 1, 2
"""A message's ``state``."""

INLINE_BYTES = 16_384
"""Bodies up to this size are read in one step with the rest of their batch."""

RECEIVE_BYTES = 16 << 20
"""The most bytes of larger bodies in one receive, unless a single body is larger."""

ADD_MESSAGES = """
WITH m (state, visible_at, key) AS (VALUES {rows})
INSERT INTO messages (queue, receives, state, visible_at, key)
SELECT ?, 0, m.* FROM m WHERE state IS NOT NULL"""

ADD_BODIES = """
WITH b (message, attributes, body) AS (VALUES {rows})
INSERT INTO bodies (message, attributes, body, at) SELECT b.*, ? FROM b WHERE message IS NOT NULL"""

MAIN_FILE = "SELECT file FROM pragma_database_list WHERE name = 'main'"

NAME_QUEUE = "INSERT OR IGNORE INTO queues (name) VALUES (:name)"

QUEUE_NUMBER = "SELECT id FROM queues WHERE name = :name"

ADD_MESSAGE = """
INSERT INTO messages (queue, state, visible_at, receives, key)
VALUES (:queue, :state, :visible_at, 0, :key) RETURNING id"""

ADD_BODY = "INSERT INTO bodies (message, attributes, body, at) VALUES (:message, :attributes, :body, :at)"

READY_ONES = "queue = :queue AND state = 0 AND visible_at = 0 ORDER BY id LIMIT :limit"

# A message with a priority is stored as delayed until a time below 0: versions that know no priorities show
# it in its turn.
FIRST_ONES = "queue = :queue AND state = 2 AND visible_at < 0 ORDER BY visible_at, id LIMIT :limit"

KEPT_ONES = "queue = :queue AND state = 2 AND key = :key AND aside > :after ORDER BY aside, id LIMIT :limit"

# One row for all of them: at each row, the thread may have to wait for the interpreter lock.
PICK_THOSE = """
SELECT count(*), group_concat(
    id || ' ' || receives || ' ' || iif(size <= :inline, hex(body), '-') || ' ' || attributes, char(10)),
    group_concat(iif(size > :inline, id || '.' || size, NULL))
FROM (
    SELECT id, body, length(body) AS size, attributes,
        iif(turn IS NULL AND excused = 0, receives + 1,
            (receives + 1) || '/' || excused || '/' || coalesce(turn, id)) AS receives
    FROM messages JOIN bodies ON message = id
    WHERE {those})"""

PICK = PICK_THOSE.format(those=READY_ONES)

PICK_FIRST = PICK_THOSE.format(those=FIRST_ONES)

PICK_KEPT = PICK_THOSE.format(those=KEPT_ONES)

COUNT_KEPT = f"SELECT count(*) FROM (SELECT 1 FROM messages WHERE {KEPT_ONES})"  # noqa: S608

DELIVER_THOSE = """
UPDATE messages SET state = 1, visible_at = :visible_at, receives = receives + 1, holder = :holder
WHERE id IN (SELECT id FROM messages WHERE {those})"""

DELIVER = DELIVER_THOSE.format(those=READY_ONES)

DELIVER_FIRST = DELIVER_THOSE.format(those=FIRST_ONES)

DELIVER_KEPT = DELIVER_THOSE.format(those=KEPT_ONES)

STANDING = """
WITH r (id, receives) AS (VALUES {rows})
SELECT group_concat(m.id || '.' || m.receives) FROM r CROSS JOIN messages m
ON m.id = r.id AND m.receives = r.receives WHERE m.holder IS NOT NULL AND m.queue = ?"""

SHIFT = """
WITH r (id, receives, state, visible_at, ended) AS (VALUES {rows})
UPDATE messages SET state = r.state, visible_at = r.visible_at, aside = NULL,
    holder = iif(r.ended, NULL, holder)
FROM r WHERE messages.id = r.id AND messages.receives = r.receives AND holder IS NOT NULL AND queue = ?"""

PUT_BACK = """
WITH r (id, receives, key, excused) AS (VALUES {rows})
UPDATE messages SET state = 2, visible_at = 0, holder = NULL, aside = NULL,
    key = coalesce(r.key, messages.key), excused = messages.excused + r.excused
FROM r WHERE messages.id = r.id AND messages.receives = r.receives AND holder IS NOT NULL AND queue = ?"""

# Begins with DELETE, or the sqlite3 module would not count the deleted rows.
DELETE = """
DELETE FROM messages WHERE id IN (
    WITH r (id, receives) AS (VALUES {rows})
    SELECT m.id FROM r CROSS JOIN messages m ON m.id = r.id AND m.receives = r.receives
    WHERE m.holder IS NOT NULL AND m.queue = ?)"""

REMAINING = """
WITH r (id, receives) AS (VALUES {rows})
SELECT group_concat(m.id) FROM r CROSS JOIN messages m ON m.id = r.id WHERE m.queue = ?"""

FREE = """
UPDATE messages SET visible_at = 0
WHERE queue = ? AND state = 1 AND visible_at > ? AND holder = ?"""

NEXT_DUE = """
SELECT min(visible_at) FROM (
    SELECT min(visible_at) AS visible_at FROM messages WHERE queue = ?1 AND state = 0
    UNION ALL SELECT min(visible_at) FROM messages WHERE queue = ?1 AND state = 1
    UNION ALL SELECT min(visible_at) FROM messages WHERE queue = ?1 AND state = 2
    UNION ALL SELECT min(ends_at) FROM reservations WHERE queue = ?1)"""

DEPTH = """
SELECT (SELECT count(*) FROM messages WHERE queue = ?1),
       (SELECT count(*) FROM messages WHERE queue = ?1 AND state = 1 AND visible_at > ?2),
       (SELECT count(*) FROM messages WHERE queue = ?1 AND state = 2 AND visible_at > ?2)
       - (SELECT count(*) FROM messages INDEXED BY messages_aside
          WHERE queue = ?1 AND state = 2 AND aside IS NOT NULL AND visible_at > ?2),
       (SELECT count(*) FROM dead_letters WHERE queue = ?1),
       (SELECT at FROM bodies WHERE message = (SELECT min(id) FROM messages WHERE queue = ?1))"""

FILLED = """
SELECT name FROM queues WHERE EXISTS (SELECT 1 FROM messages WHERE queue = queues.id) ORDER BY name"""

NAMES = "SELECT name FROM queues ORDER BY name"

# By number: with the index of the queue, each page would sort all of its messages.
WAITING = """
SELECT m.id, iif(m.state = 2 AND m.aside IS NULL, m.visible_at, 0), m.receives - m.excused, m.key,
    b.attributes, b.body
FROM messages m CROSS JOIN bodies b ON b.message = m.id
WHERE +m.queue = ? AND m.id > ? ORDER BY m.id LIMIT ?"""

RESTORE = """
INSERT INTO messages (id, queue, receives, state, visible_at, key) VALUES (?, ?, ?, ?, ?, ?) RETURNING id"""

REMOVE_DEAD_LETTER = """
DELETE FROM dead_letters WHERE queue = ? AND id = ? RETURNING body, attributes, key, turn"""

DEAD_LETTER = "id, body, reason, attributes, detail, stream, key, run, seq, at, turn"

DEAD_LETTERS = f"""
SELECT {DEAD_LETTER} FROM dead_letters
WHERE queue = ? AND id > ? AND (? IS NULL OR key = ?) ORDER BY id LIMIT ?"""  # noqa: S608


class PickedMessages(NamedTuple):
    """Picked messages, to be decoded after the transaction: a line for each with its number, receives (with
    the excused ones and the turn where they matter), body in hex, and attributes as JSON; the bodies that
    were too large for a line; the number of messages, and whether there may be more."""

    lines: str
    large: dict[str, bytes]
    length: int
    more: bool = False


class TakeCall(NamedTuple):
    """The request of a take."""

    key: str
    holder: str
    limit: int
    visibility_s: float
    after: int


Row = tuple[int, float, str | None, str, bytes]
"""A message to add: state, when it shows, key, attributes as JSON, body."""


async def filled(database: Database) -> list[str]:
    """Return the names of all queues that hold messages, in order."""
    return [name for (name,) in await database.rows(FILLED)]


async def names(database: Database) -> list[str]:
    """Return the names of all queues that were ever used, in order."""
    return [name for (name,) in await database.rows(NAMES)]


class SqliteQueue(NumberedQueue):
    """One named queue in a database, and its dead letters."""

    def __init__(
        self, database: Database, name: str, clock: Clock, *, max_batch: int = 500, max_bytes: int = 1 << 20
    ) -> None:
        self.max_batch = max_batch
        self.max_bytes = max_bytes
        self._database = database
        self._name = name
        self._clock = clock
        self._topic = f"queue:{name}"
        self._wakes = 0
        self._reservations = Reservations(self._topic)
        self._known_number: int | None = None

    # --- messages

    async def send(self, messages: Sequence[Outgoing]) -> list[str]:
        check_batch(messages, self.max_batch)
        check_bodies((message.body for message in messages), self.max_bytes)
        if not messages:
            return []
        await self._number()
        rows = [self._row(m.body, _encode(m.attributes), m.key, m.delay_s, m.priority) for m in messages]
        return await self._database.write_many(self._add_all, rows)

    async def addition(self, messages: Sequence[Outgoing]) -> Addition:
        """Return the statements that add messages within a transaction of the caller, on its own connection
        to the same file."""
        check_bodies((message.body for message in messages), self.max_bytes)

        def steps() -> Generator[CallerStatement, Any, list[str]]:
            file = yield CallerStatement(MAIN_FILE, {})
            if not file or Path(file).resolve() != self._database.path:
                raise ConfigError(
                    f"connection is to {file or 'a database in memory'}, and the queue is in"
                    f" {self._database.path}: keep your own tables in that file too"
                )
            yield CallerStatement(
                NAME_QUEUE, {"name": self._name}
            )  # in this transaction: the caller has the write lock
            number = yield CallerStatement(QUEUE_NUMBER, {"name": self._name})
            ids = []
            for message in messages:
                state, visible_at, key, attributes, body = self._row(
                    message.body,
                    _encode(message.attributes),
                    message.key,
                    message.delay_s,
                    message.priority,
                )
                placed = {"queue": number, "state": state, "visible_at": visible_at, "key": key}
                added = yield CallerStatement(ADD_MESSAGE, placed)
                carried = {"message": added, "attributes": attributes, "body": body, "at": self._clock.wall()}
                yield CallerStatement(ADD_BODY, carried)
                ids.append(str(added))
            return ids

        return Addition(steps, lambda: self._database.doorbell.ring([self._topic]))

    async def receive(self, limit: int, wait_s: float, visibility_s: float, holder: str) -> list[Delivery]:
        check_batch(range(limit), self.max_batch)
        deadline, wakes = self._clock.monotonic() + wait_s, self._wakes
        await self._number()
        if (deliveries := await self._pick_now(limit, visibility_s, holder)) or wait_s <= 0:
            return deliveries
        with self._database.doorbell.listen(self._topic) as rung:
            while True:
                rung.clear()
                due_s = await self._due_s()
                if due_s <= 0 and (deliveries := await self._pick_now(limit, visibility_s, holder)):
                    return deliveries
                remaining_s = deadline - self._clock.monotonic()
                if remaining_s <= 0 or self._wakes != wakes:
                    return []
                if due_s > 0:  # else another process took it, or its key is reserved
                    await self._clock.wait(rung, min(due_s, remaining_s, SAFETY_S))

    async def extend(self, receipts: Sequence[str], visibility_s: float) -> list[str]:
        return await self._shift(receipts, visibility_s, DELIVERED)

    async def delete(self, receipts: Sequence[str]) -> list[str]:
        check_batch(receipts, self.max_batch)
        if not receipts:
            return []
        await self._number()
        # A deletion that a power failure takes back is repeated after the next delivery. No caller is in a
        # hurry.
        deleting = self._database.submit(self._delete_all, receipts, confirmed=False, linger_s=LINGER_S)
        stale: list[str] = await deleting
        return stale

    async def give_back(self, receipts: Sequence[str], delay_s: float) -> list[str]:
        return await self._shift(receipts, delay_s, DELAYED)

    async def free(self, holder: str) -> int:
        number = await self._number()

        def free(transaction: Transaction) -> int:
            self._reservations.end(transaction, number, holder)
            freed = transaction.execute(FREE, (number, self._clock.monotonic(), holder)).rowcount
            if freed:
                transaction.ring(self._topic)
            return freed

        return await self._database.write(free)

    async def depth(self) -> Depth:
        [row] = await self._database.rows(DEPTH, await self._number(), self._clock.monotonic())
        total, in_flight, delayed, dead, oldest_at = row
        lag_s = max(0.0, self._clock.wall() - oldest_at) if total else 0.0
        return Depth(total - in_flight - delayed, in_flight, delayed, dead, lag_s)

    # --- reservations

    async def reserve(self, key: str, holder: str, epoch: int, for_s: float) -> bool:
        return await self._reserving(self._reservations.reserve, key, holder, epoch, for_s)

    async def keep(self, keys: Sequence[str], holder: str, for_s: float) -> list[str]:
        return await self._reserving(self._reservations.keep, keys, holder, for_s) if keys else []

    async def unreserve(self, key: str, holder: str) -> None:
        number = await self._number()
        await self._database.write(
            lambda transaction: self._reservations.end(transaction, number, holder, key)
        )

    async def _reserving(self, change: Callable[..., T], *arguments: Any) -> T:
        number = await self._number()
        return await self._database.write(
            lambda transaction: change(transaction, number, self._clock.monotonic(), *arguments)
        )

    async def take(
        self, key: str, holder: str, limit: int, visibility_s: float, after: int = 0
    ) -> Taken | None:
        check_batch(range(limit), self.max_batch)
        await self._number()
        asked = TakeCall(key, holder, limit, visibility_s, after)
        return await self._deliver(self._take_all, asked)

    async def put_back(self, returned: Sequence[PutBack]) -> list[str]:
        check_batch(returned, self.max_batch)
        if not returned:
            return []
        await self._number()
        # What a power failure takes back is ready again after it too.
        stale: list[str] = await self._database.submit(self._put_back_all, returned, confirmed=False)
        return stale

    # --- dead letters

    async def bury(self, letters: Sequence[DeadLetter]) -> None:
        check_batch(letters, self.max_batch)
        at = self._clock.wall()
        await self.restore_dead_letters([msgspec.structs.replace(letter, at=at) for letter in letters])

    async def restore_dead_letters(self, letters: Sequence[DeadLetter]) -> None:
        number = await self._number()
        rows = [
            (
                number, d.id, d.body, d.reason, _encode(d.attributes), d.detail, d.stream, d.key, str(d.run),
                d.seq, d.at, d.turn,
            )
            for d in letters
        ]  # fmt: skip

        def write(transaction: Transaction) -> None:
            transaction.connection.executemany(
                f"INSERT OR IGNORE INTO dead_letters (queue, {DEAD_LETTER}) VALUES (?,?,?,?,?,?,?,?,?,?,?,?)",  # noqa: S608
                rows,
            )

        await self._database.write(write)

    async def dead_letters(self, limit: int, after: str = "", key: str | None = None) -> list[DeadLetter]:
        rows = await self._database.rows(DEAD_LETTERS, await self._number(), after, key, key, limit)
        return [_dead_letter(row) for row in rows]

    async def redrive(self, ids: Sequence[str]) -> int:
        check_batch(ids, self.max_batch)
        number = await self._number()

        def redrive(transaction: Transaction) -> int:
            found = [
                letter
                for each in ids
                for letter in transaction.execute(REMOVE_DEAD_LETTER, (number, each)).fetchall()
            ]
            if found:
                rows = [self._row(body, attributes, key, 0) for body, attributes, key, _ in found]
                first = self._add(transaction, rows)
                turns = [(turn, first + i) for i, (*_, turn) in enumerate(found)]
                transaction.connection.executemany(
                    "UPDATE messages SET turn = ?1 WHERE id = ?2 AND ?1 < id", turns
                )
            return len(found)

        return await self._database.write(redrive)

    async def purge(self, ids: Sequence[str]) -> int:
        check_batch(ids, self.max_batch)
        number = await self._number()

        def purge(transaction: Transaction) -> int:
            return sum(
                transaction.execute(
                    "DELETE FROM dead_letters WHERE queue = ? AND id = ?", (number, i)
                ).rowcount
                for i in ids
            )

        return await self._database.write(purge)

    async def expire(self, dead_before: float) -> int:
        number = await self._number()
        return await self._database.write(
            lambda transaction: (
                transaction.execute(
                    "DELETE FROM dead_letters WHERE queue = ? AND at < ?", (number, dead_before)
                ).rowcount
            )
        )

    # --- transfer

    async def waiting(self, limit: int, after: str = "") -> list[WaitingMessage]:
        rows = await self._database.rows(WAITING, await self._number(), int(after or 0), limit)
        now = self._clock.monotonic()
        return [
            WaitingMessage(
                str(number),
                body,
                decode_attributes(attributes),
                max(0.0, visible_at - now),
                receives,
                number,
                key or "",
            )
            for number, visible_at, receives, key, attributes, body in rows
        ]

    async def restore(self, messages: Sequence[WaitingMessage], above: int = 0) -> None:
        check_bodies((message.body for message in messages), self.max_bytes)
        queue, at = await self._number(), self._clock.wall()

        def restore(transaction: Transaction) -> None:
            for message in messages:
                state, visible_at, key, attributes, body = self._row(
                    message.body, _encode(message.attributes), message.key, message.delay_s
                )
                try:
                    [number] = transaction.execute(
                        RESTORE,
                        (message.number, queue, message.receives, state, visible_at, key),
                    ).fetchone()
                except sqlite3.IntegrityError:
                    raise OperationRefused(
                        f"queue {self._name!r}: message number {message.number} is taken by another queue of"
                        f" {self._database.path}; use another file as the target"
                    ) from None
                transaction.execute(ADD_BODY, {
                    "message": number, "attributes": attributes, "body": body, "at": at,
                })  # fmt: skip
            number_above(transaction.connection, "messages", above)
            transaction.ring(self._topic)

        await self._database.write(restore)

    def wake(self) -> None:
        self._wakes += 1
        self._database.doorbell.ring_here([self._topic])

    async def close(self) -> None:
        self.wake()

    # --- how it is done

    @property
    def _queue(self) -> int:
        """The queue's number, in an operation."""
        assert self._known_number is not None
        return self._known_number

    async def _number(self) -> int:
        """Return the queue's number in the database, which gives it one at the first use."""
        if self._known_number is None:
            self._known_number = await self._database.write(self._enter)
        return self._known_number

    def _enter(self, transaction: Transaction) -> int:
        transaction.execute(NAME_QUEUE, {"name": self._name})
        [number] = transaction.execute(QUEUE_NUMBER, {"name": self._name}).fetchone()
        return int(number)

    def _row(self, body: bytes, attributes: str, key: str, delay_s: float, priority: int = 0) -> Row:
        if delay_s <= 0 and priority > 0:
            return (DELAYED, -float(priority), key or None, attributes, body)
        if delay_s <= 0:
            return (READY, 0.0, key or None, attributes, body)
        return (DELAYED, self._clock.monotonic() + delay_s, key or None, attributes, body)

    def _add_all(self, transaction: Transaction, batches: Sequence[list[Row]]) -> list[list[str]]:
        first = self._add(transaction, [row for batch in batches for row in batch])
        ids: list[list[str]] = []
        for batch in batches:
            ids.append([str(i) for i in range(first, first + len(batch))])
            first += len(batch)
        return ids

    def _add(self, transaction: Transaction, rows: Sequence[Row]) -> int:
        """Add messages with numbers in a row; returns the first."""
        transaction.change_rows(
            ADD_MESSAGES,
            [(state, visible_at, key) for state, visible_at, key, _, _ in rows],
            self._known_number,
        )
        [last] = transaction.execute("SELECT last_insert_rowid()").fetchone()
        first = int(last) - len(rows) + 1
        transaction.change_rows(
            ADD_BODIES,
            [(first + i, attributes, body) for i, (_, _, _, attributes, body) in enumerate(rows)],
            self._clock.wall(),
        )
        transaction.ring(self._topic)
        return first

    async def _pick_now(self, limit: int, visibility_s: float, holder: str) -> list[Delivery]:
        """Receive what can be delivered at once."""
        taken = await self._deliver(self._pick_all, (limit, visibility_s, holder))
        return taken.deliveries if taken else []

    async def _deliver(
        self, operation: Callable[[Transaction, Sequence[Any]], Sequence[PickedMessages | None]], asked: Any
    ) -> Taken | None:
        """Have ``operation`` deliver messages. If cancelled, puts back what it got. A power failure may take
        deliveries back, but it also ends their holders."""

        async def put_back(picked: PickedMessages | None) -> None:
            if taken := _taken(picked):
                await self.put_back([PutBack(d.receipt, "") for d in taken.deliveries])

        return _taken(await delivered(self._database.submit(operation, asked, confirmed=False), put_back))

    def _pick_all(
        self, transaction: Transaction, asked: Sequence[tuple[int, float, str]]
    ) -> list[PickedMessages]:
        now = self._clock.monotonic()
        reserved = self._reservations.settle(transaction, self._queue, now)
        picked = []
        for limit, visibility_s, holder in asked:
            which = {"queue": self._queue, "limit": limit}
            first = self._pick(transaction, PICK_FIRST, DELIVER_FIRST, which, now + visibility_s, holder)
            if first.length:
                picked.append(first)
                continue
            count = limit
            if reserved:
                count = self._reservations.sort_out(transaction, self._queue, now, limit)
            which = {"queue": self._queue, "limit": count}
            picked.append(self._pick(transaction, PICK, DELIVER, which, now + visibility_s, holder))
        return picked

    def _take_all(self, transaction: Transaction, asked: Sequence[TakeCall]) -> list[PickedMessages | None]:
        now = self._clock.monotonic()
        self._reservations.settle(transaction, self._queue, now)
        return [self._take(transaction, take, now) for take in asked]

    def _take(self, transaction: Transaction, take: TakeCall, now: float) -> PickedMessages | None:
        whole = self._reservations.gather(transaction, self._queue, now, take.key, take.holder)
        if not whole:
            return None if whole is None else PickedMessages("", {}, 0, more=True)
        which = {"queue": self._queue, "limit": take.limit, "key": take.key, "after": take.after}
        [count] = transaction.execute(COUNT_KEPT, {**which, "limit": take.limit + 1}).fetchone()
        picked = self._pick(transaction, PICK_KEPT, DELIVER_KEPT, which, now + take.visibility_s, take.holder)
        return picked._replace(more=count > picked.length)

    def _pick(
        self,
        transaction: Transaction,
        pick: str,
        deliver: str,
        which: dict[str, Any],
        visible_at: float,
        holder: str,
    ) -> PickedMessages:
        count, lines, large = transaction.execute(pick, {**which, "inline": INLINE_BYTES}).fetchone()
        if not count:
            return PickedMessages("", {}, 0)
        picked = _read_large(transaction, lines, large) if large else PickedMessages(lines, {}, count)
        change = {**which, "limit": picked.length, "visible_at": visible_at, "holder": holder}
        transaction.execute(deliver, change)
        return picked

    async def _due_s(self) -> float:
        """Return seconds until a message shows; 0 or less if one does."""
        [[visible_at]] = await self._database.rows(NEXT_DUE, await self._number())
        return math.inf if visible_at is None else float(visible_at) - self._clock.monotonic()

    async def _shift(self, receipts: Sequence[str], seconds: float, state: int) -> list[str]:
        check_batch(receipts, self.max_batch)
        if not receipts:
            return []
        await self._number()
        return await self._database.write_many(self._shift_all, (receipts, seconds, state))

    def _shift_all(
        self, transaction: Transaction, asked: Sequence[tuple[Sequence[str], float, int]]
    ) -> list[list[str]]:
        now = self._clock.monotonic()
        standing = self._standing(transaction, [receipt for receipts, _, _ in asked for receipt in receipts])
        rows = []
        for receipts, seconds, state in asked:
            until = now + seconds if seconds > 0 else 0.0
            rows += [(*standing[r], state, until, state == DELAYED) for r in receipts if r in standing]
            if seconds < SAFETY_S:  # sooner than waiters check by themselves
                transaction.ring(self._topic)
        transaction.change_rows(SHIFT, rows, self._known_number)
        return [[r for r in receipts if r not in standing] for receipts, _, _ in asked]

    def _put_back_all(self, transaction: Transaction, asked: Sequence[Sequence[PutBack]]) -> list[list[str]]:
        standing = self._standing(transaction, [each.receipt for returned in asked for each in returned])
        rows = [
            (*standing[each.receipt], each.key or None, not each.counted)
            for returned in asked
            for each in returned
            if each.receipt in standing
        ]
        transaction.change_rows(PUT_BACK, rows, self._known_number)
        transaction.ring(self._topic)
        return [[each.receipt for each in returned if each.receipt not in standing] for returned in asked]

    def _standing(self, transaction: Transaction, receipts: Iterable[str]) -> dict[str, tuple[int, int]]:
        """Return the valid receipts, each with its number and receives."""
        numbered = {receipt: row for receipt in receipts if (row := read_receipt(receipt))}
        standing = transaction.list_rows(STANDING, list(numbered.values()), self._known_number)
        return {receipt: numbered[receipt] for receipt in standing}

    def _delete_all(self, transaction: Transaction, asked: Sequence[Sequence[str]]) -> list[list[str]]:
        rows = [row for receipts in asked for receipt in receipts if (row := read_receipt(receipt))]
        if transaction.change_rows(DELETE, rows, self._known_number) == len(rows):
            return [[] for _ in asked]
        remaining = set(transaction.list_rows(REMAINING, rows, self._known_number))
        return [[r for r in receipts if r.partition(".")[0] in remaining] for receipts in asked]


def _encode(attributes: dict[str, str]) -> str:
    return encode_attributes(attributes).decode()


def _read_large(transaction: Transaction, lines: str, large: str) -> PickedMessages:
    """Read the large bodies of picked messages, as far as one receive may bring them."""
    bodies: dict[str, bytes] = {}
    size = 0
    for number, _, length in (item.partition(".") for item in large.split(",")):
        size += int(length)
        if size > RECEIVE_BYTES and not lines.startswith(f"{number} "):
            lines = lines[: lines.index(f"\n{number} ")]
            break
        [bodies[number]] = transaction.execute(
            "SELECT body FROM bodies WHERE message = ?", (number,)
        ).fetchone()
    return PickedMessages(lines, bodies, lines.count("\n") + 1)


def _taken(picked: PickedMessages | None) -> Taken | None:
    if picked is None:
        return None
    deliveries = []
    for line in picked.lines.split("\n") if picked.lines else ():
        number, receives, body, attributes = line.split(" ", 3)
        place, excused = int(number), 0
        turn = place
        if "/" in receives:
            receives, *apart = receives.split("/")
            excused, turn = map(int, apart)
        deliveries.append(
            Delivery(
                receipt=make_receipt(number, receives),
                id=number,
                body=picked.large[number] if body == "-" else bytes.fromhex(body),
                attributes=decode_attributes(attributes),
                receives=int(receives) - excused,
                number=place,
                turn=turn,
            )
        )
    return Taken(deliveries, picked.more)


def _dead_letter(row: Sequence[Any]) -> DeadLetter:
    letter, body, reason, attributes, detail, stream, key, run, seq, at, turn = row
    return DeadLetter(
        letter, body, reason, decode_attributes(attributes), detail, stream, key, int(run), seq, at, turn
    )
