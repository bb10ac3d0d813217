"""The dispatcher's connections to the business's database, and the database's errors as Holdfast's."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any, Literal

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError

from holdfast.devices.services.sqlalchemy.tables import PREFIX
from holdfast.devices.services.sqlalchemy.transaction import (
    OutboxTransaction,
    PostgresqlTransaction,
    SqliteTransaction,
)
from holdfast.errors import ConfigError, HoldfastError, NoDatabase, OutcomeUnknown, Unavailable
from holdfast.extend import OWNER, Access, make_file
from holdfast.extend.tools import redact_url

Durability = Literal["full", "normal"]

SQLITE = (
    "PRAGMA journal_mode = WAL",
    "PRAGMA busy_timeout = {busy_ms:.0f}",
    "PRAGMA cache_size = -65536",  # KiB: the indexes of a million commands
    "PRAGMA wal_autocheckpoint = 8000",  # pages; a page that changes twice meanwhile is written once
)

POSTGRESQL = (
    # Every statement has its index. The statistics of a table that fills and empties say otherwise.
    "SET enable_seqscan = off",
    "SET jit = off",
    "SET array_nulls = on",  # a role may have it off, which makes NULL in an array a text
    "SET plan_cache_mode = force_generic_plan",  # planning takes longer than executing
    # A dispatcher that is stopped inside a transaction must not keep its shards' rows locked.
    "SET idle_in_transaction_session_timeout = '{busy_ms:.0f}ms'",
    "SET lock_timeout = '{busy_ms:.0f}ms'",
    # A crash of PostgreSQL would lose unwritten commits: an answered command would be sent again, after newer
    # ones.
    "SET synchronous_commit = on",
)

LINE = {
    "connect_timeout": 10,
    "keepalives_idle": 5,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 15_000,  # ms
}
"""Settings of a connection that give up a silent server after seconds instead of a quarter of an hour."""


def line_settings(url: URL) -> dict[str, Any]:
    """Return the settings of ``LINE`` that the URL of a PostgreSQL database doesn't set."""
    if url.get_backend_name() != "postgresql":
        return {}
    return {name: value for name, value in LINE.items() if name not in url.query}


def parse(url: str) -> URL:
    """Return the URL with the driver. Raises ConfigError for another database."""
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):  # their texts may have parts of the password
        raise ConfigError(
            f"the outbox's database is {redact_url(url)!r}: it must be a URL such as sqlite:///app.db"
        ) from None
    backend = parsed.get_backend_name()
    if backend == "postgres":
        backend = "postgresql"
    if backend not in ("sqlite", "postgresql"):
        raise ConfigError(
            f"the outbox's database is {redact_url(url)!r}; it is a sqlite:/// or postgresql:// URL"
        )
    if backend == "sqlite" and parsed.database in (None, "", ":memory:"):
        raise ConfigError("the outbox's database must be a file: a database in memory can't be shared")
    return parsed.set(drivername="sqlite" if backend == "sqlite" else "postgresql+psycopg")


def create(url: URL, access: Access | None = OWNER) -> Engine:
    """Return an engine that gives up a silent server. A missing file is created with ``access`` by the first
    connection; with None it is refused at once. Raises ConfigError if the driver is missing."""
    try:
        engine = create_engine(url, connect_args=line_settings(url))
    except ImportError:
        raise ConfigError("PostgreSQL needs psycopg: pip install 'holdfast-streams[postgres]'") from None

    if url.get_backend_name() != "sqlite":
        return engine
    path = Path(str(url.database))
    try:
        missing = access is None and not path.exists()
    except OSError as error:
        raise ConfigError(
            f"the outbox's database {path} can't be reached by this user: {error.strerror or error}"
        ) from error
    if missing:
        raise NoDatabase(path.absolute(), "run this where the nodes run")

    def make(*_: object) -> None:
        if access is not None:
            with contextlib.suppress(OSError):  # SQLite's own error says more
                make_file(path, access)

    event.listen(engine, "do_connect", make)
    return engine


def connect(url: URL, busy_timeout_s: float, access: Access | None = OWNER) -> Engine:
    """Return an engine whose connections begin transactions only by ``begin``. Raises as ``create`` does."""
    engine = create(url, access)
    sqlite = url.get_backend_name() == "sqlite"
    settings = SQLITE if sqlite else POSTGRESQL
    filled = [each.format(busy_ms=busy_timeout_s * 1000) for each in settings]

    def configure(connection: Any, _record: object) -> None:
        if sqlite:
            connection.isolation_level = None
        else:
            connection.autocommit = True
        cursor = connection.cursor()
        for setting in filled:
            cursor.execute(setting)
        cursor.close()

    event.listen(engine, "connect", configure)
    return engine


def begin(connection: Connection, durability: Durability, *, relaxed: bool) -> OutboxTransaction:
    """Begin a transaction. A ``relaxed`` one isn't on disk when its commit returns, unless it is hardened: a
    power failure may take it back as a whole, together with all later ones."""
    connection.begin()
    if connection.dialect.name == "sqlite":
        return SqliteTransaction(connection, full=durability == "full", relaxed=relaxed)
    return PostgresqlTransaction(connection, relaxed=relaxed)


def in_transaction(connection: Connection) -> bool:
    """Return whether the driver's connection is in a transaction. A statement such as SQLite's
    ``ON CONFLICT ROLLBACK`` can end it."""
    driver: Any = connection.connection.driver_connection
    if connection.dialect.name == "sqlite":
        return bool(driver.in_transaction)
    return bool(driver.info.transaction_status)


UNREADABLE = "Could not decode to UTF-8"
"""Part of Python's error for a text in SQLite that isn't UTF-8."""


def read_anything(connection: Connection) -> None:
    """Have texts of SQLite that aren't UTF-8 read with replacement characters, which costs more."""
    driver: Any = connection.connection.driver_connection
    driver.text_factory = lambda data: data.decode(errors="replace")


def redacted(url: URL) -> str:
    """Return the URL without its secrets."""
    return redact_url(url.render_as_string())


def convert_error(error: Exception, url: URL, *, committing: bool = False) -> HoldfastError:
    """Return an error of the database as Holdfast's, without its parameters, which are the business's
    data."""
    origin = error.orig if isinstance(error, DBAPIError) else error
    said = str(origin).strip()
    where = redacted(url)
    state = getattr(origin, "sqlstate", None)
    if committing and (state is None or state.startswith(UNSURE)):
        return OutcomeUnknown(f"{where}: the commit's answer was lost ({said})")
    return Unavailable(f"{where}: {said}")


def lacks_tables(error: DBAPIError) -> bool:
    """Return whether tables or columns of the outbox are missing, or this user may not use them."""
    state, said = _state(error.orig), str(error.orig)
    ours = PREFIX in said or PREFIX in (error.statement or "")
    return ours and (state in LACKING if state else "no such" in said or "has no" in said)


def is_transient(error: DBAPIError) -> bool:
    """Return whether the next try may succeed: after a lock of others, or a restart of the server."""
    state = _state(error.orig)
    busy = state.startswith(PASSING) if state else "locked" in str(error.orig)
    return busy or error.connection_invalidated


def _state(origin: object) -> str:
    """Return PostgreSQL's code of an error, by psycopg or psycopg2; empty if it has none."""
    return getattr(origin, "sqlstate", None) or getattr(origin, "pgcode", None) or ""


LACKING = ("42P01", "42703", "42501")
"""Codes of PostgreSQL for a missing table, a missing column, and a missing right."""

PASSING = ("08", "40", "53", "55", "57", "58")
"""Classes of PostgreSQL's errors that don't depend on the statement."""

UNSURE = ("08", "57", "58", "XX")
"""Classes of PostgreSQL's errors after which a commit may have happened. After others it hasn't."""
