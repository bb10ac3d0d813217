"""Writes checkpoints and results as another store had them."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.ports.state import Logged
from holdfast.rules.streams.ledger import Checkpoint
from holdfast.services.postgres import changes
from holdfast.services.postgres.arrays import numbers
from holdfast.services.postgres.changes import StateChanges
from holdfast.services.postgres.database import PostgresDatabase
from holdfast.services.postgres.lane import Connection

RESTORE = """
WITH c AS MATERIALIZED (
    SELECT * FROM unnest(
        %b::text[], %s::bigint[], %s::bigint[], %s::float8[], %s::float8[], %s::int[], %s::bool[],
        %b::bytea[], %b::bytea[], %b::bytea[])
    AS c (key, epoch, number, at, due, pending, has_state, record, timers, state)),
new AS (
    INSERT INTO {schema}.keys (key) SELECT key FROM c ORDER BY key ON CONFLICT (key) DO NOTHING
    RETURNING id, key),
made AS (
    INSERT INTO {schema}.checkpoints (id, key, epoch, number, at, due, pending, record, timers, state)
    SELECT new.id, key, c.epoch, c.number, c.at, c.due, c.pending, c.record, c.timers,
        CASE WHEN c.has_state THEN c.state END
    FROM new JOIN c USING (key))
SELECT key, id FROM new"""

RESTORE_RESULTS = """
INSERT INTO {schema}.results (cursor, stream, key, name, epoch, at, body)
SELECT r.cursor, CASE WHEN strpos(r.key, '/') > 0 THEN split_part(r.key, '/', 1) ELSE '' END,
    r.key, r.name, r.epoch, r.at, r.body
FROM unnest(%s::bigint[], %b::text[], %b::bytea[], %s::bigint[], %s::float8[], %b::bytea[])
    AS r (cursor, key, name, epoch, at, body)
ORDER BY r.cursor ON CONFLICT (cursor) DO NOTHING"""

RAISE = "UPDATE {schema}.expired_results SET last = %s WHERE last < %s"

LAST = """
SELECT greatest((SELECT max(cursor) FROM {schema}.results), (SELECT last FROM {schema}.expired_results))"""


class StateTransfer:
    """Writes transferred data, in transactions of the caller."""

    def __init__(self, database: PostgresDatabase, state_changes: StateChanges) -> None:
        self._changes = state_changes
        sql = database.sql
        self._restore, self._restore_results = sql(RESTORE), sql(RESTORE_RESULTS)
        self._raise, self._last = sql(RAISE), sql(LAST)

    async def restore(self, connection: Connection, checkpoints: Sequence[Checkpoint]) -> None:
        """Write checkpoints of keys that aren't known. The window is as large as its identities are many; the
        next commit sets the window."""
        if not checkpoints:
            return
        rows = [
            (
                c.key, c.epoch, c.number, c.at, c.due, len(c.effects), c.state is not None,
                changes.encoded(changes.keep(c, len(c.recent))),
                changes.encode(c.timers) if c.timers else b"", c.state or b"",
            )
            for c in {checkpoint.key: checkpoint for checkpoint in checkpoints}.values()
        ]  # fmt: skip
        keys, *columns = zip(*rows, strict=True)
        made = await connection.execute(
            self._restore,
            (list(keys), *map(numbers, columns[:6]), *map(list, columns[6:])),
            binary=True,
        )
        ids: dict[str, int] = dict(await made.fetchall())
        work = changes.StateWrites()
        for c in checkpoints:
            if (id_ := ids.pop(c.key, None)) is None:
                continue
            if c.recent:
                work.remembered.append((id_, c.number, len(c.recent), changes.encode(c.recent)))
            work.effects += [
                (id_, effect.number, effect.place, effect.id.encode(), changes.encode_effect(effect))
                for effect in c.effects
            ]
        await self._changes.write(connection, work)

    async def restore_results(self, connection: Connection, results: Sequence[Logged], above: int) -> None:
        """Write results whose cursors aren't known; later ones are above ``above``."""
        await self._changes.lock_log(connection)
        if results:
            rows = [(r.cursor, r.key, r.result.name.encode(), r.epoch, r.at, r.result.body) for r in results]
            cursors, keys, names, epochs, times, bodies = zip(*rows, strict=True)
            await connection.execute(
                self._restore_results,
                (numbers(cursors), list(keys), list(names), numbers(epochs), numbers(times), list(bodies)),
            )
        await connection.execute(self._raise, (above, above))

    async def last_cursor(self, connection: Connection) -> int:
        """Return the highest cursor so far; 0 for none."""
        [last] = await (await connection.execute(self._last, binary=True)).fetchone() or (0,)
        return int(last)
