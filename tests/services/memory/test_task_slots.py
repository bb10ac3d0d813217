"""Simulated slots for tasks: what every maker of such slots must do, and the faults they are for."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from holdfast.errors import ConfigError
from holdfast.ports.slots import Attempt, TaskHost, TaskWorker
from holdfast.services.memory.task_slots import MemoryTaskSlot, MemoryTaskSlots
from holdfast.system.clock import SystemClock
from holdfast.tasks.worker import load
from holdfast.testing.conformance.slots import RecordingListener, TaskSlotsConformance

APP = "holdfast.testing.conformance.slots_app"


def make(host: TaskHost) -> TaskWorker:
    return load(host, f"{APP}:app")


class TestMemoryTaskSlots(TaskSlotsConformance):
    @pytest.fixture
    async def slots(self) -> AsyncIterator[MemoryTaskSlots]:
        made = MemoryTaskSlots(make, SystemClock())
        yield made
        made.die()

    @pytest.fixture
    def unloadable(self) -> MemoryTaskSlots:
        return MemoryTaskSlots(lambda host: load(host, f"{APP}:nothing"), SystemClock())


ECHO = Attempt("trace", "echo", b"")


async def test_what_runs_ahead_may_fail_the_attempt() -> None:
    async def fail(slot: MemoryTaskSlot, attempt: Attempt) -> None:
        raise ValueError("on purpose")

    listener = RecordingListener()
    slot = await MemoryTaskSlots(make, SystemClock(), before=fail).spawn(listener)
    slot.offer(1, ECHO)
    assert (await listener.outcome(1)).error == "ValueError: on purpose"
    await slot.stop(1.0)


async def test_what_runs_ahead_may_end_the_process() -> None:
    async def crash(slot: MemoryTaskSlot, attempt: Attempt) -> None:
        slot.die("crashed", "on purpose")

    slots = MemoryTaskSlots(make, SystemClock(), before=crash)
    slot = await slots.spawn(RecordingListener())
    slot.offer(1, ECHO)
    gone = await slot.exited()
    assert (gone.reason, gone.stacks, list(gone.untouched), slots.slots) == ("crashed", "on purpose", [], [])


async def test_an_attempt_that_ignores_its_cancellation_ends_only_when_killed() -> None:
    begun = asyncio.Event()

    async def hang(slot: MemoryTaskSlot, attempt: Attempt) -> None:
        slot.deafen()
        begun.set()
        await asyncio.Event().wait()

    listener = RecordingListener()
    slot = await MemoryTaskSlots(make, SystemClock(), before=hang).spawn(listener)
    slot.offer(1, ECHO)
    await begun.wait()
    slot.cancel(1, "enough")
    assert await slot.dump() == "simulated stack: echo trace"
    await slot.kill("on purpose")
    assert (await slot.exited()).reason == "was killed: on purpose"
    assert listener.order == []


async def test_a_dead_node_takes_its_slots_along() -> None:
    slots = MemoryTaskSlots(make, SystemClock())
    made = [await slots.spawn(RecordingListener()) for _ in range(3)]
    slots.die()
    assert [(await slot.exited()).reason for slot in made] == ["died with its node"] * 3
    with pytest.raises(ConfigError, match="closed"):
        await slots.spawn(RecordingListener())
