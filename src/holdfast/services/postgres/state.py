"""The state store in PostgreSQL. See ``changes.py`` for the writes, and ``results.py`` for the results
log."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

from holdfast.errors import OperationRefused
from holdfast.ports.clock import Clock
from holdfast.ports.state import Logged, check_state
from holdfast.rules.streams.ledger import Checkpoint, Commit
from holdfast.services.postgres import changes
from holdfast.services.postgres.changes import CHANCE, OpenCall, StartCall, StateCall, StateChanges, Undecided
from holdfast.services.postgres.database import PostgresDatabase
from holdfast.services.postgres.lane import Connection, weight_of
from holdfast.services.postgres.results import TOPIC, PostgresResults
from holdfast.services.postgres.transfer import StateTransfer

PEEK = f"SELECT {changes.WHOLE} FROM {{schema}}.checkpoints s WHERE s.key = %s"  # noqa: S608

NOW = "SELECT extract(epoch FROM clock_timestamp())::float8"

LIST = """
SELECT key, epoch, number, at, due, record, timers, NULL, NULL, NULL FROM {schema}.checkpoints
WHERE key > %s ORDER BY key LIMIT %s"""

DUE = """
SELECT extract(epoch FROM clock_timestamp())::float8,
    EXISTS (SELECT FROM {schema}.checkpoints WHERE due > 0 AND due >= %s AND due < %s)"""

# A locked row is being committed, which replaces its time.
LEASE = """
WITH found AS MATERIALIZED (
    SELECT ctid AS place, key, due FROM {schema}.checkpoints WHERE due > 0 AND due >= %s AND due < %s
    ORDER BY due LIMIT %s FOR UPDATE SKIP LOCKED)
UPDATE {schema}.checkpoints s SET due = %s FROM found f WHERE s.ctid = f.place AND s.key = f.key
RETURNING f.due, s.key"""

IDLE = """
SELECT key FROM {schema}.checkpoints
WHERE key > %s AND at > 0 AND at < %s AND due = 0 AND pending = 0 ORDER BY key LIMIT %s"""

IDLE_LOCK = """
SELECT id, key, at, timers, record FROM {schema}.checkpoints
WHERE key = ANY(%b::text[]) AND at > 0 AND at < %s AND due = 0 AND pending = 0
ORDER BY key FOR UPDATE SKIP LOCKED"""

EXPIRE = """
UPDATE {schema}.checkpoints s SET at = 0, timers = '', state = NULL, record = c.record
FROM unnest(%b::text[], %b::bytea[]) AS c (key, record) WHERE s.key = c.key"""

FORGET = "DELETE FROM {schema}.recents WHERE checkpoint = ANY(%s::bigint[])"

DUE_MARGIN_S = 10.0
"""Seconds by which a commit may be late for the next search to find its key."""

WIDE_SHARE = 0.02
"""Share of the time that searches from the beginning may take."""

EXPIRE_BATCH = 500
"""Checkpoints that one transaction expires, so that commits don't wait for it."""


class _DueMark:
    """The time from which searches for due keys begin. Before it there are only old versions of rows, which
    the server can't remove while a transaction is open, and rare late commits. For these a search begins at 0
    now and then, the less often the longer it takes."""

    def __init__(self) -> None:
        self._since = self._before = 0.0
        self.full_at = -math.inf

    def start(self, before: float, now: float) -> tuple[float, bool]:
        """Begin a search; returns its start time, and whether it begins at 0."""
        is_full = now >= self.full_at or before <= self._before
        return 0.0 if is_full else self._since, is_full

    def end(self, before: float, present: float, *, full_again_at: float | None) -> None:
        """End a search that has found all due keys, at the server's time ``present``."""
        self._before = before
        self._since = min(before, present) - DUE_MARGIN_S
        if full_again_at is not None:
            self.full_at = full_again_at


class PostgresState:
    """The checkpoints and results of all streams in a database."""

    def __init__(self, database: PostgresDatabase, clock: Clock, *, max_state_bytes: int = 8 << 20) -> None:
        self.max_state_bytes = max_state_bytes
        self._database = database
        self._lane = database.lane("state")
        self._clock = clock
        self.changes = StateChanges(database, clock)
        self._results = PostgresResults(database, clock)
        self._transfer = StateTransfer(database, self.changes)
        self.due_mark = _DueMark()
        sql = database.sql
        self._peek, self._list, self._due, self._lease = sql(PEEK), sql(LIST), sql(DUE), sql(LEASE)
        self._idle, self._idle_lock, self._expire_all = sql(IDLE), sql(IDLE_LOCK), sql(EXPIRE)
        self._forget = sql(FORGET)

    # --- checkpoints

    async def peek(self, key: str) -> Checkpoint | None:
        if "\0" in key:
            return None
        rows = await self._lane.rows(self._peek, (key,))
        return changes.whole(rows[0]) if rows else None

    async def now(self, key: str) -> float:
        [[seconds]] = await self._lane.rows(NOW.encode())
        return float(seconds)

    async def open(self, key: str, expect: int, member: str) -> Checkpoint:
        chance = int(self._clock.random() * CHANCE)
        checkpoint: Checkpoint = await self._change(OpenCall(key, expect, member, chance))
        return checkpoint

    async def start(self, key: str, epoch: int, head: str) -> int:
        openings: int = await self._change(StartCall(key, epoch, head))
        return openings

    async def commit(self, commit: Commit) -> None:
        check_state(commit, self.max_state_bytes)
        await self._change(changes.prepare(commit))
        if commit.results:
            self._database.bells.ring([TOPIC])

    async def identities(self, key: str, limit: int) -> list[str]:
        if "\0" in key:
            return []
        return await self._lane.read(partial(self.changes.newest, key=key, limit=limit))

    async def checkpoints(self, after: str = "", limit: int = 1000) -> list[Checkpoint]:
        return [changes.whole(row) for row in await self._lane.rows(self._list, (after, limit))]

    async def due(self, before: float, limit: int, lease_s: float) -> list[str]:
        begin_at = self._clock.monotonic()
        since, is_full = self.due_mark.start(before, begin_at)

        async def lease(connection: Connection) -> list[str]:
            rows = await connection.execute(
                self._lease, (since, before, limit, before + lease_s), binary=True
            )
            return [key for _, key in sorted(await rows.fetchall())]

        # Mostly nothing is due: only a due key needs a transaction.
        [[present, is_due]] = await self._lane.rows(self._due, (since, before))
        keys = await self._lane.write(lease) if is_due else []
        if len(keys) < limit:
            now = self._clock.monotonic()
            again_at = now + (now - begin_at) / WIDE_SHARE if is_full else None
            self.due_mark.end(before, present, full_again_at=again_at)
        return keys

    # --- results

    async def results(self, after: int, limit: int, wait_s: float = 0.0, stream: str = "") -> list[Logged]:
        return await self._results.read(after, limit, wait_s, stream)

    async def result(self, key: str, name: str) -> Logged | None:
        return await self._results.find(key, name)

    async def expire(self, results_before: float, idle_before: float) -> tuple[int, int]:
        return await self._results.expire(results_before), await self._expire_idle(idle_before)

    # --- transfer

    async def stored(self, keys: Sequence[str]) -> list[Checkpoint]:
        found = await self._lane.read(partial(self.changes.load, keys=list(keys)))
        return [found[key] for key in keys if key in found]

    async def restore(self, checkpoints: Sequence[Checkpoint]) -> None:
        for checkpoint in checkpoints:
            check_state(checkpoint, self.max_state_bytes)
        await self._lane.write(partial(self._transfer.restore, checkpoints=checkpoints))

    async def last_cursor(self) -> int:
        return await self._lane.read(self._transfer.last_cursor)

    async def restore_results(self, results: Sequence[Logged], above: int = 0) -> None:
        await self._lane.write(partial(self._transfer.restore_results, results=results, above=above))
        self._database.bells.ring([TOPIC])

    async def close(self) -> None:
        self._results.close()

    async def _change(self, change: StateCall) -> Any:
        if "\0" in change.key:
            raise OperationRefused(f"the key {change.key!r} holds a NUL: a key must be printable")
        weight = weight_of(1, changes.bytes_of(change))
        while True:
            answer = await self._lane.write_many(self.changes.apply, change, weight=weight)
            if answer is not Undecided.AGAIN:
                return answer

    async def _expire_idle(self, before: float) -> int:
        expired, last = 0, ""
        while rows := await self._lane.rows(self._idle, (last, before, EXPIRE_BATCH)):
            keys = [key for (key,) in rows]
            expired += await self._lane.write(partial(self._expire, keys=keys, before=before))
            last = keys[-1]
        return expired

    async def _expire(self, connection: Connection, keys: list[str], before: float) -> int:
        rows = await connection.execute(self._idle_lock, (keys, before), binary=True)
        expired = {}
        for id_, key, at, timers, record in await rows.fetchall():
            left = changes.left_of(key, at, timers, record, before)
            if left is not None:
                expired[key] = id_, left
        if expired:
            ids, records = zip(*expired.values(), strict=True)
            await connection.execute(self._expire_all, (list(expired), list(records)))
            await connection.execute(self._forget, (list(ids),))
        return len(expired)
