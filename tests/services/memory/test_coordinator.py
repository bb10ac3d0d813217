"""The coordinator in memory."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from holdfast.errors import MembershipLost
from holdfast.ports.clock import Clock
from holdfast.ports.coordinator import Member
from holdfast.services.memory.coordinator import MemoryCoordinator
from holdfast.testing.conformance import CoordinatorConformance

A = Member("a", "node a", "http://127.0.0.1:1")


class TestMemoryCoordinator(CoordinatorConformance):
    @pytest.fixture
    async def coordinator(self, clock: Clock) -> AsyncIterator[MemoryCoordinator]:
        coordinator = MemoryCoordinator(clock)
        yield coordinator
        await coordinator.close()


async def test_forgetting_loses_everything_and_tells_who_watches(clock: Clock) -> None:
    coordinator = MemoryCoordinator(clock)
    await coordinator.join(A, 60)
    claim = await coordinator.claim("s/k", A.id)
    number, _ = await coordinator.watch(-1, 0)
    watching = asyncio.create_task(coordinator.watch(number, 60))
    await asyncio.sleep(0)
    coordinator.forget()
    assert await asyncio.wait_for(watching, 10) == (0, [])
    assert number > 0
    assert await coordinator.members() == []
    assert await coordinator.claims() == []
    with pytest.raises(MembershipLost):
        await coordinator.renew(A, 60)
    await coordinator.join(A, 60)
    assert await coordinator.claim("s/k", A.id) == claim, "versions start again too"


async def test_closing_ends_a_waiting_watch(clock: Clock) -> None:
    coordinator = MemoryCoordinator(clock)
    watching = asyncio.create_task(coordinator.watch(0, 60))
    await asyncio.sleep(0)
    await coordinator.close()
    assert await asyncio.wait_for(watching, 10) == (0, [])


async def test_the_log_tells_every_change_even_after_forgetting(clock: Clock) -> None:
    coordinator = MemoryCoordinator(clock)
    await coordinator.join(A, 60)
    coordinator.forget()
    await coordinator.join(A, 60)
    assert [change.kind for change in coordinator.log] == ["joined", "joined"]
