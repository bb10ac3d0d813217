"""Bells: who waits for a topic is woken, in whichever process it waits."""

import asyncio
from collections.abc import AsyncIterator, Iterable

import psycopg
import pytest
from structlog.testing import capture_logs

from holdfast.services.postgres.bells import CHANNEL_MAX_BYTES, PostgresBells, channel_of
from holdfast.services.postgres.lane import Connection
from simulator.proxies import TcpFaults
from simulator.servers import PostgresqlServer
from simulator.servers.server import until
from tests.services.postgres.conftest import MakeDatabase

PATIENCE_S = 30.0
LISTENERS = "FROM pg_stat_activity WHERE query LIKE 'LISTEN%'"


@pytest.fixture
async def bells(postgresql_server: PostgresqlServer, make_database: MakeDatabase) -> list[PostgresBells]:
    """Of two processes."""
    return [make_database(postgresql_server.url).bells for _ in range(2)]


@pytest.fixture
async def wire(postgresql_server: PostgresqlServer) -> AsyncIterator[TcpFaults]:
    async with TcpFaults(postgresql_server.port) as faults:
        yield faults


async def heard(bells: PostgresBells) -> None:
    await asyncio.wait_for(bells.hears.wait(), PATIENCE_S)


async def rings(event: asyncio.Event) -> None:
    await asyncio.wait_for(event.wait(), PATIENCE_S)


@pytest.mark.slow
async def test_who_waits_is_woken_here_at_once_and_elsewhere_soon(bells: list[PostgresBells]) -> None:
    one, other = bells
    with one.listen("t") as here, other.listen("t") as there, other.listen("u") as elsewhere:
        for each in bells:
            await heard(each)
        for event in (here, there, elsewhere):
            event.clear()
        one.ring(["t"])
        assert here.is_set()
        await rings(there)
        assert not elsewhere.is_set()


async def test_schemas_do_not_hear_each_other(
    postgresql_server: PostgresqlServer, make_database: MakeDatabase, bells: list[PostgresBells]
) -> None:
    stranger = make_database(f"{postgresql_server.url}?schema=other").bells
    one, other = bells
    with one.listen("t") as mine, stranger.listen("t") as theirs:
        await heard(one)
        await heard(stranger)
        mine.clear()
        theirs.clear()
        other.ring(["t"])
        await rings(mine)
        assert not theirs.is_set()
    with psycopg.connect(postgresql_server.url, autocommit=True) as connection:
        connection.execute("DROP SCHEMA IF EXISTS other CASCADE")


@pytest.mark.parametrize("length", [54, 55, 63])
async def test_a_ring_is_heard_however_long_the_name_of_the_schema_is(
    postgresql_server: PostgresqlServer, make_database: MakeDatabase, length: int
) -> None:
    name = "s" * length
    one, other = [make_database(f"{postgresql_server.url}?schema={name}").bells for _ in range(2)]
    with other.listen("t") as there:
        await heard(other)
        there.clear()
        one.ring(["t"])
        await rings(there)
    with psycopg.connect(postgresql_server.url, autocommit=True) as connection:
        connection.execute(f"DROP SCHEMA IF EXISTS {name} CASCADE".encode())


def test_schemas_with_long_names_share_no_channel_and_others_keep_theirs() -> None:
    long = [channel_of("s" * 62 + end) for end in "ab"]
    assert long[0] != long[1]
    assert max(map(len, long)) <= 63
    assert channel_of("s" * 54) == "holdfast_" + "s" * 54


async def test_many_topics_go_in_few_notifications(bells: list[PostgresBells]) -> None:
    one, other = bells
    topics = [f"topic {number} \N{SNOWMAN} {'x' * 500}" for number in range(100)]
    assert sum(len(topic.encode()) for topic in topics) > 3 * CHANNEL_MAX_BYTES
    with other.listen(topics[0]) as first, other.listen(topics[-1]) as last:
        await heard(other)
        first.clear()
        last.clear()
        one.ring(topics)
        await rings(first)
        await rings(last)


async def test_rings_in_quick_succession_are_told_together(
    bells: list[PostgresBells], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = bells
    rung = []
    original = other.ring_here

    def note(topics: Iterable[str]) -> None:
        rung.append(sorted(topics))
        original(rung[-1])

    with other.listen("t9") as last:
        await heard(other)
        last.clear()
        monkeypatch.setattr(other, "ring_here", note)
        for number in range(10):
            one.ring([f"t{number}"])
        await rings(last)
    assert rung == [[f"t{number}" for number in range(10)]]


async def test_a_notification_takes_its_lock_in_a_transaction_of_its_own(
    postgresql_server: PostgresqlServer, bells: list[PostgresBells]
) -> None:
    """It waits for others that notify, of any program; data don't."""
    one, other = bells
    with other.listen("t") as event, psycopg.connect(postgresql_server.url) as slow:
        await heard(other)
        event.clear()
        one.ring(["t"])
        await rings(event)
        xids = "SELECT count(*) FROM pg_stat_activity WHERE backend_xid IS NOT NULL"
        assert slow.execute(xids).fetchone() == (0,)


@pytest.mark.slow
async def test_a_listener_that_was_cut_listens_again_and_wakes_all(
    postgresql_server: PostgresqlServer, bells: list[PostgresBells]
) -> None:
    one, other = bells
    with one.listen("t") as event:
        await heard(one)
        event.clear()
        with psycopg.connect(postgresql_server.url, autocommit=True) as connection:
            connection.execute(f"SELECT pg_terminate_backend(pid) {LISTENERS}".encode())
        await rings(event)  # what was rung meanwhile is not known
        await heard(one)
        event.clear()
        other.ring(["t"])
        await rings(event)


@pytest.mark.slow
async def test_a_listener_whose_server_stands_still_is_made_anew(
    postgresql_server: PostgresqlServer,
    make_database: MakeDatabase,
    wire: TcpFaults,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("holdfast.services.postgres.bells.QUIET_S", 0.3)
    url = postgresql_server.url.replace(postgresql_server.address, f"{wire.host}:{wire.port}")
    bells = make_database(url).bells
    with bells.listen("t") as event:
        await heard(bells)
        wire.freeze()

        async def lost() -> bool:
            return not bells.hears.is_set()

        await until(lost, "it has noticed")
        event.clear()
        wire.thaw()
        await heard(bells)
        await rings(event)


async def test_a_listener_for_which_no_thread_could_be_started_is_tried_again(
    make_database: MakeDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.services.postgres.bells.AGAIN_S", 0.0)
    tries, again = 0, asyncio.Event()

    async def connect(*_: object, **__: object) -> Connection:
        nonlocal tries
        tries += 1
        if tries > 2:
            again.set()
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(psycopg.AsyncConnection, "connect", connect)
    database = make_database("postgresql://me@db.example/x")
    with capture_logs() as logged, database.bells.listen("t"):
        await rings(again)
        await asyncio.wait_for(database.close(), PATIENCE_S)
    assert [each["log_level"] for each in logged].count("warning") == 1


async def test_a_listener_that_ends_while_it_fails_to_connect_does_end(
    make_database: MakeDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    connecting, fails = asyncio.Event(), asyncio.Event()

    async def connect(*_: object, **__: object) -> Connection:
        connecting.set()
        await fails.wait()
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(psycopg.AsyncConnection, "connect", connect)
    database = make_database("postgresql://me@db.example/x")
    with database.bells.listen("t"):
        await rings(connecting)
        asyncio.get_running_loop().call_soon(fails.set)  # once the listener is cancelled
        await asyncio.wait_for(database.close(), PATIENCE_S)


async def test_what_was_rung_is_told_before_the_end(
    postgresql_server: PostgresqlServer, make_database: MakeDatabase, bells: list[PostgresBells]
) -> None:
    database = make_database(postgresql_server.url)
    with bells[0].listen("t") as event:
        await heard(bells[0])
        event.clear()
        database.bells.ring(["t"])
        await database.close()
        await rings(event)
