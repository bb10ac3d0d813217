"""The queue in Redis: its promises on every kind of server, and what is its own."""

import asyncio
from typing import Any

import pytest

from holdfast.ports.queue import DeadLetter, KeyedQueue, Outgoing, Queue
from holdfast.services.redis.connection import RedisConnection
from holdfast.services.redis.queue import all_names, filled
from holdfast.testing.conformance import KeyedQueueConformance, QueueConformance, QueueTransferConformance
from simulator.servers import RedisServer
from tests.services.redis.conftest import Connect, MakeQueue
from tests.services.redis.places import Cluster, OneServer, Sentinels

PATIENCE_S = 30.0
LONG_S = 60.0


class OnRedis(KeyedQueueConformance, QueueConformance, QueueTransferConformance):
    @pytest.fixture
    def queue(self, url: str, make_queue: MakeQueue) -> KeyedQueue:
        return make_queue(url)

    @pytest.fixture
    def other_queue(self, queue: Queue, url: str, make_queue: MakeQueue) -> KeyedQueue:
        return make_queue(url)


class TestOnOneServer(OneServer, OnRedis):
    pass


@pytest.mark.nightly
class TestWithSentinels(Sentinels, OnRedis):
    pass


@pytest.mark.nightly
class TestInACluster(Cluster, OnRedis):
    pass


@pytest.mark.parametrize("count", [1, 2])
async def test_each_message_wakes_one_process_that_waits(
    redis_server: RedisServer, make_queue: MakeQueue, count: int
) -> None:
    queues = [make_queue(redis_server.url) for _ in range(3)]
    waiting = [asyncio.create_task(queue.receive(1, LONG_S, LONG_S, "node")) for queue in queues]
    async with redis_server.client() as redis:
        while await redis.zcard("{holdfast:queue:q}:waiters") < 3:
            await redis.ping()
        await make_queue(redis_server.url).send([Outgoing(b"%d" % n) for n in range(count)])
        assert await redis.zcard("{holdfast:queue:q}:waiters") == 3 - count
    done, _ = await asyncio.wait(waiting, timeout=PATIENCE_S, return_when=asyncio.FIRST_COMPLETED)
    assert done
    for queue in queues:
        queue.wake()
    found = [delivery.body for deliveries in await asyncio.gather(*waiting) for delivery in deliveries]
    assert sorted(found) == [b"%d" % n for n in range(count)]


async def test_a_receive_that_is_cancelled_under_way_gives_back_what_it_gets(
    redis_server: RedisServer, make_queue: MakeQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = make_queue(redis_server.url)
    await queue.send([Outgoing(b"x")])
    script, called = RedisConnection.script, asyncio.Event()

    async def noted_script(self: RedisConnection, *arguments: Any) -> Any:
        called.set()
        return await script(self, *arguments)

    monkeypatch.setattr(RedisConnection, "script", noted_script)
    receiving = asyncio.create_task(queue.receive(1, 0, LONG_S, "node"))
    await called.wait()
    receiving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await receiving
    [delivery] = await queue.receive(1, 0, LONG_S, "node")
    assert delivery.receives == 2


async def test_what_is_given_back_with_a_delay_is_in_flight_no_more(
    redis_server: RedisServer, make_queue: MakeQueue
) -> None:
    """Or it would show when its visibility ends, before its time."""
    queue = make_queue(redis_server.url)
    await queue.send([Outgoing(b"x")])
    [delivery] = await queue.receive(1, 0, LONG_S, "node")
    assert await queue.give_back([delivery.receipt], 2 * LONG_S) == []
    depth = await queue.depth()
    assert (depth.ready, depth.in_flight, depth.delayed) == (0, 0, 1)


async def test_what_was_answered_outlives_a_server_that_is_killed(make_queue: MakeQueue) -> None:
    """Where it writes to disk before it answers: messages, their receives, deletes and dead letters."""
    async with RedisServer(appendonly=True, settings={"appendfsync": "always"}) as server:
        queue = make_queue(server.url)
        await queue.send([Outgoing(b"%d" % n) for n in range(4)])
        gone, buried, held = await queue.receive(3, 0, LONG_S, "node")
        await queue.delete([gone.receipt])
        await queue.bury([DeadLetter("l", buried.body, "why")])
        await queue.delete([buried.receipt])
        server.kill()
        await server.restart()
        queue = make_queue(server.url)
        assert await queue.give_back([gone.receipt, held.receipt], 0) == [gone.receipt]
        left = await queue.receive(10, 0, LONG_S, "node")
        assert [(delivery.body, delivery.receives) for delivery in left] == [(b"2", 2), (b"3", 1)]
        [letter] = await queue.dead_letters(10)
        assert (letter.id, letter.body, letter.reason) == ("l", b"1", "why")


async def test_numbers_grow_though_the_server_was_emptied(
    redis_server: RedisServer, make_queue: MakeQueue
) -> None:
    queue = make_queue(redis_server.url)
    before = await queue.send([Outgoing(b"1"), Outgoing(b"2")])
    await redis_server.reset()
    after = await queue.send([Outgoing(b"3")])
    assert int(after[0]) > int(before[1]) > int(before[0])


async def test_a_deleted_message_leaves_no_keys_of_its_own(
    redis_server: RedisServer, make_queue: MakeQueue
) -> None:
    queue = make_queue(redis_server.url)
    await queue.send([Outgoing(b"x", {"a": "b"}), Outgoing(b"y", delay_s=0.001)])
    left = 2
    while left:  # a receive that waits would be noted
        delivered = await queue.receive(1, 0, LONG_S, "node")
        await queue.delete([delivery.receipt for delivery in delivered])
        left -= len(delivered)
    async with redis_server.client() as redis:
        keys = set(await redis.keys("*"))
    assert keys == {"{holdfast:queue:q}:last", "holdfast:queues"}


async def test_queues_that_hold_messages_are_listed(
    redis_server: RedisServer, make_queue: MakeQueue, connect: Connect
) -> None:
    for name in ("b", "a", "empty"):
        await make_queue(redis_server.url, name).send([Outgoing(b"x")])
    queue = make_queue(redis_server.url, "empty")
    [delivery] = await queue.receive(1, PATIENCE_S, LONG_S, "node")
    await queue.delete([delivery.receipt])
    assert await filled(connect(redis_server.url)) == ["a", "b"]


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


async def test_a_queue_that_holds_dead_letters_only_is_listed(
    redis_server: RedisServer, make_queue: MakeQueue, connect: Connect
) -> None:
    await make_queue(redis_server.url, "quiet").bury([DeadLetter("a", b"x", "r")])
    assert await all_names(connect(redis_server.url)) == ["quiet"]
    assert await filled(connect(redis_server.url)) == []
