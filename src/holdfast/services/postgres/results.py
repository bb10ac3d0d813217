"""The results log in PostgreSQL.

A commit takes the cursors of its results under a lock, which it holds until it is committed. They are above
all visible cursors and above the server's time, so that a server that has lost its last results uses no
cursor again.

Each writer has its own lock, so that no process waits until another one's commit is on disk. A reader must
not pass a cursor below which another may still become visible. A commit with a lower cursor than a visible
one took it earlier, and so was under way when the reader saw the visible one. So the reader notes the last
cursor of its page, then waits for all commits under way, and reads the page up to that cursor.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from holdfast.ports.clock import Clock
from holdfast.ports.state import Logged
from holdfast.rules.streams.ledger import Result
from holdfast.services.postgres.bells import SAFETY_S
from holdfast.services.postgres.changes import log_lock
from holdfast.services.postgres.database import PostgresDatabase
from holdfast.services.postgres.lane import Connection

TOPIC = "results"

EXPIRE_BATCH = 1000
"""Results that one transaction drops, so that commits don't wait for it."""

CURSOR_MAX = 2**63 - 1

LAST = """
SELECT max(cursor) FROM (
    SELECT cursor FROM {schema}.results WHERE {stream}cursor > %s ORDER BY cursor LIMIT %s) page"""

READ = """
SELECT cursor, key, epoch, name, body, at FROM {schema}.results
WHERE {stream}cursor > %s AND cursor <= %s ORDER BY cursor LIMIT %s"""

STREAM = "stream = %s AND "

# A session that waits for a lock has no cursors yet; its cursors will be above all that are visible now.
UNDER_WAY = """
SELECT pid, virtualtransaction FROM pg_locks
WHERE locktype = 'advisory' AND classid = %s AND objsubid = 2 AND granted
AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"""

PAUSE_S = 0.001
"""Seconds until the next check of the commits under way."""

FIND = """
SELECT cursor, key, epoch, name, body, at FROM {schema}.results
WHERE key = %s AND name = %b ORDER BY cursor DESC LIMIT 1"""

# Drops the old ones of the first results after a cursor. The last expired cursor is kept, so that no cursor
# is used twice.
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
        self._lock = log_lock(database.address.schema)
        self._last, self._read = [sql(query.replace("{stream}", "")) for query in (LAST, READ)]
        self._last_of, self._read_of = [sql(query.replace("{stream}", STREAM)) for query in (LAST, READ)]
        self._find, self._expire = sql(FIND), sql(EXPIRE)

    async def read(self, after: int, limit: int, wait_s: float, stream: str) -> list[Logged]:
        """See ``results`` of the port."""
        deadline, closings = self._clock.monotonic() + wait_s, self._closings
        after = min(max(after, 0), CURSOR_MAX)
        with self._database.bells.listen(TOPIC) as rung:
            while True:
                rung.clear()
                found = await self._page(after, limit, [stream] if stream else [])
                remaining_s = deadline - self._clock.monotonic()
                if found or remaining_s <= 0 or self._closings != closings:
                    return found
                await self._clock.wait(rung, min(remaining_s, SAFETY_S))

    async def find(self, key: str, name: str) -> Logged | None:
        """See ``result`` of the port."""
        if "\0" in key:
            return None
        rows = await self._lane.rows(self._find, (key, name.encode()))
        return _logged(rows[0]) if rows else None

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

    async def _page(self, after: int, limit: int, stream: list[str]) -> list[Logged]:
        query = self._last_of if stream else self._last
        [[last]] = await self._lane.rows(query, (*stream, after, limit))
        if last is None:
            return []
        await self._written()
        query = self._read_of if stream else self._read
        return [_logged(row) for row in await self._lane.rows(query, (*stream, after, last, limit))]

    async def _written(self) -> None:
        """Wait until all commits that are under way now have ended."""
        writing = await self._under_way()
        while writing:
            await self._clock.sleep(PAUSE_S)
            writing &= await self._under_way()

    async def _under_way(self) -> set[tuple[int, str]]:
        rows = await self._lane.rows(UNDER_WAY.encode(), (self._lock,))
        return {(pid, transaction) for pid, transaction in rows}


def _logged(row: Sequence[Any]) -> Logged:
    cursor, key, epoch, name, body, at = row
    return Logged(cursor, key, epoch, Result(name.decode(), body), at)
