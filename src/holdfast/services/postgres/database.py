"""The database: the lanes and bells of one process, and the schema, which is made at the first connection.

A process has at most four connections: one lane for membership and claims, so that renewals never wait for
other work; one for the queue, the registry and notifications; one for state and tasks; and the listener.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from functools import partial
from typing import Literal

import psycopg

from holdfast.common.migrations import SchemaSteps
from holdfast.errors import ConfigError
from holdfast.ports.clock import Clock
from holdfast.ports.meter import Meter
from holdfast.services.postgres import refusals, schema
from holdfast.services.postgres.address import PostgresAddress
from holdfast.services.postgres.bells import PostgresBells
from holdfast.services.postgres.lane import TIMEOUT_S, Connection, LaneCursor, PostgresLane, limited

MIGRATE_TIMEOUT_S = 600.0
"""Seconds after which a migration is given up. Others wait for it."""

KEEPALIVES = {"tcp_keepalives_idle": 10, "tcp_keepalives_interval": 5, "tcp_keepalives_count": 3}
"""Seconds and counts with which the server soon notices a lost host, whose transaction may be open."""

ISOLATION = {"default_transaction_isolation": "'read committed'"}
"""The level at which a statement that is its own transaction sees what was committed when it got its
locks."""

# So the server soon ends work for a process that has given it up. Servers before 14, or on Windows, can't
# check.
LOOK_FOR_CLIENT = """
DO $$ BEGIN
    PERFORM set_config('client_connection_check_interval', '5s', false);
EXCEPTION WHEN undefined_object OR invalid_parameter_value THEN
    NULL;
END $$"""

READING = {"array_nulls": "on"}
"""Settings for reading parameters: a role may have others, and then NULL in an array would be a text."""

LOCK_TIMEOUT_S = 2.0
"""The default of the setting of this name."""

END_STOPPED = """
SELECT count(pg_terminate_backend(pid))
FROM pg_stat_activity
WHERE datname = current_database() AND usename = current_user AND pid <> pg_backend_pid()
    AND state = 'active' AND wait_event = 'ClientRead'
    AND state_change < clock_timestamp() - interval '{after_ms} ms'
    AND EXISTS (
        SELECT FROM pg_locks JOIN pg_class ON pg_class.oid = pg_locks.relation
        WHERE pg_locks.pid = pg_stat_activity.pid AND pg_locks.granted
            AND pg_class.relnamespace = '{schema}'::regnamespace
    )
"""
"""Ends sessions that hold locks on Holdfast's tables and have long waited for the rest of a request."""

LaneName = Literal["membership", "queue", "state"]

# A statement that is prepared while a table is small would always scan or sort the whole table.
PLANNING = {
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "jit": "off",
    "plan_cache_mode": "force_generic_plan",
}


class PostgresDatabase:
    """Connections to one database. ``timeout_s`` limits each transaction, and ``lock_timeout_s`` the time for
    which an idle process may hold one open. With ``expands``, the first connection expands the schema."""

    def __init__(
        self,
        address: PostgresAddress,
        clock: Clock,
        meter: Meter,
        *,
        timeout_s: float = TIMEOUT_S,
        lock_timeout_s: float = LOCK_TIMEOUT_S,
        expands: bool = True,
    ) -> None:
        self.address = address
        self.meter = meter
        self._timeout_s = timeout_s
        # Locks of a process that is paused, or whose host is gone, are soon free: the next owners of its
        # streams wait for them. The server ends a transaction that is left open. A process that waits for a
        # lock ends a session that is stopped in the middle of a request, before it would give up its own.
        lock_timeout_ms = max(1, round(min(lock_timeout_s, 0.8 * timeout_s) * 1000))
        self._limits = {
            "lock_timeout": lock_timeout_ms,
            "idle_in_transaction_session_timeout": lock_timeout_ms,
        }
        self._end_stopped = self.sql(END_STOPPED.format(schema="{schema}", after_ms=lock_timeout_ms // 2))
        self._lanes: dict[LaneName, PostgresLane] = {}
        self._migrating = asyncio.Lock()
        self._expands = expands
        self._migrated = not expands
        listen_to = partial(self._open, address.listen) if address.listen else None
        self.bells = PostgresBells(address.schema, self.lane("queue"), clock, listen_to)

    def lane(self, name: LaneName) -> PostgresLane:
        """Return the lane of this name."""
        if name not in self._lanes:
            # Each statement sees everything that was committed when the one before got its locks.
            begin = ["BEGIN ISOLATION LEVEL READ COMMITTED"]
            if not self.address.prepares:  # a setting of the connection would reach other clients of the pool
                statements = [
                    f"set_config('{name}', '{value}', true)"
                    for name, value in (PLANNING | READING | self._limits).items()
                ]
                begin.append(f"SELECT {', '.join(statements)}")
            self._lanes[name] = PostgresLane(
                str(self.address),
                self._connect,
                self._forget_schema,
                timeout_s=self._timeout_s,
                begin=begin,
                end_stopped=self._end_stopped,
            )
        return self._lanes[name]

    def sql(self, text: str) -> bytes:
        """Return a statement with the schema's name in place of ``{schema}``."""
        return schema.qualified(text, self.address.schema).encode()

    async def migrate(self, *, contract: bool = False) -> list[int]:
        """Expand the schema, or contract it too, without a time limit; returns the numbers of the applied
        migrations."""
        async with self._apart() as connection:
            return await schema.migrate(connection, self.address.schema, contract=contract)

    async def schema_steps(self) -> SchemaSteps:
        """Return the version of the schema, and the migrations that it hasn't had. Changes nothing."""
        async with self._apart() as connection:
            return await schema.steps_of(connection, self.address.schema)

    @contextlib.asynccontextmanager
    async def _apart(self) -> AsyncIterator[Connection]:
        """Yield a separate connection, which doesn't migrate the schema."""
        try:
            connection = await self._open(self.address.conninfo)
            try:
                yield connection
            finally:
                await connection.close()
        except psycopg.Error as error:
            raise refusals.explain(str(self.address), error) from error

    async def close(self) -> None:
        """Disconnect. Calls under way end first."""
        await self.bells.close()
        await asyncio.gather(*(lane.close() for lane in self._lanes.values()))

    async def _connect(self) -> Connection:
        connection = await self._open(self.address.conninfo)
        try:
            async with self._migrating:
                if not self._migrated:
                    await self._migrate(connection)
                    self._migrated = True
            if self.address.prepares:
                settings = PLANNING | READING | KEEPALIVES | self._limits | ISOLATION
                statements = [f"SET {name} = {value}" for name, value in settings.items()]
                with limited(connection, self._timeout_s):
                    await connection.execute("; ".join([*statements, LOOK_FOR_CLIENT]).encode())
        except BaseException:
            await connection.close()
            raise
        return connection

    async def _migrate(self, connection: Connection) -> None:
        with limited(connection, self._timeout_s):
            steps = await schema.steps_of(connection, self.address.schema)
        if steps.expand or steps.blocked:
            with limited(connection, MIGRATE_TIMEOUT_S):
                await schema.migrate(connection, self.address.schema)

    async def _open(self, conninfo: str) -> Connection:
        connecting = asyncio.ensure_future(
            psycopg.AsyncConnection.connect(
                conninfo,
                autocommit=True,
                client_encoding="UTF8",
                prepare_threshold=5 if self.address.prepares else None,
                cursor_factory=LaneCursor,
            )
        )
        try:
            connection = await asyncio.shield(connecting)
        except UnicodeError as error:  # raised for such a name instead of an error of resolution
            raise ConfigError(f"{self.address}: no host can have this name: {error}") from error
        except asyncio.CancelledError:  # given up half made, it would leave its socket open
            with contextlib.suppress(Exception):
                await (await connecting).close()
            raise
        encoding = connection.info.parameter_status("server_encoding")
        if encoding not in (None, "UTF8"):  # PgBouncer may not say it
            await connection.close()
            raise ConfigError(
                f"{self.address}: the database's encoding is {encoding}, which can't hold every key or body:"
                " create a database with ENCODING 'UTF8' TEMPLATE template0, and name that one"
            )
        return connection

    def _forget_schema(self) -> None:
        self._migrated = not self._expands
