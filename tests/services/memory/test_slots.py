"""Simulated slots: what every maker of slots must do, and the faults they are for."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from holdfast.errors import SlotDied
from holdfast.ports.slots import MessageWork, SlotHost, SlotWorker
from holdfast.services.memory.slots import MemorySlot, MemorySlots
from holdfast.streams.worker import load
from holdfast.system.clock import SystemClock
from holdfast.testing.conformance.slots import StreamSlotsConformance

APP = "holdfast.testing.conformance.slots_app"


def make(host: SlotHost) -> SlotWorker:
    return load(host, f"{APP}:app")


class TestMemorySlots(StreamSlotsConformance):
    @pytest.fixture
    async def slots(self) -> AsyncIterator[MemorySlots]:
        made = MemorySlots(make, SystemClock(), close_timeout_s=0.1)
        yield made
        made.die()

    @pytest.fixture
    def unloadable(self) -> MemorySlots:
        return MemorySlots(lambda host: load(host, f"{APP}:nothing"), SystemClock())


async def opened(before: Callable[[MemorySlot, str, str, MessageWork], Awaitable[None]]) -> MemorySlot:
    slot = await MemorySlots(make, SystemClock(), before=before).spawn()
    await slot.open("count", "k", None, 0)
    return slot


async def test_what_runs_ahead_may_fail_the_message() -> None:
    async def fail(slot: MemorySlot, stream: str, key: str, work: MessageWork) -> None:
        if work.seq == 2:
            raise ValueError("on purpose")

    slot = await opened(fail)
    ran = await slot.run("count", "k", [MessageWork(0, seq, b"x") for seq in range(4)], 9, 9.0)
    assert (len(ran.results), ran.error, ran.state) == (2, "ValueError: on purpose", None)


async def test_what_runs_ahead_may_end_the_process() -> None:
    async def crash(slot: MemorySlot, stream: str, key: str, work: MessageWork) -> None:
        slot.die("crashed", "on purpose")

    slot = await opened(crash)
    with pytest.raises(SlotDied, match="slot slot-1 crashed") as death:
        await slot.run("count", "k", [MessageWork(0, 1, b"x")], 9, 9.0)
    assert death.value.detail == "on purpose"
    assert (await slot.exited()).reason == "crashed"


async def test_a_cancelled_call_is_finished_all_the_same() -> None:
    reached, go_on = asyncio.Event(), asyncio.Event()

    async def pause(slot: MemorySlot, stream: str, key: str, work: MessageWork) -> None:
        reached.set()
        await go_on.wait()

    slot = await opened(pause)
    call = asyncio.create_task(slot.run("count", "k", [MessageWork(0, 1, b"x")], 9, 9.0))
    await reached.wait()
    call.cancel()
    go_on.set()
    ran = await slot.run("count", "k", [MessageWork(0, 2, b"x")], 9, 9.0)
    assert ran.state == b"v2:2"


async def test_a_dead_node_takes_its_slots_along() -> None:
    slots = MemorySlots(make, SystemClock())
    made = [await slots.spawn() for _ in range(3)]
    slots.die()
    assert [(await slot.exited()).reason for slot in made] == ["died with its node"] * 3
    assert slots.slots == []
