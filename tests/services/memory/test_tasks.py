"""The task store in memory, alone and against the rules."""

from random import Random

import pytest
from hypothesis import settings

from holdfast.ports.clock import Clock
from holdfast.ports.tasks import TaskStore
from holdfast.rules.tasks.task import EndAttempt, State
from holdfast.services.memory.queue import MemoryQueue
from holdfast.services.memory.tasks import Changed, MemoryTasks
from holdfast.testing.conformance import BriefingConformance, TasksConformance, TasksTransferConformance
from holdfast.testing.conformance.task_oracle import TaskMachine
from holdfast.testing.conformance.tasks import BRIEFS, wish
from simulator.loop import SimClock


class TestMemoryTasks(TasksConformance, TasksTransferConformance):
    @pytest.fixture
    def tasks(self, clock: Clock) -> MemoryTasks:
        return MemoryTasks(clock)


class TestBesideQueues(BriefingConformance):
    @pytest.fixture
    def briefs(self, clock: Clock) -> MemoryQueue:
        return MemoryQueue(clock, max_bytes=10_000)

    @pytest.fixture
    def tasks(self, clock: Clock, briefs: MemoryQueue) -> MemoryTasks:
        return MemoryTasks(clock, queues={BRIEFS: briefs})


class MemoryTaskMachine(TaskMachine):
    async def make(self) -> TaskStore:
        return MemoryTasks(SimClock(Random(0), "clock"))


TestMemoryTaskMachine = MemoryTaskMachine.TestCase
TestMemoryTaskMachine.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)


async def test_the_history_tells_every_attempt(clock: Clock) -> None:
    history: list[object] = []
    tasks = MemoryTasks(clock, history=history)
    await tasks.start([wish("k")])
    await tasks.end([EndAttempt("k", 2, State.SUCCEEDED), EndAttempt("k", 1, State.SUCCEEDED)])
    events = [
        (e.call, e.before and e.before.state, e.after and e.after.state)
        for e in history
        if isinstance(e, Changed)
    ]
    assert events == [
        ("start", None, State.RUNNING),
        ("end", State.RUNNING, None),
        ("end", State.RUNNING, State.SUCCEEDED),
    ]


async def test_a_store_may_lose_its_last_changes_and_issues_no_epoch_again(clock: Clock) -> None:
    tasks = MemoryTasks(clock)
    [kept] = await tasks.start([wish("k")])
    await clock.sleep(10.0)
    await tasks.end([EndAttempt("k", 1, State.SUCCEEDED)])
    await tasks.start([wish("new")])
    tasks.rewind(5.0)
    assert await tasks.get("k") == kept
    assert await tasks.get("new") is None
    tasks.rewind(60.0)
    assert await tasks.get("k") == kept, "no further than it has forgotten before"
    [again] = await tasks.start([wish("new")])
    assert again.epoch == 2
    assert await tasks.get("new") == again
