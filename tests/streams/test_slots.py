"""The pool of slots: who hangs is killed, who is to blame is known, and a warm spare takes the handle."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import pytest

from holdfast.cluster.lifecycle import Tasks
from holdfast.cluster.limits import Limits
from holdfast.errors import ConfigError, HandlerFailed, SlotDied
from holdfast.ports.clock import Clock
from holdfast.ports.slots import MessageWork, QueryResult, RunResult, SlotCall, SlotHost, StreamSlot
from holdfast.services.memory.slots import MemorySlot, MemorySlots
from holdfast.streams.slots import SlotCrash, SlotHandle, SlotHandles
from simulator.limits import limits_with
from tests.cluster.fakes import Log, make_host, settle_down

VIRTUAL = True
SPAWN_S = 0.5
TIMEOUT_S = 3.0
LIMITS = limits_with(slots=2, spare_slots=1)


async def wait_for_ever() -> None:
    await asyncio.Event().wait()


class Doer:
    """A worker that does what the test tells it for each key."""

    def __init__(self, host: SlotHost, deeds: dict[str, Callable[[SlotHost], Awaitable[None]]]) -> None:
        self._host = host
        self._deeds = deeds

    async def load(self, stream: str, key: str, models: Sequence[str]) -> None: ...

    async def open(self, stream: str, key: str, state: bytes | None, version: int) -> None:
        if key == "unopenable":
            raise HandlerFailed("no")

    async def run(
        self, stream: str, key: str, work: Sequence[MessageWork], limit: int, after_s: float
    ) -> RunResult:
        if key in self._deeds:
            await self._deeds[key](self._host)
        return RunResult([None])

    async def query(
        self, stream: str, key: str, state: bytes | None, version: int, request: bytes
    ) -> QueryResult:
        return QueryResult()

    async def close(self, stream: str, key: str) -> None: ...

    async def stop(self) -> None: ...


class Slots(MemorySlots):
    """May refuse to make slots."""

    failing: list[Exception]

    async def spawn(self) -> MemorySlot:
        if self.failing:
            raise self.failing.pop(0)
        return await super().spawn()


class Rig:
    """A pool over simulated slots."""

    def __init__(self, clock: Clock, tasks: Tasks, limits: Limits = LIMITS) -> None:
        self.clock = clock
        self.deeds: dict[str, Callable[[SlotHost], Awaitable[None]]] = {}
        self.slots = Slots(lambda host: Doer(host, self.deeds), clock, spawn_s=SPAWN_S)
        self.slots.failing = []
        self.log = Log()
        self.deaths: list[SlotHandle] = []
        host = make_host(clock, tasks, limits=limits, log=self.log)
        self.stats = host.stats
        self.pool = SlotHandles(self.slots, host, on_death=self.deaths.append)

    async def run(self, handle: SlotHandle, key: str, timeout_s: float = TIMEOUT_S) -> StreamSlot:
        """Run one message of a key; returns the slot that did it."""
        _, slot = await self.pool.call(
            handle, timeout_s, lambda slot, call: slot.run("s", key, [], 1, 1.0, call=call)
        )
        return slot

    def begin(self, handle: SlotHandle, key: str, timeout_s: float = TIMEOUT_S) -> asyncio.Task[StreamSlot]:
        return asyncio.ensure_future(self.run(handle, key, timeout_s))


@pytest.fixture
async def rig(clock: Clock, tasks: Tasks) -> Rig:
    made = Rig(clock, tasks)
    await made.pool.start()
    await clock.sleep(1)
    return made


async def test_streams_are_spread_over_the_seats(rig: Rig) -> None:
    handles = [rig.pool.assign() for _ in range(6)]
    assert {handle: handles.count(handle) for handle in handles} == {handles[0]: 3, handles[1]: 3}
    rig.pool.leave(handles[1])
    rig.pool.leave(handles[1])
    assert rig.pool.assign() is rig.pool.assign() is handles[1]


async def loaded(rig: Rig, handle: SlotHandle, *models: str) -> None:
    rig.deeds["loads"] = lambda host: settle_down()
    slot = await rig.run(handle, "loads")
    assert isinstance(slot, MemorySlot)
    slot.report_models("s", "loads", "", models)


async def test_a_stream_goes_to_a_seat_that_has_its_models(rig: Rig) -> None:
    first, second = rig.pool.assign(), rig.pool.assign()
    await loaded(rig, second, "people")
    assert rig.pool.models == {"people": 1}
    assert [rig.pool.assign(["people"]) for _ in range(2)] == [second] * 2
    assert rig.pool.assign() is first, "one that needs no model goes where there is most room"
    assert rig.pool.assign(["cars"]) is first, "nobody has it"


async def test_streams_of_a_model_share_a_seat_before_it_is_loaded(rig: Rig) -> None:
    handles = [rig.pool.assign(["people"]) for _ in range(3)]
    assert len(set(handles)) == 1
    rig.pool.leave(handles[0], ["people"])
    assert rig.pool.assign(["people"]) is handles[0]


async def test_a_loaded_model_does_not_fill_one_seat_alone(rig: Rig) -> None:
    handles = [rig.pool.assign(["people"]) for _ in range(12)]
    assert sorted({handles.count(handle) for handle in handles}) in ([6], [5, 7])


async def test_a_seat_says_what_its_slot_is_busy_with(rig: Rig, clock: Clock) -> None:
    handle = rig.pool.assign()
    rig.deeds["a"] = lambda host: wait_for_ever()
    running = asyncio.ensure_future(
        rig.pool.call(handle, 30.0, lambda slot, call: slot.run("s", "a", [], 1, 1.0, call=call), of="s/a")
    )
    await clock.sleep(2.0)
    assert handle.slot is not None
    name = handle.slot.name
    assert handle.busy_with(clock.monotonic()) == f"its slot {name}, which has been busy with s/a for 2 s"
    (work,) = rig.pool.works()
    assert (work.slot, work.of, work.for_s, work.still_s) == (name, "s/a", 2.0, 2.0)
    while rig.slots.slots:  # the spare too
        rig.slots.slots[0].die("was killed")
    with pytest.raises(SlotCrash):
        await running
    assert handle.busy_with(clock.monotonic()) == "its slot, which is being replaced"
    assert rig.pool.works() == []


async def test_a_load_has_a_timeout_of_its_own(rig: Rig, clock: Clock) -> None:
    async def load_then_work(host: SlotHost) -> None:
        host.report_models("s", "loads", "people", [])
        await clock.sleep(10 * TIMEOUT_S)
        assert rig.pool.loading == {"people": 1}
        host.report_models("s", "loads", "", ["people"])
        await clock.sleep(0.9 * TIMEOUT_S)

    rig.deeds["loads"] = load_then_work
    await rig.run(rig.pool.assign(), "loads")
    assert rig.deaths == []
    assert not rig.pool.loading


async def test_after_a_load_the_handler_has_its_own_time(rig: Rig, clock: Clock) -> None:
    async def load_then_hang(host: SlotHost) -> None:
        host.report_models("s", "hangs", "people", [])
        await clock.sleep(10 * TIMEOUT_S)
        host.report_models("s", "hangs", "", ["people"])
        await wait_for_ever()

    rig.deeds["hangs"] = load_then_hang
    began = clock.monotonic()
    with pytest.raises(SlotCrash, match="no progress for 3 s"):
        await rig.run(rig.pool.assign(), "hangs")
    assert 11 * TIMEOUT_S <= clock.monotonic() - began < 11 * TIMEOUT_S + 0.1


async def test_a_load_that_does_not_end_is_killed_and_named(clock: Clock, tasks: Tasks) -> None:
    async def load(host: SlotHost) -> None:
        host.report_models("s", "loads", "people", [])
        await wait_for_ever()

    rig = Rig(clock, tasks, limits_with(slots=1, spare_slots=0, model_timeout_s=40.0))
    await rig.pool.start()
    rig.deeds["loads"] = load
    began = clock.monotonic()
    with pytest.raises(SlotCrash, match=r"model 'people' did not load within 40 s \(model_timeout_s\)"):
        await rig.run(rig.pool.assign(), "loads")
    assert 40 <= clock.monotonic() - began < 40.1


async def test_calls_of_a_seat_go_to_its_slot(rig: Rig) -> None:
    one, two = rig.pool.assign(), rig.pool.assign()
    first = await rig.run(one, "a")
    assert await rig.run(one, "b") is first
    assert await rig.run(two, "c") is not first


async def test_who_was_at_work_is_to_blame_and_nobody_else(rig: Rig) -> None:
    async def crash(host: SlotHost) -> None:
        assert isinstance(host, MemorySlot)
        host.die("crashed", "its stack")

    rig.deeds["bad"] = crash
    handle = rig.pool.assign()
    calls = [rig.begin(handle, key) for key in ("bad", "good", "better")]
    deaths = await asyncio.gather(*calls, return_exceptions=True)
    assert all(isinstance(death, SlotCrash) for death in deaths)
    assert [death.guilty for death in deaths if isinstance(death, SlotCrash)] == [True, False, False]
    assert isinstance(deaths[0], SlotDied)
    assert deaths[0].detail == "its stack"
    assert rig.deaths == [handle]
    assert rig.stats.slot_deaths == 1


async def test_a_call_that_came_to_its_turn_is_to_blame_too(rig: Rig) -> None:
    rig.deeds["slow"] = lambda host: rig.clock.sleep(1)
    rig.deeds["hangs"] = lambda host: wait_for_ever()
    handle = rig.pool.assign()
    slow, hangs = rig.begin(handle, "slow"), rig.begin(handle, "hangs")
    await slow
    with pytest.raises(SlotCrash) as death:
        await hangs
    assert death.value.guilty


async def test_who_hangs_is_killed_with_its_stack_after_its_timeout(rig: Rig) -> None:
    rig.deeds["hangs"] = lambda host: wait_for_ever()
    handle = rig.pool.assign()
    began = rig.clock.monotonic()
    with pytest.raises(SlotCrash, match=r"no progress for 3 s \(timeout_s\)") as death:
        await rig.run(handle, "hangs")
    assert TIMEOUT_S <= rig.clock.monotonic() - began < TIMEOUT_S + 0.1
    assert death.value.detail.startswith("simulated stack")
    assert death.value.guilty


async def test_what_needs_a_slot_that_is_being_killed_does_not_run_in_the_next_one(rig: Rig) -> None:
    """And isn't to blame for that."""
    handle = rig.pool.assign()
    slot = await rig.run(handle, "good")
    handle.ready.clear()  # the pool has begun to kill it
    ran: list[StreamSlot] = []

    async def work(slot: StreamSlot, call: SlotCall) -> None:
        ran.append(slot)

    needs = asyncio.ensure_future(rig.pool.call(handle, TIMEOUT_S, work, slot))
    await settle_down()
    await slot.kill("it hangs")
    with pytest.raises(SlotCrash, match="the slot was replaced") as death:
        await needs
    assert not death.value.guilty
    assert ran == []
    await rig.run(handle, "good")


async def test_waiting_for_one_s_turn_is_not_hanging(rig: Rig) -> None:
    rig.deeds["slow"] = lambda host: rig.clock.sleep(0.9 * TIMEOUT_S)
    handle = rig.pool.assign()
    await asyncio.gather(*(rig.begin(handle, "slow") for _ in range(5)))
    assert rig.deaths == []


async def test_a_handler_that_reports_progress_is_not_killed(rig: Rig) -> None:
    async def advance(host: SlotHost) -> None:
        for _ in range(10):
            await rig.clock.sleep(0.9 * TIMEOUT_S)
            host.progress("s", "long")

    rig.deeds["long"] = advance
    await rig.run(rig.pool.assign(), "long")
    assert rig.deaths == []


async def test_the_progress_of_a_call_is_no_other_s(rig: Rig) -> None:
    """A thread that a handler left behind goes on while another key's handler hangs."""

    async def hang(host: SlotHost) -> None:
        for _ in range(10):
            await rig.clock.sleep(0.9 * TIMEOUT_S)
            host.progress("s", "left")

    rig.deeds["hangs"] = hang
    handle = rig.pool.assign()
    await rig.run(handle, "left")
    with pytest.raises(SlotCrash, match="no progress for 3 s"):
        await rig.run(handle, "hangs")


async def test_a_handler_that_hangs_as_it_closes_is_blamed_on_nobody_else(rig: Rig, clock: Clock) -> None:
    closing = asyncio.Event()

    async def hang(stream: str, key: str) -> None:
        closing.set()
        await wait_for_ever()

    handle = rig.pool.assign()
    slot = await rig.run(handle, "a")
    assert isinstance(slot, MemorySlot)
    slot.worker.close = hang  # type: ignore[method-assign]
    began = clock.monotonic()
    closes = asyncio.ensure_future(rig.pool.close_stream(slot, "s", "a", TIMEOUT_S))
    await closing.wait()
    with pytest.raises(SlotCrash, match=r"no progress for 3 s \(timeout_s\)") as death:
        await rig.run(handle, "b", 10 * TIMEOUT_S)
    assert not death.value.guilty
    assert clock.monotonic() - began < TIMEOUT_S + 0.1
    await closes


async def test_each_call_has_its_own_timeout(rig: Rig) -> None:
    rig.deeds["hangs"] = lambda host: wait_for_ever()
    rig.deeds["patient"] = lambda host: rig.clock.sleep(20)
    one, two = rig.pool.assign(), rig.pool.assign()
    patient = rig.begin(two, "patient", 60.0)
    await rig.clock.sleep(1)
    began = rig.clock.monotonic()
    with pytest.raises(SlotCrash):
        await rig.run(one, "hangs", 0.5)
    assert rig.clock.monotonic() - began < 0.6
    await patient
    assert rig.deaths == [one]


async def test_a_hung_slot_does_not_delay_another_slot(rig: Rig) -> None:
    rig.deeds["hangs"] = lambda host: wait_for_ever()
    one, two = rig.pool.assign(), rig.pool.assign()
    hangs = rig.begin(one, "hangs")
    other = await rig.run(two, "good")
    for _ in range(50):
        await rig.clock.sleep(0.1)
        began = rig.clock.monotonic()
        assert await rig.run(two, "good") is other
        assert rig.clock.monotonic() == began
    with pytest.raises(SlotCrash):
        await hangs


async def test_a_warm_spare_takes_the_seat_at_once(rig: Rig) -> None:
    handle = rig.pool.assign()
    before = await rig.run(handle, "a")
    assert len(rig.slots.slots) == 3, "one is warm"
    began = rig.clock.monotonic()
    await before.kill("the test said so")
    await settle_down()
    after = await rig.run(handle, "a")
    assert after.name != before.name
    assert rig.clock.monotonic() == began, "nothing was waited for"
    await rig.clock.sleep(2 * SPAWN_S)
    assert len(rig.slots.slots) == 3, "another is warm again"


async def test_without_a_warm_spare_a_call_waits_for_a_new_slot(rig: Rig) -> None:
    handle = rig.pool.assign()
    for _ in range(2):
        slot = await rig.run(handle, "a")
        await slot.kill("the test said so")
        await settle_down()
    began = rig.clock.monotonic()
    await rig.run(handle, "a")
    assert 0 < rig.clock.monotonic() - began <= SPAWN_S


async def test_a_spare_that_died_unseen_is_replaced_when_it_is_needed(rig: Rig) -> None:
    handle = rig.pool.assign()
    slot = await rig.run(handle, "a")
    (spare,) = [s for s in rig.slots.slots if s.name == "slot-3"]
    spare.die("out of memory")
    await slot.kill("the test said so")
    await rig.clock.sleep(2 * SPAWN_S)
    assert (await rig.run(handle, "a")).name not in (slot.name, spare.name)


async def test_a_spare_that_died_is_replaced_before_it_is_needed(rig: Rig) -> None:
    (spare,) = [s for s in rig.slots.slots if s.name == "slot-3"]
    spare.die("out of memory")
    await rig.clock.sleep(2 * SPAWN_S)
    assert len(rig.slots.slots) == 3, "another is warm"
    assert rig.deaths == []
    handle = rig.pool.assign()
    began, slot = rig.clock.monotonic(), await rig.run(handle, "a")
    await slot.kill("the test said so")
    await settle_down()
    assert (await rig.run(handle, "a")).name not in (slot.name, spare.name)
    assert rig.clock.monotonic() == began, "nothing was waited for"


async def test_a_slot_that_can_t_be_made_is_tried_again_ever_more_rarely(rig: Rig) -> None:
    handle = rig.pool.assign()
    slot = await rig.run(handle, "a")
    rig.slots.failing = [SlotDied("no memory"), ConfigError("app does not import")] * 4
    for victim in rig.slots.slots:
        victim.die("all at once")
    await rig.clock.sleep(60)
    assert rig.slots.failing == []
    assert (await rig.run(handle, "a")).name != slot.name
    assert rig.log.events("warning").count("cannot start a slot") == 4
    assert rig.log.events("error").count("cannot load the app in a new slot") == 4


async def test_an_app_that_does_not_load_ends_the_start(clock: Clock, tasks: Tasks) -> None:
    rig = Rig(clock, tasks)
    rig.slots.failing = [ConfigError("app broken:app can't be loaded")]
    with pytest.raises(ConfigError, match="can't be loaded"):
        await rig.pool.start()


async def test_what_a_handler_refuses_holds_nobody_up(rig: Rig) -> None:
    handle = rig.pool.assign()
    with pytest.raises(HandlerFailed):
        await rig.pool.call(
            handle, TIMEOUT_S, lambda slot, call: slot.open("s", "unopenable", None, 0, call=call)
        )
    await rig.run(handle, "a")
    assert rig.deaths == []


async def test_a_call_that_is_given_up_holds_nobody_up(rig: Rig) -> None:
    rig.deeds["slow"] = lambda host: rig.clock.sleep(1)
    handle = rig.pool.assign()
    given_up = rig.begin(handle, "slow")
    await settle_down()
    given_up.cancel()
    await rig.run(handle, "a")
    assert rig.deaths == []
