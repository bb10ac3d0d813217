"""Slots that are processes: what every maker of slots must do."""

from collections.abc import AsyncIterator

import pytest

from holdfast.slots import ForkserverSlots, ForkserverTaskSlots
from holdfast.system.clock import SystemClock
from holdfast.testing.conformance.slots import SlotsConformance
from holdfast.testing.conformance.task_slots import TaskSlotsConformance


class TestForkserverSlots(SlotsConformance):
    @pytest.fixture
    async def slots(self) -> AsyncIterator[ForkserverSlots]:
        made = ForkserverSlots("holdfast.testing.conformance.slots_app:app", SystemClock())
        yield made
        await made.close()


class TestForkserverTaskSlots(TaskSlotsConformance):
    @pytest.fixture
    async def task_slots(self) -> AsyncIterator[ForkserverTaskSlots]:
        app = "holdfast.testing.conformance.task_slots_app:app"
        made = ForkserverTaskSlots(app, SystemClock(), close_timeout_s=0.1)
        yield made
        await made.close()
