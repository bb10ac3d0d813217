"""The machine's clock."""

import asyncio
import time

from holdfast.system.clock import SystemClock


def test_the_clock_agrees_with_the_machine() -> None:
    clock = SystemClock()
    begun = time.time()
    assert begun <= clock.wall() <= time.time()
    before = clock.monotonic()
    assert before <= clock.monotonic()
    assert 0 <= clock.random() < 1


def test_ids_are_unique_short_and_sort_by_time() -> None:
    clock = SystemClock()
    ids = [clock.new_id() for _ in range(1000)]
    assert len(set(ids)) == 1000
    assert all(len(i) <= 32 for i in ids)
    assert [i[:12] for i in ids] == sorted(i[:12] for i in ids)


async def test_wait_ends_with_the_event_or_the_timeout() -> None:
    clock, event = SystemClock(), asyncio.Event()
    assert not await clock.wait(event, 0)
    assert not await clock.wait(event, 0.001)
    waiting = asyncio.create_task(clock.wait(event, None))
    begun = clock.monotonic()
    await clock.sleep(0.01)
    assert clock.monotonic() - begun >= 0.009
    event.set()
    assert await waiting
    assert await clock.wait(event, 0)
