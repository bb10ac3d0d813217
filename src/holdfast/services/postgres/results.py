"""The results log in PostgreSQL.

A commit takes the cursors of its results under the lock of the log, which it holds until it is committed. So
results show in the order of their cursors, and a reader that goes on from the last one misses none.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from holdfast.ports.clock import Clock
from holdfast.ports.state import Logged
from holdfast.services.postgres.bells import SAFETY_S
from holdfast.services.postgres.database import PostgresDatabase
from holdfast.services.postgres.lane import Connection
from holdfast.streams.rules.ledger import Result

TOPIC = "results"

EXPIRE_BATCH = 1000
"""Results that one transaction drops, so that commits don't wait for it."""

CURSOR_MAX = 2**63 - 1

READ = """
SELECT cursor, key, epoch, name, body, at FROM {schema}.results WHERE cursor > %s ORDER BY cursor LIMIT %s"""

READ_STREAM = """
SELECT cursor, key, epoch, name, body, at FROM {schema}.results
WHERE stream = %s AND cursor > %s ORDER BY cursor LIMIT %s"""

FIND = """
SELECT cursor, key, epoch, name, body, at FROM {schema}.results
WHERE key = %s AND name = %b ORDER BY cursor DESC LIMIT 1"""

# Of the first results after a cursor those that are old. The last one of all that expired stays known, so
# that no cursor comes twice.
EXPIRE = """
WITH oldest AS MATERIALIZED (
    SELECT cursor, at FROM {schema}.results WHERE cursor > %s
    ORDER BY cursor LIMIT %s FOR UPDATE SKIP LOCKED),
gone AS (
    DELETE FROM {schema}.results r USING oldest o WHERE r.cursor = o.cursor AND o.at < %s RETURNING r.cursor),
noted AS (
    UPDATE {schema}.expired_results SET last = g.last FROM (SELECT max(cursor) AS last FROM gone) g
    WHERE g.last > expired_results.last)
SELECT count(*), max(cursor) FROM gone"""


class PostgresResults:
    """The results of all streams."""

    def __init__(self, database: PostgresDatabase, clock: Clock) -> None:
        self._database = database
        self._lane = database.lane("state")
        self._clock = clock
        self._closings = 0
        sql = database.sql
        self._read, self._read_stream = sql(READ), sql(READ_STREAM)
        self._find, self._expire = sql(FIND), sql(EXPIRE)

    async def read(self, after: int, limit: int, wait_s: float, stream: str) -> list[Logged]:
        """As the port says of ``results``."""
        deadline, closings = self._clock.monotonic() + wait_s, self._closings
        after = min(max(after, 0), CURSOR_MAX)
        with self._database.bells.listen(TOPIC) as rung:
            while True:
                rung.clear()
                found = await self._lane.read(partial(self._page, after=after, limit=limit, stream=stream))
                remaining_s = deadline - self._clock.monotonic()
                if found or remaining_s <= 0 or self._closings != closings:
                    return found
                await self._clock.wait(rung, min(remaining_s, SAFETY_S))

    async def find(self, key: str, name: str) -> Logged | None:
        """As the port says of ``result``."""

        async def find(connection: Connection) -> Logged | None:
            rows = await connection.execute(self._find, (key, name.encode()), binary=True)
            row = await rows.fetchone()
            return _logged(row) if row else None

        return None if "\0" in key else await self._lane.read(find)

    async def expire(self, before: float) -> int:
        """Drop results older than a wall time; returns how many."""
        dropped, after, batch = 0, 0, 1

        async def expire(connection: Connection) -> tuple[int, int]:
            rows = await connection.execute(self._expire, (after, EXPIRE_BATCH, before), binary=True)
            count, last = await rows.fetchone() or (0, 0)
            return count, last or 0

        while batch:
            batch, after = await self._lane.write(expire)
            dropped += batch
        return dropped

    def close(self) -> None:
        """End waiting readers."""
        self._closings += 1
        self._database.bells.ring_here([TOPIC])

    async def _page(self, connection: Connection, after: int, limit: int, stream: str) -> list[Logged]:
        if stream:
            rows = await connection.execute(self._read_stream, (stream, after, limit), binary=True)
        else:
            rows = await connection.execute(self._read, (after, limit), binary=True)
        return [_logged(row) for row in await rows.fetchall()]


def _logged(row: Sequence[Any]) -> Logged:
    cursor, key, epoch, name, body, at = row
    return Logged(cursor, key, epoch, Result(name.decode(), body), at)
