"""Promises of adding commands and of their order."""

from __future__ import annotations

import asyncio

import pytest

from holdfast.devices.conformance.outbox_bench import (
    LATEST_S,
    NOW,
    OUTBOX,
    PATIENCE_S,
    SHARDS,
    TRACEPARENT,
    Driver,
    OutboxFixtures,
    answer,
    bodies,
    new,
)
from holdfast.devices.ports.outbox import NewCommand, OutboxStore, WriterSettings
from holdfast.devices.rules.device_queue import CommandState, Correlation, shard_of


class OrderConformance(OutboxFixtures):
    """Promises of adding commands and of their order."""

    # --- adding

    async def test_what_is_added_goes_out_and_closes_with_its_answer(self, driver: Driver) -> None:
        command = new("d1", b"\x00body", trace_id="t-1", traceparent=TRACEPARENT, created_at=NOW)
        [number] = driver.add([command])
        result = await driver.take_turn()
        [sending] = result.sendings
        assert (sending.device, sending.body, sending.trace_id) == ("d1", b"\x00body", "t-1")
        assert sending.traceparent == TRACEPARENT
        assert sending.correlation == Correlation(driver.grants[sending.shard], number, 1)
        assert 10.0 <= sending.due - NOW <= LATEST_S
        entry = await driver.stored(number)
        assert (entry.state, entry.tries, entry.spent, entry.published_at) == (
            CommandState.PUBLISHED,
            1,
            1,
            NOW,
        )
        driver.now += 1
        result = await driver.take_turn(answers=[answer(sending, b"\xffok")])
        assert (result.sendings, result.unmatched, result.freed) == ([], [], 1)
        entry = await driver.stored(number)
        assert (entry.state, entry.answer, entry.closed_at) == (CommandState.ACKNOWLEDGED, b"\xffok", NOW + 1)
        assert result.closed == driver.reported == [entry]
        assert await driver.store.counts(OUTBOX) == {CommandState.ACKNOWLEDGED: 1}
        assert await driver.store.next_due(OUTBOX, range(SHARDS)) is None

    async def test_a_rolled_back_transaction_adds_nothing(self, driver: Driver) -> None:
        transaction = driver.begin()
        transaction.__enter__().add([new("d1")])
        failed = ZeroDivisionError()
        assert not transaction.__exit__(ZeroDivisionError, failed, None)
        assert await driver.send() == []
        assert await driver.store.commands(OUTBOX) == []

    async def test_a_command_is_sent_once_its_transaction_is_committed(self, driver: Driver) -> None:
        driver.add([new("d1", b"1"), new("d2", b"2")])
        assert bodies(await driver.send()) == [b"1", b"2"]

    async def test_a_new_command_ends_the_wait_for_arrivals(
        self, driver: Driver, other_store: OutboxStore
    ) -> None:
        await driver.store.wait_for_arrival(OUTBOX, 0.01)  # whatever came before anybody listened
        waiting = asyncio.ensure_future(driver.store.wait_for_arrival(OUTBOX, 3600))
        await asyncio.sleep(0)
        driver.add([new("d1")])
        await asyncio.wait_for(waiting, PATIENCE_S)
        waiting = asyncio.ensure_future(driver.store.wait_for_arrival(OUTBOX, 3600))
        await asyncio.sleep(0)
        await other_store.add([new("d2")])
        await asyncio.wait_for(waiting, PATIENCE_S)

    async def test_an_outbox_sees_no_commands_of_another(self, driver: Driver) -> None:
        await driver.store.prepare("gates", SHARDS)
        other = NewCommand(outbox="gates", device="d1", shard=shard_of("d1", SHARDS), body=b"other")
        driver.add([other])
        driver.add([new("d1", b"ours")])
        assert bodies(await driver.send()) == [b"ours"]
        assert [entry.body for entry in await driver.store.commands("gates")] == [b"other"]

    async def test_a_dedupe_key_is_added_once_a_device(self, driver: Driver) -> None:
        first, other = driver.add([new("d1", b"1", dedupe_key="k"), new("d2", b"2", dedupe_key="k")])
        again, fresh = driver.add([new("d1", b"3", dedupe_key="k"), new("d1", b"4")])
        assert again == first
        assert len({first, other, fresh}) == 3
        assert [entry.body for entry in await driver.store.commands(OUTBOX)] == [b"1", b"2", b"4"]

    async def test_the_order_is_that_of_adding_with_dedupe_keys_or_without(self, driver: Driver) -> None:
        keys = (None, "a", None, None, "b", "a", None)
        ids = driver.add([new("d1", b"%d" % n, dedupe_key=key) for n, key in enumerate(keys)])
        assert ids[5] == ids[1]
        assert [*ids[:5], ids[6]] == sorted({*ids})
        assert [e.body for e in await driver.store.commands(OUTBOX)] == [b"0", b"1", b"2", b"3", b"4", b"6"]

    async def test_times_are_by_the_store_s_clock_whatever_the_caller_s_says(self, driver: Driver) -> None:
        before = await driver.store.now()
        with driver.begin() as db:
            for clock in (NOW - 3600, NOW + 3600):
                timed = new("d1", created_at=clock, not_before=clock + 100, expires_at=clock + 200)
                db.add([timed, new("d2", created_at=clock)])
        slow, fast = await driver.store.commands(OUTBOX, device="d1")
        after = await driver.store.now()
        for entry in (slow, fast):
            assert before <= entry.created_at <= after
            assert entry.not_before - entry.created_at == pytest.approx(100, abs=0.001)
            assert (entry.expires_at or 0.0) - entry.created_at == pytest.approx(200, abs=0.001)
        assert {(e.not_before, e.expires_at) for e in await driver.store.commands(OUTBOX, device="d2")} == {
            (0.0, None)
        }

    # --- one at a time, in order

    async def test_a_device_gets_one_at_a_time_in_order(self, driver: Driver) -> None:
        driver.add([new("d1", b"%d" % n) for n in range(5)])
        sent: list[bytes] = []
        sendings = await driver.send()
        while sendings:
            [sending] = sendings
            sent.append(sending.body)
            assert await driver.send() == []
            sendings = await driver.send(answers=[answer(sending)])
        assert sent == [b"%d" % n for n in range(5)]

    async def test_the_higher_priority_goes_first_and_nothing_is_recalled(self, driver: Driver) -> None:
        driver.add([new("d1", b"first")])
        [sending] = await driver.send()
        driver.add([new("d1", b"low"), new("d1", b"high", priority=5), new("d1", b"high too", priority=5)])
        assert await driver.send() == []
        sent = []
        for _ in range(3):
            [sending] = await driver.send(answers=[answer(sending)])
            sent.append(sending.body)
        assert sent == [b"high", b"high too", b"low"]

    async def test_lanes_of_a_device_go_side_by_side(self, driver: Driver) -> None:
        await driver.store.prepare(OUTBOX, SHARDS, WriterSettings(lanes=2))
        driver.add([new("d1", b"%d" % n, lane=n % 2) for n in range(4)])
        sendings = await driver.send()
        assert bodies(sendings) == [b"0", b"1"]
        assert bodies(await driver.send(answers=[answer(sendings[0])])) in ([b"2"], [b"3"])

    async def test_a_time_to_come_is_waited_for_and_holds_up_nothing(self, driver: Driver) -> None:
        driver.add([new("d1", b"later", not_before=NOW + 100), new("d1", b"now")])
        [sending] = await driver.send()
        assert sending.body == b"now"
        assert await driver.send(answers=[answer(sending)]) == []
        assert await driver.store.next_due(OUTBOX, range(SHARDS)) == NOW + 100
        driver.now += 100
        assert bodies(await driver.send()) == [b"later"]

    async def test_a_newer_command_replaces_unsent_ones_of_its_key(self, driver: Driver) -> None:
        driver.add([new("d1", b"sent", supersede_key="p1")])
        [sending] = await driver.send()
        driver.add([new("d1", b"old", supersede_key="p1"), new("d1", b"other", supersede_key="p2")])
        driver.add([new("d2", b"another device", supersede_key="p1")])
        driver.add([new("d1", b"newest", supersede_key="p1")])
        driver.reported.clear()
        assert bodies(await driver.send()) == [b"another device"]
        assert [(entry.body, entry.state) for entry in driver.reported] == [(b"old", CommandState.SUPERSEDED)]
        sent = []
        for _ in range(2):
            [sending] = await driver.send(answers=[answer(sending)])
            sent.append(sending.body)
        assert sent == [b"other", b"newest"]
