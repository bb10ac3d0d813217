"""The removal of old versions of rows: what prevents it, and how many old versions tables have."""

from __future__ import annotations

from typing import NamedTuple

from holdfast.ports.state import DatabaseHealth, Risk
from holdfast.services.postgres.database import PostgresDatabase
from holdfast.services.postgres.lane import Connection

LONG_S = 300
"""Seconds after which an open transaction is reported."""

DEAD_ROWS = 100_000
"""Old versions in one table that are reported, if they exceed the rows in use."""

# A role sees only the existence of other sessions, unless it has pg_read_all_stats.
HOLDERS = """
SELECT 'transaction' AS kind,
    coalesce(nullif(application_name, ''), usename, '?') || ', process ' || pid AS who,
    extract(epoch FROM clock_timestamp() - xact_start)::float8 AS open_s
FROM pg_stat_activity
WHERE backend_xmin IS NOT NULL AND datname = current_database() AND backend_type <> 'walsender'
    AND xact_start < clock_timestamp() - make_interval(secs => %(long_s)s)
UNION ALL
SELECT 'prepared', gid, extract(epoch FROM clock_timestamp() - prepared)::float8
FROM pg_prepared_xacts WHERE prepared < clock_timestamp() - make_interval(secs => %(long_s)s)
UNION ALL
SELECT 'slot', slot_name::text, NULL FROM pg_replication_slots
WHERE coalesce(age(xmin), 0) > %(behind)s
    OR (database = current_database() AND age(catalog_xmin) > %(behind)s)
UNION ALL
SELECT 'standby', coalesce(nullif(application_name, ''), client_addr::text, '?'), NULL
FROM pg_stat_replication WHERE age(backend_xmin) > %(behind)s
ORDER BY open_s DESC NULLS LAST"""

DEAD = """
SELECT relname::text, n_dead_tup, n_live_tup FROM pg_stat_user_tables
WHERE schemaname = %s AND n_dead_tup > %s AND n_dead_tup > n_live_tup ORDER BY n_dead_tup DESC"""

OLDEST = """
SELECT kind, max(open_s)::float8, max(behind)::bigint FROM (
    SELECT 'transaction' AS kind, extract(epoch FROM clock_timestamp() - xact_start) AS open_s,
        age(backend_xmin) AS behind
    FROM pg_stat_activity
    WHERE backend_xmin IS NOT NULL AND datname = current_database() AND pid <> pg_backend_pid()
        AND backend_type NOT IN ('walsender', 'autovacuum worker')
    UNION ALL
    SELECT 'prepared', extract(epoch FROM clock_timestamp() - prepared), age(transaction)
    FROM pg_prepared_xacts
    UNION ALL
    SELECT 'slot', NULL, greatest(coalesce(age(xmin), 0),
        CASE WHEN database = current_database() THEN coalesce(age(catalog_xmin), 0) ELSE 0 END)
    FROM pg_replication_slots
    UNION ALL
    SELECT 'standby', NULL, coalesce(age(backend_xmin), 0) FROM pg_stat_replication
) AS holders GROUP BY kind"""

ROWS = """
SELECT relname::text, n_dead_tup, n_live_tup FROM pg_stat_user_tables WHERE schemaname = %s"""

BEHIND = 1_000_000
"""Transactions by which a slot or a standby may lag before it is reported."""

FIXES = {
    "transaction": "end it, or have its program commit; idle_in_transaction_session_timeout ends such ones",
    "prepared": "COMMIT PREPARED or ROLLBACK PREPARED it",
    "slot": "drop the slot if it has no reader: pg_drop_replication_slot()",
    "standby": "end its long queries, or set hot_standby_feedback = off there",
}
NAMES = {
    "transaction": "a transaction is open",
    "prepared": "a prepared transaction waits",
    "slot": "a replication slot holds old rows back",
    "standby": "a standby holds old rows back by its feedback",
}


class HorizonHolder(NamedTuple):
    """A holder of old versions: a transaction, replication slot or standby that keeps them from being
    removed. ``open_s`` is its age in seconds; None if unknown."""

    kind: str
    who: str
    open_s: float | None


class DeadRows(NamedTuple):
    """A table with more old versions than rows in use."""

    table: str
    dead: int
    live: int


async def look(database: PostgresDatabase) -> tuple[list[HorizonHolder], list[DeadRows]]:
    """Return the holders of the oldest snapshots, longest first, and the tables that suffer."""

    async def read(connection: Connection) -> tuple[list[HorizonHolder], list[DeadRows]]:
        holders = await connection.execute(HOLDERS, {"long_s": LONG_S, "behind": BEHIND})
        found = [HorizonHolder(*row) for row in await holders.fetchall()]
        dead = await connection.execute(DEAD, (database.address.schema, DEAD_ROWS))
        return found, [DeadRows(*row) for row in await dead.fetchall()]

    return await database.lane("state").read(read)


async def health(database: PostgresDatabase) -> DatabaseHealth:
    """Return the oldest snapshots by kind of holder, and the rows of each table."""

    async def read(connection: Connection) -> DatabaseHealth:
        oldest = await (await connection.execute(OLDEST)).fetchall()
        rows = await (await connection.execute(ROWS, (database.address.schema,))).fetchall()
        ages = {kind: float(open_s) for kind, open_s, _ in oldest if open_s is not None}
        behind = {kind: transactions for kind, _, transactions in oldest if transactions is not None}
        return DatabaseHealth(
            {"transaction": 0.0, "prepared": 0.0} | ages,
            dict.fromkeys(NAMES, 0) | behind,
            {table: dead for table, dead, _ in rows},
            {table: live for table, _, live in rows},
        )

    return await database.lane("state").read(read)


async def check(database: PostgresDatabase) -> list[Risk]:
    """Return a risk for each holder of the horizon, and for tables with many old versions. They make the
    server slow, but lose nothing."""
    holders, tables = await look(database)
    risks = []
    for kind, who, open_s in holders:
        since = f" for {open_s:.0f} s" if open_s is not None else ""
        risks.append(Risk("", "warning", f"{NAMES[kind]}{since}: {who}; old rows stay", FIXES[kind]))
    for table, dead, live in tables:
        text = f"the table {table} has {dead} old versions of rows and {live} rows in use"
        risks.append(
            Risk("", "warning", text, "see that autovacuum runs, and that no transaction holds it back")
        )
    return risks
