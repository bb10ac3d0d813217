"""Slots that are processes: what every maker of slots must do."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from holdfast.slots.slots import ForkserverSlots
from holdfast.slots.stream_slots import StreamSlotSettings, stream_slots
from holdfast.slots.task_slots import TaskSlotSettings, task_slots
from holdfast.system.clock import SystemClock
from holdfast.testing.conformance.slots import StreamSlotsConformance, TaskSlotsConformance

APP = "holdfast.testing.conformance.slots_app"
Slots = AsyncIterator[ForkserverSlots[Any, Any]]

pytestmark = pytest.mark.slow


class TestStreamSlots(StreamSlotsConformance):
    memory_mb = 300

    @pytest.fixture
    async def slots(self) -> Slots:
        settings = StreamSlotSettings(app=f"{APP}:app", memory_mb=self.memory_mb, close_timeout_s=0.1)
        made = stream_slots(settings, SystemClock())
        yield made
        await made.close()

    @pytest.fixture
    async def unloadable(self) -> Slots:
        made = stream_slots(StreamSlotSettings(app=f"{APP}:nothing"), SystemClock())
        yield made
        await made.close()


class TestTaskSlots(TaskSlotsConformance):
    memory_mb = 300

    @pytest.fixture
    async def slots(self) -> Slots:
        settings = TaskSlotSettings(app=f"{APP}:app", memory_mb=self.memory_mb, close_timeout_s=0.1)
        made = task_slots(settings, SystemClock())
        yield made
        await made.close()

    @pytest.fixture
    async def unloadable(self) -> Slots:
        made = task_slots(TaskSlotSettings(app=f"{APP}:nothing"), SystemClock())
        yield made
        await made.close()
