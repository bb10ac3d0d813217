"""The schema: who makes it, who may use it, and which one is refused."""

import asyncio
from urllib.parse import urlsplit

import psycopg
import pytest

from holdfast.common.migrations import Migration
from holdfast.errors import ConfigError, HoldfastError, Unavailable, UnsupportedStore
from holdfast.ports.coordinator import Member
from holdfast.ports.queue import DeadLetter, Outgoing, PutBack
from holdfast.rules.streams.ledger import Commit, Result
from holdfast.rules.tasks.task import EndAttempt, State
from holdfast.services.postgres import schema
from holdfast.services.postgres.coordinator import PostgresCoordinator
from holdfast.services.postgres.database import PostgresDatabase
from holdfast.services.postgres.messages import PostgresMessages
from holdfast.services.postgres.queue import PostgresQueue
from holdfast.services.postgres.registry import PostgresRegistry
from holdfast.services.postgres.state import PostgresState
from holdfast.services.postgres.tasks import PostgresTasks
from holdfast.system.clock import SystemClock
from holdfast.testing.conformance.tasks import wish
from simulator.servers import PostgresqlServer
from tests.services.postgres.conftest import MakeDatabase

A = Member("a", "node a", "http://127.0.0.1:1")
NUMBERS = [number for number, *_ in schema.migrations()]


def administer(server: PostgresqlServer, *statements: str) -> None:
    with psycopg.connect(server.url, autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement.encode())


def applied(server: PostgresqlServer, name: str = "holdfast") -> list[int]:
    with psycopg.connect(server.url, autocommit=True) as connection:
        rows = connection.execute(f"SELECT number FROM {name}.migrations ORDER BY number".encode())
        return [number for (number,) in rows]


def test_numbers_are_without_gaps_or_doubles() -> None:
    assert list(range(1, len(NUMBERS) + 1)) == NUMBERS


SERIALIZABLE = "?options=-c%20default_transaction_isolation%3Dserializable"


@pytest.mark.parametrize("isolation", ["", SERIALIZABLE])
async def test_of_many_processes_one_makes_the_schema(
    postgresql_server: PostgresqlServer, make_database: MakeDatabase, isolation: str
) -> None:
    databases = [make_database(postgresql_server.url + isolation) for _ in range(8)]
    registries = [PostgresRegistry(database, SystemClock()) for database in databases]
    assert await asyncio.gather(*(registry.get("a") for registry in registries)) == [None] * 8
    assert applied(postgresql_server) == NUMBERS


async def test_many_processes_migrate_each_step_once(
    postgresql_server: PostgresqlServer, make_database: MakeDatabase
) -> None:
    done = await asyncio.gather(*(make_database(postgresql_server.url).migrate() for _ in range(4)))
    assert sorted(done) == [[], [], [], NUMBERS]
    assert await make_database(postgresql_server.url).migrate() == []


async def test_a_schema_sees_nothing_of_another(
    postgresql_server: PostgresqlServer, make_database: MakeDatabase
) -> None:
    one = PostgresRegistry(make_database(postgresql_server.url), SystemClock())
    other = PostgresRegistry(make_database(f"{postgresql_server.url}?schema=other"), SystemClock())
    await one.put("a", b"body", 0)
    assert await other.get("a") is None
    assert applied(postgresql_server, "other") == NUMBERS
    administer(postgresql_server, "DROP SCHEMA other CASCADE")


async def test_a_step_that_fails_leaves_nothing_behind(
    postgresql_server: PostgresqlServer, make_database: MakeDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = schema.migrations()
    broken = [*good, Migration(len(good) + 1, "CREATE TABLE {schema}.half (); SELECT 1 / 0")]
    monkeypatch.setattr(schema, "migrations", lambda: broken)
    with pytest.raises(HoldfastError, match="zero"):
        await make_database(postgresql_server.url).migrate()
    monkeypatch.undo()
    assert await make_database(postgresql_server.url).migrate() == NUMBERS


async def test_a_schema_of_a_newer_version_is_refused(
    postgresql_server: PostgresqlServer, make_database: MakeDatabase
) -> None:
    await make_database(postgresql_server.url).migrate()
    administer(postgresql_server, "INSERT INTO holdfast.migrations (number, contracts) VALUES (1000, true)")
    registry = PostgresRegistry(make_database(postgresql_server.url), SystemClock())
    for _ in range(2):
        with pytest.raises(UnsupportedStore, match=r"1000.*upgrade Holdfast"):
            await registry.get("a")


async def test_a_schema_to_which_a_newer_version_has_only_added_is_used(
    postgresql_server: PostgresqlServer, make_database: MakeDatabase
) -> None:
    await make_database(postgresql_server.url).migrate()
    administer(postgresql_server, "INSERT INTO holdfast.migrations (number) VALUES (1000)")
    registry = PostgresRegistry(make_database(postgresql_server.url), SystemClock())
    assert await registry.get("a") is None


async def test_a_schema_of_another_program_is_refused(
    postgresql_server: PostgresqlServer, make_database: MakeDatabase
) -> None:
    administer(postgresql_server, "CREATE SCHEMA holdfast", "CREATE TABLE holdfast.theirs ()")
    registry = PostgresRegistry(make_database(postgresql_server.url), SystemClock())
    with pytest.raises(UnsupportedStore, match=r"another program.*\?schema="):
        await registry.get("a")


async def test_an_empty_schema_that_an_administrator_made_is_used(
    postgresql_server: PostgresqlServer, make_database: MakeDatabase
) -> None:
    administer(postgresql_server, "CREATE SCHEMA holdfast")
    assert await make_database(postgresql_server.url).migrate() == NUMBERS


async def test_a_schema_that_was_dropped_is_made_again(
    postgresql_server: PostgresqlServer, make_database: MakeDatabase
) -> None:
    registry = PostgresRegistry(make_database(postgresql_server.url), SystemClock())
    assert await registry.put("a", b"one", 0)
    administer(postgresql_server, "DROP SCHEMA holdfast CASCADE")
    with pytest.raises(Unavailable, match="gone"):
        await registry.get("a")
    assert await registry.get("a") is None
    assert await registry.put("a", b"two", 0)


async def test_a_server_that_is_too_old_is_refused(
    postgresql_server: PostgresqlServer, make_database: MakeDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schema, "OLDEST_SERVER", 1000)
    with pytest.raises(UnsupportedStore, match="too old; Holdfast needs 1000"):
        await make_database(postgresql_server.url).migrate()


# --- privileges


@pytest.fixture
def node_url(postgresql_server: PostgresqlServer) -> str:
    """For a role without any privilege yet."""
    administer(
        postgresql_server,
        'DO $$ BEGIN CREATE ROLE "a node" LOGIN; EXCEPTION WHEN duplicate_object THEN NULL; END $$',
    )
    return f"postgresql://a%20node@{urlsplit(postgresql_server.url).netloc.partition('@')[2]}/postgres"


@pytest.mark.slow
async def test_a_role_with_the_printed_grants_may_do_all_that_nodes_do(
    postgresql_server: PostgresqlServer, make_database: MakeDatabase, node_url: str
) -> None:
    await make_database(postgresql_server.url).migrate()
    administer(postgresql_server, *schema.grants("holdfast", "a node"))
    database = make_database(node_url)
    await _do_all(database)
    for forbidden in (
        "CREATE TABLE holdfast.mine ()",
        "DELETE FROM holdfast.migrations",
        "TRUNCATE holdfast.messages",
        "DROP TABLE holdfast.members",
        "CREATE SCHEMA mine",
    ):
        with psycopg.connect(node_url, autocommit=True) as connection:  # noqa: SIM117 (the inner one fails)
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(forbidden.encode())


async def test_a_role_without_grants_is_told_what_it_needs(
    postgresql_server: PostgresqlServer, make_database: MakeDatabase, node_url: str
) -> None:
    with pytest.raises(ConfigError, match="doctor --grants"):
        await make_database(node_url).migrate()
    await make_database(postgresql_server.url).migrate()
    registry = PostgresRegistry(make_database(node_url), SystemClock())
    with pytest.raises(ConfigError, match="doctor --grants"):
        await registry.get("a")


async def _do_all(database: PostgresDatabase) -> None:
    clock = SystemClock()
    registry = PostgresRegistry(database, clock)
    document = await registry.put("a", b"one", 0)
    assert document is not None
    assert await registry.drop("a", document.version)

    coordinator = PostgresCoordinator(database, clock)
    number, _ = await coordinator.watch(-1, 0)
    await coordinator.join(A, 60)
    await coordinator.release(await coordinator.claim("s/k", A.id))
    await coordinator.renew(A, 60)
    await coordinator.evict(A.id)
    assert len((await coordinator.watch(number, 0))[1]) == 4
    await database.lane("membership").run_once(coordinator.tidy_up, None, writes=True)

    tasks = PostgresTasks(database, "app", clock)
    [begun] = await tasks.start([wish("k")])
    await tasks.end([EndAttempt("k", begun.epoch, State.SUCCEEDED)])
    assert await tasks.expire(1e11) == 1

    queue = PostgresQueue(PostgresMessages(database, clock), "q", clock)
    await queue.send([Outgoing(b"x")])
    [delivery] = await queue.receive(1, 0, 60, "me")
    await queue.delete([delivery.receipt])
    await queue.bury([DeadLetter("a", b"x", "r")])
    assert await queue.redrive(["a"]) == 1
    assert await queue.reserve("k", "me", 1, 60)
    taken = await queue.take("k", "me", 1, 60)
    assert taken is not None
    assert await queue.keep(["k"], "me", 60) == []
    await queue.unreserve("k", "me")
    [delivery] = await queue.receive(1, 60, 60, "me")
    assert await queue.put_back([PutBack(delivery.receipt, "k")]) == []

    state = PostgresState(database, clock)
    opened = await state.open("s/k", 0, "m")
    await state.start("s/k", opened.epoch, "1")
    await state.commit(Commit("s/k", opened.epoch, 1, "id", None, state=b"s", results=(Result("1", b"r"),)))
    assert [logged.result.body for logged in await state.results(0, 10)] == [b"r"]
    assert await state.due(1e11, 10, 60) == []
    await state.expire(1e11, 1e11)
