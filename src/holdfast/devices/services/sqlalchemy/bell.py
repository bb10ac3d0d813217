"""Wakes dispatchers when commands are added: NOTIFY on PostgreSQL, the doorbell beside a SQLite file.

Both take effect with the caller's commit. A signal may be lost, so those who wait also look by themselves
now and then.
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
"""Pause before a lost connection that listens is made anew."""

_doorbells: dict[tuple[int, str], Doorbell] = {}
_told: WeakKeyDictionary[object, dict[str, float]] = WeakKeyDictionary()
"""The outboxes that a transaction has told of, and how far its database's clock was ahead of this process's
monotonic one then."""
_mutex = threading.Lock()


def doorbell(database: str) -> Doorbell:
    """This process's doorbell beside a database file."""
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
    """Wake the outbox's dispatchers when the transaction of ``connection`` commits; once, however often this
    is called in it. Returns what the database's clock says, in seconds since 1970."""
    # What PostgreSQL is told in a savepoint goes with it, if that is rolled back.
    postgresql = connection.dialect.name == "postgresql"
    transactions: list[object] = [connection.get_transaction()]
    if postgresql and (savepoint := connection.get_nested_transaction()) is not None:
        transactions.append(savepoint)
    with _mutex:
        told = [_told.setdefault(transaction, {}) for transaction in transactions]
    for before in told:
        if outbox in before:
            return before[outbox] + time.monotonic()
    if postgresql:
        now = float(connection.execute(NOTIFY, {"outbox": outbox}).one()[1])
    else:
        now = time.time()  # the database is a file of this host
        _ring_file(connection, outbox)
    told[-1][outbox] = now - time.monotonic()
    return now


def _ring_file(connection: Connection, outbox: str) -> None:
    database = connection.engine.url.database
    if not database or database == ":memory:":
        return

    def ring(_: Connection) -> None:
        # Just before the commit, and so while this transaction has the write lock: who is woken by this and
        # begins a transaction gets it after the commit.
        doorbell(database).ring([outbox])

    event.listen(connection, "commit", ring, once=True)


class NotifyListener:
    """Tells one process of additions to outboxes."""

    def __init__(self, url: URL, clock: Clock) -> None:
        self._url = url
        self._clock = clock
        self._events: dict[str, asyncio.Event] = {}
        self._contexts = contextlib.ExitStack()
        self._listening: asyncio.Task[None] | None = None
        self.closed = False

    async def wait(self, outbox: str, timeout_s: float) -> None:
        """Wait until ``outbox`` is rung, or was since the last call; ``timeout_s`` at most."""
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
            known.set()  # what was added before anybody listened
            self._events[outbox] = known
        return known

    async def close(self) -> None:
        """Forget who listens, end all waits, and hang up."""
        self.closed = True
        for rung in self._events.values():
            rung.set()
        self._contexts.close()
        listening, self._listening = self._listening, None
        if listening is not None:
            listening.cancel()
            await asyncio.wait([listening])  # and be rid of it: what it was connecting it holds

    async def _listen(self) -> None:
        import psycopg  # noqa: PLC0415 (an extra)

        _, said = self._url.get_dialect()().create_connect_args(self._url)
        arguments = {**line_settings(self._url), **said}
        while True:
            try:
                async with await psycopg.AsyncConnection.connect(autocommit=True, **arguments) as connection:
                    await connection.execute(f"LISTEN {CHANNEL}")
                    for rung in self._events.values():
                        rung.set()  # what was added while nobody listened
                    async for notice in connection.notifies():
                        if notice.payload in self._events:
                            self._events[notice.payload].set()
            except (psycopg.Error, OSError):
                await self._clock.sleep(AGAIN_S)
