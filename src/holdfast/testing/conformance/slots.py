"""What every maker of slots must do."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import msgspec
import pytest

from holdfast.common.message import RUN_DIGITS, SEQ_DIGITS
from holdfast.errors import HandlerFailed, ModelFailed, SlotDied, StateRejected
from holdfast.ports.slots import MessageWork, Ran, Slot, SlotCall, Slots

PATIENCE_S = 30.0
"""How long a test waits for what must come: a process may have to start."""

LONG_S = 60.0


@pytest.mark.asyncio
class SlotsConformance:
    """Every promise of the slots port. Fixture: ``slots``, made for the app
    ``holdfast.testing.conformance.slots_app:app``."""

    @pytest.fixture
    def slots(self) -> Slots:
        """Override: make a fresh adapter."""
        raise NotImplementedError("define the fixture slots")

    # --- opening and running

    async def test_messages_are_handled_in_order_with_state(self, slots: Slots) -> None:
        slot = await slots.spawn()
        await slot.open("count", "k", None, 0)
        ran = await _run(slot, "count", MessageWork(3, 5, b"a"), MessageWork(3, 6, b"b", attempt=2))
        assert [msgspec.json.decode(result or b"") for result in ran.results] == [
            {"count": 1, "key": "k", "run": 3, "seq": 5, "attempt": 1},
            {"count": 2, "key": "k", "run": 3, "seq": 6, "attempt": 2},
        ]
        assert (ran.state, ran.version, ran.error, ran.detail, ran.permanent) == (b"v2:2", 2, "", "", False)
        assert _counts(await _run(slot, "count", MessageWork(3, 7, b"c"))) == [3]

    async def test_a_snapshot_opens_in_another_slot(self, slots: Slots) -> None:
        first, second = await slots.spawn(), await slots.spawn()
        await first.open("count", "k", None, 0)
        ran = await _run(first, "count", *[MessageWork(0, i, b"x") for i in range(4)])
        await second.open("count", "k", ran.state, ran.version)
        assert _counts(await _run(second, "count", MessageWork(0, 4, b"x"))) == [5]

    async def test_opening_again_starts_from_the_given_state(self, slots: Slots) -> None:
        slot = await slots.spawn()
        await slot.open("count", "k", None, 0)
        await _run(slot, "count", MessageWork(0, 1, b"x"))
        await slot.open("count", "k", b"v2:41", 2)
        assert _counts(await _run(slot, "count", MessageWork(0, 2, b"x"))) == [42]

    async def test_keys_of_one_slot_are_apart(self, slots: Slots) -> None:
        slot = await slots.spawn()
        odd = "käse/\N{SNOWMAN} '\"%_\\;--" + "x" * 480
        await slot.open("count", "k", b"v2:10", 2)
        await slot.open("count", odd, b"v2:20", 2)
        assert _counts(await _run(slot, "count", MessageWork(0, 1, b"x"), key=odd)) == [21]
        assert _counts(await _run(slot, "count", MessageWork(0, 1, b"x"))) == [11]
        await slot.close("count", odd)
        assert _counts(await _run(slot, "count", MessageWork(0, 2, b"x"))) == [12]

    async def test_bodies_and_results_may_hold_any_byte(self, slots: Slots) -> None:
        slot = await slots.spawn()
        await slot.open("echo", "k", None, 0)
        bodies = [bytes(range(256)), b"", b"\xff" * 3_000_000]
        ran = await _run(slot, "echo", *[MessageWork(0, i, body) for i, body in enumerate(bodies)])
        assert ran.results == bodies
        assert (ran.state, ran.version) == (None, 0), "a function keeps no state"

    async def test_runs_and_seqs_may_be_as_large_as_they_get(self, slots: Slots) -> None:
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

    async def test_a_handler_may_return_nothing(self, slots: Slots) -> None:
        slot = await slots.spawn()
        await slot.open("count", "k", None, 0)
        ran = await _run(slot, "count", MessageWork(0, 1, b"none"), MessageWork(0, 2, b"none"))
        assert (ran.results, ran.state) == ([None, None], b"v2:2")

    async def test_a_run_ends_early_after_the_limit(self, slots: Slots) -> None:
        slot = await slots.spawn()
        await slot.open("count", "k", None, 0)
        ran = await slot.run("count", "k", [MessageWork(0, i, b"x") for i in range(9)], 4, LONG_S)
        assert (_counts(ran), ran.state, ran.error) == ([1, 2, 3, 4], b"v2:4", "")

    async def test_a_run_ends_early_when_its_time_is_up(self, slots: Slots) -> None:
        slot = await slots.spawn()
        await slot.open("count", "k", None, 0)
        ran = await slot.run("count", "k", [MessageWork(0, i, b"x") for i in range(9)], 9, 0.0)
        assert 1 <= len(ran.results) < 9
        assert (ran.state, ran.error) == (b"v2:%d" % len(ran.results), "")

    async def test_calls_wait_their_turn(self, slots: Slots) -> None:
        slot = await slots.spawn()
        keys = [f"k{i}" for i in range(5)]
        await asyncio.gather(*(slot.open("count", key, None, 0) for key in keys))
        both = [*keys, *keys]
        rans = await asyncio.gather(
            *(_run(slot, "count", *[MessageWork(0, j, b"x") for j in range(20)], key=key) for key in both)
        )
        assert [len(ran.results) for ran in rans] == [20] * 10
        assert [ran.state for ran in rans] == [b"v2:20"] * 5 + [b"v2:40"] * 5

    async def test_calls_of_a_key_go_in_the_order_in_which_they_are_made(self, slots: Slots) -> None:
        slot = await slots.spawn()

        def run(key: str, seq: int) -> Coroutine[Any, Any, Ran]:
            return slot.run("count", key, [MessageWork(0, seq, b"x")], 1, LONG_S)

        told: list[Any] = await asyncio.gather(
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
        rans: list[Ran] = [ran for ran in told if ran is not None]
        assert [_counts(ran) for ran in rans] == [[11], [71], [12], [], [21]]
        assert [bool(ran.error) for ran in rans] == [False, False, False, True, False]

    # --- failing

    async def test_a_failing_message_says_how(self, slots: Slots) -> None:
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

    async def test_a_failed_handler_must_be_opened_again(self, slots: Slots) -> None:
        slot = await slots.spawn()
        await slot.open("count", "k", None, 0)
        await _run(slot, "count", MessageWork(0, 1, b"boom"))
        ran = await _run(slot, "count", MessageWork(0, 1, b"x"))
        assert ran.results == []
        assert ran.error

    async def test_a_message_that_doesn_t_fit_fails_for_good(self, slots: Slots) -> None:
        slot = await slots.spawn()
        await slot.open("double", "k", None, 0)
        ran = await _run(slot, "double", MessageWork(0, 1, b'{"x": 21}'), MessageWork(0, 2, b'{"x": "many"}'))
        assert (ran.results, ran.permanent) == ([b"42"], True)
        assert "x" in ran.error
        await slot.open("double", "k", None, 0)
        ran = await _run(slot, "double", MessageWork(0, 3, b"\xff junk"))
        assert (ran.results, ran.permanent) == ([], True)

    async def test_older_state_is_migrated(self, slots: Slots) -> None:
        slot = await slots.spawn()
        await slot.open("count", "k", b"41", 1)
        assert _counts(await _run(slot, "count", MessageWork(0, 1, b"x"))) == [42]

    async def test_state_that_doesn_t_load_is_rejected(self, slots: Slots) -> None:
        slot = await slots.spawn()
        for state, version in ((b"v9:1", 9), (b"junk", 2), (b"not a number", 1)):
            with pytest.raises(StateRejected):
                await slot.open("count", "k", state, version)
        await slot.open("count", "k", b"v2:1", 2)
        assert _counts(await _run(slot, "count", MessageWork(0, 1, b"x"))) == [2]

    async def test_a_handler_that_can_t_open_has_failed(self, slots: Slots) -> None:
        slot = await slots.spawn()
        with pytest.raises(HandlerFailed, match="no licence") as failure:
            await slot.open("refuse", "k", None, 0)
        assert "Traceback" in failure.value.detail
        with pytest.raises(HandlerFailed, match="no such stream"):
            await slot.open("no such stream", "k", None, 0)

    # --- models

    async def test_a_slot_tells_which_models_it_has(self, slots: Slots) -> None:
        slot, other = await slots.spawn(), await slots.spawn()
        assert (list(slot.models), slot.loading) == ([], "")
        await slot.open("modelled", "k", None, 0)
        assert (list(slot.models), slot.loading) == (["answer"], "")
        assert list(other.models) == []
        ran = await slot.run("modelled", "k", [MessageWork(0, 0, b"")], 1, LONG_S)
        assert ran.results == [b"42"]

    async def test_models_are_loaded_on_their_own_and_left_with_the_key(self, slots: Slots) -> None:
        slot = await slots.spawn()
        await slot.load("modelled", "k", ["answer", "not declared"])
        assert list(slot.models) == ["answer"]
        await slot.open("modelled", "k", None, 0)
        assert (await slot.run("modelled", "k", [MessageWork(0, 0, b"")], 1, LONG_S)).results == [b"42"]
        await slot.close("modelled", "k")

    async def test_a_model_that_does_not_load_is_told_from_a_handler_that_fails(self, slots: Slots) -> None:
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

    async def test_names_are_unique(self, slots: Slots) -> None:
        first, second = await slots.spawn(), await slots.spawn()
        await first.kill("test")
        third = await slots.spawn()
        assert len({first.name, second.name, third.name}) == 3

    async def test_a_killed_slot_fails_the_calls_in_flight(self, slots: Slots) -> None:
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
        assert isinstance(await asyncio.wait_for(slot.exited(), PATIENCE_S), str)
        await other.open("count", "k", None, 0)
        assert _counts(await _run(other, "count", MessageWork(0, 1, b"x"))) == [1]

    async def test_a_dead_slot_says_so(self, slots: Slots) -> None:
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
        assert await asyncio.wait_for(slot.exited(), PATIENCE_S)

    async def test_closing_a_stream_twice_is_no_fault(self, slots: Slots) -> None:
        slot = await slots.spawn()
        await slot.open("count", "k", None, 0)
        await slot.close("count", "k")
        await slot.close("count", "k")
        await slot.close("count", "never opened")
        await slot.open("count", "k", b"v2:1", 2)
        assert _counts(await _run(slot, "count", MessageWork(0, 1, b"x"))) == [2]

    async def test_closing_ends_every_slot(self, slots: Slots) -> None:
        made = [await slots.spawn() for _ in range(2)]
        await made[0].open("count", "k", None, 0)
        exits = [asyncio.create_task(slot.exited()) for slot in made]
        await asyncio.wait_for(slots.close(), PATIENCE_S)
        await asyncio.wait_for(asyncio.gather(*exits), PATIENCE_S)
        with pytest.raises(SlotDied):
            await _run(made[0], "count", MessageWork(0, 1, b"x"))

    async def test_working_shows_as_progress(self, slots: Slots) -> None:
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


async def _run(slot: Slot, stream: str, *work: MessageWork, key: str = "k") -> Ran:
    return await asyncio.wait_for(slot.run(stream, key, work, len(work), LONG_S), PATIENCE_S)


def _counts(ran: Ran) -> list[Any]:
    return [msgspec.json.decode(result or b"")["count"] for result in ran.results]
