"""The state store in PostgreSQL while connections are cut and the server is killed."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import NamedTuple, TypeVar

import msgspec
import psycopg
import pytest

from holdfast.errors import Fenced, OutcomeUnknown, Unavailable
from holdfast.ports.state import StateStore
from holdfast.services.postgres.state import PostgresState
from holdfast.streams.rules.ledger import Checkpoint, Result
from holdfast.system.clock import SystemClock
from holdfast.testing.conformance.state import TIMERS, effect, next_commit
from simulator.proxies import TcpFaults
from simulator.servers import PostgresqlServer
from tests.services.postgres.conftest import MakeDatabase

T = TypeVar("T")

PATIENCE_S = 60.0
KEY = "s/k"

Contents = tuple[Checkpoint | None, list[tuple[str, Result]]]
"""A checkpoint, of which epoch and times are left out, and the results."""


class Place(NamedTuple):
    """A store behind a proxy, the same one past it, and a connection of its own to look."""

    state: PostgresState
    direct: PostgresState
    faults: TcpFaults
    looks: psycopg.AsyncConnection

    async def fill(self) -> Checkpoint:
        """A stream that acts, and has a result."""
        await self.looks.execute(
            "TRUNCATE holdfast.keys, holdfast.checkpoints, holdfast.recents, holdfast.effects,"
            " holdfast.results"
        )
        opened = await self.direct.open(KEY, 0, "m")
        await self.direct.commit(
            next_commit(
                opened,
                identities=("a", "b"),
                window=4,
                effects=(effect(1, 0), effect(1, 1)),
                due=5.0,
                results=(Result("0:1", b"r"),),
            )
        )
        return await self.direct.open(KEY, opened.epoch, "m")

    async def kept(self) -> Contents:
        standing = await self.direct.peek(KEY)
        if standing is not None:
            standing = msgspec.structs.replace(standing, epoch=0, at=0.0, started=None)
        return standing, [(found.key, found.result) for found in await self.direct.results(0, 10)]


@pytest.fixture
async def place(postgresql_server: PostgresqlServer, make_database: MakeDatabase) -> AsyncIterator[Place]:
    server, clock = postgresql_server, SystemClock()
    async with TcpFaults(server.port) as faults:
        urls = [server.url.replace(str(server.port), str(port)) for port in (faults.port, server.port)]
        state, direct = [PostgresState(make_database(url), clock) for url in urls]
        await direct.now(KEY)
        async with await psycopg.AsyncConnection.connect(server.url, autocommit=True) as looks:
            yield Place(state, direct, faults, looks)
        await state._database.close()


ACTS: dict[str, Callable[[StateStore, Checkpoint], Awaitable[object]]] = {
    "open": lambda state, standing: state.open(KEY, standing.epoch, "n"),
    "open a new key": lambda state, _: state.open("s/new", 0, "n"),
    "start": lambda state, standing: state.start(KEY, standing.epoch, "0:7"),
    "commit": lambda state, standing: state.commit(
        next_commit(
            standing, identities=("c", "d", "e"), window=4, state=b"s", timers=TIMERS, due=7.0, done=1,
            effects=(effect(2, 0),), dropped=("id-1.0",), results=(Result("0:2", b"r"), Result("0:3", b"r")),
        )
    ),
    "due": lambda state, _: state.due(9.0, 10, 5.0),
    "expire": lambda state, _: state.expire(1e12, 1e12),
    "peek": lambda state, _: state.peek(KEY),
    "results": lambda state, _: state.results(0, 10),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("act", ACTS)
async def test_a_cut_connection_leaves_all_or_nothing_and_the_error_says_which(
    place: Place, act: str
) -> None:
    call = ACTS[act]

    async def connect_anew() -> Checkpoint:
        """As the connection was cut before, each call begins with a new one, which knows no statement."""
        place.faults.cut()
        with contextlib.suppress(Unavailable):
            await place.state.now(KEY)
        await place.state.now(KEY)
        return await place.fill()

    standing = await connect_anew()
    before, sent = await place.kept(), place.faults.bytes_in
    await call(place.state, standing)
    size, after = place.faults.bytes_in - sent, await place.kept()
    strikes: list[Callable[[], object]] = [place.faults.lose_replies]
    strikes += [partial(place.faults.cut_after, at) for at in range(1, size, max(1, size // 8))]
    strikes += [partial(place.faults.cut_after, size - back) for back in range(0, 60, 12)]  # in the commit
    outcomes = set()
    for strike in strikes:
        standing = await connect_anew()
        strike()
        try:
            await asyncio.wait_for(call(place.state, standing), PATIENCE_S)
            assert await place.kept() == after
            outcomes.add("done")
        except Unavailable:
            # Expiry is several transactions, of which the first may be over.
            assert await place.kept() in ((before, after) if act == "expire" else (before,))
            outcomes.add("not done")
        except OutcomeUnknown:
            while await _others_work(place):
                pass
            assert await place.kept() in (before, after)
            outcomes.add("unknown")
        place.faults.cut_after(1 << 60)
        if act == "commit":  # it was accepted, or is now
            await call(place.state, standing)
            assert await place.kept() == after
    if act in ("peek", "results"):
        assert outcomes in ({"not done"}, {"not done", "done"}), "a read has no outcome to know"
    elif act != "expire":
        assert outcomes >= {"not done", "unknown"}


async def _others_work(place: Place) -> bool:
    """Whether the server still works for a connection that was cut."""
    works = (
        "SELECT count(*) FROM pg_stat_activity"
        " WHERE state <> 'idle' AND pid <> pg_backend_pid() AND backend_type = 'client backend'"
    )
    [count] = await (await place.looks.execute(works)).fetchone() or (0,)
    return bool(count)


@pytest.mark.slow
async def test_nothing_that_was_answered_is_lost_when_the_server_is_killed(
    make_database: MakeDatabase,
) -> None:
    async with PostgresqlServer(fsync=True) as server:
        state = PostgresState(make_database(server.url), SystemClock())
        keys = [f"s/{number}" for number in range(8)]
        answered = dict.fromkeys(keys, 0)
        enough = asyncio.Event()

        async def work(key: str) -> None:
            """Commit as an owner does: what has an unknown outcome is repeated unchanged."""
            standing = await _tried(partial(state.open, key, 0, "member"))
            for number in range(1, 200):
                result = Result(f"0:{number}", b"r")
                commit = next_commit(
                    msgspec.structs.replace(standing, number=number - 1), results=(result,), done=1
                )
                await _tried(partial(state.commit, commit))
                answered[key] = number
                if sum(answered.values()) in (200, 700):
                    enough.set()

        work_all = asyncio.gather(*map(work, keys))
        for _ in range(2):
            await asyncio.wait_for(enough.wait(), PATIENCE_S)
            enough.clear()
            known = dict(answered)
            server.kill()
            await server.start()
            for key in keys:
                checkpoint = await _tried(partial(state.peek, key))
                assert checkpoint is not None
                assert checkpoint.number >= known[key], "an accepted commit was lost"
        await asyncio.wait_for(work_all, PATIENCE_S)
        read, page = [], await state.results(0, 500)
        while page:
            read += page
            page = await state.results(page[-1].cursor, 500)
        for key in keys:
            names = [found.result.name for found in read if found.key == key]
            assert names == [f"0:{number}" for number in range(1, 200)], "each result once, and in order"


async def _tried(call: Callable[[], Awaitable[T]]) -> T:
    """Make a call again until it has an answer."""
    while True:
        try:
            return await call()
        except (Unavailable, OutcomeUnknown):
            await asyncio.sleep(0)


@pytest.mark.slow
async def test_nodes_that_write_the_same_keys_at_once_never_deadlock(
    postgresql_server: PostgresqlServer, make_database: MakeDatabase
) -> None:
    """Each believes that it owns all keys, as a paused node does that wakes up."""
    nodes = [PostgresState(make_database(postgresql_server.url), SystemClock()) for _ in range(3)]
    keys = [f"s/{number:02d}" for number in range(30)]
    await nodes[0].now(KEY)
    with psycopg.connect(postgresql_server.url, autocommit=True) as connection:
        [before] = connection.execute("SELECT deadlocks FROM pg_stat_database WHERE datname = 'postgres'")

    async def fight(node: PostgresState, key: str) -> None:
        for turn in range(6):
            try:
                standing = await node.peek(key)
                opened = await node.open(key, standing.epoch if standing else 0, f"member-{turn}")
                await node.start(key, opened.epoch, "0:1")
                for number in range(3):
                    await node.commit(
                        next_commit(
                            msgspec.structs.replace(opened, number=opened.number + number),
                            results=(Result("0:1", b"r"),), due=1.0, effects=(effect(1, turn),),
                        )
                    )  # fmt: skip
                    await node.due(2.0, 5, 1.0)
            except Fenced:
                pass

    work = [fight(node, key) for node in nodes for key in (keys if node is nodes[0] else keys[::-1])]
    outcomes = await asyncio.wait_for(asyncio.gather(*work, return_exceptions=True), PATIENCE_S)
    assert [each for each in outcomes if isinstance(each, BaseException)] == []
    await asyncio.gather(*(node._database.close() for node in nodes))  # what they know is then counted
    with psycopg.connect(postgresql_server.url, autocommit=True) as connection:
        [after] = connection.execute("SELECT deadlocks FROM pg_stat_database WHERE datname = 'postgres'")
    assert after == before
