"""Connections that are shared, limited and kept."""

import asyncio
import math
from contextlib import AsyncExitStack
from typing import Any

import pytest

from holdfast.common.rate import Rate
from holdfast.errors import ConfigError
from holdfast.reports.deliver_pool import PoolLimits, SinkPool
from holdfast.reports.sinks.memory import MemorySink
from holdfast.system.clock import SystemClock


class Clock(SystemClock):
    """Stands still but for its sleeps."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.now += seconds
        await asyncio.sleep(0)


@pytest.fixture
def clock() -> Clock:
    return Clock()


def pool(clock: Clock, **limits: object) -> SinkPool:
    return SinkPool(clock, PoolLimits(**limits))  # type: ignore[arg-type]


async def test_a_connection_is_used_again_for_the_same_server_only(clock: Clock) -> None:
    shared = pool(clock)
    async with shared.sink("ftp://a", "ann", MemorySink) as first:
        pass
    async with shared.sink("ftp://a", "bob", MemorySink) as second:
        assert second is first
    async with shared.sink("ftp://b", "ann", MemorySink) as third:
        assert third is not first
    await shared.close()
    assert isinstance(first, MemorySink)
    assert first.closed


async def test_a_connection_that_failed_is_not_used_again(clock: Clock) -> None:
    shared = pool(clock)
    with pytest.raises(ValueError, match="broken"):
        async with shared.sink("ftp://a", "ann", MemorySink) as first:
            raise ValueError("broken")
    async with shared.sink("ftp://a", "ann", MemorySink) as second:
        assert second is not first
    assert isinstance(first, MemorySink)
    assert first.closed


async def test_one_that_was_idle_for_long_is_not(clock: Clock) -> None:
    shared = pool(clock, idle_s=10)
    async with shared.sink("ftp://a", "ann", MemorySink) as first:
        pass
    clock.now = 10
    async with shared.sink("ftp://a", "ann", MemorySink) as second:
        assert second is not first
    assert isinstance(first, MemorySink)
    assert first.closed


async def test_a_customer_has_so_many_and_no_other_waits_for_them(clock: Clock) -> None:
    shared = pool(clock, per_destination=4, per_customer=2)
    third = asyncio.Event()

    async def wait() -> None:
        async with shared.sink("ftp://c", "ann", MemorySink):
            third.set()

    async with AsyncExitStack() as stack:
        await stack.enter_async_context(shared.sink("ftp://a", "ann", MemorySink))
        async with shared.sink("ftp://b", "ann", MemorySink):
            waiting = asyncio.create_task(wait())
            async with shared.sink("ftp://c", "bob", MemorySink):
                pass
            assert not third.is_set()
        await waiting
    assert third.is_set()


async def test_connections_to_one_destination_are_limited(clock: Clock) -> None:
    shared = pool(clock, per_destination=2, per_customer=10)
    open_now, most = 0, 0

    async def use(number: int) -> None:
        nonlocal open_now, most
        async with shared.sink("ftp://a", f"c{number % 3}", MemorySink):
            open_now += 1
            most = max(most, open_now)
            await asyncio.sleep(0)
            open_now -= 1

    await asyncio.gather(*(use(number) for number in range(20)))
    assert most == 2


async def test_idle_connections_and_limits_are_forgotten(clock: Clock) -> None:
    shared = pool(clock, bytes_rate=Rate(10, 10))
    for number in range(100):
        async with shared.sink(f"ftp://{number}", f"c{number}", MemorySink):
            shared.pace(f"c{number}")(10)
    assert shared.kept >= 200
    clock.now = 100
    await shared.tidy()
    assert shared.kept == 0


async def test_new_connections_are_spread_out(clock: Clock) -> None:
    shared = pool(clock, idle_s=0, opens_rate=Rate(2, 1))
    for _ in range(5):
        async with shared.sink("ftp://a", "ann", MemorySink):
            pass
    assert clock.now == 2


async def test_bytes_have_a_pace_a_customer(clock: Clock) -> None:
    shared = pool(clock, bytes_rate=Rate(1000, 500))
    assert shared.pace("ann")(500) == 0
    assert shared.pace("ann")(500) == 0.5
    assert shared.pace("bob")(500) == 0


@pytest.mark.parametrize(
    "limits", [{"per_customer": 0}, {"per_destination": True}, {"idle_s": math.inf}, {"bytes_rate": 5}]
)
def test_limits_are_checked_where_they_are_declared(limits: dict[str, Any]) -> None:
    (setting,) = limits
    with pytest.raises(ConfigError, match=f"PoolLimits: {setting} is "):
        PoolLimits(**limits)
