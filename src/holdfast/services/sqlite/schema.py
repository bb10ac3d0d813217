"""The database's schema: numbered migrations, and the changes after a reboot of the host."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from importlib import resources
from pathlib import Path

import psutil

from holdfast.errors import UnsupportedStore
from holdfast.ports.clock import Clock

OLDEST_SQLITE = (3, 35, 0)
"""The first with RETURNING; UPDATE FROM and upserts came before."""


def migrations() -> list[tuple[int, str]]:
    """Every migration's number and SQL, in order."""
    files = resources.files(__package__).joinpath("migrations").iterdir()
    return sorted((int(f.name.split("_")[0]), f.read_text()) for f in files if f.name.endswith(".sql"))


def check(connection: sqlite3.Connection, path: Path) -> None:
    """Raise UnsupportedStore for a newer schema, another program's database, or a SQLite too old."""
    if sqlite3.sqlite_version_info < OLDEST_SQLITE:
        needed = ".".join(map(str, OLDEST_SQLITE))
        raise UnsupportedStore(f"SQLite {sqlite3.sqlite_version} is too old; Python needs {needed} or newer")
    newest, found = migrations()[-1][0], version(connection)
    if found > newest:
        raise UnsupportedStore(
            f"{path} has schema version {found}, made by a newer Holdfast; this one knows up to {newest}:"
            " upgrade Holdfast here, or use another file"
        )
    if found == 0 and connection.execute("SELECT 1 FROM sqlite_schema LIMIT 1").fetchone():
        raise UnsupportedStore(f"{path} is the database of another program; use another file")


def migrate(connection: sqlite3.Connection) -> None:
    """Bring the schema up to date, each migration whole or not at all. The caller holds the write lock."""
    found = version(connection)
    for number, sql in migrations():
        if number > found:
            connection.executescript(f"BEGIN IMMEDIATE; {sql}; PRAGMA user_version = {number}; COMMIT")


def version(connection: sqlite3.Connection) -> int:
    """The number of the last migration that the database has had."""
    [number] = connection.execute("PRAGMA user_version").fetchone()
    return int(number)


def settle_boot(connection: sqlite3.Connection, clock: Clock) -> None:
    """Make the stored times those of this boot. The caller holds the write lock.

    No process outlives its host: after a reboot deliveries show again and all memberships are over."""
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
