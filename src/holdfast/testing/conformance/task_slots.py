"""What every maker of slots for tasks must do."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from holdfast.ports.task_slots import Attempt, Progress, TaskSlot, TaskSlotMaker, Tried

PATIENCE_S = 30.0
"""How long a test waits for what must come: a process may have to start."""


class RecordingListener:
    """Keeps what slots tell."""

    def __init__(self) -> None:
        self.tried: dict[int, Tried] = {}
        self.order: list[int] = []
        self.progress: list[tuple[int, Progress]] = []
        self.lines: list[tuple[int, str, str, dict[str, Any]]] = []
        self._heard = asyncio.Event()

    def told(self, slot: TaskSlot, number: int, tried: Tried) -> None:
        self.tried[number] = tried
        self.order.append(number)
        self._heard.set()

    def advanced(self, slot: TaskSlot, number: int, progress: Progress) -> None:
        self.progress.append((number, progress))
        self._heard.set()

    def said(self, slot: TaskSlot, number: int, level: str, event: str, values: Mapping[str, Any]) -> None:
        self.lines.append((number, level, event, dict(values)))

    async def outcome(self, number: int) -> Tried:
        """What is told of an attempt."""
        async with asyncio.timeout(PATIENCE_S):
            while number not in self.tried:
                self._heard.clear()
                await self._heard.wait()
        return self.tried[number]

    async def begun(self, count: int = 1) -> None:
        """Return when so many attempts have said how far they are."""
        async with asyncio.timeout(PATIENCE_S):
            while len(self.progress) < count:
                self._heard.clear()
                await self._heard.wait()


@pytest.mark.asyncio
class TaskSlotsConformance:
    """Every promise of the port of slots for tasks. Fixture: ``task_slots``, made for the app
    ``holdfast.testing.conformance.task_slots_app:app``."""

    @pytest.fixture
    def task_slots(self) -> TaskSlotMaker:
        """Override: make a fresh adapter."""
        raise NotImplementedError("define the fixture task_slots")

    async def test_attempts_are_taken_in_order(self, task_slots: TaskSlotMaker) -> None:
        ear = RecordingListener()
        slot = await task_slots.spawn(ear)
        for number in range(20):
            assert slot.offer(number, _attempt("echo", f"body {number}"))
        assert (await ear.outcome(19)).result == b'"body 19"'
        assert ear.order == list(range(20))
        assert not any(tried.error for tried in ear.tried.values())

    async def test_large_bodies_arrive(self, task_slots: TaskSlotMaker) -> None:
        ear = RecordingListener()
        slot = await task_slots.spawn(ear)
        slot.offer(1, _attempt("echo", "x" * 1_000_000))
        assert "1000002 bytes" in (await ear.outcome(1)).error

    async def test_an_error_of_the_handler_is_reported(self, task_slots: TaskSlotMaker) -> None:
        ear = RecordingListener()
        slot = await task_slots.spawn(ear)
        slot.offer(1, _attempt("fail", "as told"))
        slot.offer(2, _attempt("no such task"))
        slot.offer(3, _attempt("echo"))
        tried = await ear.outcome(1)
        assert (tried.error, tried.permanent, tried.cancelled) == ("ValueError: as told", False, False)
        assert "in fail" in tried.detail
        assert (await ear.outcome(2)).permanent
        assert (await ear.outcome(3)).error == ""

    async def test_what_lies_in_the_tray_can_be_withdrawn(self, task_slots: TaskSlotMaker) -> None:
        ear = RecordingListener()
        slot = await task_slots.spawn(ear)
        for number, kind in enumerate(["wait", "echo", "echo"]):
            slot.offer(number, _attempt(kind))
        await ear.begun()
        assert slot.withdraw() == [1, 2]
        assert slot.withdraw() == []
        slot.offer(3, _attempt("echo"))
        slot.cancel(0, "enough")
        await ear.outcome(3)
        assert ear.order == [0, 3]

    async def test_only_the_attempt_at_hand_is_told_to_end(self, task_slots: TaskSlotMaker) -> None:
        ear = RecordingListener()
        slot = await task_slots.spawn(ear)
        slot.offer(7, _attempt("wait"))
        slot.offer(8, _attempt("wait"))
        await ear.begun()
        slot.cancel(8, "not its turn")
        slot.cancel(7, "enough")
        tried = await ear.outcome(7)
        assert tried.cancelled
        assert (7, "warning", "told to end", {"again": True}) in ear.lines
        await ear.begun(2)
        slot.cancel(7, "again")
        assert 8 not in ear.tried
        slot.cancel(8, "enough")
        assert (await ear.outcome(8)).cancelled

    async def test_progress_is_reported(self, task_slots: TaskSlotMaker) -> None:
        ear = RecordingListener()
        slot = await task_slots.spawn(ear)
        slot.offer(1, _attempt("wait"))
        await ear.begun()
        assert ear.progress == [(1, Progress(0.5, "waiting", {"rows": 7.0}))]

    async def test_stacks_are_shown_and_nothing_ends(self, task_slots: TaskSlotMaker) -> None:
        ear = RecordingListener()
        slot = await task_slots.spawn(ear)
        slot.offer(1, _attempt("wait"))
        await ear.begun()
        assert "stack" in (await slot.dump()) or "Thread" in (await slot.dump())
        slot.cancel(1, "enough")
        assert (await ear.outcome(1)).cancelled

    async def test_the_killed_tell_what_they_left(self, task_slots: TaskSlotMaker) -> None:
        ear = RecordingListener()
        slot, other = await task_slots.spawn(ear), await task_slots.spawn(ear)
        for number, kind in enumerate(["wait", "echo", "echo"]):
            slot.offer(number, _attempt(kind))
        await ear.begun()
        await slot.kill("as told")
        gone = await asyncio.wait_for(slot.exited(), PATIENCE_S)
        assert "as told" in gone.reason
        assert list(gone.untouched) == [1, 2]
        assert ear.order == []
        other.offer(3, _attempt("echo"))
        await ear.outcome(3)

    async def test_the_dead_take_nothing_and_tell_nothing(self, task_slots: TaskSlotMaker) -> None:
        ear = RecordingListener()
        slot = await task_slots.spawn(ear)
        await slot.kill("as told")
        await asyncio.wait_for(slot.exited(), PATIENCE_S)
        assert not slot.offer(1, _attempt("echo"))
        assert slot.withdraw() == []
        assert await slot.dump() == ""
        slot.cancel(1, "too late")
        slot.lease(1.0)
        slot.terminate()
        await slot.stop(1.0)
        await slot.kill("again")
        assert ear.order == []

    async def test_a_slot_lives_no_longer_than_its_lease(self, task_slots: TaskSlotMaker) -> None:
        ear = RecordingListener()
        slot = await task_slots.spawn(ear)
        slot.lease(0.01)
        slot.lease(None)
        slot.offer(1, _attempt("wait"))
        await ear.begun()
        slot.lease(PATIENCE_S)
        slot.lease(0.05)
        gone = await asyncio.wait_for(slot.exited(), PATIENCE_S)
        assert "SIGKILL" in gone.reason

    async def test_a_slot_ends_once_it_is_done(self, task_slots: TaskSlotMaker) -> None:
        ear = RecordingListener()
        slot = await task_slots.spawn(ear)
        slot.offer(1, _attempt("echo"))
        await ear.outcome(1)
        await slot.stop(PATIENCE_S)
        assert "killed" not in (await slot.exited()).reason

    async def test_a_slot_that_is_not_done_is_killed(self, task_slots: TaskSlotMaker) -> None:
        ear = RecordingListener()
        slot = await task_slots.spawn(ear)
        slot.offer(1, _attempt("wait"))
        await ear.begun()
        await slot.stop(0.01)
        assert "killed" in (await slot.exited()).reason
        assert ear.order == []

    async def test_names_are_unique(self, task_slots: TaskSlotMaker) -> None:
        ear = RecordingListener()
        first = await task_slots.spawn(ear)
        await first.kill("as told")
        second = await task_slots.spawn(ear)
        assert first.name != second.name

    async def test_closing_ends_every_slot(self, task_slots: TaskSlotMaker) -> None:
        ear = RecordingListener()
        made = [await task_slots.spawn(ear) for _ in range(2)]
        made[0].offer(1, _attempt("wait"))
        await ear.begun()
        exits = [asyncio.create_task(slot.exited()) for slot in made]
        await asyncio.wait_for(task_slots.close(), PATIENCE_S)
        await asyncio.wait_for(asyncio.gather(*exits), PATIENCE_S)


def _attempt(kind: str, body: str = "") -> Attempt:
    return Attempt("trace", kind, body.encode())
