"""The messages of all queues of a database. Each operation serves all calls that come together.

While somebody holds a transaction open, PostgreSQL can't remove what is deleted, and every scan of an index
passes over all of it. So receives look only from where the last one ended, less a margin for what was
committed late. Now and then one looks back farther, and from the beginning, for what was committed later
still: not so often that it matters, however long it takes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from holdfast.common.queue_calls import (
    decode_attributes,
    encode_attributes,
    make_receipt,
    read_receipt,
)
from holdfast.ports.clock import Clock
from holdfast.ports.queue import Delivery, Outgoing
from holdfast.services.postgres.arrays import numbers
from holdfast.services.postgres.bells import SAFETY_S
from holdfast.services.postgres.database import PostgresDatabase
from holdfast.services.postgres.lane import Connection

ItemT = TypeVar("ItemT")

CALL_BYTES = 16 << 20
"""The most bytes of bodies in one statement, unless a single body is larger."""

MICROS_MAX = 10**15
"""The longest time in a call, some 31 years."""

MARGIN_S = 0.25
"""How late a commit may be for the next receive to see its messages."""

WIDE_MARGIN_S = 10.0
"""How late it may be for those receives that look back farther: longer than most transactions of callers."""

WIDE_S = 1.0
"""The least time between two receives of a queue that look back farther, or from the beginning."""

WIDE_SHARE = 0.02
"""The largest part of the time that receives spend on looking so."""

EPOCH_MS = 1_577_836_800_000
COUNT_BITS = 20

SEND = """
INSERT INTO {schema}.messages (queue, visible_at, attributes, body)
SELECT queue, CASE WHEN delay > 0 THEN {schema}.micros(clock_timestamp()) + delay END, attributes, body
FROM unnest(%b::text[], %s::bigint[], %b::text[], %b::bytea[]) AS sent (queue, delay, attributes, body)
RETURNING id"""

# What comes again comes first, oldest first. Nobody waits for the disk, here and below: what a crash of the
# server takes back of a delivery, or of its end, is delivered again.
RECEIVE = """
WITH fast AS MATERIALIZED (
    SELECT set_config('synchronous_commit', 'off', true)
), due AS MATERIALIZED (
    SELECT ctid AS place, id, visible_at, octet_length(body) AS size FROM {schema}.messages
    WHERE queue = %(queue)s AND visible_at > %(due_from)s
        AND visible_at <= {schema}.micros(statement_timestamp())
    ORDER BY visible_at, id LIMIT %(limit)s FOR UPDATE SKIP LOCKED
), fresh AS MATERIALIZED (
    SELECT ctid AS place, id, visible_at, octet_length(body) AS size FROM {schema}.messages
    WHERE queue = %(queue)s AND visible_at IS NULL AND id > %(fresh_from)s
    ORDER BY id LIMIT %(limit)s - (SELECT count(*) FROM due) FOR UPDATE SKIP LOCKED
), found AS MATERIALIZED (
    SELECT place, visible_at, count(*) OVER () AS total,
        sum(size) OVER (ORDER BY visible_at NULLS LAST, id) AS upto, size
    FROM (SELECT * FROM due UNION ALL SELECT * FROM fresh) AS both_kinds
)
UPDATE {schema}.messages AS m
SET visible_at = {schema}.micros(clock_timestamp()) + %(visibility)s, receives = receives + 1,
    holder = %(holder)s
FROM fast, found WHERE m.ctid = found.place AND m.queue = %(queue)s
    AND (found.upto = found.size OR found.upto <= %(bytes)s)
RETURNING found.visible_at, m.id, m.receives, m.attributes, m.body, found.total,
    {schema}.micros(statement_timestamp())"""

# Only what comes soon, to pass over few rows that were deleted meanwhile.
NEXT_DUE = """
SELECT {schema}.micros(statement_timestamp()), min(visible_at) FROM {schema}.messages
WHERE queue = %s AND visible_at > {schema}.micros(statement_timestamp())
    AND visible_at < {schema}.micros(statement_timestamp()) + %s"""

# The rows are locked in one order, whoever asks, and changed then. One without delay is to be deleted.
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
    WHERE m.queue = known.queue AND m.id = known.id AND stands AND delay IS NULL
), shifted AS (
    UPDATE {schema}.messages AS m
    SET visible_at = {schema}.micros(clock_timestamp()) + delay,
        holder = CASE WHEN ends THEN NULL ELSE holder END
    FROM known WHERE m.queue = known.queue AND m.id = known.id AND stands AND delay IS NOT NULL
)
SELECT place, stands FROM fast, known"""

FREE = """
WITH fast AS MATERIALIZED (
    SELECT set_config('synchronous_commit', 'off', true)
), held AS MATERIALIZED (
    SELECT queue, id FROM {schema}.messages
    WHERE queue = %s AND visible_at > {schema}.micros(statement_timestamp()) AND holder = %s
    ORDER BY id FOR UPDATE SKIP LOCKED
), freed AS (
    UPDATE {schema}.messages AS m SET visible_at = {schema}.micros(clock_timestamp())
    FROM held WHERE m.queue = held.queue AND m.id = held.id RETURNING m.id
)
SELECT count(freed.*) FROM fast LEFT JOIN freed ON true"""


class SentMessage(NamedTuple):
    """A message to add. ``delay`` is in microseconds."""

    queue: str
    delay: int
    attributes: str
    body: bytes


class ReceiveCall(NamedTuple):
    """A receive."""

    queue: str
    limit: int
    visibility: int
    holder: str


class ReceiveAnswer(NamedTuple):
    """The deliveries of a receive. If there are none, ``due_s`` is in how many seconds a message shows;
    infinite if that isn't soon."""

    deliveries: list[Delivery]
    due_s: float


class SettleCall(NamedTuple):
    """A call that settles deliveries. With a ``delay`` in microseconds they are hidden for so long, and ended
    if ``ends`` says so; without, their messages are deleted."""

    queue: str
    receipts: Sequence[str]
    delay: int | None
    ends: bool


@dataclass(slots=True)
class _Marks:
    """From where receives look: a time in microseconds, and an id. ``seen_at`` is the server's time of the
    last look, in microseconds; ``wide_at`` and ``full_at`` are when the next one looks back farther."""

    due_from: int = 0
    fresh_from: int = 0
    seen_at: int = 0
    wide_at: float = -math.inf
    full_at: float = -math.inf

    def start(self, now: float) -> None:
        """Begin a look."""
        if now >= self.full_at or now >= self.wide_at:
            since = 0 if now >= self.full_at else self.seen_at - round(WIDE_MARGIN_S * 1e6)
            self.due_from = min(self.due_from, since)
            self.fresh_from = min(self.fresh_from, _least_id(since))

    def end(self, began_at: float, now: float) -> None:
        """End a look: the longer it took, the later is the next one of its kind."""
        next_at = now + max(WIDE_S, (now - began_at) / WIDE_SHARE)
        if began_at >= self.full_at:
            self.full_at = self.wide_at = next_at
        elif began_at >= self.wide_at:
            self.wide_at = next_at

    def move(self, rows: Sequence[Sequence[Any]], limit: int, seen_at: int) -> None:
        """Move over what a look has passed."""
        self.seen_at = seen_at
        until = seen_at - round(MARGIN_S * 1e6)
        due = [visible_at for visible_at, *_ in rows if visible_at is not None]
        fresh = [number for visible_at, number, *_ in rows if visible_at is None]
        all_due, all_fresh = until, _least_id(until)
        if rows and (len(rows) == limit or len(rows) < rows[0][-2]):  # there may be more
            all_due = all_due if fresh else min(all_due, max(due) - 1)
            all_fresh = min(all_fresh, max(fresh, default=0))
        self.due_from = max(self.due_from, all_due)
        self.fresh_from = max(self.fresh_from, all_fresh)


class PostgresMessages:
    """The messages in a database. ``send``, ``receive``, ``settle`` and ``free`` are operations of a lane, of
    one statement each; ``send_in_parts`` needs a transaction."""

    def __init__(self, database: PostgresDatabase, clock: Clock) -> None:
        self.database = database
        self._clock = clock
        self._marks: dict[str, _Marks] = {}
        self._send, self._receive, self._next_due = map(database.sql, (SEND, RECEIVE, NEXT_DUE))
        self._settle, self._free = map(database.sql, (SETTLE, FREE))

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
            parts = [await self.send(connection, [part]) for part in by_bytes(batch, body_bytes)]
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

    def look_anew(self, queue: str) -> None:
        """Have the next receive look from the beginning, because one may have failed."""
        self._marks.pop(queue, None)

    async def settle(self, connection: Connection, asked: Sequence[SettleCall]) -> list[list[str]]:
        """Delete, hide or end deliveries; returns the stale receipts of each: of those to be deleted, only
        those whose messages are there."""
        rows: dict[tuple[str, int, int], tuple[int | None, bool]] = {}
        for one in asked:
            for receipt in one.receipts:
                if said := read_receipt(receipt):
                    row = (one.queue, *said)
                    if rows.get(row, (0, False))[0] is not None:  # else it is deleted, whatever else is asked
                        rows[row] = (one.delay, one.ends)
        if not rows:
            return [[] if one.delay is None else list(one.receipts) for one in asked]
        queues, *columns = zip(*((*row, *becomes) for row, becomes in rows.items()), strict=True)
        told = await connection.execute(self._settle, [list(queues), *map(numbers, columns)])
        places = list(rows)
        known = {places[place - 1]: stands for place, stands in await told.fetchall()}
        return [_stale(one, known) for one in asked]

    async def free(self, connection: Connection, asked: Sequence[tuple[str, str]]) -> list[int]:
        """Show what the dead holder of a queue's deliveries had; returns how many."""
        freed = [await (await connection.execute(self._free, one)).fetchone() or (0,) for one in asked]
        return [int(count) for (count,) in freed]

    async def close(self) -> None:
        """Nothing is to be closed: the database is closed by who made it."""

    # --- how it is done

    async def _take(self, connection: Connection, asked: ReceiveCall) -> ReceiveAnswer:
        marks = self._marks.setdefault(asked.queue, _Marks())
        begin_at = self._clock.monotonic()
        marks.start(begin_at)
        call = {**asked._asdict(), "due_from": marks.due_from, "fresh_from": marks.fresh_from}
        taken = await connection.execute(self._receive, {**call, "bytes": CALL_BYTES}, binary=True)
        rows = sorted(await taken.fetchall(), key=_in_turn)
        end_at = self._clock.monotonic()
        if rows:
            seen_at, due_s = rows[0][-1], 0.0
        else:
            seen_at, due_s = await self._due(connection, asked.queue)
            seen_at -= math.ceil((self._clock.monotonic() - begin_at) * 1e6)  # it was looked then
        marks.move(rows, asked.limit, seen_at)
        marks.end(begin_at, end_at)
        deliveries = [
            Delivery(
                make_receipt(number, receives), str(number), body, decode_attributes(attributes), receives
            )
            for _, number, receives, attributes, body, *_ in rows
        ]
        return ReceiveAnswer(deliveries, due_s)

    async def _due(self, connection: Connection, queue: str) -> tuple[int, float]:
        """The server's time in microseconds, and in how many seconds something shows, if it is soon."""
        looked = await connection.execute(self._next_due, (queue, round(SAFETY_S * 1e6)), binary=True)
        now, due = await looked.fetchone() or (0, None)
        return now, math.inf if due is None else max(0.0, (due - now) / 1e6)


def _in_turn(row: Sequence[Any]) -> tuple[bool, int, int]:
    visible_at, number, *_ = row
    return visible_at is None, visible_at or 0, number


def _least_id(at: int) -> int:
    """The least id that a message may have that was sent then or later."""
    return max(0, (at // 1000 - EPOCH_MS) << COUNT_BITS)


def _stale(asked: SettleCall, known: dict[tuple[str, int, int], bool]) -> list[str]:
    gone_is_stale = asked.delay is not None
    stale = []
    for receipt in asked.receipts:
        said = read_receipt(receipt)
        stands = known.get((asked.queue, *said)) if said else None
        if stands is False or (stands is None and gone_is_stale):
            stale.append(receipt)
    return stale


def topic_of(queue: str) -> str:
    """Return the topic that is rung for those who receive from a queue."""
    return f"queue:{queue}"


def micros(seconds: float) -> int:
    """A time as the queue's statements take it."""
    return round(max(0.0, min(seconds * 1e6, MICROS_MAX)))


def sent_message(queue: str, message: Outgoing) -> SentMessage:
    """A message as it is added."""
    attributes = encode_attributes(message.attributes).decode()
    return SentMessage(queue, micros(message.delay_s), attributes, message.body)


def sent_columns(messages: Sequence[SentMessage]) -> tuple[Any, ...]:
    """The parameters of ``SEND``."""
    queues, delays, attributes, bodies = zip(*messages, strict=True)
    return list(queues), numbers(delays), list(attributes), list(bodies)


def body_bytes(message: SentMessage) -> int:
    """The size of a message's body."""
    return len(message.body)


def by_bytes(items: Sequence[ItemT], bytes_of: Callable[[ItemT], int]) -> list[Sequence[ItemT]]:
    """Items in parts that are small enough for a statement."""
    parts, begin, size = [], 0, 0
    for place, item in enumerate(items):
        size += bytes_of(item)
        if size > CALL_BYTES and place > begin:
            parts.append(items[begin:place])
            begin, size = place, bytes_of(item)
    if begin < len(items):
        parts.append(items[begin:])
    return parts
