"""The queue in memory."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from holdfast.adapters.memory.queue import MemoryQueue, Stored
from holdfast.ports.clock import Clock
from holdfast.ports.queue import Outgoing
from holdfast.testing.conformance import QueueConformance


class TestMemoryQueue(QueueConformance):
    @pytest.fixture
    async def queue(self, clock: Clock) -> AsyncIterator[MemoryQueue]:
        queue = MemoryQueue(clock)
        yield queue
        await queue.close()


class TestMemoryQueueThatFreesNothing(QueueConformance):
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

    def everything(visible: list[Stored]) -> list[Stored]:
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
    told = [(e.kind, e.id, e.receipt) for e in queue.log]
    assert told == [
        ("sent", first.id, ""),
        ("received", first.id, first.receipt),
        ("given back", first.id, first.receipt),
        ("received", first.id, second.receipt),
        ("stale", first.id, first.receipt),
        ("extended", first.id, second.receipt),
        ("deleted", first.id, second.receipt),
    ]
    assert queue.log is log
