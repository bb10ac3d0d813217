"""The queue in memory."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from holdfast.ports.clock import Clock
from holdfast.ports.queue import Outgoing
from holdfast.services.memory.queue import MemoryQueue, StoredMessage
from holdfast.testing.conformance import KeyedQueueConformance, QueueConformance, QueueTransferConformance


class TestMemoryQueue(KeyedQueueConformance, QueueConformance, QueueTransferConformance):
    @pytest.fixture
    async def queue(self, clock: Clock) -> AsyncIterator[MemoryQueue]:
        queue = MemoryQueue(clock)
        yield queue
        await queue.close()


class TestMemoryQueueInOrder(QueueConformance):
    @pytest.fixture
    async def queue(self, clock: Clock) -> AsyncIterator[MemoryQueue]:
        queue = MemoryQueue(clock, fifo=True, by_key=False)
        yield queue
        await queue.close()


class TestMemoryQueueThatFreesNothing(KeyedQueueConformance, QueueConformance, QueueTransferConformance):
    @pytest.fixture
    async def queue(self, clock: Clock) -> AsyncIterator[MemoryQueue]:
        queue = MemoryQueue(clock, frees_on_evict=False, max_batch=12, max_bytes=1_000)
        yield queue
        await queue.close()


async def test_a_chooser_reorders_drops_and_repeats(clock: Clock) -> None:
    queue = MemoryQueue(clock)
    queue.choose = lambda visible: [*reversed(visible[1:]), visible[-1]] if visible else []
    await queue.send([Outgoing(b"1"), Outgoing(b"2"), Outgoing(b"3")])
    deliveries = await queue.receive(10, 0, 60, "node")
    assert [(d.body, d.receives) for d in deliveries] == [(b"3", 1), (b"2", 1), (b"3", 2)]
    assert await queue.delete([deliveries[0].receipt]) == [deliveries[0].receipt]
    assert [m.body for m in queue.messages.values()] == [b"1", b"2", b"3"]


async def test_a_chooser_may_repeat_what_is_in_flight(clock: Clock) -> None:
    queue = MemoryQueue(clock)
    await queue.send([Outgoing(b"1")])
    await queue.receive(1, 0, 60, "node")

    def everything(visible: list[StoredMessage]) -> list[StoredMessage]:
        return list(queue.messages.values())

    queue.choose = everything
    [again] = await queue.receive(1, 0, 60, "other")
    assert (again.body, again.receives) == (b"1", 2)


async def test_waking_ends_waiting_receives_at_once(clock: Clock) -> None:
    queue = MemoryQueue(clock)
    waiting = asyncio.create_task(queue.receive(1, 60, 60, "node"))
    await asyncio.sleep(0)
    queue.wake()
    before = clock.monotonic()
    assert await waiting == []
    assert clock.monotonic() == before


async def test_the_log_tells_a_message_s_life(clock: Clock) -> None:
    log: list[object] = []
    queue = MemoryQueue(clock, log=log)
    await queue.send([Outgoing(b"1")])
    [first] = await queue.receive(1, 0, 60, "node")
    await queue.give_back([first.receipt], 0)
    [second] = await queue.receive(1, 0, 60, "node")
    await queue.extend([first.receipt, second.receipt], 60)
    await queue.delete([second.receipt])
    events = [(e.kind, e.id, e.receipt) for e in queue.log]
    assert events == [
        ("sent", first.id, ""),
        ("received", first.id, first.receipt),
        ("given back", first.id, first.receipt),
        ("received", first.id, second.receipt),
        ("stale", first.id, first.receipt),
        ("extended", first.id, second.receipt),
        ("deleted", first.id, second.receipt),
    ]
    assert queue.log is log


async def test_a_fifo_queue_keeps_each_key_s_order(clock: Clock) -> None:
    queue = MemoryQueue(clock, fifo=True)
    await queue.send([Outgoing(b"a1", key="a"), Outgoing(b"b1", key="b"), Outgoing(b"a2", key="a")])
    [first] = await queue.receive(1, 0, 30, "node")
    [other] = await queue.receive(3, 0, 60, "node")
    assert (first.body, other.body) == (b"a1", b"b1"), "a2 waits for a1"
    await clock.sleep(31)
    assert [d.body for d in await queue.receive(3, 0, 60, "node")] == [b"a1", b"a2"]


async def test_a_delivery_is_held_no_longer_than_the_queue_lets(clock: Clock) -> None:
    queue = MemoryQueue(clock, hold_max_s=50)
    await queue.send([Outgoing(b"x")])
    [first] = await queue.receive(1, 0, 30, "node")
    await clock.sleep(20)
    assert await queue.extend([first.receipt], 30) == []
    await clock.sleep(1)
    assert await queue.extend([first.receipt], 30) == [first.receipt]
    await clock.sleep(30)
    assert len(await queue.receive(1, 0, 30, "node")) == 1
