"""The promises of every maker of slots: first of both kinds, then of each kind."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Coroutine, Mapping
from typing import Any

import msgspec
import pytest

from holdfast.common.message import RUN_DIGITS, SEQ_DIGITS
from holdfast.errors import ConfigError, HandlerFailed, ModelFailed, SlotDied, StateRejected
from holdfast.ports.slots import (
    Attempt,
    AttemptReport,
    MessageWork,
    Progress,
    RunResult,
    Slot,
    SlotCall,
    SlotMaker,
    StreamSlot,
    StreamSlotMaker,
    TaskSlot,
    TaskSlotMaker,
)
from holdfast.rules.tasks.task import State
from holdfast.tasks.follow_ups import event_of
from holdfast.tasks.outcome import Outcome

PATIENCE_S = 30.0
"""Seconds for which a test waits for an expected event: a process may have to start."""

LONG_S = 60.0


@pytest.mark.asyncio
class SlotsConformance:
    """The promises of slots of both kinds. Fixtures: ``slots``, made for the app
    ``holdfast.testing.conformance.slots_app:app``, and ``unloadable``, made for one that isn't there.

    ``memory_mb`` is what each of the slots may use; 0 where they have no memory of their own."""

    memory_mb = 0

    @pytest.fixture
    def slots(self) -> SlotMaker:
        """Override: make a fresh adapter."""
        raise NotImplementedError("define the fixture slots")

    @pytest.fixture
    def unloadable(self) -> SlotMaker:
        """Override: make one for ``holdfast.testing.conformance.slots_app:nothing``."""
        raise NotImplementedError("define the fixture unloadable")

    async def spawn(self, slots: Any) -> Slot:
        """Return a new slot."""
        raise NotImplementedError

    async def spawn_hanging(self, slots: Any) -> Slot:
        """Return a new slot whose handler hangs."""
        raise NotImplementedError

    async def take_memory(self, slot: Any) -> str:
        """Have a handler in the slot take memory without end; returns how that failed."""
        raise NotImplementedError

    async def works(self, slot: Any) -> bool:
        """True if a slot runs its handlers."""
        raise NotImplementedError

    async def test_no_two_slots_have_the_same_name_even_after_a_kill(self, slots: SlotMaker) -> None:
        first, second = await self.spawn(slots), await self.spawn(slots)
        await first.kill("test")
        third = await self.spawn(slots)
        assert len({first.name, second.name, third.name}) == 3

    async def test_an_app_that_cannot_be_loaded_makes_no_slot(self, unloadable: SlotMaker) -> None:
        with pytest.raises(ConfigError, match="nothing"):
            await self.spawn(unloadable)

    @pytest.mark.parametrize("hangs", [False, True])
    async def test_the_end_of_a_slot_reaches_every_waiter(self, slots: SlotMaker, hangs: bool) -> None:
        slot, other = await (self.spawn_hanging if hangs else self.spawn)(slots), await self.spawn(slots)
        waiting = [asyncio.create_task(slot.exited()) for _ in range(2)]
        stacks = await asyncio.wait_for(slot.kill("no progress"), PATIENCE_S)
        ends = [*await asyncio.wait_for(asyncio.gather(*waiting), PATIENCE_S), await slot.exited()]
        assert all("no progress" in gone.reason for gone in ends)
        assert all(gone.stacks == stacks for gone in ends)
        await slot.kill("again")
        assert (await slot.exited()).reason == ends[0].reason
        assert await self.works(other)

    async def test_a_handler_that_takes_more_memory_than_it_may_fails_alone(self, slots: SlotMaker) -> None:
        if not self.memory_mb:
            pytest.skip("these slots have no memory of their own")
        slot, other = await self.spawn(slots), await self.spawn(slots)
        assert re.search("MemoryError|over memory_mb", await self.take_memory(slot))
        assert await self.works(other)

    async def test_closing_ends_every_slot_and_makes_no_more(self, slots: SlotMaker) -> None:
        made = [await self.spawn(slots), await self.spawn_hanging(slots)]
        exits = [asyncio.create_task(slot.exited()) for slot in made]
        await asyncio.wait_for(slots.close(), PATIENCE_S)
        await asyncio.wait_for(asyncio.gather(*exits), PATIENCE_S)
        with pytest.raises(ConfigError, match="closed"):
            await self.spawn(slots)


# --- streams


class StreamSlotsConformance(SlotsConformance):
    """Every promise of slots for streams."""

    async def spawn(self, slots: StreamSlotMaker) -> StreamSlot:
        return await slots.spawn()

    async def spawn_hanging(self, slots: StreamSlotMaker) -> StreamSlot:
        slot, call = await slots.spawn(), SlotCall()
        await slot.open("count", "hangs", None, 0)
        run = slot.run("count", "hangs", [MessageWork(0, 1, b"hang")], 1, LONG_S, call=call)
        self.hanging = asyncio.gather(run, return_exceptions=True)
        await asyncio.sleep(0)
        assert call.begun_at is not None
        return slot

    async def take_memory(self, slot: StreamSlot) -> str:
        await slot.open("count", "hoards", None, 0)
        try:
            return (await _run(slot, "count", MessageWork(0, 1, b"hoard"), key="hoards")).error
        except SlotDied as death:
            return str(death)

    async def works(self, slot: StreamSlot) -> bool:
        await slot.open("count", "works", None, 0)
        return _counts(await _run(slot, "count", MessageWork(0, 1, b"x"), key="works")) == [1]

    # --- opening and running

    async def test_messages_are_handled_in_order_with_state(self, slots: StreamSlotMaker) -> None:
        slot = await slots.spawn()
        await slot.open("count", "k", None, 0)
        ran = await _run(slot, "count", MessageWork(3, 5, b"a"), MessageWork(3, 6, b"b", attempt=2))
        assert [msgspec.json.decode(result or b"") for result in ran.results] == [
            {"count": 1, "key": "k", "run": 3, "seq": 5, "attempt": 1},
            {"count": 2, "key": "k", "run": 3, "seq": 6, "attempt": 2},
        ]
        assert (ran.state, ran.version, ran.error, ran.detail, ran.permanent) == (b"v2:2", 2, "", "", False)
        assert _counts(await _run(slot, "count", MessageWork(3, 7, b"c"))) == [3]

    async def test_a_snapshot_opens_in_another_slot(self, slots: StreamSlotMaker) -> None:
        first, second = await slots.spawn(), await slots.spawn()
        await first.open("count", "k", None, 0)
        ran = await _run(first, "count", *[MessageWork(0, i, b"x") for i in range(4)])
        await second.open("count", "k", ran.state, ran.version)
        assert _counts(await _run(second, "count", MessageWork(0, 4, b"x"))) == [5]

    async def test_opening_again_starts_from_the_given_state(self, slots: StreamSlotMaker) -> None:
        slot = await slots.spawn()
        await slot.open("count", "k", None, 0)
        await _run(slot, "count", MessageWork(0, 1, b"x"))
        await slot.open("count", "k", b"v2:41", 2)
        assert _counts(await _run(slot, "count", MessageWork(0, 2, b"x"))) == [42]

    async def test_keys_of_one_slot_are_apart(self, slots: StreamSlotMaker) -> None:
        slot = await slots.spawn()
        odd = "käse/\N{SNOWMAN} '\"%_\\;--" + "x" * 480
        await slot.open("count", "k", b"v2:10", 2)
        await slot.open("count", odd, b"v2:20", 2)
        assert _counts(await _run(slot, "count", MessageWork(0, 1, b"x"), key=odd)) == [21]
        assert _counts(await _run(slot, "count", MessageWork(0, 1, b"x"))) == [11]
        await slot.close("count", odd)
        assert _counts(await _run(slot, "count", MessageWork(0, 2, b"x"))) == [12]

    async def test_bodies_and_results_may_hold_any_byte(self, slots: StreamSlotMaker) -> None:
        slot = await slots.spawn()
        await slot.open("echo", "k", None, 0)
        bodies = [bytes(range(256)), b"", b"\xff" * 3_000_000]
        ran = await _run(slot, "echo", *[MessageWork(0, i, body) for i, body in enumerate(bodies)])
        assert ran.results == bodies
        assert (ran.state, ran.version) == (None, 0), "a function keeps no state"

    async def test_runs_and_seqs_may_be_as_large_as_they_get(self, slots: StreamSlotMaker) -> None:
        slot = await slots.spawn()
        await slot.open("count", "k", None, 0)
        run, seq = 10**RUN_DIGITS - 1, 10**SEQ_DIGITS - 1
        ran = await _run(slot, "count", MessageWork(run, seq, b"x"))
        assert msgspec.json.decode(ran.results[0] or b"") == {
            "count": 1,
            "key": "k",
            "run": run,
            "seq": seq,
            "attempt": 1,
        }

    async def test_a_handler_that_returns_nothing_has_no_result(self, slots: StreamSlotMaker) -> None:
        slot = await slots.spawn()
        await slot.open("count", "k", None, 0)
        ran = await _run(slot, "count", MessageWork(0, 1, b"none"), MessageWork(0, 2, b"none"))
        assert (ran.results, ran.state) == ([None, None], b"v2:2")

    async def test_a_run_ends_early_after_the_limit(self, slots: StreamSlotMaker) -> None:
        slot = await slots.spawn()
        await slot.open("count", "k", None, 0)
        ran = await slot.run("count", "k", [MessageWork(0, i, b"x") for i in range(9)], 4, LONG_S)
        assert (_counts(ran), ran.state, ran.error) == ([1, 2, 3, 4], b"v2:4", "")

    async def test_a_run_ends_early_when_its_time_is_up(self, slots: StreamSlotMaker) -> None:
        slot = await slots.spawn()
        await slot.open("count", "k", None, 0)
        ran = await slot.run("count", "k", [MessageWork(0, i, b"x") for i in range(9)], 9, 0.0)
        assert 1 <= len(ran.results) < 9
        assert (ran.state, ran.error) == (b"v2:%d" % len(ran.results), "")

    # --- queries

    async def test_a_query_is_answered_from_the_given_state_and_leaves_the_stream_as_it_is(
        self, slots: StreamSlotMaker
    ) -> None:
        slot = await slots.spawn()
        await slot.open("count", "k", b"v2:5", 2)
        assert _counts(await _run(slot, "count", MessageWork(0, 1, b"x"))) == [6]
        for _ in range(2):
            queried = await slot.query("count", "k", b"v2:5", 2, b'{"a":[1]}')
            assert (queried.error, queried.detail, queried.fault) == ("", "", "")
            answer = msgspec.json.decode(queried.answer or b"")
            assert answer == {"count": 5, "key": "k", "asked": {"a": [1]}}
        assert _counts(await _run(slot, "count", MessageWork(0, 2, b"x"))) == [7]

    async def test_a_query_of_a_closed_key_leaves_it_closed(self, slots: StreamSlotMaker) -> None:
        slot = await slots.spawn()
        queried = await slot.query("count", "k", b"7", 1, b"null")
        assert msgspec.json.decode(queried.answer or b"")["count"] == 7, "migrated"
        ran = await _run(slot, "count", MessageWork(0, 1, b"x"))
        assert "not open" in ran.error

    @pytest.mark.parametrize(
        "request_, fault, error_text",
        [
            (b'"boom"', "handler", "ValueError: boom \N{SNOWMAN}"),
            (b'"junk"', "request", "no such question"),
            (b'"send"', "handler", "query() only reads, so it can't call context.send()"),
        ],
    )
    async def test_a_failing_query_says_how_and_harms_nothing(
        self, slots: StreamSlotMaker, request_: bytes, fault: str, error_text: str
    ) -> None:
        slot = await slots.spawn()
        await slot.open("count", "k", None, 0)
        queried = await slot.query("count", "k", None, 0, request_)
        assert (queried.answer, queried.fault) == (None, fault)
        assert error_text in queried.error
        assert "Traceback" in queried.detail
        assert _counts(await _run(slot, "count", MessageWork(0, 1, b"x"))) == [1]

    async def test_a_query_whose_handler_cannot_open_says_why(self, slots: StreamSlotMaker) -> None:
        slot = await slots.spawn()
        faults = [
            (await slot.query("count", "k", b"junk", 2, b"null")).fault,
            (await slot.query("count", "k", b"v3:1", 3, b"null")).fault,
            (await slot.query("refuse", "k", None, 0, b"null")).fault,
            (await slot.query("unequipped", "k", None, 0, b"null")).fault,
            (await slot.query("echo", "k", None, 0, b"null")).fault,
        ]
        assert faults == ["state", "state", "handler", "model", "handler"]

    async def test_a_query_dies_with_its_slot(self, slots: StreamSlotMaker) -> None:
        slot, call = await slots.spawn(), SlotCall()
        hanging = asyncio.create_task(slot.query("count", "k", None, 0, b'"hang"', call=call))
        await asyncio.sleep(0)
        assert call.begun_at is not None
        await slot.kill("no progress")
        with pytest.raises(SlotDied, match="no progress"):
            await hanging

    async def test_calls_that_come_at_once_all_run_each_in_its_turn(self, slots: StreamSlotMaker) -> None:
        slot = await slots.spawn()
        keys = [f"k{i}" for i in range(5)]
        await asyncio.gather(*(slot.open("count", key, None, 0) for key in keys))
        both = [*keys, *keys]
        rans = await asyncio.gather(
            *(_run(slot, "count", *[MessageWork(0, j, b"x") for j in range(20)], key=key) for key in both)
        )
        assert [len(ran.results) for ran in rans] == [20] * 10
        assert [ran.state for ran in rans] == [b"v2:20"] * 5 + [b"v2:40"] * 5

    async def test_calls_of_a_key_go_in_the_order_in_which_they_are_made(
        self, slots: StreamSlotMaker
    ) -> None:
        slot = await slots.spawn()

        def run(key: str, seq: int) -> Coroutine[Any, Any, RunResult]:
            return slot.run("count", key, [MessageWork(0, seq, b"x")], 1, LONG_S)

        finished: list[Any] = await asyncio.gather(
            slot.open("count", "k", b"v2:10", 2),
            run("k", 1),
            slot.open("count", "other", b"v2:70", 2),
            run("other", 1),
            run("k", 2),
            slot.close("count", "k"),
            run("k", 3),
            slot.open("count", "k", b"v2:20", 2),
            run("k", 4),
        )
        rans: list[RunResult] = [ran for ran in finished if ran is not None]
        assert [_counts(ran) for ran in rans] == [[11], [71], [12], [], [21]]
        assert [bool(ran.error) for ran in rans] == [False, False, False, True, False]

    # --- failing

    async def test_a_failing_message_returns_its_error_and_stops_only_its_key(
        self, slots: StreamSlotMaker
    ) -> None:
        slot = await slots.spawn()
        await slot.open("count", "k", None, 0)
        await slot.open("count", "other", b"v2:7", 2)
        ran = await _run(
            slot, "count", MessageWork(0, 1, b"x"), MessageWork(0, 2, b"boom"), MessageWork(0, 3, b"x")
        )
        assert _counts(ran) == [1]
        assert (ran.state, ran.permanent) == (None, False)
        assert "boom \N{SNOWMAN}" in ran.error
        assert "Traceback" in ran.detail
        assert "slots_app.py" in ran.detail
        assert _counts(await _run(slot, "count", MessageWork(0, 1, b"x"), key="other")) == [8], "others go on"
        await slot.open("count", "k", b"v2:1", 2)
        assert _counts(await _run(slot, "count", MessageWork(0, 3, b"x"))) == [2]

    async def test_a_failed_handler_must_be_opened_again(self, slots: StreamSlotMaker) -> None:
        slot = await slots.spawn()
        await slot.open("count", "k", None, 0)
        await _run(slot, "count", MessageWork(0, 1, b"boom"))
        ran = await _run(slot, "count", MessageWork(0, 1, b"x"))
        assert ran.results == []
        assert ran.error

    async def test_a_message_that_doesn_t_fit_fails_for_good(self, slots: StreamSlotMaker) -> None:
        slot = await slots.spawn()
        await slot.open("double", "k", None, 0)
        ran = await _run(slot, "double", MessageWork(0, 1, b'{"x": 21}'), MessageWork(0, 2, b'{"x": "many"}'))
        assert (ran.results, ran.permanent) == ([b"42"], True)
        assert "x" in ran.error
        await slot.open("double", "k", None, 0)
        ran = await _run(slot, "double", MessageWork(0, 3, b"\xff junk"))
        assert (ran.results, ran.permanent) == ([], True)

    async def test_a_state_of_an_older_version_is_migrated(self, slots: StreamSlotMaker) -> None:
        slot = await slots.spawn()
        await slot.open("count", "k", b"41", 1)
        assert _counts(await _run(slot, "count", MessageWork(0, 1, b"x"))) == [42]

    async def test_state_that_doesn_t_load_is_rejected(self, slots: StreamSlotMaker) -> None:
        slot = await slots.spawn()
        for state, version in ((b"v9:1", 9), (b"junk", 2), (b"not a number", 1)):
            with pytest.raises(StateRejected):
                await slot.open("count", "k", state, version)
        await slot.open("count", "k", b"v2:1", 2)
        assert _counts(await _run(slot, "count", MessageWork(0, 1, b"x"))) == [2]

    async def test_a_handler_that_can_t_open_has_failed(self, slots: StreamSlotMaker) -> None:
        slot = await slots.spawn()
        with pytest.raises(HandlerFailed, match="no licence") as failure:
            await slot.open("refuse", "k", None, 0)
        assert "Traceback" in failure.value.detail
        with pytest.raises(HandlerFailed, match="no such stream"):
            await slot.open("no such stream", "k", None, 0)

    # --- models

    async def test_a_slot_reports_its_models(self, slots: StreamSlotMaker) -> None:
        slot, other = await slots.spawn(), await slots.spawn()
        assert (list(slot.models), slot.loading) == ([], "")
        await slot.open("modelled", "k", None, 0)
        assert (list(slot.models), slot.loading) == (["answer"], "")
        assert list(other.models) == []
        ran = await slot.run("modelled", "k", [MessageWork(0, 0, b"")], 1, LONG_S)
        assert ran.results == [b"42"]

    async def test_models_are_loaded_on_their_own_and_left_with_the_key(self, slots: StreamSlotMaker) -> None:
        slot = await slots.spawn()
        await slot.load("modelled", "k", ["answer", "not declared"])
        assert list(slot.models) == ["answer"]
        await slot.open("modelled", "k", None, 0)
        assert (await slot.run("modelled", "k", [MessageWork(0, 0, b"")], 1, LONG_S)).results == [b"42"]
        await slot.close("modelled", "k")

    async def test_a_failed_load_of_a_model_is_no_failure_of_the_handler(
        self, slots: StreamSlotMaker
    ) -> None:
        slot = await slots.spawn()
        for call in (
            slot.load("unequipped", "k", ["answer", "missing"]),
            slot.open("unequipped", "k", b"state", 0),
        ):
            with pytest.raises(
                ModelFailed, match="model 'missing' did not load: FileNotFoundError"
            ) as failure:
                await call
            assert failure.value.model == "missing"
            assert "Traceback" in failure.value.detail
            assert (list(slot.models), slot.loading) == (["answer"], "")
        await slot.open("late", "k", None, 0)
        ran = await slot.run("late", "k", [MessageWork(0, 0, b"")], 1, LONG_S)
        assert (ran.results, ran.model) == ([], "missing")
        assert "did not load" in ran.error

    # --- ending

    async def test_a_killed_slot_fails_the_calls_in_flight(self, slots: StreamSlotMaker) -> None:
        slot, other = await slots.spawn(), await slots.spawn()
        await slot.open("count", "k", None, 0)
        await slot.open("count", "waiting", None, 0)
        hanging = asyncio.create_task(_run(slot, "count", MessageWork(0, 1, b"hang")))
        waiting = asyncio.create_task(_run(slot, "count", MessageWork(0, 1, b"x"), key="waiting"))
        await asyncio.wait([hanging, waiting], timeout=0.1)
        assert not hanging.done()
        assert not waiting.done(), "a slot runs one at a time"
        dump = await asyncio.wait_for(slot.kill("no progress"), PATIENCE_S)
        for call in (hanging, waiting):
            with pytest.raises(SlotDied) as death:
                await asyncio.wait_for(call, PATIENCE_S)
            assert dump in death.value.detail
        assert (await asyncio.wait_for(slot.exited(), PATIENCE_S)).stacks == dump
        await other.open("count", "k", None, 0)
        assert _counts(await _run(other, "count", MessageWork(0, 1, b"x"))) == [1]

    async def test_a_dead_slot_refuses_calls_with_its_reason(self, slots: StreamSlotMaker) -> None:
        slot = await slots.spawn()
        await slot.open("count", "k", None, 0)
        await slot.kill("test")
        await asyncio.wait_for(slot.exited(), PATIENCE_S)
        with pytest.raises(SlotDied):
            await _run(slot, "count", MessageWork(0, 1, b"x"))
        with pytest.raises(SlotDied):
            await slot.open("count", "k", None, 0)
        await slot.close("count", "k")
        await slot.kill("again")
        assert (await asyncio.wait_for(slot.exited(), PATIENCE_S)).reason

    async def test_closing_a_stream_twice_is_no_fault(self, slots: StreamSlotMaker) -> None:
        slot = await slots.spawn()
        await slot.open("count", "k", None, 0)
        await slot.close("count", "k")
        await slot.close("count", "k")
        await slot.close("count", "never opened")
        await slot.open("count", "k", b"v2:1", 2)
        assert _counts(await _run(slot, "count", MessageWork(0, 1, b"x"))) == [2]

    async def test_a_call_at_work_shows_when_it_began_and_advanced(self, slots: StreamSlotMaker) -> None:
        slot = await slots.spawn()
        await slot.open("count", "k", None, 0)
        call = SlotCall()
        hangs = asyncio.create_task(
            slot.run("count", "k", [MessageWork(0, 1, b"hang")], 1, LONG_S, call=call)
        )
        await asyncio.wait([hangs], timeout=0.1)
        assert list(slot.calls) == [call]
        assert call.begun_at is not None
        assert call.advanced_at >= call.begun_at
        await slot.kill("test")
        with pytest.raises(SlotDied):
            await hangs
        assert list(slot.calls) == []


async def _run(slot: StreamSlot, stream: str, *work: MessageWork, key: str = "k") -> RunResult:
    return await asyncio.wait_for(slot.run(stream, key, work, len(work), LONG_S), PATIENCE_S)


def _counts(ran: RunResult) -> list[Any]:
    return [msgspec.json.decode(result or b"")["count"] for result in ran.results]


# --- tasks


class RecordingListener:
    """Keeps the reports of slots."""

    def __init__(self) -> None:
        self.reports: dict[int, AttemptReport] = {}
        self.order: list[int] = []
        self.progress: list[tuple[int, Progress]] = []
        self.lines: list[tuple[int, str, str, dict[str, Any]]] = []
        self._heard = asyncio.Event()

    def on_ended(self, slot: TaskSlot, number: int, report: AttemptReport) -> None:
        self.reports[number] = report
        self.order.append(number)
        self._heard.set()

    def on_progress(self, slot: TaskSlot, number: int, progress: Progress) -> None:
        self.progress.append((number, progress))
        self._heard.set()

    def on_log(self, slot: TaskSlot, number: int, level: str, event: str, values: Mapping[str, Any]) -> None:
        self.lines.append((number, level, event, dict(values)))

    async def outcome(self, number: int) -> AttemptReport:
        """Wait for the report of an attempt."""
        async with asyncio.timeout(PATIENCE_S):
            while number not in self.reports:
                self._heard.clear()
                await self._heard.wait()
        return self.reports[number]

    async def begun(self, count: int = 1) -> None:
        """Return when ``count`` attempts have reported progress."""
        async with asyncio.timeout(PATIENCE_S):
            while len(self.progress) < count:
                self._heard.clear()
                await self._heard.wait()


class TaskSlotsConformance(SlotsConformance):
    """Every promise of slots for tasks."""

    @pytest.fixture(autouse=True)
    def _listeners(self) -> None:
        self._recorded: dict[str, RecordingListener] = {}

    async def spawn(self, slots: TaskSlotMaker) -> TaskSlot:
        listener = RecordingListener()
        slot = await slots.spawn(listener)
        self._recorded[slot.name] = listener
        return slot

    async def spawn_hanging(self, slots: TaskSlotMaker) -> TaskSlot:
        slot = await self.spawn(slots)
        slot.offer(1, _attempt("wait"))
        await self._recorded[slot.name].begun()
        return slot

    async def take_memory(self, slot: TaskSlot) -> str:
        slot.offer(1, _attempt("hoard"))
        ended = asyncio.create_task(self._recorded[slot.name].outcome(1))
        died = asyncio.create_task(slot.exited())
        await asyncio.wait([ended, died], return_when=asyncio.FIRST_COMPLETED)
        return ended.result().error if ended.done() else died.result().reason

    async def works(self, slot: TaskSlot) -> bool:
        slot.offer(2, _attempt("echo"))
        return not (await self._recorded[slot.name].outcome(2)).error

    async def test_attempts_are_taken_in_order(self, slots: TaskSlotMaker) -> None:
        listener = RecordingListener()
        slot = await slots.spawn(listener)
        for number in range(20):
            assert slot.offer(number, _attempt("echo", f"body {number}"))
        assert (await listener.outcome(19)).result == b'"body 19"'
        assert listener.order == list(range(20))
        assert not any(report.error for report in listener.reports.values())

    async def test_a_body_of_a_megabyte_arrives_whole(self, slots: TaskSlotMaker) -> None:
        listener = RecordingListener()
        slot = await slots.spawn(listener)
        slot.offer(1, _attempt("echo", "x" * 1_000_000))
        assert "1000002 bytes" in (await listener.outcome(1)).error

    async def test_large_results_and_outcomes_of_the_task_before_arrive(self, slots: TaskSlotMaker) -> None:
        listener = RecordingListener()
        slot = await slots.spawn(listener)
        large = msgspec.structs.replace(_attempt("echo", "x" * 1_000_000), result_bytes_max=2_000_000)
        slot.offer(1, large)
        assert len((await listener.outcome(1)).result) == 1_000_002
        before = Outcome(task_id="before", state=State.SUCCEEDED, value="x" * 1_000_000)
        for number, body in ((2, "small"), (3, "y" * 1_000)):
            slot.offer(number, msgspec.structs.replace(_attempt("follow", body), after=event_of(before)))
            assert (await listener.outcome(number)).result == f'"{body} 1000000"'.encode()

    async def test_an_error_of_the_handler_is_reported(self, slots: TaskSlotMaker) -> None:
        listener = RecordingListener()
        slot = await slots.spawn(listener)
        slot.offer(1, _attempt("fail", "as told"))
        slot.offer(2, _attempt("no such task"))
        slot.offer(3, _attempt("echo"))
        tried = await listener.outcome(1)
        assert (tried.error, tried.permanent, tried.cancelled) == ("ValueError: as told", False, False)
        assert "in fail" in tried.detail
        assert (await listener.outcome(2)).permanent
        assert (await listener.outcome(3)).error == ""

    async def test_attempts_in_the_prefetch_buffer_can_be_withdrawn(self, slots: TaskSlotMaker) -> None:
        listener = RecordingListener()
        slot = await slots.spawn(listener)
        for number, kind in enumerate(["wait", "echo", "echo"]):
            slot.offer(number, _attempt(kind))
        await listener.begun()
        assert slot.withdraw() == [1, 2]
        assert slot.withdraw() == []
        slot.offer(3, _attempt("echo"))
        slot.cancel(0, "enough")
        await listener.outcome(3)
        assert listener.order == [0, 3]

    async def test_only_the_running_attempt_is_cancelled(self, slots: TaskSlotMaker) -> None:
        listener = RecordingListener()
        slot = await slots.spawn(listener)
        slot.offer(7, _attempt("wait"))
        slot.offer(8, _attempt("wait"))
        await listener.begun()
        slot.cancel(8, "not its turn")
        slot.cancel(7, "enough")
        tried = await listener.outcome(7)
        assert tried.cancelled
        assert (7, "warning", "cancelled", {"again": True}) in listener.lines
        await listener.begun(2)
        slot.cancel(7, "again")
        assert 8 not in listener.reports
        slot.cancel(8, "enough")
        assert (await listener.outcome(8)).cancelled

    async def test_the_progress_of_an_attempt_is_reported(self, slots: TaskSlotMaker) -> None:
        listener = RecordingListener()
        slot = await slots.spawn(listener)
        slot.offer(1, _attempt("wait"))
        await listener.begun()
        assert listener.progress == [(1, Progress(0.5, "waiting", {"rows": 7.0}))]

    async def test_stacks_are_shown_and_nothing_ends(self, slots: TaskSlotMaker) -> None:
        listener = RecordingListener()
        slot = await slots.spawn(listener)
        slot.offer(1, _attempt("wait"))
        await listener.begun()
        assert "stack" in (await slot.dump()) or "Thread" in (await slot.dump())
        slot.cancel(1, "enough")
        assert (await listener.outcome(1)).cancelled

    async def test_a_look_shows_where_the_attempt_at_hand_is_and_nothing_ends(
        self, slots: TaskSlotMaker
    ) -> None:
        listener = RecordingListener()
        slot = await slots.spawn(listener)
        slot.offer(7, _attempt("wait"))
        await listener.begun()
        assert await slot.stacks_of(8) == ""
        first, second = await asyncio.gather(slot.stacks_of(7), slot.stacks_of(7))
        assert "wait" in (first or "")
        assert first == second
        slot.cancel(7, "enough")
        assert (await listener.outcome(7)).cancelled
        assert await slot.stacks_of(7) == ""
        await slot.kill("as told")
        assert await slot.stacks_of(7) == ""

    async def test_a_killed_slot_reports_its_untouched_attempts(self, slots: TaskSlotMaker) -> None:
        listener = RecordingListener()
        slot, other = await slots.spawn(listener), await slots.spawn(listener)
        for number, kind in enumerate(["wait", "echo", "echo"]):
            slot.offer(number, _attempt(kind))
        await listener.begun()
        await slot.kill("as told")
        gone = await asyncio.wait_for(slot.exited(), PATIENCE_S)
        assert "as told" in gone.reason
        assert list(gone.untouched) == [1, 2]
        assert listener.order == []
        other.offer(3, _attempt("echo"))
        await listener.outcome(3)

    async def test_a_dead_slot_takes_and_reports_nothing(self, slots: TaskSlotMaker) -> None:
        listener = RecordingListener()
        slot = await slots.spawn(listener)
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
        assert listener.order == []

    async def test_a_slot_lives_no_longer_than_its_lease(self, slots: TaskSlotMaker) -> None:
        listener = RecordingListener()
        slot = await slots.spawn(listener)
        slot.lease(0.01)
        slot.lease(None)
        slot.offer(1, _attempt("wait"))
        await listener.begun()
        slot.lease(PATIENCE_S)
        slot.lease(0.05)
        gone = await asyncio.wait_for(slot.exited(), PATIENCE_S)
        assert "SIGKILL" in gone.reason

    async def test_a_slot_ends_once_it_is_done(self, slots: TaskSlotMaker) -> None:
        listener = RecordingListener()
        slot = await slots.spawn(listener)
        slot.offer(1, _attempt("echo"))
        await listener.outcome(1)
        await slot.stop(PATIENCE_S)
        assert "killed" not in (await slot.exited()).reason

    async def test_a_slot_that_is_not_done_is_killed(self, slots: TaskSlotMaker) -> None:
        listener = RecordingListener()
        slot = await slots.spawn(listener)
        slot.offer(1, _attempt("wait"))
        await listener.begun()
        await slot.stop(0.01)
        assert "killed" in (await slot.exited()).reason
        assert listener.order == []


def _attempt(kind: str, body: str = "") -> Attempt:
    return Attempt("trace", kind, body.encode())
