"""Reservations in Redis: what is their own there, beside the promises of every queue that knows keys."""

import asyncio
from typing import Any

import pytest

from holdfast.ports.queue import DeadLetter, Delivery, Outgoing, PutBack
from holdfast.services.redis.connection import RedisConnection
from holdfast.services.redis.queue import RedisQueue
from simulator.servers import RedisServer
from tests.services.redis.conftest import MakeQueue

LONG_S = 60.0
PATIENCE_S = 30.0
ROOT = "{holdfast:queue:q}"
LAPSE_S = 0.2
STEP_US = 300 * 10**6
"""The steps of the time until which what is set aside is delayed."""

DEEP = 1_500
"""More messages than one call looks at."""


@pytest.fixture
def queue(redis_server: RedisServer, make_queue: MakeQueue) -> RedisQueue:
    return make_queue(redis_server.url)


async def test_a_take_finds_its_messages_behind_those_of_other_keys(queue: RedisQueue) -> None:
    await send(queue, "other", DEEP)
    await send(queue, "a", 3)
    await queue.reserve("a", "node", 1, LONG_S)
    assert [d.body for d in await take_all(queue, "a")] == [b"a0", b"a1", b"a2"]
    assert len(await receive_all(queue)) == DEEP


async def test_what_came_again_is_taken_first_from_behind_a_deep_backlog(queue: RedisQueue) -> None:
    await send(queue, "a", 2)
    first = await queue.receive(2, 0, LONG_S, "node")
    await queue.bury([DeadLetter(d.body.decode(), d.body, "why", key="a", turn=d.turn) for d in first])
    await queue.delete([d.receipt for d in first])
    await send(queue, "a", DEEP, 2)
    await queue.redrive(["a1", "a0"])
    await queue.reserve("a", "node", 1, LONG_S)
    taken = await take_all(queue, "a")
    assert [d.body for d in taken] == [b"a%d" % number for number in range(DEEP + 2)]
    assert [d.turn for d in taken[:2]] == [d.turn for d in first]


async def test_what_is_sent_to_a_reserved_key_comes_after_what_was_there(queue: RedisQueue) -> None:
    """Though it is set aside before that is found."""
    await send(queue, "other", DEEP)
    await send(queue, "a", 3)
    await queue.reserve("a", "node", 1, LONG_S)
    await send(queue, "a", 3, 3)
    assert [d.body for d in await take_all(queue, "a")] == [b"a%d" % number for number in range(6)]


async def test_a_deep_reservation_that_was_given_up_shows_all_oldest_first(queue: RedisQueue) -> None:
    await send(queue, "a", DEEP)
    await queue.reserve("a", "node", 1, LONG_S)
    assert await queue.receive(10, 0, LONG_S, "node") == []
    assert await queue.receive(10, 0, LONG_S, "node") == []
    await queue.unreserve("a", "node")
    received = [d.body for d in await receive_all(queue)]
    assert received == [b"a%d" % number for number in range(DEEP)]


async def test_a_receive_that_waits_sorts_on_and_hears_of_a_lapse_at_once(
    queue: RedisQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.services.redis.queue.SAFETY_S", 2 * LONG_S)
    await send(queue, "a", DEEP)
    await send(queue, "b", 1)
    await queue.reserve("a", "node", 1, LONG_S)
    async with asyncio.timeout(PATIENCE_S):
        assert [d.body for d in await queue.receive(10, LONG_S, LONG_S, "node")] == [b"b0"]
        await queue.keep(["a"], "node", LAPSE_S)
        assert [d.body for d in await queue.receive(1, LONG_S, LONG_S, "node")] == [b"a0"]


async def test_a_take_brings_as_many_bytes_as_a_call_takes(
    queue: RedisQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.services.redis.queue.CALL_BYTES", 250)
    bodies = [bytes([number]) * 100 for number in range(5)]
    await queue.send([Outgoing(body, key="a") for body in bodies])
    await queue.reserve("a", "node", 1, LONG_S)
    sizes = []
    taken = await queue.take("a", "node", 10, LONG_S)
    while taken and taken.deliveries:
        sizes.append(len(taken.deliveries))
        assert [d.body for d in taken.deliveries] == bodies[sum(sizes[:-1]) : sum(sizes)]
        assert taken.more == (sum(sizes) < len(bodies))
        taken = await queue.take("a", "node", 10, LONG_S)
    assert sizes == [2, 2, 1]


async def test_a_take_that_is_cancelled_under_way_puts_back_what_it_gets(
    queue: RedisQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    await send(queue, "a", 1)
    await queue.reserve("a", "node", 1, LONG_S)
    script, called = RedisConnection.script, asyncio.Event()

    async def noted_script(self: RedisConnection, *arguments: Any) -> Any:
        called.set()
        return await script(self, *arguments)

    monkeypatch.setattr(RedisConnection, "script", noted_script)
    taking = asyncio.create_task(queue.take("a", "node", 1, LONG_S))
    await called.wait()
    taking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await taking
    [delivery] = await take_all(queue, "a")
    assert delivery.receives == 1


async def test_a_receipt_that_outlives_its_freed_holder_counts_for_what_is_set_aside(
    queue: RedisQueue, redis_server: RedisServer
) -> None:
    await send(queue, "a", 4)
    gone, held, later, again = await queue.receive(4, 0, LONG_S, "dead")
    await queue.reserve("a", "node", 1, LONG_S)
    await queue.free("dead")
    assert (await queue.depth()).ready == 4
    assert await queue.delete([gone.receipt]) == []
    async with redis_server.client() as redis:
        assert await redis.zcard(f"{ROOT}:delayed") == 3
    assert await queue.extend([held.receipt], LONG_S) == []
    assert await queue.give_back([later.receipt], LONG_S) == []
    assert await queue.give_back([again.receipt], 0) == []
    assert [d.body for d in await take_all(queue, "a")] == [again.body]
    depth = await queue.depth()
    assert (depth.ready, depth.in_flight, depth.delayed) == (0, 2, 1)


@pytest.mark.parametrize("attributes", [{}, {"n": "1"}, {'"\\': "\n", "\\": ""}, {"\t": "{"}, {"": "x"}])
@pytest.mark.parametrize("key", ["a", 'a "quoted" \\\n\t key', "ключ"])
async def test_whatever_key_is_noted_beside_whatever_attributes(
    queue: RedisQueue, key: str, attributes: dict[str, str]
) -> None:
    await queue.send([Outgoing(b"with", attributes, key=key), Outgoing(b"without", attributes)])
    delivered = await queue.receive(2, 0, LONG_S, "node")
    await queue.reserve(key, "node", 1, LONG_S)
    await queue.put_back([PutBack(d.receipt, key) for d in delivered])
    assert [each.key for each in await queue.waiting(2)] == [key] * 2
    taken = await take_all(queue, key)
    assert [(d.body, d.attributes) for d in taken] == [(b"with", attributes), (b"without", attributes)]


async def test_nothing_is_left_of_reservations_and_their_messages(
    queue: RedisQueue, redis_server: RedisServer
) -> None:
    await send(queue, "a", 4)
    await queue.reserve("a", "node", 1, LONG_S)
    [first, second, third, fourth] = await take_all(queue, "a")
    await queue.put_back([PutBack(d.receipt, "a") for d in (first, second)])
    await queue.delete([third.receipt, fourth.receipt])
    await queue.unreserve("a", "node")
    await queue.delete([d.receipt for d in await receive_all(queue)])
    async with redis_server.client() as redis:
        assert set(await redis.keys("*")) == {f"{ROOT}:last", "holdfast:queues"}


async def test_what_is_set_aside_is_renewed_before_it_shows(
    queue: RedisQueue, redis_server: RedisServer
) -> None:
    await send(queue, "a", 3)
    await queue.reserve("a", "node", 1, LONG_S)
    assert await queue.receive(1, 0, LONG_S, "node") == []
    async with redis_server.client() as redis:
        for number, shows in await delayed(redis):
            await redis.zadd(f"{ROOT}:delayed", {number: shows - 3 * STEP_US})
        soon = [shows for _, shows in await delayed(redis)]
        assert await queue.receive(1, 0, LONG_S, "node") == []
        assert [shows for _, shows in await delayed(redis)] >= [shows + 3 * STEP_US for shows in soon]
    assert (await queue.depth()).ready == 3


async def delayed(redis: Any) -> list[tuple[bytes, float]]:
    """What is delayed, and until when."""
    found: list[tuple[bytes, float]] = await redis.zrange(f"{ROOT}:delayed", 0, -1, withscores=True)
    return found


async def send(queue: RedisQueue, key: str, count: int, first: int = 0) -> None:
    """Send ``count`` messages of a key, with their numbers."""
    messages = [Outgoing(f"{key}{number}".encode(), key=key) for number in range(first, first + count)]
    for begin in range(0, count, queue.max_batch):
        await queue.send(messages[begin : begin + queue.max_batch])


async def take_all(queue: RedisQueue, key: str) -> list[Delivery]:
    """Take until nothing is left."""
    deliveries: list[Delivery] = []
    async with asyncio.timeout(PATIENCE_S):
        while True:
            taken = await queue.take(key, "node", 128, LONG_S)
            assert taken is not None
            deliveries += taken.deliveries
            if not taken.more:
                return deliveries


async def receive_all(queue: RedisQueue) -> list[Delivery]:
    """Receive until nothing is left."""
    deliveries: list[Delivery] = []
    while some := await queue.receive(queue.max_batch, 0, LONG_S, "node"):
        deliveries += some
    return deliveries
