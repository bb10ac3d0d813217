"""The queue in Redis: its promises on every kind of server, and what is its own."""

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from holdfast.ports.queue import Outgoing, Queue
from holdfast.services.redis.queue import RedisQueue, bell_of, filled
from holdfast.system.clock import SystemClock
from holdfast.testing.conformance import QueueConformance, QueueTransferConformance
from simulator.servers import RedisServer
from tests.services.redis.conftest import Connect
from tests.services.redis.places import Cluster, OneServer, Sentinels

MakeQueue = Callable[..., RedisQueue]

PATIENCE_S = 30.0
LONG_S = 60.0


@pytest.fixture
async def make_queue(connect: Connect) -> AsyncIterator[MakeQueue]:
    """Makes queues at URLs, each as another process has it; they end with the test."""
    bells = []

    def make(url: str, name: str = "q", max_bytes: int = 100_000) -> RedisQueue:
        connection, clock = connect(url), SystemClock()
        bells.append(bell_of(connection, clock))
        return RedisQueue(connection, name, clock, bells[-1], max_bytes=max_bytes)

    yield make
    for bell in bells:
        await bell.close()


class OnRedis(QueueConformance, QueueTransferConformance):
    @pytest.fixture
    def url(self) -> str:
        raise NotImplementedError

    @pytest.fixture
    def queue(self, url: str, make_queue: MakeQueue) -> Queue:
        return make_queue(url)

    @pytest.fixture
    def other_queue(self, queue: Queue, url: str, make_queue: MakeQueue) -> Queue:
        return make_queue(url)


class TestOnOneServer(OneServer, OnRedis):
    pass


class TestWithSentinels(Sentinels, OnRedis):
    pass


class TestInACluster(Cluster, OnRedis):
    pass


async def test_one_message_wakes_one_process_that_waits(
    redis_server: RedisServer, make_queue: MakeQueue
) -> None:
    queues = [make_queue(redis_server.url) for _ in range(3)]
    waiting = [asyncio.create_task(queue.receive(1, LONG_S, LONG_S, "node")) for queue in queues]
    async with redis_server.client() as redis:
        while await redis.zcard("{holdfast:queue:q}:waiters") < 3:
            await redis.ping()
        await make_queue(redis_server.url).send([Outgoing(b"x")])
        done, _ = await asyncio.wait(waiting, timeout=PATIENCE_S, return_when=asyncio.FIRST_COMPLETED)
        assert [delivery.body for task in done for delivery in task.result()] == [b"x"]
        assert await redis.zcard("{holdfast:queue:q}:waiters") == 2
    for queue in queues:
        queue.wake()
    assert sum(map(len, await asyncio.gather(*waiting))) == 1


async def test_numbers_grow_though_the_server_was_emptied(
    redis_server: RedisServer, make_queue: MakeQueue
) -> None:
    queue = make_queue(redis_server.url)
    before = await queue.send([Outgoing(b"1"), Outgoing(b"2")])
    await redis_server.reset()
    after = await queue.send([Outgoing(b"3")])
    assert int(after[0]) > int(before[1]) > int(before[0])


async def test_a_deleted_message_leaves_nothing(redis_server: RedisServer, make_queue: MakeQueue) -> None:
    queue = make_queue(redis_server.url)
    await queue.send([Outgoing(b"x", {"a": "b"}), Outgoing(b"y", delay_s=0.001)])
    for _ in range(2):
        [delivery] = await queue.receive(1, PATIENCE_S, LONG_S, "node")
        await queue.delete([delivery.receipt])
    async with redis_server.client() as redis:
        keys = set(await redis.keys("*"))
    assert keys == {"{holdfast:queue:q}:last", "holdfast:queues"}


async def test_queues_that_hold_messages_are_listed(redis_server: RedisServer, make_queue: MakeQueue) -> None:
    for name in ("b", "a", "empty"):
        await make_queue(redis_server.url, name).send([Outgoing(b"x")])
    queue = make_queue(redis_server.url, "empty")
    [delivery] = await queue.receive(1, PATIENCE_S, LONG_S, "node")
    await queue.delete([delivery.receipt])
    assert await filled(queue._connection) == ["a", "b"]


async def test_more_bytes_than_one_call_takes_go_in_several(
    redis_server: RedisServer, make_queue: MakeQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.services.redis.queue.CALL_BYTES", 250)
    queue = make_queue(redis_server.url)
    bodies = [bytes([n]) * 100 for n in range(5)]
    assert len(set(await queue.send([Outgoing(body) for body in bodies]))) == 5
    received = []
    while some := await queue.receive(10, 0, LONG_S, "node"):
        assert len(some) <= 2
        received += [delivery.body for delivery in some]
    assert received == bodies
