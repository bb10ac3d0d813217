"""Slots that are processes: what every maker of slots must do."""

from collections.abc import AsyncIterator

import pytest

from holdfast.adapters.forkserver import ForkserverSlots
from holdfast.adapters.system.clock import SystemClock
from holdfast.testing.conformance.slots import SlotsConformance


class TestForkserverSlots(SlotsConformance):
    @pytest.fixture
    async def slots(self) -> AsyncIterator[ForkserverSlots]:
        made = ForkserverSlots("holdfast.testing.conformance.slots_app:app", SystemClock())
        yield made
        await made.close()
