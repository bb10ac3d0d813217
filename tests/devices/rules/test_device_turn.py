"""Turns of every store, and the outbox store in memory: over rows in memory, in virtual time."""

from collections.abc import AsyncIterator
from random import Random
from typing import Any

import msgspec
import pytest

from holdfast.devices.conformance import OutboxConformance
from holdfast.devices.conformance.outbox_bench import PATIENCE, SHARDS, Begin, Driver, new
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

    async def test_an_unsent_try_of_a_device_that_is_away_waits_for_its_probe(self, driver: Driver) -> None:
        driver.add([new("d1")])
        [sending] = await driver.send()
        result = await driver.take_turn(unsent=[Unsent(sending.correlation)], away={"d1"})
        assert (result.sendings, result.freed) == ([], 1)
        driver.now += PATIENCE.probe_s
        assert len(await driver.send(away={"d1"})) == 1

    async def test_a_try_that_another_followed_puts_nothing_off(self, driver: Driver) -> None:
        driver.add([new("d1")])
        [first] = await driver.send()
        driver.now = first.due
        [second] = await driver.send()
        driver.now = second.due
        [third] = await driver.send(still_out=[first])
        assert third.correlation.tries == second.correlation.tries + 1

    async def test_a_turn_that_read_as_many_arrivals_as_it_may_is_followed_by_another(
        self, driver: Driver
    ) -> None:
        driver.add([new("d1"), new("d2"), new("d3")])
        assert [(await driver.take_turn(limit=limit)).more for limit in (2, 2)] == [True, False]

    @pytest.mark.parametrize("spoilt", [{"spoilt": "its row is spoilt"}, {"shard": 999}])
    async def test_a_row_that_another_program_spoilt_fails_alone(
        self, driver: Driver, store: MemoryOutbox, spoilt: dict[str, Any]
    ) -> None:
        with driver.begin() as db:
            [number, *_] = db.add([new("d1"), new("d1"), new("d2")])
        outbox, entry = store.tables.commands[number]
        store.tables.commands[number] = (outbox, msgspec.structs.replace(entry, **spoilt))
        result = await driver.take_turn()
        assert sorted(sending.device for sending in result.sendings) == ["d1", "d2"]
        [closed] = result.closed
        assert (closed.id, closed.state) == (number, CommandState.FAILED)
        assert "its row" in closed.reason

    async def test_a_head_whose_row_names_another_shard_is_given_back_to_its_own(
        self, driver: Driver, store: MemoryOutbox
    ) -> None:
        driver.add([new("d1")])
        [sending] = await driver.send()
        [(at, head)] = [each for each in store.tables.heads.items() if each[1].device == "d1"]
        store.tables.heads[at] = msgspec.structs.replace(head, shard=(head.shard + 1) % SHARDS)
        driver.now = sending.due
        result = await driver.take_turn()
        assert (result.sendings, result.freed, result.closed) == ([], 1, [])
        assert store.tables.heads[at].shard == head.shard
        [again] = await driver.send()
        assert again.correlation.command == sending.correlation.command
