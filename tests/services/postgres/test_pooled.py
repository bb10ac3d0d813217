"""All ports through PgBouncer, which gives each transaction another connection of the server."""

import asyncio
from collections.abc import Iterator

import psycopg
import pytest

from holdfast.ports.coordinator import Coordinator
from holdfast.ports.queue import Queue
from holdfast.ports.registry import Registry
from holdfast.ports.state import StateStore
from holdfast.ports.tasks import TaskStore
from holdfast.services.postgres.coordinator import PostgresCoordinator
from holdfast.services.postgres.lane import Connection
from holdfast.services.postgres.messages import PostgresMessages
from holdfast.services.postgres.queue import PostgresQueue
from holdfast.services.postgres.registry import PostgresRegistry
from holdfast.services.postgres.state import PostgresState
from holdfast.services.postgres.tasks import PostgresTasks
from holdfast.system.clock import SystemClock
from holdfast.testing.conformance import (
    CoordinatorConformance,
    KeyedQueueConformance,
    QueueConformance,
    RegistryConformance,
    StateConformance,
    TasksConformance,
)
from simulator.servers import PgbouncerServer, PostgresqlServer
from tests.conftest import kept
from tests.services.postgres.conftest import MakeDatabase

PATIENCE_S = 30.0

pytestmark = pytest.mark.nightly


@pytest.fixture(scope="module")
def kept_pool(kept_postgresql: PostgresqlServer) -> Iterator[PgbouncerServer]:
    yield from kept(PgbouncerServer(kept_postgresql))


@pytest.fixture
async def url(postgresql_server: PostgresqlServer, kept_pool: PgbouncerServer) -> str:
    await kept_pool.heal()
    await kept_pool.reconnect()  # recreating the server ends its connections
    return kept_pool.url


class TestRegistry(RegistryConformance):
    @pytest.fixture
    def registry(self, url: str, make_database: MakeDatabase) -> Registry:
        return PostgresRegistry(make_database(url), SystemClock(), max_bytes=10_000)

    @pytest.fixture
    def other_registry(self, url: str, registry: Registry, make_database: MakeDatabase) -> Registry:
        return PostgresRegistry(make_database(url), SystemClock(), max_bytes=10_000)


class TestCoordinator(CoordinatorConformance):
    tick_s = 0.25

    @pytest.fixture
    def coordinator(self, url: str, make_database: MakeDatabase) -> Coordinator:
        return PostgresCoordinator(make_database(url), SystemClock())

    @pytest.fixture
    def other_coordinator(
        self, url: str, coordinator: Coordinator, make_database: MakeDatabase
    ) -> Coordinator:
        return PostgresCoordinator(make_database(url), SystemClock())


class TestState(StateConformance):
    @pytest.fixture
    def state(self, url: str, make_database: MakeDatabase) -> StateStore:
        return PostgresState(make_database(url), SystemClock(), max_state_bytes=2 << 20)

    @pytest.fixture
    def other_state(self, url: str, state: StateStore, make_database: MakeDatabase) -> StateStore:
        return PostgresState(make_database(url), SystemClock(), max_state_bytes=2 << 20)


class TestTasks(TasksConformance):
    @pytest.fixture
    def tasks(self, url: str, make_database: MakeDatabase) -> TaskStore:
        return PostgresTasks(make_database(url), "app", SystemClock())

    @pytest.fixture
    def other_tasks(self, url: str, tasks: TaskStore, make_database: MakeDatabase) -> TaskStore:
        return PostgresTasks(make_database(url), "app", SystemClock())


class TestQueue(KeyedQueueConformance, QueueConformance):
    @pytest.fixture
    def queue(self, url: str, make_database: MakeDatabase) -> Queue:
        return queue_at(make_database, url)

    @pytest.fixture
    def other_queue(self, url: str, queue: Queue, make_database: MakeDatabase) -> Queue:
        return queue_at(make_database, url)


def queue_at(make_database: MakeDatabase, url: str) -> PostgresQueue:
    messages = PostgresMessages(make_database(url), SystemClock())
    return PostgresQueue(messages, "q", SystemClock(), max_bytes=1 << 20)


async def test_each_transaction_has_another_connection_and_nothing_stays_on_it(
    url: str, postgresql_server: PostgresqlServer, make_database: MakeDatabase
) -> None:
    database = make_database(url)
    registry = PostgresRegistry(database, SystemClock())
    used = set()

    async def look(connection: Connection) -> None:
        rows = await connection.execute(
            "SELECT pg_backend_pid(), current_setting('lock_timeout'), current_setting('synchronous_commit'),"
            " (SELECT count(*) FROM pg_prepared_statements)"
        )
        used.add((await rows.fetchall())[0])

    async def nothing(connection: Connection) -> None:
        await connection.execute("SELECT 1")

    async with asyncio.timeout(PATIENCE_S):
        while len(used) < 2:
            calls = (database.lane(name).write(nothing, durable=False) for name in ("membership", "queue"))
            await asyncio.gather(*calls, registry.get("a"), database.lane("state").read(look))
    assert {limits[1:] for limits in used} == {("0", "on", 0)}


async def test_who_waits_is_woken_past_the_pool(
    url: str, postgresql_server: PostgresqlServer, make_database: MakeDatabase
) -> None:
    one, other = make_database(url), make_database(url)
    with one.bells.listen("topic") as rung:
        await asyncio.wait_for(one.bells.hears.wait(), PATIENCE_S)
        rung.clear()
        other.bells.ring(["topic"])
        await asyncio.wait_for(rung.wait(), PATIENCE_S)
    with psycopg.connect(postgresql_server.url, autocommit=True) as connection:
        query = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'LISTEN%'"
        assert connection.execute(query).fetchone() == (1,)
