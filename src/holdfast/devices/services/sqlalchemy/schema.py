"""Creates the outbox's tables, and names the missing ones."""

from __future__ import annotations

from typing import NamedTuple

import msgspec
from sqlalchemy import Connection, delete, func, insert, inspect, select, text
from sqlalchemy.engine import URL
from sqlalchemy.exc import DBAPIError

from holdfast.devices.ports.outbox import WriterSettings
from holdfast.devices.services.sqlalchemy import engine as engines
from holdfast.devices.services.sqlalchemy import tables
from holdfast.devices.services.sqlalchemy.migrations import steps
from holdfast.errors import ConfigError

MAKING = 0x686F6C64
"""The advisory lock under which tables are created in PostgreSQL."""

MADE = "a node makes them if its user may, or make them by a migration"
HELP = (
    "let a user who may make its tables: as SQL in holdfast/devices/services/sqlalchemy/migrations, or by"
    " Alembic"
)
"""The remedies for missing tables."""


class MissingSchema(NamedTuple):
    """The missing ``tables``, the missing ``columns`` of other tables as TABLE.COLUMN, and the ``migrations``
    that change these tables."""

    tables: list[str]
    columns: list[str]
    migrations: list[int]

    @property
    def named(self) -> list[str]:
        """The names of all missing tables and columns."""
        return [*self.tables, *self.columns]


def make_tables(connection: Connection, url: URL, *, create: bool) -> None:
    """Create missing tables, and migrate old ones. Raises ConfigError without ``create``, or if the user may
    not."""
    if url.get_backend_name() == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": MAKING})
    lacks = find_missing(connection)
    if not lacks.named:
        return
    if not create:
        raise ConfigError(f"{engines.redacted(url)} has no {', '.join(lacks.named)}: {HELP}")
    try:
        for number in lacks.migrations:
            # Before create_all, which would create an empty table of rollouts.
            for step in steps(number, connection):
                connection.execute(step)
        absent = [tables.metadata.tables[name] for name in find_missing(connection).tables]
        tables.metadata.create_all(connection, absent)
    except DBAPIError as error:
        if engines.is_transient(error):
            raise
        raise ConfigError(f"the outbox can't be made ({error.orig}): {HELP}") from error


def store_settings(connection: Connection, outbox: str, shards: int, settings: WriterSettings) -> None:
    """Store an outbox's shards and its writers' settings. Raises ConfigError if it has another number of
    shards."""
    standing = count_shards(connection, outbox)
    if not standing:
        rows = [{"outbox": outbox, "shard": shard} for shard in range(shards)]
        connection.execute(insert(tables.shard), rows)
    elif standing != shards:
        raise ConfigError(f"outbox {outbox!r} has {standing} shards; set shards to that, not {shards}")
    connection.execute(delete(tables.setting).where(tables.setting.c.outbox == outbox))
    connection.execute(insert(tables.setting), {"outbox": outbox, **msgspec.structs.asdict(settings)})


def describe(connection: Connection) -> str:
    """Return the database, its version and the missing tables, in words."""
    name = "PostgreSQL" if connection.dialect.name == "postgresql" else "SQLite"
    version = ".".join(map(str, connection.dialect.server_version_info or ()))
    lacks = find_missing(connection)
    if not lacks.named:
        return f"{name} {version}; all tables are there"
    some = len(lacks.tables) < len(tables.metadata.tables)
    which = ", ".join(lacks.named) if some else "tables yet"
    return f"{name} {version}; no {which}: {MADE}"


def count_shards(connection: Connection, outbox: str) -> int:
    """Return the number of an outbox's shards; 0 if it was never prepared."""
    counted = select(func.count()).select_from(tables.shard).where(tables.shard.c.outbox == outbox)
    return int(connection.execute(counted).scalar_one())


def find_missing(connection: Connection) -> MissingSchema:
    """Return the missing tables and columns."""
    inspector = inspect(connection)
    standing = {*inspector.get_table_names()}
    columns: list[str] = []
    migrations = {tables.RENAMING} if tables.ROLLOUT_BEFORE in standing else set[int]()
    for name, table in tables.metadata.tables.items():
        added = [column for column in table.c if "migration" in column.info]
        if name not in standing or not added:
            continue
        there = {column["name"] for column in inspector.get_columns(name)}
        for column in added:
            if column.name not in there:
                columns.append(f"{name}.{column.name}")
                migrations.add(column.info["migration"])
    absent = [name for name in tables.metadata.tables if name not in standing]
    return MissingSchema(absent, columns, sorted(migrations))
