"""The task store in Redis: its promises on every kind of server, and what is its own."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from holdfast.errors import ConfigError, Fenced, OutcomeUnknown, Unavailable
from holdfast.ports.meter import Meter
from holdfast.ports.tasks import TaskStore
from holdfast.rules.tasks.task import DelayTask, EndAttempt, State, Task
from holdfast.services.redis.connection import RedisConnection, Script, parse
from holdfast.services.redis.tasks import RedisTasks
from holdfast.system.clock import SystemClock
from holdfast.testing.conformance import TasksConformance, TasksTransferConformance
from holdfast.testing.conformance.task_oracle import TaskMachine
from holdfast.testing.conformance.tasks import wish
from simulator.servers import RedisSentinel, RedisServer
from tests.services.redis.conftest import shard_of
from tests.services.redis.places import Cluster, OneServer, Sentinels, Shards

MakeTasks = Callable[..., RedisTasks]


def new_tasks(url: str, app: str = "app", meter: Meter | None = None) -> RedisTasks:
    connection = RedisConnection(parse(url), meter or Meter(), timeout_s=5.0)
    return RedisTasks(connection, app, SystemClock())


@pytest.fixture
async def make_tasks() -> AsyncIterator[MakeTasks]:
    """Makes task stores at URLs; they end with the test."""
    made = []

    def make(url: str, app: str = "app", meter: Meter | None = None) -> RedisTasks:
        made.append(new_tasks(url, app, meter))
        return made[-1]

    yield make
    for tasks in made:
        await tasks.close()


class OnRedis(TasksConformance, TasksTransferConformance):
    @pytest.fixture
    def tasks(self, url: str, make_tasks: MakeTasks) -> TaskStore:
        return make_tasks(url)

    @pytest.fixture
    def other_tasks(self, url: str, tasks: TaskStore, make_tasks: MakeTasks) -> TaskStore:
        return make_tasks(url)


class TestOnOneServer(OneServer, OnRedis):
    pass


class TestInShards(Shards, OnRedis):
    pass


@pytest.mark.nightly
class TestWithSentinels(Sentinels, OnRedis):
    pass


@pytest.mark.nightly
class TestInACluster(Cluster, OnRedis):
    pass


@pytest.mark.nightly
@pytest.mark.parametrize("shards", [1, 3])
def test_it_decides_as_the_rules_do(kept_redis: RedisServer, shards: int) -> None:
    numbers = itertools.count()

    class RedisMachine(TaskMachine):
        async def make(self) -> TaskStore:
            self.url = f"{kept_redis.url}?namespace=tasks-{shards}-{next(numbers)}&shards={shards}"
            return new_tasks(self.url)

        async def reopen(self, store: TaskStore) -> TaskStore:
            await store.close()
            return new_tasks(self.url)

    asyncio.run(kept_redis.heal())
    run_state_machine_as_test(
        RedisMachine, settings=settings(max_examples=20, stateful_step_count=25, deadline=None)
    )


@pytest.fixture
def tasks(redis_server: RedisServer, make_tasks: MakeTasks) -> RedisTasks:
    return make_tasks(redis_server.url)


async def test_an_app_sees_no_tasks_of_another(
    tasks: RedisTasks, redis_server: RedisServer, make_tasks: MakeTasks
) -> None:
    other = make_tasks(redis_server.url, "app:task")
    await tasks.start([wish("k")])
    assert await other.get("k") is None
    assert await other.counts() == {}


async def test_an_attempt_that_the_server_forgot_stays_fenced(
    tasks: RedisTasks, redis_server: RedisServer
) -> None:
    """The server loses its last writes; another attempt begins."""
    [forgotten] = await tasks.start([wish("k", member="a")])
    await redis_server.reset()
    [begun] = await tasks.start([wish("k", member="b")])
    assert begun.epoch > forgotten.epoch
    [refused] = await tasks.end([EndAttempt("k", forgotten.epoch, State.SUCCEEDED)])
    assert isinstance(refused, Fenced)


async def test_epochs_differ_on_servers_whose_clocks_are_behind(
    tasks: RedisTasks, redis_server: RedisServer
) -> None:
    epochs, ahead = set(), 4 * 10**15
    await tasks.queue([Task(f"k{i}", "t", epoch=ahead) for i in range(5)])
    for task in await tasks.start([wish(f"k{i}") for i in range(5)]):
        epochs.add(task.epoch)
    for i in range(5, 10):
        await tasks.queue([Task(f"k{i}", "t", epoch=ahead)])
        [task] = await tasks.start([wish(f"k{i}")])
        epochs.add(task.epoch)
    assert len(epochs) >= 5
    assert min(epochs) > ahead


async def test_a_batch_is_one_call_a_shard(redis_server: RedisServer, make_tasks: MakeTasks) -> None:
    meter = Meter()
    tasks = make_tasks(redis_server.url + "?shards=3", meter=meter)
    await tasks.start([wish(f"warm{i}") for i in range(40)])
    before = sum(meter.calls.values())
    begun = await tasks.start([wish(f"k{i}") for i in range(60)])
    await tasks.end([EndAttempt(task.task_id, task.epoch, State.SUCCEEDED) for task in begun])
    assert sum(meter.calls.values()) - before == 6


@pytest.mark.parametrize("away", ["task_soonest", "task_due"])
async def test_delayed_tasks_of_a_server_that_is_away_don_t_hold_up_others(
    redis_server: RedisServer, make_tasks: MakeTasks, monkeypatch: pytest.MonkeyPatch, away: str
) -> None:
    tasks = make_tasks(redis_server.url + "?shards=5")
    task_ids = {shard_of(f"k{n}", 5): f"k{n}" for n in range(100)}
    await tasks.delay([DelayTask(task_id, "t", 5.0, b"m") for task_id in task_ids.values()])
    script = RedisConnection.script

    async def script_of_others(
        self: RedisConnection, called: Script, names: Sequence[str], *words: Any
    ) -> Any:
        if called.name == away and names[0].startswith("{holdfast:0}"):
            raise Unavailable("this server is away")
        return await script(self, called, names, *words)

    monkeypatch.setattr(RedisConnection, "script", script_of_others)
    due = await tasks.due(60.0, 10, 1000.0)
    assert {task.task_id for task in due} == {task_ids[shard] for shard in range(1, 5)}
    with pytest.raises(Unavailable, match="away"):
        await tasks.due(60.0, 10, 1000.0)
    monkeypatch.undo()
    assert [task.task_id for task in await tasks.due(60.0, 10, 1000.0)] == [task_ids[0]]


async def test_no_more_delayed_tasks_are_handed_out_than_were_asked_for(
    redis_server: RedisServer, make_tasks: MakeTasks
) -> None:
    tasks = make_tasks(redis_server.url + "?shards=5")
    await tasks.delay([DelayTask(f"k{n:02}", "t", 5.0 + n, b"m") for n in range(20)])
    for begin in range(0, 20, 4):
        due = await tasks.due(60.0, 4, 1000.0)
        assert sorted(task.task_id for task in due) == [f"k{n:02}" for n in range(begin, begin + 4)]


async def test_expired_tasks_leave_no_keys(tasks: RedisTasks, redis_server: RedisServer) -> None:
    [begun] = await tasks.start([wish("k")])
    await tasks.end([EndAttempt("k", begun.epoch, State.SUCCEEDED)])
    assert await tasks.expire(1e11) == 1
    assert await tasks.counts() == {}
    async with redis_server.client() as redis:
        assert [key async for key in redis.scan_iter("*tasks*")] == []


async def test_another_count_of_shards_is_refused(
    tasks: RedisTasks, redis_server: RedisServer, make_tasks: MakeTasks
) -> None:
    await tasks.start([wish("k")])
    with pytest.raises(ConfigError, match="shards"):
        await make_tasks(redis_server.url + "?shards=2").start([wish("k")])


async def test_calls_work_again_after_a_server_restart(tasks: RedisTasks, redis_server: RedisServer) -> None:
    [begun] = await tasks.start([wish("k")])
    redis_server.kill()
    with pytest.raises((Unavailable, OutcomeUnknown)):
        await tasks.start([wish("l")])
    with pytest.raises(Unavailable):
        await tasks.start([wish("l")])
    await redis_server.start()
    await tasks.end([EndAttempt("k", begun.epoch, State.SUCCEEDED)])
    [begun] = await tasks.start([wish("l")])
    assert begun.state is State.RUNNING


async def test_changes_of_tasks_are_on_all_replicas_when_answered(
    redis_sentinel: RedisSentinel, make_tasks: MakeTasks
) -> None:
    tasks = make_tasks(redis_sentinel.url + "?wait_replicas=2")
    begun = await tasks.start([wish(f"k{i}") for i in range(20)])
    await tasks.end([EndAttempt(task.task_id, task.epoch, State.SUCCEEDED) for task in begun])
    for server in redis_sentinel.redis:
        async with server.client() as redis:
            assert await redis.hget("{holdfast:0}:tasks:app:task:k7", "state") in (b"succeed", "succeed")


@pytest.mark.slow
async def test_a_change_that_replicas_lack_is_of_unknown_outcome(
    redis_server: RedisServer, make_tasks: MakeTasks
) -> None:
    tasks = make_tasks(redis_server.url + "?wait_replicas=1")
    for _ in range(2):
        with pytest.raises(OutcomeUnknown, match="wait_replicas"):
            await tasks.start([wish("k")])
    found = await tasks.get("k")
    assert found is not None
    assert found.attempts == 1
