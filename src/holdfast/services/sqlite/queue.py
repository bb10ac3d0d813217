"""The queue in SQLite."""

from __future__ import annotations

import asyncio
import contextlib
import math
import sqlite3
from collections.abc import Generator, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from holdfast.common.message import SeqKind
from holdfast.common.queue_calls import (
    check_batch,
    check_bodies,
    decode_attributes,
    encode_attributes,
    make_receipt,
    read_receipt,
)
from holdfast.errors import ConfigError, HoldfastError, OperationRefused
from holdfast.ports.clock import Clock
from holdfast.ports.queue import (
    Addition,
    CallerStatement,
    DeadLetter,
    Delivery,
    Depth,
    Outgoing,
    WaitingMessage,
)
from holdfast.services.sqlite.database import Database, Transaction, number_above
from holdfast.services.sqlite.thread import LINGER_S
from holdfast.system.doorbell import SAFETY_S

READY, DELIVERED, DELAYED = 0, 1, 2
"""A message's ``state``."""

INLINE_BYTES = 16_384
"""Bodies up to this size are read in one step with the rest of their batch."""

RECEIVE_BYTES = 16 << 20
"""One receive brings no more of larger bodies than this, or a single one."""

ADD_MESSAGES = """
INSERT INTO messages (queue, state, visible_at, receives)
SELECT column1, column2, column3, 0 FROM (VALUES {rows}) WHERE column1 IS NOT NULL"""

ADD_BODIES = """
WITH b (message, attributes, body) AS (VALUES {rows})
INSERT INTO bodies (message, attributes, body, at) SELECT b.*, ? FROM b WHERE message IS NOT NULL"""

MAIN_FILE = "SELECT file FROM pragma_database_list WHERE name = 'main'"

NAME_QUEUE = "INSERT OR IGNORE INTO queues (name) VALUES (:name)"

QUEUE_NUMBER = "SELECT id FROM queues WHERE name = :name"

ADD_MESSAGE = """
INSERT INTO messages (queue, state, visible_at, receives) VALUES (:queue, :state, :visible_at, 0)
RETURNING id"""

ADD_BODY = "INSERT INTO bodies (message, attributes, body, at) VALUES (:message, :attributes, :body, :at)"

SHOW_DUE = """
UPDATE messages SET state = 0, visible_at = 0
WHERE queue = ? AND state IN (1, 2) AND visible_at <= ?"""

# One row for all of them: at every row that is stepped to, the interpreter may have to be waited for.
PICK = """
SELECT count(*), group_concat(
    id || ' ' || receives || ' ' || iif(size <= ?1, hex(body), '-') || ' ' || attributes, char(10)),
    group_concat(iif(size > ?1, id || '.' || size, NULL))
FROM (
    SELECT id, receives + 1 AS receives, body, length(body) AS size, attributes
    FROM messages JOIN bodies ON message = id
    WHERE queue = ?2 AND state = 0 AND visible_at = 0 ORDER BY id LIMIT ?3)"""

DELIVER = """
UPDATE messages SET state = 1, visible_at = ?, receives = receives + 1, holder = ?
WHERE id IN (
    SELECT id FROM messages WHERE queue = ? AND state = 0 AND visible_at = 0 ORDER BY id LIMIT ?)"""

STANDING = """
WITH r (id, receives) AS (VALUES {rows})
SELECT group_concat(m.id || '.' || m.receives) FROM r CROSS JOIN messages m
ON m.id = r.id AND m.receives = r.receives WHERE m.holder IS NOT NULL AND m.queue = ?"""

SHIFT = """
WITH r (id, receives, state, visible_at, ended) AS (VALUES {rows})
UPDATE messages SET state = r.state, visible_at = r.visible_at, holder = iif(r.ended, NULL, holder)
FROM r WHERE messages.id = r.id AND messages.receives = r.receives AND holder IS NOT NULL AND queue = ?"""

# Begins with the word itself, or the sqlite3 module would not count what it deletes.
DELETE = """
DELETE FROM messages WHERE id IN (
    WITH r (id, receives) AS (VALUES {rows})
    SELECT m.id FROM r CROSS JOIN messages m ON m.id = r.id AND m.receives = r.receives
    WHERE m.holder IS NOT NULL AND m.queue = ?)"""

REMAINING = """
WITH r (id, receives) AS (VALUES {rows})
SELECT group_concat(m.id) FROM r CROSS JOIN messages m ON m.id = r.id WHERE m.queue = ?"""

FREE = """
UPDATE messages SET state = 0, visible_at = 0
WHERE queue = ? AND state = 1 AND visible_at > ? AND holder = ?"""

NEXT_DUE = """
SELECT min(visible_at) FROM (
    SELECT min(visible_at) AS visible_at FROM messages WHERE queue = ?1 AND state = 0
    UNION ALL SELECT min(visible_at) FROM messages WHERE queue = ?1 AND state = 1
    UNION ALL SELECT min(visible_at) FROM messages WHERE queue = ?1 AND state = 2)"""

DEPTH = """
SELECT (SELECT count(*) FROM messages WHERE queue = ?1),
       (SELECT count(*) FROM messages WHERE queue = ?1 AND state = 1 AND visible_at > ?2),
       (SELECT count(*) FROM messages WHERE queue = ?1 AND state = 2 AND visible_at > ?2),
       (SELECT count(*) FROM dead_letters WHERE queue = ?1),
       (SELECT at FROM bodies WHERE message = (SELECT min(id) FROM messages WHERE queue = ?1))"""

FILLED = """
SELECT name FROM queues WHERE EXISTS (SELECT 1 FROM messages WHERE queue = queues.id) ORDER BY name"""

NAMES = "SELECT name FROM queues ORDER BY name"

# By number, whatever else is there: by the index of the queue, each page would sort all of its messages.
WAITING = """
SELECT m.id, m.state, m.visible_at, m.receives, b.attributes, b.body
FROM messages m CROSS JOIN bodies b ON b.message = m.id
WHERE +m.queue = ? AND m.id > ? ORDER BY m.id LIMIT ?"""

RESTORE = "INSERT INTO messages (id, queue, state, visible_at, receives) VALUES (?, ?, ?, ?, ?) RETURNING id"

DEAD_LETTER = "id, body, reason, attributes, detail, stream, key, run, seq, at"


class Picked(NamedTuple):
    """Picked messages, not read yet so that nobody waits for that: a line for each with its number,
    receives, body in hex, and attributes as JSON; and the bodies that were too large for a line."""

    lines: str
    large: dict[str, bytes]


Row = tuple[int, float, str, bytes]
"""A message to add: state, when it shows, attributes as JSON, body."""


async def filled(database: Database) -> list[str]:
    """The names of all queues that hold messages, in order."""
    return await database.read(lambda connection: [name for (name,) in connection.execute(FILLED)])


async def names(database: Database) -> list[str]:
    """The names of all queues that were ever used, in order."""
    return await database.read(lambda connection: [name for (name,) in connection.execute(NAMES)])


class SqliteQueue:
    """One named queue in a database, and its dead letters."""

    max_receives = 1
    linger_s = 0.0
    hold_max_s = math.inf
    sends_in_order = True
    seq_kind: SeqKind = "increasing"
    fifo = False
    delay_max_s = math.inf
    tells_lag = True
    hides_dead_letters = False
    tells_stale = True
    frees_on_evict = True
    by_key = False

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
        self._known_number: int | None = None

    # --- messages

    async def send(self, messages: Sequence[Outgoing]) -> list[str]:
        check_batch(messages, self.max_batch)
        check_bodies((message.body for message in messages), self.max_bytes)
        if not messages:
            return []
        await self._number()
        rows = [self._row(m.body, _encode(m.attributes), m.delay_s) for m in messages]
        return await self._database.write_many(self._add_all, rows)

    async def addition(self, messages: Sequence[Outgoing]) -> Addition:
        """Return what adds messages within a transaction of the caller's, at a connection of its own to the
        same file."""
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
            )  # not by a call: the caller has the write lock
            number = yield CallerStatement(QUEUE_NUMBER, {"name": self._name})
            ids = []
            for message in messages:
                state, visible_at, attributes, body = self._row(
                    message.body, _encode(message.attributes), message.delay_s
                )
                placed = {"queue": number, "state": state, "visible_at": visible_at}
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
        if (deliveries := await self._take(limit, visibility_s, holder)) or wait_s <= 0:
            return deliveries
        with self._database.doorbell.listen(self._topic) as rung:
            while True:
                rung.clear()
                due_s = await self._due_s()
                if due_s <= 0 and (deliveries := await self._take(limit, visibility_s, holder)):
                    return deliveries
                remaining_s = deadline - self._clock.monotonic()
                if remaining_s <= 0 or self._wakes != wakes:
                    return []
                if due_s > 0:  # else another took it
                    await self._clock.wait(rung, min(due_s, remaining_s, SAFETY_S))

    async def extend(self, receipts: Sequence[str], visibility_s: float) -> list[str]:
        return await self._shift(receipts, visibility_s, DELIVERED)

    async def delete(self, receipts: Sequence[str]) -> list[str]:
        check_batch(receipts, self.max_batch)
        if not receipts:
            return []
        await self._number()
        # What a power failure takes back is delivered again, and found done. Nobody waits for it either.
        deleting = self._database.submit(self._delete_all, receipts, confirmed=False, linger_s=LINGER_S)
        stale: list[str] = await deleting
        return stale

    async def give_back(self, receipts: Sequence[str], delay_s: float) -> list[str]:
        return await self._shift(receipts, delay_s, DELAYED)

    async def free(self, holder: str) -> int:
        number = await self._number()

        def free(transaction: Transaction) -> int:
            freed = transaction.execute(FREE, (number, self._clock.monotonic(), holder)).rowcount
            if freed:
                transaction.ring(self._topic)
            return freed

        return await self._database.write(free)

    async def depth(self) -> Depth:
        parameters = (await self._number(), self._clock.monotonic())
        total, in_flight, delayed, dead, oldest_at = await self._database.read(
            lambda connection: connection.execute(DEPTH, parameters).fetchone()
        )
        lag_s = max(0.0, self._clock.wall() - oldest_at) if total else 0.0
        return Depth(total - in_flight - delayed, in_flight, delayed, dead, lag_s)

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
                d.seq, d.at,
            )
            for d in letters
        ]  # fmt: skip

        def write(transaction: Transaction) -> None:
            transaction.connection.executemany(
                f"INSERT OR IGNORE INTO dead_letters (queue, {DEAD_LETTER}) VALUES (?,?,?,?,?,?,?,?,?,?,?)",  # noqa: S608
                rows,
            )

        await self._database.write(write)

    async def dead_letters(self, limit: int, after: str = "", key: str | None = None) -> list[DeadLetter]:
        parameters = (await self._number(), after, key, key, limit)
        rows = await self._database.read(
            lambda connection: connection.execute(
                f"SELECT {DEAD_LETTER} FROM dead_letters WHERE queue = ? AND id > ?"  # noqa: S608
                " AND (? IS NULL OR key = ?) ORDER BY id LIMIT ?",
                parameters,
            ).fetchall()
        )
        return [_dead_letter(row) for row in rows]

    async def redrive(self, ids: Sequence[str]) -> int:
        check_batch(ids, self.max_batch)
        number = await self._number()

        def redrive(transaction: Transaction) -> int:
            found = (
                transaction.execute(
                    "DELETE FROM dead_letters WHERE queue = ? AND id = ? RETURNING attributes, body",
                    (number, letter),
                ).fetchall()
                for letter in ids
            )
            rows = [self._row(body, attributes, 0) for letters in found for attributes, body in letters]
            if rows:
                self._add(transaction, rows)
            return len(rows)

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
        parameters = (await self._number(), int(after or 0), limit)
        rows = await self._database.read(
            lambda connection: connection.execute(WAITING, parameters).fetchall()
        )
        now = self._clock.monotonic()
        return [
            WaitingMessage(
                str(number),
                body,
                decode_attributes(attributes),
                max(0.0, visible_at - now) if state == DELAYED else 0.0,
                receives,
                number,
            )
            for number, state, visible_at, receives, attributes, body in rows
        ]

    async def restore(self, messages: Sequence[WaitingMessage], above: int = 0) -> None:
        check_bodies((message.body for message in messages), self.max_bytes)
        queue, at = await self._number(), self._clock.wall()

        def restore(transaction: Transaction) -> None:
            for message in messages:
                state, visible_at, attributes, body = self._row(
                    message.body, _encode(message.attributes), message.delay_s
                )
                try:
                    [number] = transaction.execute(
                        RESTORE, (message.number, queue, state, visible_at, message.receives)
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

    async def _number(self) -> int:
        """The queue's number in the database, which gives it one at the first use."""
        if self._known_number is None:
            self._known_number = await self._database.write(self._enter)
        return self._known_number

    def _enter(self, transaction: Transaction) -> int:
        transaction.execute(NAME_QUEUE, {"name": self._name})
        [number] = transaction.execute(QUEUE_NUMBER, {"name": self._name}).fetchone()
        return int(number)

    def _row(self, body: bytes, attributes: str, delay_s: float) -> Row:
        if delay_s <= 0:
            return (READY, 0.0, attributes, body)
        return (DELAYED, self._clock.monotonic() + delay_s, attributes, body)

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
            ADD_MESSAGES, [(self._known_number, state, visible_at) for state, visible_at, _, _ in rows]
        )
        [last] = transaction.execute("SELECT last_insert_rowid()").fetchone()
        first = int(last) - len(rows) + 1
        transaction.change_rows(
            ADD_BODIES,
            [(first + i, attributes, body) for i, (_, _, attributes, body) in enumerate(rows)],
            self._clock.wall(),
        )
        transaction.ring(self._topic)
        return first

    async def _take(self, limit: int, visibility_s: float, holder: str) -> list[Delivery]:
        """Take what can be delivered at once. Cancelled half-way, it gives back what it got.

        A power failure may take deliveries back, but then nobody is left who holds them."""
        taking = self._database.submit(self._pick_all, (limit, visibility_s, holder), confirmed=False)
        try:
            return _deliveries(await asyncio.shield(taking))
        except asyncio.CancelledError:
            with contextlib.suppress(HoldfastError):
                await self.give_back([d.receipt for d in _deliveries(await taking)], 0)
            raise

    def _pick_all(self, transaction: Transaction, asked: Sequence[tuple[int, float, str]]) -> list[Picked]:
        now = self._clock.monotonic()
        transaction.execute(SHOW_DUE, (self._known_number, now))
        return [
            self._pick(transaction, limit, now + visibility_s, holder)
            for limit, visibility_s, holder in asked
        ]

    def _pick(self, transaction: Transaction, limit: int, visible_at: float, holder: str) -> Picked:
        query = (INLINE_BYTES, self._known_number, limit)
        count, lines, large = transaction.execute(PICK, query).fetchone()
        if not count:
            return Picked("", {})
        picked = Picked(lines, {})
        if large:
            picked = _read_large(transaction, lines, large)
            count = picked.lines.count("\n") + 1
        transaction.execute(DELIVER, (visible_at, holder, self._known_number, count))
        return picked

    async def _due_s(self) -> float:
        """Seconds until a message shows; 0 or less if one does."""
        parameters = (await self._number(),)
        [visible_at] = await self._database.read(
            lambda connection: connection.execute(NEXT_DUE, parameters).fetchone()
        )
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
            ready = state == DELAYED and seconds <= 0
            place = (READY, 0.0) if ready else (state, now + seconds)
            rows += [(*standing[r], *place, state == DELAYED) for r in receipts if r in standing]
            if seconds < SAFETY_S:  # sooner than waiters check by themselves
                transaction.ring(self._topic)
        transaction.change_rows(SHIFT, rows, self._known_number)
        return [[r for r in receipts if r not in standing] for receipts, _, _ in asked]

    def _standing(self, transaction: Transaction, receipts: Iterable[str]) -> dict[str, tuple[int, int]]:
        """The receipts whose deliveries count, and what they say."""
        said = {receipt: row for receipt in receipts if (row := read_receipt(receipt))}
        standing = transaction.list_rows(STANDING, list(said.values()), self._known_number)
        return {receipt: said[receipt] for receipt in standing}

    def _delete_all(self, transaction: Transaction, asked: Sequence[Sequence[str]]) -> list[list[str]]:
        rows = [row for receipts in asked for receipt in receipts if (row := read_receipt(receipt))]
        if transaction.change_rows(DELETE, rows, self._known_number) == len(rows):
            return [[] for _ in asked]
        remaining = set(transaction.list_rows(REMAINING, rows, self._known_number))
        return [[r for r in receipts if r.partition(".")[0] in remaining] for receipts in asked]


def _encode(attributes: dict[str, str]) -> str:
    return encode_attributes(attributes).decode()


def _read_large(transaction: Transaction, lines: str, large: str) -> Picked:
    """Read the large bodies of picked messages, as far as one receive may bring them."""
    bodies: dict[str, bytes] = {}
    size = 0
    for number, _, length in (item.partition(".") for item in large.split(",")):
        size += int(length)
        if size > RECEIVE_BYTES and not lines.startswith(f"{number} "):
            return Picked(lines[: lines.index(f"\n{number} ")], bodies)
        [bodies[number]] = transaction.execute(
            "SELECT body FROM bodies WHERE message = ?", (number,)
        ).fetchone()
    return Picked(lines, bodies)


def _deliveries(picked: Picked) -> list[Delivery]:
    deliveries = []
    for line in picked.lines.split("\n") if picked.lines else ():
        number, receives, body, attributes = line.split(" ", 3)
        deliveries.append(
            Delivery(
                receipt=make_receipt(number, receives),
                id=number,
                body=picked.large[number] if body == "-" else bytes.fromhex(body),
                attributes=decode_attributes(attributes),
                receives=int(receives),
                number=int(number),
            )
        )
    return deliveries


def _dead_letter(row: Sequence[Any]) -> DeadLetter:
    letter, body, reason, attributes, detail, stream, key, run, seq, at = row
    return DeadLetter(
        letter, body, reason, decode_attributes(attributes), detail, stream, key, int(run), seq, at
    )
