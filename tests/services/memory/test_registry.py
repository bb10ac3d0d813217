"""The registry in memory."""

import asyncio

import pytest

from holdfast.ports.clock import Clock
from holdfast.services.memory.registry import MemoryRegistry
from holdfast.testing.conformance import RegistryConformance


class TestMemoryRegistry(RegistryConformance):
    @pytest.fixture
    def registry(self, clock: Clock) -> MemoryRegistry:
        return MemoryRegistry(clock, max_bytes=10_000)


async def test_closing_ends_a_waiting_call(clock: Clock) -> None:
    registry = MemoryRegistry(clock)
    waiting = asyncio.create_task(registry.changed("k", 0, 60))
    await asyncio.sleep(0)
    await registry.close()
    assert await asyncio.wait_for(waiting, 10) is None
