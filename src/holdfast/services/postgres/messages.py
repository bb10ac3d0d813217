"""The messages of all queues of a database. Each operation serves all calls that come together."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from holdfast.common.queue_calls import (
    CALL_BYTES,
    by_bytes,
    decode_attributes,
    encode_attributes,
    make_receipt,
    micros,
    read_receipt,
)
from holdfast.ports.clock import Clock
from holdfast.ports.queue import Delivery, Outgoing
from holdfast.services.postgres.arrays import numbers
from holdfast.services.postgres.bells import SAFETY_S
from holdfast.services.postgres.database import PostgresDatabase
from holdfast.services.postgres.lane import Connection
from holdfast.services.postgres.search_marks import SORT_MAX, WIDE_S, FoundRow, Marks, Sorting, SortResult

KEPT_MICROS = 15 * 60 * 10**6
"""Microseconds after which a message that was set aside shows to nodes of versions that know no keys."""

TIDY_S = 10.0
"""Seconds between two clean-ups of reservations at least."""

FIRST = 1 << 31
"""Upper bound of the times that stand for priorities, in microseconds since 1970: the higher the priority,
the earlier. Versions that know no priorities find such messages when they look from the beginning."""

SEND = f"""
INSERT INTO {{schema}}.messages (queue, visible_at, key, attributes, body)
SELECT queue, CASE WHEN delay > 0 THEN {{schema}}.micros(clock_timestamp()) + delay
    WHEN delay < 0 THEN greatest({FIRST} + delay, 1) END, nullif(key, ''), attributes, body
FROM unnest(%b::text[], %s::bigint[], %b::bytea[], %b::text[], %b::bytea[])
    AS sent (queue, delay, key, attributes, body)
RETURNING id"""  # noqa: S608

# Messages with a priority come first, then repeated deliveries, oldest first. It takes nothing if the queue
# knows reservations. These statements don't wait for the disk: if a crash of the server takes back a
# delivery, or its end, the message is delivered again.
RECEIVE = """
WITH fast AS MATERIALIZED (
    SELECT set_config('synchronous_commit', 'off', true),
        NOT EXISTS (SELECT FROM {schema}.reservations WHERE queue = %(queue)s) AS simple
), urgent AS MATERIALIZED (
    SELECT ctid AS place, id, visible_at, octet_length(body) AS size FROM {schema}.messages
    WHERE queue = %(queue)s AND visible_at < %(first)s
    ORDER BY visible_at, id LIMIT %(limit)s FOR UPDATE SKIP LOCKED
), due AS MATERIALIZED (
    SELECT ctid AS place, id, visible_at, octet_length(body) AS size FROM {schema}.messages
    WHERE queue = %(queue)s AND visible_at > greatest(%(due_from)s, %(first)s)
        AND visible_at <= {schema}.micros(statement_timestamp())
    ORDER BY visible_at, id LIMIT %(limit)s - (SELECT count(*) FROM urgent) FOR UPDATE SKIP LOCKED
), fresh AS MATERIALIZED (
    SELECT ctid AS place, id, visible_at, octet_length(body) AS size FROM {schema}.messages
    WHERE queue = %(queue)s AND visible_at IS NULL AND id > %(fresh_from)s
    ORDER BY id LIMIT %(limit)s - (SELECT count(*) FROM urgent) - (SELECT count(*) FROM due)
    FOR UPDATE SKIP LOCKED
), found AS MATERIALIZED (
    SELECT place, visible_at, count(*) OVER () AS total,
        sum(size) OVER (ORDER BY visible_at NULLS LAST, id) AS upto, size
    FROM (SELECT * FROM urgent UNION ALL SELECT * FROM due UNION ALL SELECT * FROM fresh) AS all_kinds
)
UPDATE {schema}.messages AS m
SET visible_at = {schema}.micros(clock_timestamp()) + %(visibility)s, receives = receives + 1,
    holder = %(holder)s, reserved = false
FROM fast, found WHERE simple AND m.ctid = found.place AND m.queue = %(queue)s
    AND (found.upto = found.size OR found.upto <= %(bytes)s)
RETURNING m.id, m.receives, m.excused, m.turn, m.attributes, m.body, found.total,
    {schema}.micros(statement_timestamp()), found.visible_at"""

# The same where the queue knows reservations. First come the messages of ended reservations, in their order.
# Messages of reserved keys are set aside instead.
RECEIVE_AND_KEEP = """
WITH fast AS MATERIALIZED (
    SELECT set_config('synchronous_commit', 'off', true)
), known AS MATERIALIZED (
    SELECT key, ends_at, ends_at > {schema}.micros(statement_timestamp()) AS lives
    FROM {schema}.reservations WHERE queue = %(queue)s
), shown AS MATERIALIZED (
    SELECT kept.* FROM known CROSS JOIN LATERAL (
        SELECT ctid AS place, id, coalesce(turn, id) AS turn, octet_length(body) AS size
        FROM {schema}.messages AS m
        WHERE m.queue = %(queue)s AND m.key = known.key AND reserved AND holder IS NULL
        ORDER BY coalesce(turn, id) LIMIT %(limit)s FOR UPDATE SKIP LOCKED
    ) AS kept
    WHERE NOT lives AND ends_at > %(ended_from)s LIMIT %(limit)s
), due AS MATERIALIZED (
    SELECT ctid AS place, id, visible_at, key, octet_length(body) AS size FROM {schema}.messages
    WHERE queue = %(queue)s AND visible_at > %(due_from)s
        AND visible_at <= {schema}.micros(statement_timestamp())
    ORDER BY visible_at, id LIMIT %(limit)s - (SELECT count(*) FROM shown) FOR UPDATE SKIP LOCKED
), fresh AS MATERIALIZED (
    SELECT ctid AS place, id, key, octet_length(body) AS size FROM {schema}.messages
    WHERE queue = %(queue)s AND visible_at IS NULL AND id > %(fresh_from)s
    ORDER BY id LIMIT %(limit)s - (SELECT count(*) FROM shown) - (SELECT count(*) FROM due)
    FOR UPDATE SKIP LOCKED
), found AS MATERIALIZED (
    SELECT place, kind, at, kept, count(*) OVER () AS total,
        sum(CASE WHEN kept THEN 0 ELSE size END) OVER (ORDER BY kind, at, id) AS upto, size
    FROM (
        SELECT place, 0 AS kind, turn AS at, id, false AS kept, size FROM shown
        UNION ALL SELECT place, 1, visible_at, id, key IN (SELECT key FROM known WHERE lives), size FROM due
        UNION ALL SELECT place, 2, id, id, key IN (SELECT key FROM known WHERE lives), size FROM fresh
    ) AS all_kinds
)
UPDATE {schema}.messages AS m
SET visible_at = {schema}.micros(clock_timestamp()) + CASE WHEN kept THEN %(kept)s ELSE %(visibility)s END,
    receives = receives + CASE WHEN kept THEN 0 ELSE 1 END,
    holder = CASE WHEN kept THEN NULL ELSE %(holder)s END, reserved = coalesce(kept, false)
FROM fast, found WHERE m.ctid = found.place AND m.queue = %(queue)s
    AND (kept OR found.upto = found.size OR found.upto <= %(bytes)s)
RETURNING m.id, m.receives, m.excused, m.turn, CASE WHEN kept THEN NULL ELSE m.attributes END,
    CASE WHEN kept THEN NULL ELSE m.body END, found.total, {schema}.micros(statement_timestamp()),
    CASE WHEN kind = 1 THEN at END, kind = 0, (SELECT count(*) FROM known)"""

# Only messages due soon, to pass over few deleted rows.
NEXT_DUE = """
SELECT {schema}.micros(statement_timestamp()), least(
    (SELECT min(visible_at) FROM {schema}.messages
        WHERE queue = %(queue)s AND visible_at > {schema}.micros(statement_timestamp())
            AND visible_at < {schema}.micros(statement_timestamp()) + %(soon)s),
    (SELECT min(ends_at) FROM {schema}.reservations
        WHERE queue = %(queue)s AND ends_at > {schema}.micros(statement_timestamp()))),
    (SELECT count(*) FROM {schema}.reservations WHERE queue = %(queue)s)"""

# Sets aside messages of reserved keys among the first ready ones, and locks no others.
SORT = """
WITH fast AS MATERIALIZED (
    SELECT set_config('synchronous_commit', 'off', true)
), living AS MATERIALIZED (
    SELECT key FROM {schema}.reservations
    WHERE queue = %(queue)s AND ends_at > {schema}.micros(statement_timestamp())
), due AS MATERIALIZED (
    SELECT id, visible_at, key FROM {schema}.messages
    WHERE queue = %(queue)s AND visible_at > %(due_from)s
        AND visible_at <= {schema}.micros(statement_timestamp())
    ORDER BY visible_at, id LIMIT %(limit)s
), fresh AS MATERIALIZED (
    SELECT id, key FROM {schema}.messages
    WHERE queue = %(queue)s AND visible_at IS NULL AND id > %(fresh_from)s
    ORDER BY id LIMIT %(limit)s - (SELECT count(*) FROM due)
), kept AS MATERIALIZED (
    SELECT m.ctid AS place FROM (
        SELECT id FROM due WHERE key IN (SELECT key FROM living)
        UNION ALL SELECT id FROM fresh WHERE key IN (SELECT key FROM living)
    ) AS first JOIN {schema}.messages AS m ON m.queue = %(queue)s AND m.id = first.id
    WHERE m.visible_at IS NULL OR m.visible_at <= {schema}.micros(statement_timestamp())
    FOR UPDATE OF m SKIP LOCKED
), aside AS (
    UPDATE {schema}.messages AS m
    SET visible_at = {schema}.micros(clock_timestamp()) + %(kept)s, holder = NULL, reserved = true
    FROM kept WHERE m.ctid = kept.place AND m.queue = %(queue)s
)
SELECT (SELECT count(*) FROM due), (SELECT max(visible_at) FROM due), (SELECT count(*) FROM fresh),
    (SELECT max(id) FROM fresh), {schema}.micros(statement_timestamp())
FROM fast"""

# Forgets reservations that ended a minute ago and have nothing left: by then, every statement that saw it
# alive has ended. Messages of reserved keys are renewed in pieces, long before nodes of versions that know no
# keys would see them.
TIDY = """
WITH fast AS MATERIALIZED (
    SELECT set_config('synchronous_commit', 'off', true)
), ended AS MATERIALIZED (
    SELECT key FROM {schema}.reservations AS r
    WHERE queue = %(queue)s AND ends_at < {schema}.micros(statement_timestamp()) - 60000000 AND NOT EXISTS (
        SELECT FROM {schema}.messages AS m
        WHERE m.queue = %(queue)s AND m.key = r.key AND m.reserved AND m.holder IS NULL)
    ORDER BY key LIMIT 1000 FOR UPDATE OF r SKIP LOCKED
), forgotten AS (
    DELETE FROM {schema}.reservations AS r USING ended WHERE r.queue = %(queue)s AND r.key = ended.key
), lapsing AS MATERIALIZED (
    SELECT ctid AS place FROM {schema}.messages
    WHERE queue = %(queue)s AND visible_at > {schema}.micros(statement_timestamp())
        AND visible_at < {schema}.micros(statement_timestamp()) + %(kept)s / 3
        AND reserved AND holder IS NULL AND key IN (
            SELECT key FROM {schema}.reservations
            WHERE queue = %(queue)s AND ends_at > {schema}.micros(statement_timestamp()))
    ORDER BY visible_at LIMIT 1000 FOR UPDATE SKIP LOCKED
), renewed AS (
    UPDATE {schema}.messages AS m SET visible_at = {schema}.micros(clock_timestamp()) + %(kept)s
    FROM lapsing WHERE m.ctid = lapsing.place AND m.queue = %(queue)s
)
SELECT count(lapsing.*) FROM fast LEFT JOIN lapsing ON true"""

# All statements lock the rows in the same order, then change them. One with a delay below 0 is to be deleted:
# a role may have it that a NULL in an array is read as a text.
SETTLE = """
WITH fast AS MATERIALIZED (
    SELECT set_config('synchronous_commit', 'off', true)
), asked AS MATERIALIZED (
    SELECT * FROM unnest(%b::text[], %s::bigint[], %s::integer[], %s::bigint[], %s::boolean[])
    WITH ORDINALITY AS asked (queue, id, receives, delay, ends, place)
), known AS MATERIALIZED (
    SELECT place, m.queue, m.id, delay, ends, m.receives = asked.receives AND m.holder IS NOT NULL AS stands
    FROM asked JOIN {schema}.messages AS m ON m.queue = asked.queue AND m.id = asked.id
    ORDER BY m.queue, m.id FOR UPDATE OF m
), deleted AS (
    DELETE FROM {schema}.messages AS m USING known
    WHERE m.queue = known.queue AND m.id = known.id AND stands AND delay < 0
), shifted AS (
    UPDATE {schema}.messages AS m
    SET visible_at = {schema}.micros(clock_timestamp()) + delay,
        holder = CASE WHEN ends THEN NULL ELSE holder END
    FROM known WHERE m.queue = known.queue AND m.id = known.id AND stands AND delay >= 0
)
SELECT place, stands FROM fast, known"""

FREE = """
WITH fast AS MATERIALIZED (
    SELECT set_config('synchronous_commit', 'off', true)
), held AS MATERIALIZED (
    SELECT queue, id FROM {schema}.messages
    WHERE queue = %(queue)s AND visible_at > {schema}.micros(statement_timestamp()) AND holder = %(holder)s
    ORDER BY id FOR UPDATE SKIP LOCKED
), freed AS (
    UPDATE {schema}.messages AS m SET visible_at = {schema}.micros(clock_timestamp())
    FROM held WHERE m.queue = held.queue AND m.id = held.id RETURNING m.id
), reserved AS MATERIALIZED (
    SELECT key FROM {schema}.reservations
    WHERE queue = %(queue)s AND holder = %(holder)s AND ends_at > {schema}.micros(statement_timestamp())
    ORDER BY key FOR UPDATE
), ended AS (
    UPDATE {schema}.reservations AS r SET ends_at = {schema}.micros(clock_timestamp())
    FROM reserved WHERE r.queue = %(queue)s AND r.key = reserved.key
)
SELECT count(freed.*) FROM fast LEFT JOIN freed ON true"""


class SentMessage(NamedTuple):
    """A message to add. ``delay`` is in microseconds; below 0 it is a priority instead."""

    queue: str
    delay: int
    key: bytes
    attributes: str
    body: bytes


class ReceiveCall(NamedTuple):
    """A receive."""

    queue: str
    limit: int
    visibility: int
    holder: str


class ReceiveAnswer(NamedTuple):
    """The deliveries of a receive. If there are none, ``due_s`` is the seconds until a message may show: 0 if
    there may be more to set aside, infinite if that isn't soon."""

    deliveries: list[Delivery]
    due_s: float


class SettleCall(NamedTuple):
    """A call that settles deliveries. With a ``delay`` in microseconds they are hidden for that time, and
    ended with ``ends``. Without a delay, their messages are deleted."""

    queue: str
    receipts: Sequence[str]
    delay: int | None
    ends: bool


class PostgresMessages:
    """The messages in a database. ``send``, ``receive``, ``settle`` and ``free`` are operations of a lane;
    ``send_in_parts`` needs a transaction."""

    def __init__(self, database: PostgresDatabase, clock: Clock) -> None:
        self.database = database
        self._clock = clock
        self.marks: dict[str, Marks] = {}
        self._sortings: dict[str, Sorting] = {}
        self._send, self._receive, self._next_due = map(database.sql, (SEND, RECEIVE, NEXT_DUE))
        self._receive_and_keep = database.sql(RECEIVE_AND_KEEP)
        self._settle, self._free = map(database.sql, (SETTLE, FREE))
        self._sort, self._tidy = map(database.sql, (SORT, TIDY))

    async def send(self, connection: Connection, batches: Sequence[Sequence[SentMessage]]) -> list[list[str]]:
        """Add all messages; returns their ids."""
        messages = [message for batch in batches for message in batch]
        added = await connection.execute(self._send, sent_columns(messages))
        ids = iter(await added.fetchall())
        return [[str(next(ids)[0]) for _ in batch] for batch in batches]

    async def send_in_parts(
        self, connection: Connection, batches: Sequence[Sequence[SentMessage]]
    ) -> list[list[str]]:
        """Add messages that are too large for one statement; returns their ids."""
        ids: list[list[str]] = []
        for batch in batches:
            parts = [await self.send(connection, [part]) for part in by_bytes(batch, body_bytes, CALL_BYTES)]
            ids.append([number for [part] in parts for number in part])
        return ids

    async def receive(self, connection: Connection, asked: Sequence[ReceiveCall]) -> list[ReceiveAnswer]:
        """Take what can be delivered at once."""
        groups: dict[ReceiveCall, list[int]] = {}
        for place, one in enumerate(asked):
            groups.setdefault(one._replace(limit=0), []).append(place)
        taken: dict[int, ReceiveAnswer] = {}
        for group, places in groups.items():
            limits = [asked[place].limit for place in places]
            deliveries, due_s = await self._take(connection, group._replace(limit=sum(limits)))
            for place, limit in zip(places, limits, strict=True):
                taken[place], deliveries = ReceiveAnswer(deliveries[:limit], due_s), deliveries[limit:]
        return [taken[place] for place in range(len(asked))]

    def search_again(self, queue: str) -> None:
        """Have the next receive look from the beginning, because one may have failed."""
        self.marks.pop(queue, None)

    async def settle(self, connection: Connection, asked: Sequence[SettleCall]) -> list[list[str]]:
        """Delete, hide or end deliveries; returns the stale receipts of each; for a deletion, only if the
        message still exists."""
        rows: dict[tuple[str, int, int], tuple[int | None, bool]] = {}
        for one in asked:
            for receipt in one.receipts:
                if numbered := read_receipt(receipt):
                    row = (one.queue, *numbered)
                    if rows.get(row, (0, False))[0] is not None:  # else it is deleted, whatever else is asked
                        rows[row] = (one.delay, one.ends)
        if not rows:
            return [[] if one.delay is None else list(one.receipts) for one in asked]
        queues, *columns = zip(
            *((*row, -1 if delay is None else delay, ends) for row, (delay, ends) in rows.items()),
            strict=True,
        )
        settled = await connection.execute(self._settle, [list(queues), *map(numbers, columns)])
        places = list(rows)
        known = {places[place - 1]: stands for place, stands in await settled.fetchall()}
        return [_stale(one, known) for one in asked]

    async def free(self, connection: Connection, asked: Sequence[tuple[str, str]]) -> list[int]:
        """Show the messages of a dead holder; returns how many."""
        freed = []
        for queue, holder in asked:
            done = await connection.execute(self._free, {"queue": queue, "holder": holder})
            [count] = await done.fetchone() or (0,)
            freed.append(int(count))
        return freed

    async def sort(self, connection: Connection, queue: str) -> bool:
        """Set aside messages of reserved keys among the next ready ones; return True if all were looked
        at by now."""
        sorting = self._sortings.setdefault(queue, Sorting())
        begin_at = self._clock.monotonic()
        sorting.start(begin_at)
        looked = await self._look(connection, queue, sorting.due_from, sorting.fresh_from)
        sorting.move(looked, begin_at, self._clock.monotonic())
        return sorting.ended

    def sort_again(self, queue: str) -> None:
        """Have ``sort`` begin at the first ready message, because a key was reserved."""
        self._sortings.pop(queue, None)

    async def close(self) -> None:
        """Nothing is to be closed: the database is closed by who made it."""

    # --- how it is done

    async def _take(self, connection: Connection, asked: ReceiveCall) -> ReceiveAnswer:
        marks = self.marks.setdefault(asked.queue, Marks())
        begin_at = self._clock.monotonic()
        if marks.known and begin_at >= marks.tidy_at:
            tidied = await connection.execute(self._tidy, {"queue": asked.queue, "kept": KEPT_MICROS})
            [renewed] = await tidied.fetchone() or (0,)
            marks.tidy_at = begin_at + (WIDE_S if renewed else TIDY_S)
        marks.start(begin_at)
        call = {**asked._asdict(), "due_from": marks.due_from, "fresh_from": marks.fresh_from}
        call |= {"bytes": CALL_BYTES, "first": FIRST}
        if marks.known:
            call |= {"ended_from": marks.ended_from, "kept": KEPT_MICROS}
        receive = self._receive_and_keep if marks.known else self._receive
        taken = await connection.execute(receive, call, binary=True)
        rows = sorted((FoundRow(*row) for row in await taken.fetchall()), key=FoundRow.place)
        end_at = self._clock.monotonic()
        simple = not marks.known
        if rows:
            seen_at, due_s, marks.known = rows[0].now, 0.0, rows[0].known
        else:
            seen_at, due_s, marks.known = await self._due(connection, asked.queue)
            if simple and marks.known:  # so it took nothing
                return await self._take(connection, asked)
            seen_at -= math.ceil((self._clock.monotonic() - begin_at) * 1e6)  # it was looked then
        marks.move(rows, asked.limit, seen_at)
        marks.end(begin_at, end_at)
        deliveries = [delivery_of(*row[:6]) for row in rows if row.body is not None]
        if len(rows) == asked.limit and not deliveries:
            await self._look(connection, asked.queue, marks.due_from, marks.fresh_from)
        return ReceiveAnswer(deliveries, due_s)

    async def _look(self, connection: Connection, queue: str, due_from: int, fresh_from: int) -> SortResult:
        asked = {
            "queue": queue,
            "due_from": due_from,
            "fresh_from": fresh_from,
            "limit": SORT_MAX,
            "kept": KEPT_MICROS,
        }
        looked = await connection.execute(self._sort, asked, binary=True)
        return SortResult(*await looked.fetchone() or (0, None, 0, None, 0))

    async def _due(self, connection: Connection, queue: str) -> tuple[int, float, int]:
        """Return the server's time in microseconds, the seconds until a message shows (if that is soon), and
        the number of known reservations."""
        asked = {"queue": queue, "soon": round(SAFETY_S * 1e6)}
        looked = await connection.execute(self._next_due, asked, binary=True)
        now, due, known = await looked.fetchone() or (0, None, 0)
        return now, math.inf if due is None else max(0.0, (due - now) / 1e6), known


def delivery_of(
    number: int, receives: int, excused: int, turn: int | None, attributes: str | None, body: bytes | None
) -> Delivery:
    """Return a delivery as its row has it."""
    return Delivery(
        make_receipt(number, receives),
        str(number),
        body or b"",
        decode_attributes(attributes or ""),
        receives - excused,
        turn=number if turn is None else turn,
    )


def _stale(asked: SettleCall, known: dict[tuple[str, int, int], bool]) -> list[str]:
    gone_is_stale = asked.delay is not None
    stale = []
    for receipt in asked.receipts:
        numbered = read_receipt(receipt)
        stands = known.get((asked.queue, *numbered)) if numbered else None
        if stands is False or (stands is None and gone_is_stale):
            stale.append(receipt)
    return stale


def topic_of(queue: str) -> str:
    """Return the topic of a queue's receivers."""
    return f"queue:{queue}"


def delay_of(message: Outgoing) -> int:
    """Return the delay of a message that is added, in microseconds; its priority, negative, if it has one."""
    return micros(message.delay_s) or -max(0, message.priority)


def sent_message(queue: str, message: Outgoing) -> SentMessage:
    """Return the row of a message to add."""
    attributes = encode_attributes(message.attributes).decode()
    return SentMessage(queue, delay_of(message), message.key.encode(), attributes, message.body)


def sent_columns(messages: Sequence[SentMessage]) -> tuple[Any, ...]:
    """Return the parameters of ``SEND``."""
    queues, delays, keys, attributes, bodies = zip(*messages, strict=True)
    return list(queues), numbers(delays), list(keys), list(attributes), list(bodies)


def body_bytes(message: SentMessage) -> int:
    """Return the size of a message's body."""
    return len(message.body)
