"""The pool over simulated slots, in virtual time: to the second, and with makers that fail."""

import asyncio
import math
from collections.abc import AsyncIterator, Awaitable, Callable
from random import Random
from typing import Any

import msgspec
import pytest

from holdfast import App
from holdfast.cluster.lifecycle import Tasks
from holdfast.common.acts import Send
from holdfast.errors import ConfigError, HoldfastError, SlotDied
from holdfast.ports.slots import Attempt, AttemptReport, Listener, Progress
from holdfast.rules.tasks.attempt import How
from holdfast.rules.tasks.task import Task
from holdfast.services.memory.task_slots import MemoryTaskSlot, MemoryTaskSlots
from holdfast.tasks.body import body_of
from holdfast.tasks.handler import Job
from holdfast.tasks.slots import STUCK_S, Ended, Running, TaskSlots, result_of
from holdfast.tasks.worker import TaskExecutor
from simulator.loop import SimClock
from tests.cluster.fakes import make_host

VIRTUAL = True

app = App("town")


@app.task("sleep", timeout_s=10)
async def sleep(body: dict[str, Any], job: Job) -> str:
    await asyncio.sleep(body["for_s"])
    return "woke"


@app.task("grow", timeout_s=1000, stall_s=5)
async def grow(body: dict[str, Any], job: Job) -> None:
    for _ in range(4):
        await asyncio.sleep(4)
        job.progress()
    await asyncio.sleep(1000)


class Maker(MemoryTaskSlots):
    """Slots that can't be made while there are ``troubles``."""

    def __init__(self, clock: SimClock, before: Callable[..., Awaitable[None]] | None) -> None:
        super().__init__(
            lambda host: TaskExecutor("town", app.tasks, host), clock, before=before, spawn_s=0.01
        )
        self.troubles: list[HoldfastError] = []

    async def spawn(self, listener: Listener) -> MemoryTaskSlot:
        slot = await super().spawn(listener)
        if self.troubles:
            slot.die("had trouble")
            raise self.troubles.pop()
        return slot


class Log:
    def __init__(self) -> None:
        self.events: list[tuple[str, str]] = []

    def __getattr__(self, level: str) -> Callable[..., None]:
        return lambda event, **values: self.events.append((level, event))


class Rig:
    """A pool and its surroundings."""

    def __init__(self, before: Callable[..., Awaitable[None]] | None = None, **settings: Any) -> None:
        self.clock = SimClock(Random(1), "rig")
        self.maker = Maker(self.clock, before)
        self.log = Log()
        self.crashes: list[BaseException] = []
        self.tasks = Tasks(self.crashes.append)
        host = make_host(self.clock, self.tasks, log=self.log)
        self.stats = host.stats
        self.pool = TaskSlots(self.maker, host, **settings)

    def run(
        self, task_id: str, kind: str = "sleep", body: Any = None, **changed: Any
    ) -> asyncio.Future[Ended]:
        attempt = app.tasks[kind].attempt(body_of(body or {"for_s": 1}), Task(task_id, kind))
        return self.pool.run(msgspec.structs.replace(attempt, **changed))

    def at(self, task_id: str) -> Running:
        return self.pool.running[task_id]


MakeRig = Callable[..., Awaitable[Rig]]


@pytest.fixture
async def make() -> AsyncIterator[MakeRig]:
    made: list[Rig] = []

    async def make(*args: Any, **settings: Any) -> Rig:
        made.append(Rig(*args, **settings))
        await made[-1].pool.start()
        return made[-1]

    yield make
    for rig in made:
        await rig.pool.close()
        await rig.tasks.close()
        for crash in rig.crashes:
            raise crash


async def deaf(slot: MemoryTaskSlot, attempt: Attempt) -> None:
    slot.deafen()


async def test_a_timeout_is_absolute_and_kept_to_the_second(make: MakeRig) -> None:
    rig = await make()
    begun_at = rig.clock.monotonic()
    ended = await rig.run("t", body={"for_s": 60})
    assert (ended.how, ended.took_s) == (How.TIMED_OUT, 10)
    assert rig.clock.monotonic() == pytest.approx(begun_at + 10)
    assert "simulated stack: sleep t" in ended.detail


async def test_an_attempt_that_can_t_be_told_to_end_is_over_a_second_after_its_timeout(make: MakeRig) -> None:
    rig = await make(deaf, limit=1)
    begun_at = rig.clock.monotonic()
    deaf_one, behind = rig.run("deaf", body={"for_s": 60}), rig.run("behind")
    assert (await deaf_one).how is How.TIMED_OUT
    assert 10 < rig.clock.monotonic() - begun_at < 11
    assert (await behind).how is How.RETURNED
    assert rig.clock.monotonic() - begun_at < 12, "a warm spare takes its place at once"


async def test_progress_keeps_a_task_from_hanging(make: MakeRig) -> None:
    rig = await make()
    begun_at = rig.clock.monotonic()
    ended = await rig.run("t", "grow", {})
    assert (ended.how, ended.error) == (How.TIMED_OUT, "hangs: no progress for stall_s = 5")
    assert 20 < rig.clock.monotonic() - begun_at < 23


async def test_an_attempt_whose_lease_is_not_renewed_is_killed(make: MakeRig) -> None:
    rig = await make(limit=2)
    kept = rig.run("kept", body={"for_s": 9}, lease_s=2)
    lost = rig.run("lost", body={"for_s": 9}, lease_s=2)
    for _ in range(9):
        await rig.clock.sleep(1)
        rig.pool.renew("kept", 2)
    rig.pool.renew("unknown", 2)
    assert (await kept).how is How.RETURNED
    assert (await lost).error == "its slot died of SIGKILL; its lease had ended"


async def test_an_attempt_whose_lease_ends_while_it_waits_never_begins(make: MakeRig) -> None:
    rig = await make(limit=1)
    first = rig.run("first", body={"for_s": 9})
    waits = rig.run("waits", body={"for_s": 1}, lease_s=5)
    assert (await first).how is How.RETURNED
    ended = await waits
    assert (ended.how, ended.begun, ended.error) == (How.CANCELLED, False, "its lease ended before it began")
    assert (await rig.run("next", body={"for_s": 1})).how is How.RETURNED


async def test_nothing_begins_while_nothing_may_run(make: MakeRig) -> None:
    rig = await make(limit=1)
    rig.pool.set_limits(1, rig.clock.monotonic())
    run = rig.run("waits", body={"for_s": 1})
    await rig.clock.sleep(3)
    assert not run.done()
    assert rig.pool.running["waits"].begun_at is None
    rig.pool.set_limits(1, rig.clock.monotonic() + 5)
    assert (await run).how is How.RETURNED


async def test_nothing_runs_longer_than_anything_may(make: MakeRig) -> None:
    rig = await make(limit=2)
    begun_at = rig.clock.monotonic()
    rig.pool.set_limits(2, begun_at + 5)
    first = rig.run("first", body={"for_s": 8})
    await rig.clock.sleep(3)
    rig.pool.set_limits(2, begun_at + 6)
    second = rig.run("second", body={"for_s": 2})
    assert (await second).how is How.RETURNED
    assert (await first).error == "its slot died of SIGKILL; its lease had ended"
    assert rig.clock.monotonic() == pytest.approx(begun_at + 6)
    rig.pool.set_limits(2, math.inf)
    assert (await rig.run("third", body={"for_s": 9})).how is How.RETURNED


async def test_a_line_behind_what_stands_is_taken_back(make: MakeRig) -> None:
    rig = await make(limit=2)
    for n in range(10):
        assert (await rig.run(f"quick {n}", body={"for_s": 0})).how is How.RETURNED
    assert rig.pool.room > 20
    slow = rig.run("slow", body={"for_s": 5})
    quick = [rig.run(f"behind {n}", body={"for_s": 0}) for n in range(20)]
    begun_at = rig.clock.monotonic()
    await asyncio.gather(*quick)
    assert rig.clock.monotonic() - begun_at < 2 * STUCK_S
    assert rig.at("slow").begun_at is not None
    await slow
    assert rig.pool.room <= 20, "their type isn't quick any more"


async def test_quick_tasks_go_elsewhere_while_every_slot_is_at_work_on_a_long_one(make: MakeRig) -> None:
    rig = await make(limit=1)
    for n in range(10):
        assert (await rig.run(f"quick {n}", body={"for_s": 0})).how is How.RETURNED
    lined_up = [rig.run("long", "grow"), *(rig.run(f"behind {n}", body={"for_s": 0}) for n in range(20))]
    begun_at = rig.clock.monotonic()
    assert rig.pool.room == 0, "no more are begun"
    ends = await asyncio.gather(*lined_up[1:])
    assert {(end.how, end.begun) for end in ends} == {(How.CANCELLED, False)}
    assert rig.clock.monotonic() - begun_at < 1.5
    assert rig.at("long").begun_at == begun_at


async def test_a_slot_that_takes_nothing_from_its_tray_is_replaced(make: MakeRig) -> None:
    rig = await make(limit=1)
    for n in range(10):
        assert (await rig.run(f"quick {n}", body={"for_s": 0})).how is How.RETURNED
    (slot,) = (slot for slot in rig.maker.slots if slot.name in rig.pool.seats)
    slot.task.cancel()  # it stands still
    ends = [rig.run(f"behind {n}", body={"for_s": 0}) for n in range(5)]
    assert {(await end).how for end in ends} == {How.RETURNED}
    assert not slot.alive


async def test_what_waits_is_cancelled_where_it_waits(make: MakeRig) -> None:
    rig = await make(limit=1)
    for n in range(3):
        await rig.run(f"quick {n}", body={"for_s": 0})
    begun, lined_up = rig.run("begun", body={"for_s": 1}), rig.run("lined up")
    await rig.clock.sleep(0.01)
    assert rig.pool.cancel("lined up", "not needed")
    ended = await lined_up
    assert (ended.how, ended.begun) == (How.CANCELLED, False)
    assert (await begun).how is How.RETURNED
    assert not rig.pool.cancel("unknown", "whatever")


async def test_a_future_that_nobody_wants_does_no_harm(make: MakeRig) -> None:
    rig = await make(limit=1)
    rig.run("t", body={"for_s": 1}).cancel()
    assert (await rig.run("next", body={"for_s": 1})).how is How.RETURNED
    assert not rig.pool.running


async def test_spares_are_replaced_and_makers_forgiven(make: MakeRig) -> None:
    rig = await make(limit=2)
    await rig.clock.sleep(1)
    (first, spare) = rig.maker.slots
    spare.die("crashed")
    rig.maker.troubles = [ConfigError("broken"), SlotDied("no memory")]
    ends = await asyncio.gather(rig.run("a"), rig.run("b"))
    assert [ended.how for ended in ends] == [How.RETURNED, How.RETURNED]
    assert ("error", "cannot load the app in a new slot") in rig.log.events
    assert ("warning", "cannot start a slot") in rig.log.events
    await rig.clock.sleep(10)
    assert len(rig.maker.slots) == 3
    first.die("crashed")
    await rig.clock.sleep(1)
    assert rig.stats.slot_deaths == 1


async def test_an_app_that_does_not_load_prevents_the_start() -> None:
    rig = Rig()
    rig.maker.troubles = [ConfigError("broken")]
    with pytest.raises(ConfigError, match="broken"):
        await rig.pool.start()
    await rig.pool.close()


async def test_a_closed_pool_runs_nothing(make: MakeRig) -> None:
    rig = await make(limit=1)
    begun, waiting = rig.run("begun", body={"for_s": 5}), rig.run("waiting")
    await rig.pool.close()
    late = rig.run("late")
    ends = [await run for run in (begun, waiting, late)]
    assert [(ended.how, ended.begun) for ended in ends] == [
        (How.DIED, True),
        (How.CANCELLED, False),
        (How.CANCELLED, False),
    ]


async def test_what_is_told_of_an_attempt_is_its_own(make: MakeRig) -> None:
    rig = await make(limit=1)
    await rig.run("quick", body={"for_s": 0})
    runs = [rig.run(task_id, body={"for_s": 0.001}) for task_id in ("first", "second")]
    (slot,) = rig.maker.slots
    first, second = rig.at("first"), rig.at("second")
    rig.pool.on_progress(slot, second.number, Progress(0.5, "half"))
    assert (first.progress, second.progress) == (Progress(), Progress(0.5, "half"))
    assert second.begun_at == rig.clock.monotonic(), "what advances has begun"
    for number in (99, second.number, second.number):
        rig.pool.on_ended(slot, number, AttemptReport(b"2"))
    assert [run.done() for run in runs] == [False, True]
    assert [rig.at(task_id) for task_id in rig.pool.running] == [first]
    assert rig.log.events.count(("warning", "unknown attempt ended")) == 2
    assert ((await runs[0]).result, (await runs[1]).result) == (b'"woke"', b"2")


def test_what_an_attempt_over_its_time_sent_is_dropped() -> None:
    sends = (Send("alerts", "", b"1"),)
    loop = asyncio.new_event_loop()
    run = Running(1, Attempt("t", "quick", b""), 0.0, loop.create_future(), None)
    assert result_of(run, AttemptReport(b"1", sends=sends)).sends == sends
    run.fate = How.TIMED_OUT
    assert result_of(run, AttemptReport(b"1", sends=sends)).sends == ()
    loop.close()
