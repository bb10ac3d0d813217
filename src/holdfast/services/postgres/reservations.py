"""The reservations of keys: they keep the messages of a key for one membership, in order of arrival.

A message of a reserved key is set aside once, when it is found among the ready ones. It stays so when the
reservation ends: receives then find it by its key. A statement may set a message aside just when another one
ends the reservation, so ended reservations are remembered for a while.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from holdfast.common.queue_calls import CALL_BYTES, read_receipt
from holdfast.ports.clock import Clock
from holdfast.ports.queue import Delivery, PutBack, Taken
from holdfast.services.postgres.arrays import numbers
from holdfast.services.postgres.lane import Connection
from holdfast.services.postgres.messages import KEPT_MICROS, PostgresMessages, delivery_of

SLOW_S = 0.2
"""Seconds beyond which a take is slow: it passes over deleted rows that can't be removed, because another
program holds a transaction open. The next takes go on from its end, though earlier messages may have come."""

FULL_SHARE = 0.1
"""Share of the time in which takes may then start from the beginning of a key."""

RESERVE = """
WITH fast AS MATERIALIZED (
    SELECT set_config('synchronous_commit', 'off', true)
)
INSERT INTO {schema}.reservations AS r (queue, key, holder, epoch, ends_at)
SELECT %(queue)s, %(key)b, %(holder)s, %(epoch)s, {schema}.micros(clock_timestamp()) + %(lasts)s FROM fast
ON CONFLICT (queue, key) DO UPDATE
SET holder = excluded.holder, ends_at = excluded.ends_at,
    epoch = CASE WHEN r.holder = excluded.holder AND r.ends_at > {schema}.micros(clock_timestamp())
        THEN greatest(r.epoch, excluded.epoch) ELSE excluded.epoch END
WHERE r.holder = excluded.holder OR r.epoch <= excluded.epoch
    OR r.ends_at <= {schema}.micros(clock_timestamp())
RETURNING 1"""

# In the order in which all statements lock them.
KEEP = """
WITH fast AS MATERIALIZED (
    SELECT set_config('synchronous_commit', 'off', true)
), living AS MATERIALIZED (
    SELECT key FROM {schema}.reservations
    WHERE queue = %(queue)s AND key = ANY (%(keys)b::bytea[]) AND holder = %(holder)s
        AND ends_at > {schema}.micros(statement_timestamp())
    ORDER BY key FOR UPDATE
)
UPDATE {schema}.reservations AS r SET ends_at = {schema}.micros(clock_timestamp()) + %(lasts)s
FROM fast, living WHERE r.queue = %(queue)s AND r.key = living.key
RETURNING r.key"""

# Checking the holder, and reading and delivering the key's messages, are one step. Rows that another has
# locked are waited for: if passed over, they would come behind later ones.
TAKE = """
WITH fast AS MATERIALIZED (
    SELECT set_config('synchronous_commit', 'off', true)
), held AS MATERIALIZED (
    SELECT FROM {schema}.reservations
    WHERE queue = %(queue)s AND key = %(key)b AND holder = %(holder)s
        AND ends_at > {schema}.micros(statement_timestamp())
), kept AS MATERIALIZED (
    SELECT ctid AS place, coalesce(turn, id) AS turn, octet_length(body) AS size FROM {schema}.messages
    WHERE queue = %(queue)s AND key = %(key)b AND reserved AND holder IS NULL
        AND coalesce(turn, id) > %(after)s AND EXISTS (SELECT FROM held)
    ORDER BY coalesce(turn, id) LIMIT %(limit)s + 1 FOR UPDATE
), found AS MATERIALIZED (
    SELECT place, row_number() OVER in_turn AS nth, sum(size) OVER in_turn AS upto
    FROM kept WINDOW in_turn AS (ORDER BY turn ROWS UNBOUNDED PRECEDING)
), taken AS (
    UPDATE {schema}.messages AS m
    SET visible_at = {schema}.micros(clock_timestamp()) + %(visibility)s, receives = receives + 1,
        holder = %(holder)s, reserved = false
    FROM found WHERE m.ctid = found.place AND m.queue = %(queue)s
        AND nth <= %(limit)s AND (nth = 1 OR upto <= %(bytes)s)
    RETURNING m.id, m.receives, m.excused, m.turn, m.attributes, m.body
)
SELECT EXISTS (SELECT FROM held), (SELECT count(*) FROM kept), taken.* FROM fast LEFT JOIN taken ON true"""

PUT_BACK = """
WITH fast AS MATERIALIZED (
    SELECT set_config('synchronous_commit', 'off', true)
), asked AS MATERIALIZED (
    SELECT * FROM unnest(%b::text[], %s::bigint[], %s::integer[], %b::bytea[], %s::boolean[])
    WITH ORDINALITY AS asked (queue, id, receives, key, counted, place)
), known AS MATERIALIZED (
    SELECT place, m.queue, m.id, coalesce(nullif(asked.key, ''), m.key) AS key, counted,
        m.receives = asked.receives AND m.holder IS NOT NULL AS stands
    FROM asked JOIN {schema}.messages AS m ON m.queue = asked.queue AND m.id = asked.id
    ORDER BY m.queue, m.id FOR UPDATE OF m
), returned AS MATERIALIZED (
    SELECT queue, id, key, counted, EXISTS (
        SELECT FROM {schema}.reservations AS r
        WHERE r.queue = known.queue AND r.key = known.key
            AND r.ends_at > {schema}.micros(statement_timestamp())
    ) AS kept
    FROM known WHERE stands
), shown AS (
    UPDATE {schema}.messages AS m
    SET visible_at = {schema}.micros(clock_timestamp()) + CASE WHEN kept THEN %s ELSE 0 END, holder = NULL,
        reserved = kept, key = returned.key, excused = excused + CASE WHEN counted THEN 0 ELSE 1 END
    FROM returned WHERE m.queue = returned.queue AND m.id = returned.id
)
SELECT place, stands FROM fast, known"""

UNRESERVE = """
WITH fast AS MATERIALIZED (
    SELECT set_config('synchronous_commit', 'off', true)
)
UPDATE {schema}.reservations AS r SET ends_at = {schema}.micros(clock_timestamp())
FROM fast WHERE queue = %(queue)s AND key = %(key)b AND holder = %(holder)s
    AND ends_at > {schema}.micros(clock_timestamp())"""


class ReserveCall(NamedTuple):
    """A reservation to make, for ``lasts`` microseconds."""

    queue: str
    key: bytes
    holder: str
    epoch: int
    lasts: int


class KeepCall(NamedTuple):
    """Reservations to renew, for ``lasts`` microseconds."""

    queue: str
    keys: Sequence[bytes]
    holder: str
    lasts: int


class UnreserveCall(NamedTuple):
    """A reservation to give up."""

    queue: str
    key: bytes
    holder: str


class TakeCall(NamedTuple):
    """A take. ``visibility`` is in microseconds."""

    queue: str
    key: bytes
    holder: str
    limit: int
    visibility: int
    after: int


class PutBackCall(NamedTuple):
    """Deliveries of a queue to put back."""

    queue: str
    returned: Sequence[PutBack]


class _TakeMark(NamedTuple):
    """The last turn that was taken of a key of which there is more. Takes go on from there ``until`` then,
    and look from the start of the key otherwise."""

    turn: int
    until: float


class PostgresReservations:
    """The reservations in a database. All are operations of a lane. A take runs alone: its messages would be
    lost if another one in the same call failed."""

    def __init__(self, messages: PostgresMessages, clock: Clock) -> None:
        self._messages = messages
        self._clock = clock
        sql = messages.database.sql
        self._reserve, self._keep, self._unreserve = map(sql, (RESERVE, KEEP, UNRESERVE))
        self._take, self._put_back = map(sql, (TAKE, PUT_BACK))
        self._left: dict[tuple[str, bytes], _TakeMark] = {}
        """The queues and keys of which the last take has left something."""

    async def reserve(self, connection: Connection, asked: Sequence[ReserveCall]) -> list[bool]:
        """Make or renew reservations; returns whether each is held."""
        held = []
        for one in asked:
            made = await connection.execute(self._reserve, one._asdict(), binary=True)
            held.append(await made.fetchone() is not None)
        for queue in {one.queue for one in asked}:
            self._messages.sort_again(queue)
        return held

    async def keep(self, connection: Connection, asked: Sequence[KeepCall]) -> list[list[bytes]]:
        """Renew reservations; returns the keys that are still reserved."""
        kept = []
        for one in asked:
            call = {**one._asdict(), "keys": list(one.keys)}
            renewed = await connection.execute(self._keep, call, binary=True)
            kept.append([key for (key,) in await renewed.fetchall()])
        return kept

    async def unreserve(self, connection: Connection, asked: Sequence[UnreserveCall]) -> list[None]:
        """Give up reservations."""
        for one in asked:
            self._left.pop((one.queue, one.key), None)
            await connection.execute(self._unreserve, one._asdict())
        return [None for _ in asked]

    async def take(self, connection: Connection, asked: TakeCall) -> Taken | None:
        """Deliver the messages of a reserved key to its holder. Unless the last take has left some, ready
        messages are set aside first."""
        place = (asked.queue, asked.key)
        left = self._left.get(place)
        all_sorted = left is None and await self._messages.sort(connection, asked.queue)
        begin_at = self._clock.monotonic()
        after = max(asked.after, left.turn) if left and begin_at < left.until else asked.after
        call = {**asked._asdict(), "after": after, "bytes": CALL_BYTES}
        rows = await (await connection.execute(self._take, call, binary=True)).fetchall()
        held, found = rows[0][:2]
        deliveries = sorted((delivery_of(*row[2:]) for row in rows if row[2] is not None), key=_turn)
        if deliveries and found > len(deliveries):
            until = left.until if left else begin_at
            if not after and (took_s := self._clock.monotonic() - begin_at) > SLOW_S:
                until = begin_at + took_s / FULL_SHARE
            self._left[place] = _TakeMark(_turn(deliveries[-1]), until)
        else:
            self._left.pop(place, None)
            if left and held and not deliveries:
                return await self.take(connection, asked)
        return Taken(deliveries, found > len(deliveries) or not all_sorted) if held else None

    async def put_back(self, connection: Connection, asked: Sequence[PutBackCall]) -> list[list[str]]:
        """End deliveries that nothing has begun; returns the stale receipts of each call."""
        rows: dict[tuple[str, int, int], tuple[bytes, bool]] = {}
        for one in asked:
            for each in one.returned:
                self._left.pop((one.queue, each.key.encode()), None)
                if numbered := read_receipt(each.receipt):
                    rows[(one.queue, *numbered)] = (each.key.encode(), each.counted)
        standing: set[tuple[str, int, int]] = set()
        if rows:
            queues, numbers_, receives = zip(*rows, strict=True)
            keys, counted = zip(*rows.values(), strict=True)
            columns = (list(queues), numbers(numbers_), numbers(receives), list(keys), numbers(counted))
            returned = await connection.execute(self._put_back, (*columns, KEPT_MICROS), binary=True)
            places = list(rows)
            standing = {places[place - 1] for place, stands in await returned.fetchall() if stands}
        return [
            [
                each.receipt
                for each in one.returned
                if (one.queue, *(read_receipt(each.receipt) or (0, 0))) not in standing
            ]
            for one in asked
        ]


def _turn(delivery: Delivery) -> int:
    return delivery.turn or 0
