"""The schema: numbered migrations, each applied once, by the first process that needs it."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

from psycopg import AsyncConnection

from holdfast.common.migrations import Migration, SchemaSteps, blocked_text, migrations_of, steps_from
from holdfast.errors import UnsupportedStore

OLDEST_SERVER = 13

# From the tables of the catalog: the cache of to_regclass() is out of date if another connection has made the
# schema while this one waited for its lock.
NAMED = "SELECT EXISTS (SELECT FROM pg_namespace WHERE nspname = %s)"

STANDING = "SELECT EXISTS (SELECT FROM pg_tables WHERE schemaname = %s AND tablename = 'migrations')"

FILLED = "SELECT EXISTS (SELECT FROM pg_tables WHERE schemaname = %s)"

MIGRATIONS = """
CREATE TABLE {schema}.migrations (number integer PRIMARY KEY, at timestamptz NOT NULL DEFAULT now())"""


def migrations() -> list[Migration]:
    """Return every migration, in order. In their SQL ``{schema}`` stands for the schema's name."""
    assert __package__ is not None
    return migrations_of(__package__)


GRANTS = (
    "GRANT USAGE ON SCHEMA {schema} TO {role};",
    "GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {schema} TO {role};",
    "REVOKE INSERT, UPDATE, DELETE ON {schema}.migrations FROM {role};",
    "GRANT TRUNCATE ON {schema}.members, {schema}.changes TO {role};",
    "GRANT USAGE, UPDATE ON ALL SEQUENCES IN SCHEMA {schema} TO {role};",
    "GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA {schema} TO {role};",
)

GRANTS_TO_SEND = (
    "GRANT USAGE ON SCHEMA {schema} TO {role};",
    "GRANT SELECT ON {schema}.migrations, {schema}.identity TO {role};",
    "GRANT INSERT, SELECT (id) ON {schema}.messages TO {role};",
    "GRANT USAGE ON SEQUENCE {schema}.message_numbers TO {role};",
    "GRANT EXECUTE ON FUNCTION {schema}.new_message_id(), {schema}.micros(timestamptz) TO {role};",
)


GRANTS_TO_SEND_TASKS = (
    "GRANT SELECT, INSERT, UPDATE ON {schema}.tasks, {schema}.delayed_tasks TO {role};",
    "GRANT SELECT ON {schema}.documents, {schema}.document_versions TO {role};",
)


def grants(schema: str, role: str, statements: Sequence[str] = GRANTS) -> list[str]:
    """Return the statements that grant a role everything but migrations, or those given."""
    quoted = '"' + role.replace('"', '""') + '"'
    return [qualified(statement, schema).replace("{role}", quoted) for statement in statements]


def newest() -> int:
    """Return the number of the last migration that this version of Holdfast knows."""
    return migrations()[-1].number


def qualified(text: str, schema: str) -> str:
    """Put the schema's name into a text of SQL. Format strings aren't used, because SQL may contain
    braces."""
    return text.replace("{schema}", schema)


async def steps_of(connection: AsyncConnection[Any], schema: str) -> SchemaSteps:
    """Return the version of the schema, and the migrations that it hasn't had. Raises UnsupportedStore for a
    server that is too old, or a schema that is too new."""
    return steps_from(await _version(connection, schema), migrations())


async def _version(connection: AsyncConnection[Any], schema: str) -> int:
    """Return the number of the last migration that the schema has had; 0 for none. Raises as ``steps_of``."""
    server = connection.info.server_version // 10_000
    if server < OLDEST_SERVER:
        raise UnsupportedStore(f"PostgreSQL {server} is too old; Holdfast needs {OLDEST_SERVER} or newer")
    if not await _first(connection, STANDING, schema):
        return 0
    number = await _first(connection, qualified("SELECT max(number) FROM {schema}.migrations", schema)) or 0
    if number > newest():
        last = qualified("SELECT max(number) FROM {schema}.migrations WHERE contracts", schema)
        if (await _first(connection, last) or 0) > newest():
            raise UnsupportedStore(
                f"the schema {schema} has version {number}, made by a newer Holdfast; this one knows up to"
                f" {newest()}: upgrade Holdfast here, or name another schema with ?schema="
            )
    return int(number)


async def migrate(connection: AsyncConnection[Any], schema: str, *, contract: bool = False) -> list[int]:
    """Expand the schema, or contract it too, all or nothing; returns the numbers of what was applied.
    ``connection`` is in autocommit mode. A user without the right to create is enough where nothing is to be
    done. Raises UnsupportedStore."""
    if not _wanted(await steps_of(connection, schema), schema, contract=contract):
        return []
    async with connection.transaction():
        # Whatever the database's default is: this transaction must see what the one before has made.
        await connection.execute("SET TRANSACTION ISOLATION LEVEL READ COMMITTED")
        # Held until the end of the transaction, so that a pooler between doesn't matter.
        await _first(
            connection, "SELECT pg_advisory_xact_lock(%s)", zlib.crc32(f"holdfast {schema}".encode())
        )
        steps = await steps_of(connection, schema)
        if not steps.version:
            await _found(connection, schema)
        wanted = _wanted(steps, schema, contract=contract)
        for migration in migrations():
            if migration.number in wanted:
                await connection.execute(qualified(migration.sql, schema).encode())
                await connection.execute(_noted(migration, schema).encode(), (migration.number,))
    return wanted


def _wanted(steps: SchemaSteps, schema: str, *, contract: bool) -> list[int]:
    """Return the numbers of the migrations to apply."""
    if contract:
        return sorted([*steps.expand, *steps.contract, *steps.blocked])
    if steps.blocked:
        raise UnsupportedStore(f"the schema {schema}: {blocked_text(steps)}")
    return steps.expand


def _noted(migration: Migration, schema: str) -> str:
    """Return the statement that notes that a migration was applied."""
    note = "(number, contracts) VALUES (%s, true)" if migration.contracts else "(number) VALUES (%s)"
    return qualified(f"INSERT INTO {{schema}}.migrations {note}", schema)


async def _found(connection: AsyncConnection[Any], schema: str) -> None:
    """Make the schema, unless an administrator has, and its table of migrations."""
    if not await _first(connection, NAMED, schema):
        await connection.execute(qualified("CREATE SCHEMA {schema}", schema).encode())
    elif await _first(connection, FILLED, schema):
        raise UnsupportedStore(
            f"the schema {schema} holds another program's tables; name another one with ?schema="
        )
    await connection.execute(qualified(MIGRATIONS, schema).encode())


async def _first(connection: AsyncConnection[Any], query: str, *parameters: Any) -> Any:
    """Return the first column of the first row."""
    row = await (await connection.execute(query.encode(), parameters)).fetchone()
    return row[0] if row else None
