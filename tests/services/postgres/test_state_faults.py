"""The state store in PostgreSQL while the server is killed."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeVar

import msgspec
import psycopg
import pytest

from holdfast.errors import Fenced, OutcomeUnknown, Unavailable
from holdfast.rules.streams.ledger import Result
from holdfast.services.postgres.state import PostgresState
from holdfast.system.clock import SystemClock
from holdfast.testing.conformance.state import effect, next_commit
from simulator.servers import PostgresqlServer
from tests.services.postgres.conftest import MakeDatabase

T = TypeVar("T")

PATIENCE_S = 60.0
KEY = "s/k"


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


@pytest.mark.nightly
async def test_nodes_that_write_the_same_keys_at_once_never_deadlock(
    postgresql_server: PostgresqlServer, make_database: MakeDatabase
) -> None:
    """Each believes that it owns all keys, as a paused node does that wakes up."""
    databases = [make_database(postgresql_server.url) for _ in range(3)]
    nodes = [PostgresState(database, SystemClock()) for database in databases]
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
    await asyncio.gather(*(database.close() for database in databases))  # what they know is then counted
    with psycopg.connect(postgresql_server.url, autocommit=True) as connection:
        [after] = connection.execute("SELECT deadlocks FROM pg_stat_database WHERE datname = 'postgres'")
    assert after == before
