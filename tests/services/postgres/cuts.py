"""What is left of a call whose connection is cut, at each of its statements."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar
from urllib.parse import urlencode

import psycopg

from holdfast.errors import OutcomeUnknown, Unavailable
from holdfast.services.postgres.database import PostgresDatabase
from simulator.proxies import TcpFaults
from simulator.servers import PostgresqlServer
from tests.services.postgres.conftest import MakeDatabase

GivenT = TypeVar("GivenT")

PATIENCE_S = 60.0

NAME = "through-the-proxy"
STANDING = f"""
SELECT count(*) FROM pg_stat_activity WHERE application_name = '{NAME}' AND query NOT LIKE 'LISTEN %'"""
"""How many connections the server has through the proxy. One that was cut ends once it has done what came."""

EXECUTES = b"EQS"
"""The messages to the server after which something has happened: one that executes a statement, in two
protocols, and the end of a request."""


@dataclass(frozen=True)
class Wire:
    """A database through a proxy, the same one past it, and a connection of its own to look."""

    database: PostgresDatabase
    direct: PostgresDatabase
    faults: TcpFaults
    observer: psycopg.AsyncConnection

    async def rows(self, query: str) -> list[Any]:
        return await (await self.observer.execute(query.encode())).fetchall()

    async def empty(self, *tables: str) -> None:
        """Delete all rows: after many TRUNCATEs a killed server takes minutes to start."""
        for table in tables:
            await self.observer.execute(f"DELETE FROM holdfast.{table}".encode())


@contextlib.asynccontextmanager
async def wired(server: PostgresqlServer, make_database: MakeDatabase) -> AsyncIterator[Wire]:
    """Put a proxy before a server."""
    async with TcpFaults(server.port) as faults:
        through = server.url.replace(str(server.port), str(faults.port))
        options = {
            "listen": server.address,
            "application_name": NAME,
        }  # it listens at any time, past the proxy
        database, direct = make_database(f"{through}?{urlencode(options)}"), make_database(server.url)
        await direct.migrate()
        async with await psycopg.AsyncConnection.connect(server.url, autocommit=True) as observer:
            yield Wire(database, direct, faults, observer)
        await database.close()


@dataclass(frozen=True)
class Cuts(Generic[GivenT]):
    """Cuts the connection of calls.

    ``ask`` is any call that changes nothing. ``fill`` writes past the proxy what calls find, and returns what
    they need. ``kept`` returns the content, equal after equal calls: without epochs and
    times.
    """

    wire: Wire
    ask: Callable[[], Awaitable[object]]
    fill: Callable[[], Awaitable[GivenT]]
    kept: Callable[[], Awaitable[object]]

    async def at_each_statement(
        self, call: Callable[[GivenT], Awaitable[object]], *, whole: bool = True, repeats: bool = True
    ) -> set[str]:
        """Make a call again and again, and cut its connection each time at another place. Returns how it
        ended: ``done``, ``not done``, ``unknown``.

        What is there afterwards must be as the error says. ``whole``: the call is one transaction. Once it
        is repeated, which ``repeats`` says is right, all is as after one call.
        """
        faults = self.wire.faults
        given = await self._connect_anew()
        before, sent = await self.kept(), faults.record()
        await call(given)
        places, after = list(_statement_ends(bytes(sent))), await self.kept()
        strikes: list[Callable[[], object]] = [faults.lose_replies]
        strikes += [partial(faults.cut_after, place - short) for place in places for short in (1, 0)]
        outcomes = set()
        for strike in strikes:
            given = await self._connect_anew()
            strike()
            try:
                await asyncio.wait_for(call(given), PATIENCE_S)
                assert await self.kept() == after
                outcomes.add("done")
            except Unavailable:
                await self._gone()
                assert await self.kept() == before or not whole
                outcomes.add("not done")
            except OutcomeUnknown:
                await self._gone()
                assert await self.kept() in (before, after) or not whole
                outcomes.add("unknown")
            faults.cut_after(math.inf)
            faults.lose_replies(0)
            await call(given)
            if repeats:
                assert await self.kept() == after
        return outcomes

    async def _connect_anew(self) -> GivenT:
        """As the connection was cut before, each call begins with a new one, which knows no statement."""
        self.wire.faults.cut()
        with contextlib.suppress(Unavailable):
            await self.ask()
        await self.ask()
        return await self.fill()

    async def _gone(self) -> None:
        """Wait until nothing more can happen over what was cut."""
        self.wire.faults.cut()
        count = 1
        while count:
            [(count,)] = await self.wire.rows(STANDING)


def _statement_ends(sent: bytes) -> Iterator[int]:
    """Where in what was sent to a server each message ends after which something has happened."""
    place = 0
    while place < len(sent):
        kind = sent[place]
        typed = kind != 0  # but the first messages of a connection
        place += typed + int.from_bytes(sent[place + typed :][:4])
        if kind in EXECUTES:
            yield place
    assert place == len(sent), "the record begins or ends within a message"


def calls_of(port: type) -> set[str]:
    """The names of all calls of a port, except the one that closes it."""
    found = {name for name, _ in inspect.getmembers(port, inspect.iscoroutinefunction)}
    return {name for name in found if not name.startswith("_")} - {"close"}
