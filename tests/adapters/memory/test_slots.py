"""Slots in memory."""

from collections.abc import AsyncIterator

import pytest

from holdfast.adapters.memory.slots import MemorySlots
from holdfast.ports.clock import Clock
from holdfast.streams import worker
from holdfast.testing.conformance import SlotsConformance


class TestMemorySlots(SlotsConformance):
    @pytest.fixture
    async def slots(self, clock: Clock) -> AsyncIterator[MemorySlots]:
        slots = MemorySlots(
            lambda host: worker.load(host, "holdfast.testing.conformance.slots_app:app"), clock
        )
        yield slots
        await slots.close()
