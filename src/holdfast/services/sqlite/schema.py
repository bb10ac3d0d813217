"""The database's schema: numbered migrations, and the changes after a reboot of the host."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psutil

from holdfast.common.migrations import Migration, SchemaSteps, blocked_text, migrations_of, steps_from
from holdfast.errors import UnsupportedStore
from holdfast.ports.clock import Clock
from holdfast.services.sqlite.faults import exists, named

OLDEST_SQLITE = (3, 35, 0)
"""The first with RETURNING; UPDATE FROM and upserts came before."""


def migrations() -> list[Migration]:
    """Return every migration, in order."""
    assert __package__ is not None
    return migrations_of(__package__)


def check(connection: sqlite3.Connection, path: Path) -> None:
    """Raise UnsupportedStore for a schema of no use to this version, another program's database, or a SQLite
    too old."""
    if (steps := _checked_steps(connection, path)).blocked:
        raise UnsupportedStore(f"{path}: {blocked_text(steps)}")


def _checked_steps(connection: sqlite3.Connection, path: Path) -> SchemaSteps:
    if sqlite3.sqlite_version_info < OLDEST_SQLITE:
        needed = ".".join(map(str, OLDEST_SQLITE))
        raise UnsupportedStore(f"SQLite {sqlite3.sqlite_version} is too old; Python needs {needed} or newer")
    known, found = migrations(), version(connection)
    newest = known[-1].number
    if found > newest and contracted(connection) > newest:
        raise UnsupportedStore(
            f"{path} has schema version {found}, made by a newer Holdfast; this one knows up to {newest}:"
            " upgrade Holdfast here, or use another file"
        )
    if found == 0 and connection.execute("SELECT 1 FROM sqlite_schema LIMIT 1").fetchone():
        raise UnsupportedStore(f"{path} is the database of another program; use another file")
    return steps_from(found, known)


def migrate(connection: sqlite3.Connection) -> None:
    """Expand the schema, each migration whole or not at all. The caller holds the write lock."""
    known = migrations()
    expand = steps_from(version(connection), known).expand
    for migration in known:
        if migration.number in expand:
            connection.execute("BEGIN IMMEDIATE")
            _apply(connection, migration)
            connection.execute("COMMIT")


def contract(connection: sqlite3.Connection) -> None:
    """Apply all migrations that the schema hasn't had, in the transaction that is open."""
    found = version(connection)
    for migration in migrations():
        if migration.number > found:
            _apply(connection, migration)


def _apply(connection: sqlite3.Connection, migration: Migration) -> None:
    for statement in _statements(migration.sql):
        connection.execute(statement)
    if migration.contracts:
        connection.execute("INSERT INTO contractions VALUES (?)", (migration.number,))
    connection.execute(f"PRAGMA user_version = {migration.number}")


def _statements(script: str) -> Iterator[str]:
    """Yield each statement of a script, which as a whole would end the open transaction."""
    statement = ""
    for part in script.split(";"):
        statement += part + ";"
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""


def steps_of(path: Path) -> SchemaSteps:
    """Return the version of a file's schema, and the migrations that it hasn't had. Nothing is changed or
    made. Raises UnsupportedStore for a newer schema, or a file of another program."""
    if not exists(path):
        return steps_from(0, migrations())
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as connection:
            return _checked_steps(connection, path)
    except sqlite3.Error as error:
        raise named(error, path, opening=True) from error


def contracted(connection: sqlite3.Connection) -> int:
    """Return the number of the last migration that contracted the schema; 0 for none."""
    [number] = connection.execute("SELECT max(number) FROM contractions").fetchone()
    return int(number or 0)


def version(connection: sqlite3.Connection) -> int:
    """Return the number of the last migration that the database has had."""
    [number] = connection.execute("PRAGMA user_version").fetchone()
    return int(number)


def settle_boot(connection: sqlite3.Connection, clock: Clock) -> None:
    """Convert the stored times to this boot. The caller holds the write lock.

    After a reboot all deliveries are visible again, and all memberships have ended."""
    boot, offset = boot_id(), clock.wall() - clock.monotonic()
    found = connection.execute("SELECT boot, wall_offset FROM host").fetchone()
    if found and found[0] == boot:
        return
    connection.execute("BEGIN IMMEDIATE")
    if found:
        connection.execute("UPDATE messages SET state = 0, visible_at = 0, holder = NULL WHERE state = 1")
        connection.execute(
            "UPDATE messages SET visible_at = visible_at + ? WHERE state = 2", (found[1] - offset,)
        )
        connection.execute("DELETE FROM claims")
        connection.execute("DELETE FROM members")
    connection.execute("DELETE FROM host")
    connection.execute("INSERT INTO host VALUES (?, ?)", (boot, offset))
    connection.execute("COMMIT")


def boot_id() -> str:
    """Return the id of this boot of the host."""
    try:
        if sys.platform == "darwin":
            asked = ["/usr/sbin/sysctl", "-n", "kern.bootsessionuuid"]
            return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()  # noqa: S603
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except (OSError, subprocess.CalledProcessError):
        return str(int(psutil.boot_time()))
