"""Wakes dispatchers when commands are added: by NOTIFY on PostgreSQL, by a doorbell beside a SQLite file.

Both take effect with the caller's commit. A signal may be lost, so dispatchers also look at intervals.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import time
from pathlib import Path
from weakref import WeakKeyDictionary

from sqlalchemy import Connection, event, text
from sqlalchemy.engine import URL

from holdfast.devices.services.sqlalchemy.engine import line_settings
from holdfast.extend import Clock, Doorbell, for_writers

CHANNEL = "holdfast_outbox"
NOW = "CAST(extract(epoch FROM clock_timestamp()) AS float8)"
NOTIFY = text(f"SELECT pg_notify('{CHANNEL}', :outbox), {NOW}")
AGAIN_S = 1.0
"""Seconds before a lost connection is made again."""

_doorbells: dict[tuple[int, str], Doorbell] = {}
_rung: WeakKeyDictionary[object, dict[str, float]] = WeakKeyDictionary()
"""The outboxes that a transaction has rung for, and by how many seconds the database's clock was ahead of the
monotonic clock then."""
_mutex = threading.Lock()


def doorbell(database: str) -> Doorbell:
    """Return this process's doorbell beside a database file."""
    path = os.path.abspath(database)  # noqa: PTH100 - resolve() would follow links that SQLite doesn't
    with _mutex:
        bell = _doorbells.get((os.getpid(), path))
        if bell is None:
            name = f"{os.getpid()}-{os.urandom(4).hex()}"
            bell = _doorbells[os.getpid(), path] = Doorbell(
                Path(f"{path}.outbox-bells"), name, for_writers(Path(path))
            )
        return bell


def clock(connection: Connection) -> float:
    """Return the time of the database's clock, in seconds since 1970."""
    if connection.dialect.name == "postgresql":
        return float(connection.execute(text(f"SELECT {NOW}")).scalar_one())
    return time.time()  # the database is a file of this host


def ring_at_commit(connection: Connection, outbox: str) -> float:
    """Wake the outbox's dispatchers once when the transaction of ``connection`` commits. Return the time of
    the database's clock, in seconds since 1970."""
    # A NOTIFY in a savepoint is lost if that is rolled back.
    postgresql = connection.dialect.name == "postgresql"
    transactions: list[object] = [connection.get_transaction()]
    if postgresql and (savepoint := connection.get_nested_transaction()) is not None:
        transactions.append(savepoint)
    with _mutex:
        rung = [_rung.setdefault(transaction, {}) for transaction in transactions]
    for before in rung:
        if outbox in before:
            return before[outbox] + time.monotonic()
    if postgresql:
        now = float(connection.execute(NOTIFY, {"outbox": outbox}).one()[1])
    else:
        now = time.time()  # the database is a file of this host
        _ring_file(connection, outbox)
    rung[-1][outbox] = now - time.monotonic()
    return now


def _ring_file(connection: Connection, outbox: str) -> None:
    database = connection.engine.url.database
    if not database or database == ":memory:":
        return

    def ring(_: Connection) -> None:
        # Just before the commit, while this transaction has the write lock: a woken dispatcher gets the lock
        # after the commit.
        doorbell(database).ring([outbox])

    event.listen(connection, "commit", ring, once=True)


class NotifyListener:
    """Waits for additions to outboxes, for one process."""

    def __init__(self, url: URL, clock: Clock) -> None:
        self._url = url
        self._clock = clock
        self._events: dict[str, asyncio.Event] = {}
        self._contexts = contextlib.ExitStack()
        self._listening: asyncio.Task[None] | None = None
        self.closed = False

    async def wait(self, outbox: str, timeout_s: float) -> None:
        """Wait until ``outbox`` is rung, or was since the last call, or ``timeout_s`` have passed."""
        if self.closed:
            return
        rung = self._event(outbox)
        await self._clock.wait(rung, timeout_s)
        rung.clear()

    def _event(self, outbox: str) -> asyncio.Event:
        known = self._events.get(outbox)
        if known is None:
            if self._url.get_backend_name() == "sqlite":
                bell = doorbell(self._url.database or "")
                known = self._contexts.enter_context(bell.listen(outbox))
            else:
                known = asyncio.Event()
                if self._listening is None:
                    self._listening = asyncio.get_running_loop().create_task(self._listen())
            known.set()  # for additions before this call
            self._events[outbox] = known
        return known

    async def close(self) -> None:
        """End all waits and the connection."""
        self.closed = True
        for rung in self._events.values():
            rung.set()
        self._contexts.close()
        listening, self._listening = self._listening, None
        if listening is not None:
            listening.cancel()
            await asyncio.wait([listening])

    async def _listen(self) -> None:
        import psycopg  # noqa: PLC0415 (an extra)

        _, given = self._url.get_dialect()().create_connect_args(self._url)
        arguments = {**line_settings(self._url), **given}
        while True:
            try:
                async with await psycopg.AsyncConnection.connect(autocommit=True, **arguments) as connection:
                    await connection.execute(f"LISTEN {CHANNEL}")
                    for rung in self._events.values():
                        rung.set()  # for additions before the connection
                    async for notice in connection.notifies():
                        if notice.payload in self._events:
                            self._events[notice.payload].set()
            except (psycopg.Error, OSError):
                await self._clock.sleep(AGAIN_S)
