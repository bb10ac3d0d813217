"""The queue in PostgreSQL: one of many queues with messages in one table."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Generator, Sequence
from typing import Any

from holdfast.common.message import SeqKind
from holdfast.common.queue_calls import (
    CALL_BYTES,
    NumberedQueue,
    by_bytes,
    check_batch,
    check_bodies,
    decode_attributes,
    encode_attributes,
    micros,
)
from holdfast.errors import ConfigError, HoldfastError, Unavailable
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
    decode_dead_letter,
    delivered,
    encode_dead_letter,
)
from holdfast.services.postgres.bells import SAFETY_S
from holdfast.services.postgres.database import PostgresDatabase
from holdfast.services.postgres.lane import BATCH_MAX, Connection, weight_of
from holdfast.services.postgres.messages import (
    FIRST,
    PostgresMessages,
    ReceiveAnswer,
    ReceiveCall,
    SettleCall,
    delay_of,
    sent_message,
    topic_of,
)
from holdfast.services.postgres.reservations import (
    KeepCall,
    PostgresReservations,
    PutBackCall,
    ReserveCall,
    TakeCall,
    UnreserveCall,
)

EXPIRE_BATCH = 1000
"""Dead letters that one transaction checks, so that others don't wait long for it."""

DEPTH = """
SELECT count(*), count(*) FILTER (WHERE visible_at > at AND holder IS NOT NULL),
    count(*) FILTER (WHERE visible_at > at AND holder IS NULL AND NOT reserved),
    (SELECT count(*) FROM {schema}.dead_letters WHERE queue = %(queue)s),
    (max(at) / 1000 - {schema}.sent_ms(min(id))) / 1000.0
FROM {schema}.messages, {schema}.micros(statement_timestamp()) AS at WHERE queue = %(queue)s"""

# Any driver may execute the next three.
IS_HOME = """
SELECT EXISTS (SELECT FROM pg_tables WHERE schemaname = CAST(:schema AS text) AND tablename = 'identity')"""

IDENTITY = "SELECT CAST(id AS text) FROM {schema}.identity"

ADD = f"""
INSERT INTO {{schema}}.messages (queue, visible_at, key, attributes, body)
VALUES (
    :queue,
    CASE WHEN CAST(:delay AS bigint) > 0 THEN {{schema}}.micros(clock_timestamp()) + CAST(:delay AS bigint)
        WHEN CAST(:delay AS bigint) < 0 THEN greatest({FIRST} + CAST(:delay AS bigint), 1) END,
    :key, :attributes, :body)
RETURNING id"""  # noqa: S608

# As many steps as there are queues, however many messages.
FILLED = """
WITH RECURSIVE filled (queue) AS (
    SELECT min(queue) FROM {schema}.messages
    UNION ALL SELECT (SELECT min(m.queue) FROM {schema}.messages AS m WHERE m.queue > f.queue)
    FROM filled AS f WHERE queue IS NOT NULL
)
SELECT queue FROM filled WHERE queue IS NOT NULL"""

# As many steps as there are queues.
NAMES = """
WITH RECURSIVE named (queue) AS (
    SELECT least((SELECT min(queue) FROM {schema}.messages), (SELECT min(queue) FROM {schema}.dead_letters))
    UNION ALL SELECT least(
        (SELECT min(m.queue) FROM {schema}.messages AS m WHERE m.queue > n.queue),
        (SELECT min(d.queue) FROM {schema}.dead_letters AS d WHERE d.queue > n.queue))
    FROM named AS n WHERE queue IS NOT NULL
)
SELECT queue FROM named WHERE queue IS NOT NULL"""

WAITING = """
SELECT id,
    CASE WHEN holder IS NULL AND NOT reserved THEN visible_at - {schema}.micros(statement_timestamp()) END,
    receives - excused, key, attributes, body
FROM {schema}.messages WHERE queue = %s AND id > %s ORDER BY id LIMIT %s"""

RESTORE = """
INSERT INTO {schema}.messages (queue, visible_at, receives, key, attributes, body)
SELECT %b, CASE WHEN delay > 0 THEN {schema}.micros(clock_timestamp()) + delay END, receives, nullif(key, ''),
    attributes, body
FROM unnest(%b::bigint[], %b::integer[], %b::bytea[], %b::text[], %b::bytea[])
    AS m (delay, receives, key, attributes, body)
RETURNING id"""

# Only calls with the same dead letters write these rows: all lock in order of id.
BURY = """
INSERT INTO {schema}.dead_letters (queue, id, key, turn, at, record, attributes, body)
SELECT queue, id, key, turn, coalesce(at, {schema}.micros(clock_timestamp())), record, attributes, body
FROM unnest(
    %b::text[], %b::bytea[], %b::bytea[], %b::bigint[], %b::bigint[], %b::text[], %b::text[], %b::bytea[])
    AS letter (queue, id, key, turn, at, record, attributes, body)
ORDER BY queue, id ON CONFLICT DO NOTHING"""

DEAD_LETTERS = """
SELECT id, at, turn, record, attributes, body FROM {schema}.dead_letters
WHERE queue = %s AND id > %b AND (%b::bytea IS NULL OR key = %b) ORDER BY id LIMIT %s"""

LOCKED = """
WITH asked AS (
    SELECT id, min(place) AS place FROM unnest(%b::bytea[]) WITH ORDINALITY AS asked (id, place) GROUP BY id
), locked AS MATERIALIZED (
    SELECT id, place FROM {schema}.dead_letters JOIN asked USING (id) WHERE queue = %s
    ORDER BY id FOR UPDATE OF dead_letters
)"""

PURGE = f"""{LOCKED}, purged AS (
    DELETE FROM {{schema}}.dead_letters AS d USING locked WHERE queue = %s AND d.id = locked.id RETURNING 1
)
SELECT count(*) FROM purged"""  # noqa: S608

REDRIVE = f"""{LOCKED}, dropped AS (
    DELETE FROM {{schema}}.dead_letters AS d USING locked WHERE queue = %s AND d.id = locked.id
    RETURNING place, d.queue, d.key, turn, attributes, body
), sent AS (
    INSERT INTO {{schema}}.messages (id, queue, key, turn, attributes, body)
    SELECT id, queue, nullif(key, ''), CASE WHEN turn < id THEN turn END, attributes, body FROM (
        SELECT {{schema}}.new_message_id() AS id, again.* FROM (SELECT * FROM dropped ORDER BY place) AS again
    ) AS numbered
    RETURNING 1
)
SELECT count(*) FROM sent"""  # noqa: S608

# Drops the old ones of the first letters after an id. Returns the number of dropped and of checked ones, and
# the last.
EXPIRE = """
WITH page AS MATERIALIZED (
    SELECT id, at FROM {schema}.dead_letters WHERE queue = %s AND id > %b ORDER BY id LIMIT %s
), old AS MATERIALIZED (
    SELECT d.id FROM {schema}.dead_letters AS d JOIN page USING (id) WHERE d.queue = %s AND page.at < %s
    ORDER BY d.id FOR UPDATE OF d SKIP LOCKED
), expired AS (
    DELETE FROM {schema}.dead_letters AS d USING old WHERE d.queue = %s AND d.id = old.id RETURNING 1
)
SELECT (SELECT count(*) FROM expired), count(*), (SELECT id FROM page ORDER BY id DESC LIMIT 1) FROM page"""


async def filled(database: PostgresDatabase) -> list[str]:
    """Return the names of all queues that hold messages, in order."""
    return await _names(database, FILLED)


async def all_names(database: PostgresDatabase) -> list[str]:
    """Return the names of all queues that hold messages or dead letters, in order."""
    return await _names(database, NAMES)


async def _names(database: PostgresDatabase, query: str) -> list[str]:
    return [name for (name,) in await database.lane("queue").rows(database.sql(query))]


class PostgresQueue(NumberedQueue):
    """One named queue in a database, and its dead letters. Times are the server's."""

    seq_kind: SeqKind = "absent"
    """A number is drawn before its message is committed, so a lower one may show after a higher one."""

    def __init__(
        self,
        messages: PostgresMessages,
        name: str,
        clock: Clock,
        *,
        max_batch: int = 500,
        max_bytes: int = 1 << 20,
    ) -> None:
        self.max_batch = max_batch
        self.max_bytes = max_bytes
        self.messages = messages
        self._reservations = PostgresReservations(messages, clock)
        self._bells = messages.database.bells
        self._lane = messages.database.lane("queue")
        self._name = name
        self._clock = clock
        self._topic = topic_of(name)
        self._wakes = 0
        sql = messages.database.sql
        self._depth, self._bury, self._letters = map(sql, (DEPTH, BURY, DEAD_LETTERS))
        self._waiting, self._restore = sql(WAITING), sql(RESTORE)
        self._purge, self._redrive, self._expire = map(sql, (PURGE, REDRIVE, EXPIRE))

    # --- messages

    async def send(self, messages: Sequence[Outgoing]) -> list[str]:
        check_batch(messages, self.max_batch)
        check_bodies((m.body for m in messages), self.max_bytes)
        if not messages:
            return []
        sent = [sent_message(self._name, message) for message in messages]
        size = sum(len(message.body) for message in sent)
        if size > CALL_BYTES:
            ids = await self._lane.write_many(self.messages.send_in_parts, sent, weight=BATCH_MAX)
        else:
            weight = weight_of(len(sent), size)
            ids = await self._lane.run_once(self.messages.send, sent, writes=True, weight=weight)
        if any(m.delay_s < SAFETY_S for m in messages):  # sooner than waiters look by themselves
            self._bells.ring([self._topic])
        return ids

    async def addition(self, messages: Sequence[Outgoing]) -> Addition:
        """Return the statements that add messages within a transaction of the caller, on its own connection
        to the same database. No bell rings in that transaction: a NOTIFY takes a lock of the whole
        database."""
        check_bodies((m.body for m in messages), self.max_bytes)
        database = self.messages.database
        identity, add = database.sql(IDENTITY).decode(), database.sql(ADD).decode()
        [[home]] = await self._lane.rows(database.sql(IDENTITY))
        loop = asyncio.get_running_loop()

        def steps() -> Generator[CallerStatement, Any, list[str]]:
            found = yield CallerStatement(IS_HOME, {"schema": database.address.schema})
            if not found or (yield CallerStatement(identity, {})) != home:
                raise ConfigError(
                    f"connection is to another database than that of the queue, {database.address}; give one"
                    " to the same database"
                )
            ids = []
            for message in messages:
                row = {
                    "queue": self._name,
                    "delay": delay_of(message),
                    "attributes": encode_attributes(message.attributes).decode(),
                    "key": message.key.encode() or None,
                    "body": message.body,
                }
                ids.append(str((yield CallerStatement(add, row))))
            return ids

        def committed() -> None:
            with contextlib.suppress(RuntimeError):  # this client was closed before the commit
                loop.call_soon_threadsafe(self._bells.ring, [self._topic])

        return Addition(steps, committed)

    async def receive(self, limit: int, wait_s: float, visibility_s: float, holder: str) -> list[Delivery]:
        check_batch(range(limit), self.max_batch)
        deadline, wakes = self._clock.monotonic() + wait_s, self._wakes
        asked = ReceiveCall(self._name, limit, micros(visibility_s), holder)
        with (
            self._bells.listen(self._topic) if wait_s > 0 else contextlib.nullcontext(asyncio.Event()) as rung
        ):
            while True:
                rung.clear()
                taken = await self._take(asked)
                remaining_s = deadline - self._clock.monotonic()
                if taken.deliveries or remaining_s <= 0 or self._wakes != wakes:
                    return taken.deliveries
                await self._clock.wait(rung, min(taken.due_s, remaining_s, SAFETY_S))

    async def extend(self, receipts: Sequence[str], visibility_s: float) -> list[str]:
        return await self._settle(receipts, micros(visibility_s))

    async def delete(self, receipts: Sequence[str]) -> list[str]:
        return await self._settle(receipts, None)

    async def give_back(self, receipts: Sequence[str], delay_s: float) -> list[str]:
        return await self._settle(receipts, micros(delay_s), ends=True)

    async def free(self, holder: str) -> int:
        freed = await self._lane.run_once(self.messages.free, (self._name, holder), writes=True)
        self._bells.ring([self._topic])  # also for what its reservations kept
        return freed

    async def depth(self) -> Depth:
        rows = await self._lane.rows(self._depth, {"queue": self._name}, binary=False)
        total, in_flight, delayed, dead, lag_s = rows[0]
        return Depth(total - in_flight - delayed, in_flight, delayed, dead, max(0.0, float(lag_s or 0)))

    # --- reservations

    async def reserve(self, key: str, holder: str, epoch: int, for_s: float) -> bool:
        asked = ReserveCall(self._name, key.encode(), holder, epoch, micros(for_s))
        return await self._lane.run_once(self._reservations.reserve, asked, writes=True)

    async def keep(self, keys: Sequence[str], holder: str, for_s: float) -> list[str]:
        if not keys:
            return []
        asked = KeepCall(self._name, [key.encode() for key in keys], holder, micros(for_s))
        kept = set(
            await self._lane.run_once(
                self._reservations.keep, asked, writes=True, weight=weight_of(len(keys))
            )
        )
        return [key for key in keys if key.encode() not in kept]

    async def unreserve(self, key: str, holder: str) -> None:
        asked = UnreserveCall(self._name, key.encode(), holder)
        await self._lane.run_once(self._reservations.unreserve, asked, writes=True)
        self._bells.ring([self._topic])

    async def take(
        self, key: str, holder: str, limit: int, visibility_s: float, after: int = 0
    ) -> Taken | None:
        """Deliver messages of a reserved key. If cancelled, puts back what it got."""
        check_batch(range(limit), self.max_batch)
        asked = TakeCall(self._name, key.encode(), holder, limit, micros(visibility_s), after)

        async def take(connection: Connection, calls: Sequence[TakeCall]) -> list[Taken | None]:
            return [await self._reservations.take(connection, each) for each in calls]

        async def put_back(taken: Taken | None) -> None:
            if taken is not None:
                await self.put_back([PutBack(d.receipt, key) for d in taken.deliveries])

        taking = self._lane.run_once(take, asked, writes=True, weight=weight_of(limit))
        return await delivered(taking, put_back)

    async def put_back(self, returned: Sequence[PutBack]) -> list[str]:
        check_batch(returned, self.max_batch)
        if not returned:
            return []
        stale = await self._lane.run_once(
            self._reservations.put_back,
            PutBackCall(self._name, returned),
            writes=True,
            weight=weight_of(len(returned)),
        )
        self._bells.ring([self._topic])
        return stale

    # --- dead letters

    async def bury(self, letters: Sequence[DeadLetter]) -> None:
        check_batch(letters, self.max_batch)
        if letters:
            await self._add_dead_letters([(letter, None) for letter in letters])

    async def dead_letters(self, limit: int, after: str = "", key: str | None = None) -> list[DeadLetter]:
        wanted = None if key is None else key.encode()
        parameters = (self._name, after.encode(), wanted, wanted, limit)
        return [_dead_letter(row) for row in await self._lane.rows(self._letters, parameters)]

    async def redrive(self, ids: Sequence[str]) -> int:
        redriven = await self._drop(self._redrive, ids)
        if redriven:
            self._bells.ring([self._topic])
        return redriven

    async def purge(self, ids: Sequence[str]) -> int:
        return await self._drop(self._purge, ids)

    async def expire(self, dead_before: float) -> int:
        before = round(max(0.0, min(dead_before, 1e12)) * 1e6)
        expired, looked, after = 0, EXPIRE_BATCH, b""

        async def expire(connection: Connection) -> tuple[int, int, bytes | None]:
            asked = (self._name, after, EXPIRE_BATCH, self._name, before, self._name)
            rows = await connection.execute(self._expire, asked, binary=True)
            return await rows.fetchone() or (0, 0, None)

        while looked == EXPIRE_BATCH:
            gone, looked, last = await self._lane.write(expire)
            expired, after = expired + gone, last or b""
        return expired

    # --- transfer

    async def waiting(self, limit: int, after: str = "") -> list[WaitingMessage]:
        rows = await self._lane.rows(self._waiting, (self._name, int(after or 0), limit))
        return [
            WaitingMessage(
                str(number),
                body,
                decode_attributes(attributes),
                max(0, delay or 0) / 1e6,
                receives,
                key=(key or b"").decode(),
            )
            for number, delay, receives, key, attributes, body in rows
        ]

    async def restore(self, messages: Sequence[WaitingMessage], above: int = 0) -> None:
        check_bodies((m.body for m in messages), self.max_bytes)
        if not messages:
            return
        rows = [
            (micros(m.delay_s), m.receives, m.key.encode(), encode_attributes(m.attributes).decode(), m.body)
            for m in messages
        ]
        columns = [list(column) for column in zip(*rows, strict=True)]

        async def restore(connection: Connection) -> None:
            added = await connection.execute(self._restore, (self._name, *columns))
            ids = [number for (number,) in await added.fetchall()]
            if ids != sorted(ids):  # the counter restarted within a millisecond
                raise Unavailable(f"queue {self._name!r}: the order of messages would be lost; try again")

        await self._lane.write(restore)
        self._bells.ring([self._topic])

    async def restore_dead_letters(self, letters: Sequence[DeadLetter]) -> None:
        if letters:
            await self._add_dead_letters([(letter, round(letter.at * 1e6)) for letter in letters])

    def wake(self) -> None:
        self._wakes += 1
        self._bells.ring_here([self._topic])

    async def close(self) -> None:
        self.wake()

    # --- how it is done

    async def _take(self, asked: ReceiveCall) -> ReceiveAnswer:
        """Receive the messages that can be delivered at once. If cancelled, gives back what it got. A crash
        of the server may take deliveries back; they are repeated then."""
        taking = self._lane.run_once(self.messages.receive, asked, writes=True, weight=weight_of(asked.limit))
        try:
            return await delivered(
                taking, lambda answer: self.give_back([d.receipt for d in answer.deliveries], 0)
            )
        except HoldfastError:
            self.messages.search_again(self._name)
            raise

    async def _settle(self, receipts: Sequence[str], delay: int | None, *, ends: bool = False) -> list[str]:
        check_batch(receipts, self.max_batch)
        if not receipts:
            return []
        settling = SettleCall(self._name, receipts, delay, ends)
        stale = await self._lane.run_once(
            self.messages.settle, settling, writes=True, weight=weight_of(len(receipts))
        )
        if delay is not None and delay < SAFETY_S * 1e6:  # sooner than waiters look by themselves
            self._bells.ring([self._topic])
        return stale

    async def _add_dead_letters(self, letters: Sequence[tuple[DeadLetter, int | None]]) -> None:
        for part in by_bytes(letters, lambda added: len(added[0].body), CALL_BYTES):
            size = sum(len(letter.body) for letter, _ in part)
            await self._lane.write_many(self._bury_all, part, weight=weight_of(len(part), size))

    async def _bury_all(
        self, connection: Connection, batches: Sequence[Sequence[tuple[DeadLetter, int | None]]]
    ) -> list[None]:
        """Add letters, each with its time in microseconds, or None for the present."""
        rows = [
            (
                self._name,
                letter.id.encode(),
                letter.key.encode(),
                letter.turn,
                at,
                encode_dead_letter(letter).decode(),
                encode_attributes(letter.attributes).decode(),
                letter.body,
            )
            for batch in batches
            for letter, at in batch
        ]
        await connection.execute(self._bury, [list(column) for column in zip(*rows, strict=True)])
        return [None for _ in batches]

    async def _drop(self, query: bytes, ids: Sequence[str]) -> int:
        check_batch(ids, self.max_batch)
        parameters = ([letter.encode() for letter in ids], self._name, self._name)
        return await self._count(query, parameters) if ids else 0

    async def _count(self, query: bytes, parameters: Sequence[Any]) -> int:
        """Run what returns a count."""

        async def run(connection: Connection) -> int:
            [count] = await (await connection.execute(query, parameters)).fetchone() or (0,)
            return int(count)

        return await self._lane.write(run)


def _dead_letter(row: Sequence[Any]) -> DeadLetter:
    letter, at, turn, record, attributes, body = row
    return decode_dead_letter(letter.decode(), body, record, decode_attributes(attributes), at, turn)
