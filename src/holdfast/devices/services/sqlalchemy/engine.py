"""The dispatcher's own connections to the business's database, and its errors as ours."""

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
    "PRAGMA cache_size = -65536",  # the indexes of a million commands, instead of 2 MB of them
    "PRAGMA wal_autocheckpoint = 8000",  # pages; what changes twice meanwhile is written once
)

POSTGRESQL = (
    # Every statement here has its index, whatever the statistics of a table that fills and empties say.
    "SET enable_seqscan = off",
    "SET jit = off",
    "SET array_nulls = on",  # a role may have it off, and NULL in an array were a text
    "SET plan_cache_mode = force_generic_plan",  # to plan anew takes longer than to execute
    # A dispatcher that is stopped inside a transaction must not hold its shards' rows against the next owner.
    "SET idle_in_transaction_session_timeout = '{busy_ms:.0f}ms'",
    "SET lock_timeout = '{busy_ms:.0f}ms'",
    # Its own crash, unlike SQLite's, takes back what it hasn't written: a command that was answered would go
    # out once more, after newer ones.
    "SET synchronous_commit = on",
)


LINE = {
    "connect_timeout": 10,
    "keepalives_idle": 5,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 15_000,  # ms
}
"""A server that is gone without a word is given up after so many seconds, not after a quarter of an hour."""


def line_settings(url: URL) -> dict[str, Any]:
    """Return the settings of how long a connection to PostgreSQL may be silent, without those in the URL."""
    if url.get_backend_name() != "postgresql":
        return {}
    return {name: value for name, value in LINE.items() if name not in url.query}


def parse(url: str) -> URL:
    """The URL for a driver that is installed. Raises ConfigError for another database."""
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):  # whose texts repeat pieces of the URL, perhaps of its password
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
        raise ConfigError("the outbox's database must be a file: others couldn't share one in memory")
    return parsed.set(drivername="sqlite" if backend == "sqlite" else "postgresql+psycopg")


def create(url: URL, access: Access | None = OWNER) -> Engine:
    """An engine that gives up a server which is gone. A file that is missing is made with ``access`` when it
    is first connected to; None: it is refused, at once. Raises ConfigError where the driver is missing."""
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
            with contextlib.suppress(OSError):  # SQLite says better what is wrong
                make_file(path, access)

    event.listen(engine, "do_connect", make)
    return engine


def connect(url: URL, busy_timeout_s: float, access: Access | None = OWNER) -> Engine:
    """An engine on whose connections transactions begin where we say. Raises ConfigError where the driver is
    missing."""
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
    """Begin a transaction. One that is ``relaxed``, unless it is hardened, need not be on disk before it
    counts: a power failure may take it back, as a whole, and no later one survives without it."""
    connection.begin()
    if connection.dialect.name == "sqlite":
        full = durability == "full"
        return SqliteTransaction(connection, certain=full and not relaxed, hardens=full)
    return PostgresqlTransaction(connection, certain=not relaxed)


def in_transaction(connection: Connection) -> bool:
    """Return True while the driver's connection is in a transaction. A statement can end it unasked:
    ``ON CONFLICT ROLLBACK`` and a trigger's ``RAISE(ROLLBACK)`` of SQLite do."""
    driver: Any = connection.connection.driver_connection
    if connection.dialect.name == "sqlite":
        return bool(driver.in_transaction)
    return bool(driver.info.transaction_status)


UNREADABLE = "Could not decode to UTF-8"
"""What Python says of a text in SQLite that is none."""


def read_anything(connection: Connection) -> None:
    """Read texts of SQLite that aren't UTF-8, with marks in place of what can't be read: it costs more."""
    driver: Any = connection.connection.driver_connection
    driver.text_factory = lambda data: data.decode(errors="replace")


def redacted(url: URL) -> str:
    """The URL without its secrets."""
    return redact_url(url.render_as_string())


def convert_error(error: Exception, url: URL, *, committing: bool = False) -> HoldfastError:
    """An error of the database as one of ours; without parameters, which are the business's."""
    origin = error.orig if isinstance(error, DBAPIError) else error
    said = str(origin).strip()
    where = redacted(url)
    state = getattr(origin, "sqlstate", None)
    if committing and (state is None or state.startswith(UNSURE)):
        return OutcomeUnknown(f"{where}: the commit's answer was lost ({said})")
    return Unavailable(f"{where}: {said}")


def lacks_tables(error: DBAPIError) -> bool:
    """Return True if the outbox's tables, or what a later migration added to them, aren't there, or if this
    user may not use them."""
    state, said = _state(error.orig), str(error.orig)
    ours = PREFIX in said or PREFIX in (error.statement or "")
    return ours and (state in LACKING if state else "no such" in said or "has no" in said)


def is_transient(error: DBAPIError) -> bool:
    """Return True if the error may be gone at the next try: a lock of others, a server that restarts."""
    state = _state(error.orig)
    busy = state.startswith(PASSING) if state else "locked" in str(error.orig)
    return busy or error.connection_invalidated


def _state(origin: object) -> str:
    """Return PostgreSQL's code of the error, as psycopg or psycopg2 tells it; empty if it has none."""
    return getattr(origin, "sqlstate", None) or getattr(origin, "pgcode", None) or ""


LACKING = ("42P01", "42703", "42501")
"""PostgreSQL knows no such table, or no such column; or doesn't let this user at it."""

PASSING = ("08", "40", "53", "55", "57", "58")
"""Classes of PostgreSQL's errors that say something of the moment, not of the statement."""

UNSURE = ("08", "57", "58", "XX")
"""Classes of PostgreSQL's errors after which a commit may have happened. After any other it has not."""
