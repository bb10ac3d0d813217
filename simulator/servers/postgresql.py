"""PostgreSQL: a server with a fresh cluster; a standby of it; and PgBouncer, which pools its connections."""

from __future__ import annotations

import asyncio
import os
import pwd
import shutil
import stat
import struct
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

import psutil

from holdfast.errors import ConfigError, Unavailable
from simulator.servers import programs
from simulator.servers.loopback import HOST
from simulator.servers.server import ASK_TIMEOUT_S, POLL_S, START_TIMEOUT_S, Server, until

USERS = ("postgres", "nobody")
"""Whom the server runs as where root starts it: it refuses to run as root."""

PROTOCOL = 3 << 16

PUBLIC = Path("/var/tmp")  # noqa: S108 - a folder with a name of its own is made there
"""Where another user may go, though this process was told of a folder of its own for what is temporary."""

WHICH = "POSTGRESQL_SERVER"
"""The environment variable that names another PostgreSQL than the system's, one of those that
``tools/servers/install`` gets: ``postgresql18``."""

REPLICATES = {"wal_level": "replica", "max_wal_senders": "4"}
"""Settings of a server that a standby follows."""

DELETE_ALL = """
DO $$
DECLARE name text;
BEGIN
    FOR name IN SELECT quote_ident(tablename) FROM pg_tables WHERE schemaname = 'public' LOOP
        EXECUTE 'DELETE FROM ' || name;
    END LOOP;
    FOR name IN SELECT quote_ident(sequencename) FROM pg_sequences WHERE schemaname = 'public' LOOP
        EXECUTE 'ALTER SEQUENCE ' || name || ' RESTART';
    END LOOP;
END $$"""


class PostgresqlServer(Server):
    """A PostgreSQL server that lets everybody on loopback in.

    Args:
        fsync: Have the disk confirm commits, as in production; without, a crash of the machine loses them.
        settings: More lines of postgresql.conf, such as ``{"max_connections": "10"}``.
    """

    name: ClassVar[str] = "postgresql"

    def __init__(self, *, fsync: bool = False, settings: Mapping[str, str] | None = None) -> None:
        super().__init__()
        self._keeps_tables = False
        self._settings = {
            "listen_addresses": HOST,
            "unix_socket_directories": "",
            "fsync": "on" if fsync else "off",
            "full_page_writes": "on" if fsync else "off",
            "shared_buffers": "64MB",
            "logging_collector": "off",
            "wal_level": "minimal",
            "max_wal_senders": "0",
            **(settings or {}),
        }

    @property
    def url(self) -> str:
        """Of its one database, for its superuser."""
        return f"postgresql://postgres@{self.address}/postgres"

    async def reset(self, *, keep_tables: bool = False) -> None:
        """Make it run, with nothing in its database. With ``keep_tables`` only rows are deleted, if the reset
        before was of that kind too: for tests that make the same tables, which takes longer than most tests,
        and change none."""
        await self.heal()
        async with asyncio.timeout(START_TIMEOUT_S):
            await asyncio.to_thread(self._clear, keep_tables and self._keeps_tables)
        self._keeps_tables = keep_tables

    def _clear(self, keep_tables: bool) -> None:
        import psycopg  # noqa: PLC0415 (an extra)

        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
            if keep_tables:
                # Without triggers, and not by TRUNCATE, which makes a new file for each table and index.
                connection.execute("SET session_replication_role = replica")
                connection.execute(DELETE_ALL)
                return
            connection.execute("DROP SCHEMA IF EXISTS holdfast CASCADE")
            connection.execute("DROP SCHEMA IF EXISTS public CASCADE")
            connection.execute("CREATE SCHEMA public")

    def pause(self) -> None:
        """Stop all its processes: each of its connections has one."""
        children = psutil.Process(self.pid).children(recursive=True)
        super().pause()
        for child in children:
            with suppress(psutil.NoSuchProcess):
                child.suspend()

    def resume(self) -> None:
        """Let all its processes go on."""
        for child in psutil.Process(self.pid).children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                child.resume()
        super().resume()

    def kill(self) -> None:
        """End all its processes at once; they would outlive the first one for a moment."""
        children = psutil.Process(self.pid).children(recursive=True) if self.alive else []
        super().kill()
        for child in children:
            with suppress(psutil.NoSuchProcess):
                child.kill()
        for child in children:
            while _lives(child):
                time.sleep(POLL_S)

    async def stop(self) -> None:
        """End it and delete its data. Raises AssertionError if transactions have waited for each other, so
        that it had to end one: Holdfast's never do."""
        log = self.log.read_text(errors="replace") if self._folder is not None and self.log.exists() else ""
        await super().stop()
        deadlock = log.find("deadlock detected")
        assert deadlock < 0, log[max(0, deadlock - 500) : deadlock + 2000]

    def limit_files(self, most_bytes: int) -> None:
        """As on a full disk: no file can be written beyond so many bytes, until it is started anew. The
        server's own process is first, from which others have their limits."""
        for process in (psutil.Process(self.pid), *psutil.Process(self.pid).children(recursive=True)):
            drop = _dropped()
            with suppress(Unavailable):  # it has ended meanwhile
                self._run([*drop, programs.find("prlimit"), f"--pid={process.pid}", f"--fsize={most_bytes}:"])

    def parent_folder(self) -> Path:
        return _reachable(super().parent_folder())

    def command(self) -> Sequence[str | Path]:
        drop = _dropped(self.folder, self.data)
        if not (self.data / "PG_VERSION").exists():
            self._make(drop)
        settings = [f"{name} = '{value}'\n" for name, value in self._settings.items()]
        (self.data / "postgresql.auto.conf").write_text("".join(settings))
        return [*drop, *_program("postgres"), "-D", self.data, "-p", str(self.port)]

    def _make(self, drop: Sequence[str | Path]) -> None:
        """Make the cluster, for a superuser ``postgres`` who needs no password."""
        asked = [*drop, *_program("initdb"), "-D", self.data, "-U", "postgres", "-A", "trust"]
        self._run([*asked, "-E", "UTF8", "--locale=C", "--no-sync", "--no-instructions"])

    def _run(self, command: Sequence[str | Path]) -> None:
        """Run one of its programs. Raises Unavailable, which says what it told."""
        done = subprocess.run(  # noqa: S603
            [str(argument) for argument in command],
            cwd=self.folder,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise Unavailable(f"PostgreSQL can't be set up: {done.stderr.strip()}")

    async def answers(self) -> bool:
        return await _greets(self.port)


class PostgresqlStandby(PostgresqlServer):
    """Follows a server that runs, which was started with the settings ``REPLICATES``, until it is promoted.
    Its name among ``synchronous_standby_names`` is ``standby``."""

    def __init__(self, primary: PostgresqlServer, *, fsync: bool = False) -> None:
        followed = f"host={HOST} port={primary.port} user=postgres application_name=standby"
        super().__init__(fsync=fsync, settings={**REPLICATES, "primary_conninfo": followed})
        self._primary = primary

    async def promote(self) -> None:
        """Make it take writes, in the place of its primary; returns once it does."""
        await asyncio.to_thread(self._ask, "SELECT pg_promote()")

    async def cut_off(self) -> None:
        """Have it hear no more of its primary; returns once it doesn't."""
        await asyncio.to_thread(
            self._ask, "ALTER SYSTEM SET primary_conninfo = ''", "SELECT pg_reload_conf()"
        )

        async def hears_nothing() -> bool:
            return not await asyncio.to_thread(self._ask, "SELECT count(*) FROM pg_stat_wal_receiver")

        await until(hears_nothing, "the standby is cut off")

    def _ask(self, *statements: str) -> Any:
        """The first column of what the last one returns."""
        import psycopg  # noqa: PLC0415 (an extra)

        with psycopg.connect(self.url, autocommit=True) as connection:
            for statement in statements[:-1]:
                connection.execute(statement.encode())
            row = connection.execute(statements[-1].encode()).fetchone()
            return row[0] if row else None

    def _make(self, drop: Sequence[str | Path]) -> None:
        self.data.chmod(0o700)  # or the server refuses it
        source = ["-h", HOST, "-p", str(self._primary.port), "-U", "postgres"]
        options = ["--checkpoint=fast", "--no-sync", "--write-recovery-conf"]
        self._run([*drop, *_program("pg_basebackup"), *source, *options, "-D", self.data])


class PgbouncerServer(Server):
    """PgBouncer in transaction pooling, before a PostgreSQL server: each transaction has another one of its
    few connections, in turn. It doesn't know prepared statements."""

    name: ClassVar[str] = "pgbouncer"

    def __init__(self, server: PostgresqlServer, *, connections: int = 4) -> None:
        super().__init__()
        self._server = server
        self._connections = connections

    @property
    def url(self) -> str:
        """Of the server's database, through the pool; and past it for who listens."""
        listen = f"?pooled=yes&listen={self._server.address}"
        return self._server.url.replace(self._server.address, self.address) + listen

    def parent_folder(self) -> Path:
        return _reachable(super().parent_folder())

    def command(self) -> Sequence[str | Path]:
        drop = _dropped(self.folder, self.data)
        users, settings = self.data / "users", self.data / "settings"
        users.write_text('"postgres" ""\n')
        settings.write_text(
            "[databases]\n"
            f"* = host={HOST} port={self._server.port}\n"
            "[pgbouncer]\n"
            f"listen_addr = {HOST}\n"
            f"listen_port = {self.port}\n"
            "unix_socket_dir =\n"
            "auth_type = trust\n"
            "admin_users = postgres\n"
            f"auth_file = {users}\n"
            "pool_mode = transaction\n"
            f"default_pool_size = {self._connections}\n"
            "server_round_robin = 1\n"
            "server_login_retry = 0.1\n"  # seconds; else clients wait for 15 after a restart
            "max_client_conn = 500\n"
        )
        for path in (users, settings):
            path.chmod(0o644)
        # Where it lies, for that user: the checkout may be seen through links in a folder of root's alone.
        return [*drop, programs.find("pgbouncer").resolve(), settings]

    async def answers(self) -> bool:
        return await _greets(self.port)

    async def reconnect(self) -> None:
        """Have it use none of its connections to the server again: the server may have ended them."""
        await asyncio.to_thread(self._reconnect)

    def _reconnect(self) -> None:
        import psycopg  # noqa: PLC0415 (an extra)

        place = f"host={HOST} port={self.port} user=postgres dbname=pgbouncer"
        with psycopg.connect(place, autocommit=True) as connection:
            connection.execute("RECONNECT")


async def _greets(port: int) -> bool:
    """Whether what listens there lets the superuser in."""
    user = b"user\0postgres\0database\0postgres\0\0"
    hello = struct.pack("!ii", len(user) + 8, PROTOCOL) + user
    try:
        async with asyncio.timeout(ASK_TIMEOUT_S):
            reader, writer = await asyncio.open_connection(HOST, port)
            try:
                writer.write(hello)
                return await reader.read(1) == b"R"
            finally:
                writer.close()
    except (OSError, TimeoutError):
        return False


def _reachable(usual: Path) -> Path:
    """Where to make a folder that the user of these programs can reach."""
    private = any(not folder.stat().st_mode & stat.S_IXOTH for folder in (usual, *usual.parents))
    return PUBLIC if private and _other_user() is not None else usual


def _dropped(*folders: Path) -> list[str | Path]:
    """What runs a program as another user than root, who owns the folders then."""
    user = _other_user()
    if user is None:
        return []
    for folder in folders:
        shutil.chown(folder, user.pw_uid, user.pw_gid)
    # What ends it with its parent (see lifeline.py) is lost with a change of user, and so set again.
    drop: list[str | Path] = [programs.find("setpriv"), f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}"]
    return [*drop, "--clear-groups", "--pdeathsig=KILL"]


def _lives(process: psutil.Process) -> bool:
    """Whether it holds what it had: one that nobody has waited for does no more."""
    with suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def _program(name: str) -> list[str | Path]:
    """One of PostgreSQL's programs: from the system, else by what ``tools/servers/install`` got."""
    if which := os.environ.get(WHICH):
        return [programs.find(which), name]
    try:
        return [programs.find(name)]
    except ConfigError:
        return [programs.find("postgresql"), name]


def _other_user() -> pwd.struct_passwd | None:
    """Whom to run as instead of root."""
    if os.geteuid() != 0:
        return None
    for name in USERS:
        with suppress(KeyError):
            return pwd.getpwnam(name)
    return None
