"""The queue in Redis between this version and the last release, which knows no keys."""

import asyncio
import json
import subprocess
from collections.abc import AsyncIterator
from typing import Any

import pytest

from holdfast.ports.meter import Meter
from holdfast.ports.queue import DeadLetter, Delivery, Outgoing, PutBack
from holdfast.services.redis.connection import RedisConnection, parse
from holdfast.services.redis.queue import RedisQueue, bell_of
from holdfast.system.clock import SystemClock
from simulator.servers import RedisServer
from tests.versions import released

LONG_S = 60.0
PATIENCE_S = 60.0

THEN = """
import asyncio, json, sys
from holdfast.ports.meter import Meter
from holdfast.services.redis.connection import RedisConnection, parse
from holdfast.services.redis.queue import RedisQueue, bell_of
from holdfast.system.clock import SystemClock

async def main():
    connection, clock = RedisConnection(parse(sys.argv[1]), Meter()), SystemClock()
    bell = bell_of(connection, clock)
    queue = RedisQueue(connection, "q", clock, bell)
    received = []
    for name, *arguments in json.loads(sys.argv[2]):
        if name == "receive":
            for each in await queue.receive(*arguments):
                received.append([each.body.decode(), each.attributes, each.receipt])
        else:
            await getattr(queue, name)(*arguments)
    print(json.dumps(received))
    await bell.close()
    await connection.close()

asyncio.run(main())
"""
"""Calls the queue of the release, and prints what it receives."""


@pytest.fixture
async def server() -> AsyncIterator[RedisServer]:
    async with RedisServer() as server:
        yield server


@pytest.fixture
async def queue(server: RedisServer) -> AsyncIterator[RedisQueue]:
    connection, clock = RedisConnection(parse(server.url), Meter()), SystemClock()
    bell = bell_of(connection, clock)
    yield RedisQueue(connection, "q", clock, bell)
    await bell.close()
    await connection.close()


@pytest.mark.nightly
async def test_the_release_receives_what_has_keys_as_it_was_sent(
    server: RedisServer, queue: RedisQueue
) -> None:
    await queue.send([Outgoing(b"with", {"id": "1", "n": "2"}, key="a"), Outgoing(b"without", key="a")])
    received = await then(server, ["receive", 10, 0, LONG_S, "old"])
    assert [(body, attributes) for body, attributes, _ in received] == [
        ("with", {"id": "1", "n": "2"}),
        ("without", {}),
    ]
    await then(server, ["delete", [receipt for _, _, receipt in received]])
    async with server.client() as redis:
        assert set(await redis.keys("*")) == {"{holdfast:queue:q}:last", "holdfast:queues"}


@pytest.mark.nightly
async def test_the_release_receives_what_was_set_aside_once_nobody_renews_that(
    server: RedisServer, queue: RedisQueue
) -> None:
    await queue.send([Outgoing(b"%d" % number, key="a") for number in range(6)])
    await queue.reserve("a", "node", 1, LONG_S)
    assert await queue.receive(10, 0, LONG_S, "node") == []
    assert await then(server, ["receive", 10, 0, LONG_S, "old"]) == []
    async with server.client() as redis:
        numbers: Any = await redis.zrange("{holdfast:queue:q}:delayed", 0, -1)
        for number in numbers:
            await redis.zadd("{holdfast:queue:q}:delayed", {number: 1})
    received = await then(server, ["receive", 4, 0, LONG_S, "old"])
    assert [body for body, _, _ in received] == ["0", "1", "2", "3"]
    deleted, delayed, given, _ = [receipt for _, _, receipt in received]
    await then(server, ["delete", [deleted]], ["give_back", [delayed], LONG_S], ["give_back", [given], 0])
    assert [(d.body, d.receives) for d in await take_all(queue)] == [(b"2", 2), (b"4", 1), (b"5", 1)]
    depth = await queue.depth()
    assert (depth.ready, depth.in_flight, depth.delayed) == (0, 4, 1)


@pytest.mark.nightly
async def test_a_receipt_of_the_release_counts_for_what_is_set_aside(
    server: RedisServer, queue: RedisQueue
) -> None:
    await queue.send([Outgoing(b"%d" % number, key="a") for number in range(4)])
    received = await then(server, ["receive", 3, 0, LONG_S, "old"])
    deleted, delayed, given = [receipt for _, _, receipt in received]
    await queue.reserve("a", "node", 1, LONG_S)
    await queue.free("old")
    await then(server, ["delete", [deleted]], ["give_back", [delayed], LONG_S], ["give_back", [given], 0])
    taken = await take_all(queue)
    assert [d.body for d in taken] == [b"2", b"3"]
    assert await queue.receive(10, 0, LONG_S, "node") == []
    await queue.delete([d.receipt for d in taken])
    depth = await queue.depth()
    assert (depth.ready, depth.in_flight, depth.delayed) == (0, 0, 1)


@pytest.mark.nightly
async def test_the_release_deletes_what_was_put_back(server: RedisServer, queue: RedisQueue) -> None:
    await queue.send([Outgoing(b"x", key="a")])
    [delivery] = await queue.receive(1, 0, LONG_S, "node")
    await queue.put_back([PutBack(delivery.receipt, "a")])
    [delivery] = await queue.receive(1, 0, LONG_S, "node")
    assert delivery.receives == 1
    await then(server, ["delete", [delivery.receipt]])
    assert await queue.receive(1, 0, LONG_S, "node") == []
    async with server.client() as redis:
        assert set(await redis.keys("*")) == {"{holdfast:queue:q}:last", "holdfast:queues"}


@pytest.mark.nightly
async def test_the_release_sends_dead_letters_with_keys_again(server: RedisServer, queue: RedisQueue) -> None:
    letters = [DeadLetter(name, b"x", "why", {"n": name}, key="a", turn=1) for name in ("l", "m")]
    await queue.bury([*letters, DeadLetter("n", b"y", "why", key="a", turn=1)])
    await then(server, ["redrive", ["l", "n"]])
    assert [(m.body, m.attributes, m.key) for m in await queue.waiting(2)] == [
        (b"x", {"n": "l"}, "a"),
        (b"y", {}, "a"),
    ]
    assert [(letter.id, letter.attributes) for letter in await queue.dead_letters(2)] == [("m", {"n": "m"})]


async def then(server: RedisServer, *calls: Any) -> list[tuple[str, dict[str, str], str]]:
    """Make calls of the release; return body, attributes and receipt of what it receives."""
    python = await asyncio.to_thread(released.python)
    process = await asyncio.create_subprocess_exec(
        python, "-c", THEN, server.url, json.dumps(calls), stdout=subprocess.PIPE
    )
    received, _ = await process.communicate()
    assert process.returncode == 0
    return [(body, attributes, receipt) for body, attributes, receipt in json.loads(received)]


async def take_all(queue: RedisQueue) -> list[Delivery]:
    """Take what is reserved until there is no more."""
    deliveries: list[Delivery] = []
    async with asyncio.timeout(PATIENCE_S):
        while True:
            taken = await queue.take("a", "node", 2, LONG_S)
            assert taken is not None
            deliveries += taken.deliveries
            if not taken.more:
                return deliveries
