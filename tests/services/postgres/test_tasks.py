"""The task store in PostgreSQL: its promises, and what is its own."""

import asyncio
import itertools

import psycopg
import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from holdfast.errors import Fenced, HoldfastError
from holdfast.ports.meter import Meter
from holdfast.ports.queue import Outgoing
from holdfast.ports.tasks import TaskStore
from holdfast.rules.tasks.task import AttemptBeat, EndAttempt, State, Task
from holdfast.services.postgres.address import parse
from holdfast.services.postgres.database import PostgresDatabase
from holdfast.services.postgres.messages import PostgresMessages
from holdfast.services.postgres.queue import PostgresQueue
from holdfast.services.postgres.tasks import PostgresTasks
from holdfast.system.clock import SystemClock
from holdfast.testing.conformance import BriefingConformance, TasksConformance, TasksTransferConformance
from holdfast.testing.conformance.task_oracle import FOREVER, TaskMachine
from holdfast.testing.conformance.tasks import BRIEFS, wish
from simulator.servers import PostgresqlServer
from simulator.servers.server import until
from tests.services.postgres.conftest import MakeDatabase


def tasks_at(make_database: MakeDatabase, server: PostgresqlServer, app: str = "app") -> PostgresTasks:
    return PostgresTasks(make_database(server.url), app, SystemClock())


class TestOnOneServer(TasksConformance, TasksTransferConformance):
    @pytest.fixture
    def tasks(self, postgresql_server: PostgresqlServer, make_database: MakeDatabase) -> TaskStore:
        return tasks_at(make_database, postgresql_server)

    @pytest.fixture
    def other_tasks(
        self, postgresql_server: PostgresqlServer, tasks: TaskStore, make_database: MakeDatabase
    ) -> TaskStore:
        return tasks_at(make_database, postgresql_server)


class TestBesideQueues(BriefingConformance):
    @pytest.fixture
    def database(self, postgresql_server: PostgresqlServer, make_database: MakeDatabase) -> PostgresDatabase:
        return make_database(postgresql_server.url)

    @pytest.fixture
    def tasks(self, database: PostgresDatabase) -> PostgresTasks:
        return PostgresTasks(database, "app", SystemClock(), max_message_bytes=10_000)

    @pytest.fixture
    def briefs(self, database: PostgresDatabase) -> PostgresQueue:
        messages = PostgresMessages(database, SystemClock())
        return PostgresQueue(messages, BRIEFS, SystemClock(), max_bytes=10_000)


async def test_if_briefs_can_t_be_added_no_outcome_is_stored(
    postgresql_server: PostgresqlServer, make_database: MakeDatabase
) -> None:
    tasks = tasks_at(make_database, postgresql_server)
    [begun] = await tasks.start([wish("k")])
    with psycopg.connect(postgresql_server.url, autocommit=True) as connection:
        connection.execute("ALTER TABLE holdfast.messages RENAME TO elsewhere")
        end = EndAttempt("k", begun.epoch, State.SUCCEEDED)
        with pytest.raises(HoldfastError, match="messages"):
            await tasks.end_and_brief([end], BRIEFS, lambda task: Outgoing(b"brief"))
        connection.execute("ALTER TABLE holdfast.elsewhere RENAME TO messages")
    assert await tasks.get("k") == begun


async def test_only_so_many_large_outcomes_share_a_transaction_as_it_has_time_for(
    postgresql_server: PostgresqlServer, make_database: MakeDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.services.postgres.lane.BATCH_MAX", 20)
    tasks = tasks_at(make_database, postgresql_server)
    begun = await tasks.start([wish(str(number)) for number in range(6)])
    ends = [EndAttempt(each.task_id, each.epoch, State.SUCCEEDED, result=b"x" * (1 << 20)) for each in begun]
    await asyncio.gather(*(tasks.end([end]) for end in ends))
    with psycopg.connect(postgresql_server.url) as connection:
        written = connection.execute("SELECT count(DISTINCT xmin::text) FROM holdfast.tasks").fetchone()
    assert written == (3,), "each weighs as much as nine small ones"


@pytest.mark.nightly
def test_it_decides_as_the_rules_do(kept_postgresql: PostgresqlServer) -> None:
    numbers = itertools.count()

    class PostgresMachine(TaskMachine):
        def __init__(self) -> None:
            super().__init__()
            self._databases: list[PostgresDatabase] = []

        async def make(self) -> TaskStore:
            if not self._databases:  # else another one is to stand beside the first
                await kept_postgresql.reset()
            self._url = f"{kept_postgresql.url}?schema=machine_{next(numbers)}"
            return self._connected()

        async def reopen(self, store: TaskStore) -> TaskStore:
            await self._databases.pop().close()
            return self._connected()

        def _connected(self) -> TaskStore:
            self._databases.append(PostgresDatabase(parse(self._url), SystemClock(), Meter()))
            return PostgresTasks(self._databases[-1], "app", SystemClock())

        def teardown(self) -> None:
            for database in self._databases:
                self._run(database.close())
            super().teardown()

    asyncio.run(kept_postgresql.heal())
    run_state_machine_as_test(
        PostgresMachine, settings=settings(max_examples=20, stateful_step_count=25, deadline=None)
    )


@pytest.mark.slow
async def test_of_those_who_begin_a_new_task_together_one_does(
    postgresql_server: PostgresqlServer, make_database: MakeDatabase
) -> None:
    stores = [tasks_at(make_database, postgresql_server) for _ in range(4)]
    await asyncio.gather(*(store.now() for store in stores))
    for number in range(20):
        asked = [
            store.start([wish(f"{number}.{i}", member=f"m{place}") for i in range(10)])
            for place, store in enumerate(stores)
        ]
        begun = await asyncio.gather(*asked)
        for records in zip(*begun, strict=True):
            assert len({(task.member, task.epoch) for task in records}) == 1


async def test_an_app_sees_and_changes_no_tasks_of_another(
    postgresql_server: PostgresqlServer, make_database: MakeDatabase
) -> None:
    tasks = tasks_at(make_database, postgresql_server)
    other = tasks_at(make_database, postgresql_server, "another")
    await tasks.start([wish("k")])
    assert await other.get("k") is None
    assert await other.list(10) == []
    assert await other.counts() == {}
    await other.queue([Task("k", "t")])
    assert await other.expire(FOREVER) == 1
    assert await tasks.get("k") is not None


async def test_an_attempt_that_the_server_forgot_stays_fenced(
    postgresql_server: PostgresqlServer, make_database: MakeDatabase
) -> None:
    """The server loses its last writes; another attempt begins."""
    tasks = tasks_at(make_database, postgresql_server)
    [forgotten] = await tasks.start([wish("k", member="a")])
    with psycopg.connect(postgresql_server.url, autocommit=True) as connection:
        connection.execute("DELETE FROM holdfast.tasks")
    [begun] = await tasks.start([wish("k", member="b")])
    assert begun.epoch > forgotten.epoch
    [refused] = await tasks.end([EndAttempt("k", forgotten.epoch, State.SUCCEEDED)])
    assert isinstance(refused, Fenced)


async def test_epochs_differ_on_servers_whose_clocks_are_behind(
    postgresql_server: PostgresqlServer, make_database: MakeDatabase
) -> None:
    tasks, ahead = tasks_at(make_database, postgresql_server), 4 * 10**15
    await tasks.queue([Task(f"k{i}", "t", epoch=ahead) for i in range(10)])
    begun = await tasks.start([wish(f"k{i}") for i in range(10)])
    assert len({task.epoch for task in begun}) >= 5
    assert min(task.epoch for task in begun) > ahead


async def test_a_text_with_a_nul_is_stored_and_found(
    postgresql_server: PostgresqlServer, make_database: MakeDatabase
) -> None:
    """The character NUL, which texts of PostgreSQL can't hold."""
    tasks = tasks_at(make_database, postgresql_server)
    [begun] = await tasks.start([wish("a\0b", member="m\0", group="g\0")])
    [beaten] = await tasks.beat([AttemptBeat("a\0b", begun.epoch, 60.0, note="\0")])
    assert isinstance(beaten, Task)
    assert beaten.note == "\0"
    [ended] = await tasks.end([EndAttempt("a\0b", begun.epoch, State.FAILED, detail="why\0")])
    assert await tasks.get("a\0b") == ended
    assert await tasks.list(10, "a", type=ended.type) == [ended]
    assert (await tasks.cancel("a\0c", "\0"), await tasks.reset(["\0"])) == (None, [None])


async def test_a_task_that_succeeds_changes_the_indexes_at_its_end_only(
    postgresql_server: PostgresqlServer, make_database: MakeDatabase
) -> None:
    database = make_database(postgresql_server.url)
    tasks = PostgresTasks(database, "app", SystemClock())
    await tasks.queue([Task("k", "t")])
    [begun] = await tasks.start([wish("k")])
    await tasks.beat([AttemptBeat("k", begun.epoch, 60.0)])
    await tasks.end([EndAttempt("k", begun.epoch, State.SUCCEEDED)])
    await tasks.briefed([("k", begun.epoch)])
    await database.close()  # the server counts no later than that

    query = "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE relid = %s::regclass"
    table = ("holdfast.tasks",)
    with psycopg.connect(postgresql_server.url, autocommit=True) as connection:

        async def counted() -> bool:  # it counts some of them sooner than others
            [updates, _] = connection.execute(query, table).fetchone() or (0, 0)
            return bool(updates == 4)

        await until(counted, "the changes are counted")
        assert connection.execute(query, table).fetchone() == (4, 3)
