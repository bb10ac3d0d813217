"""A turn at the heads of devices, as every store takes it: here over rows in memory, in virtual time."""

from collections.abc import AsyncIterator
from random import Random
from typing import Any

import msgspec
import pytest

from holdfast.devices.conformance import OutboxConformance
from holdfast.devices.conformance.outbox_bench import PATIENCE, SHARDS, Begin, ManualDispatcher, new
from holdfast.devices.rules.device_queue import CommandState
from holdfast.devices.rules.device_turn import Unsent
from holdfast.devices.services.memory.outbox import MemoryOutbox
from holdfast.ports.clock import Clock
from simulator.loop import SimClock

VIRTUAL = True


class TestTurns(OutboxConformance):
    @pytest.fixture
    async def clock(self) -> SimClock:
        return SimClock(Random(0), "turns")

    @pytest.fixture
    async def store(self, clock: Clock) -> AsyncIterator[MemoryOutbox]:
        store = MemoryOutbox(clock)
        yield store
        await store.close()

    @pytest.fixture
    def begin(self, store: MemoryOutbox) -> Begin:
        return store.transaction

    # No turns in these.
    test_a_new_command_wakes_who_waits_for_arrivals = None  # type: ignore[assignment]
    test_closing_ends_who_waits_for_arrivals = None  # type: ignore[assignment]

    async def test_what_was_not_taken_for_a_device_that_is_away_waits_for_its_probe(
        self, dispatcher: ManualDispatcher, begin: Begin
    ) -> None:
        with begin() as db:
            db.add([new("d1")])
        [sending] = await dispatcher.send()
        result = await dispatcher.take_turn(unsent=[Unsent(sending.correlation)], away={"d1"})
        assert (result.sendings, result.freed) == ([], 1)
        dispatcher.now += PATIENCE.probe_s
        assert len(await dispatcher.send(away={"d1"})) == 1

    async def test_a_try_that_another_followed_puts_nothing_off(
        self, dispatcher: ManualDispatcher, begin: Begin
    ) -> None:
        with begin() as db:
            db.add([new("d1")])
        [first] = await dispatcher.send()
        dispatcher.now = first.due
        [second] = await dispatcher.send()
        dispatcher.now = second.due
        [third] = await dispatcher.send(still_out=[first])
        assert third.correlation.tries == second.correlation.tries + 1

    async def test_a_turn_that_read_as_many_arrivals_as_it_may_is_followed_by_another(
        self, dispatcher: ManualDispatcher, begin: Begin
    ) -> None:
        with begin() as db:
            db.add([new("d1"), new("d2"), new("d3")])
        assert [(await dispatcher.take_turn(limit=limit)).more for limit in (2, 2)] == [True, False]

    @pytest.mark.parametrize("spoilt", [{"spoilt": "its row is spoilt"}, {"shard": 999}])
    async def test_a_row_that_another_program_spoilt_fails_alone(
        self, dispatcher: ManualDispatcher, begin: Begin, store: MemoryOutbox, spoilt: dict[str, Any]
    ) -> None:
        with begin() as db:
            [number, *_] = db.add([new("d1"), new("d1"), new("d2")])
        outbox, entry = store.tables.commands[number]
        store.tables.commands[number] = (outbox, msgspec.structs.replace(entry, **spoilt))
        result = await dispatcher.take_turn()
        assert sorted(sending.device for sending in result.sendings) == ["d1", "d2"]
        [closed] = result.closed
        assert (closed.id, closed.state) == (number, CommandState.FAILED)
        assert "its row" in closed.reason

    async def test_a_head_whose_row_names_another_shard_is_given_back_to_its_own(
        self, dispatcher: ManualDispatcher, begin: Begin, store: MemoryOutbox
    ) -> None:
        with begin() as db:
            db.add([new("d1")])
        [sending] = await dispatcher.send()
        [(at, head)] = [each for each in store.tables.heads.items() if each[1].device == "d1"]
        store.tables.heads[at] = msgspec.structs.replace(head, shard=(head.shard + 1) % SHARDS)
        dispatcher.now = sending.due
        result = await dispatcher.take_turn()
        assert (result.sendings, result.freed, result.closed) == ([], 1, [])
        assert store.tables.heads[at].shard == head.shard
        [again] = await dispatcher.send()
        assert again.correlation.command == sending.correlation.command
