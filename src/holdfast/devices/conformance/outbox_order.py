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
    Begin,
    ManualDispatcher,
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

    async def test_what_is_added_goes_out_and_closes_with_its_answer(
        self, dispatcher: ManualDispatcher, store: OutboxStore, begin: Begin
    ) -> None:
        with begin() as db:
            command = new("d1", b"\x00body", trace_id="t-1", traceparent=TRACEPARENT, created_at=NOW)
            [number] = db.add([command])
        result = await dispatcher.take_turn()
        [sending] = result.sendings
        assert (sending.device, sending.body, sending.trace_id) == ("d1", b"\x00body", "t-1")
        assert sending.traceparent == TRACEPARENT
        assert sending.correlation == Correlation(dispatcher.grants[sending.shard], number, 1)
        assert 10.0 <= sending.due - NOW <= LATEST_S
        entry = await self.standing(store, number)
        assert (entry.state, entry.tries, entry.spent, entry.published_at) == (
            CommandState.PUBLISHED,
            1,
            1,
            NOW,
        )
        dispatcher.now += 1
        result = await dispatcher.take_turn(answers=[answer(sending, b"\xffok")])
        assert (result.sendings, result.unmatched, result.freed) == ([], [], 1)
        entry = await self.standing(store, number)
        assert (entry.state, entry.answer, entry.closed_at) == (CommandState.ACKNOWLEDGED, b"\xffok", NOW + 1)
        assert result.closed == dispatcher.told == [entry]
        assert await store.counts(OUTBOX) == {CommandState.ACKNOWLEDGED: 1}
        assert await store.next_due(OUTBOX, range(SHARDS)) is None

    async def test_a_rolled_back_transaction_adds_nothing(
        self, dispatcher: ManualDispatcher, store: OutboxStore, begin: Begin
    ) -> None:
        transaction = begin()
        transaction.__enter__().add([new("d1")])
        failed = ZeroDivisionError()
        assert not transaction.__exit__(ZeroDivisionError, failed, None)
        assert await dispatcher.send() == []
        assert await store.commands(OUTBOX) == []

    async def test_what_isn_t_committed_isn_t_sent(self, dispatcher: ManualDispatcher, begin: Begin) -> None:
        with begin() as db:
            db.add([new("d1", b"1"), new("d2", b"2")])
        assert bodies(await dispatcher.send()) == [b"1", b"2"]

    async def test_a_new_command_wakes_who_waits_for_arrivals(
        self, dispatcher: ManualDispatcher, store: OutboxStore, other_store: OutboxStore, begin: Begin
    ) -> None:
        await store.wait_for_arrival(OUTBOX, 0.01)  # whatever came before anybody listened
        waiting = asyncio.ensure_future(store.wait_for_arrival(OUTBOX, 3600))
        await asyncio.sleep(0)
        with begin() as db:
            db.add([new("d1")])
        await asyncio.wait_for(waiting, PATIENCE_S)
        waiting = asyncio.ensure_future(store.wait_for_arrival(OUTBOX, 3600))
        await asyncio.sleep(0)
        await other_store.add([new("d2")])
        await asyncio.wait_for(waiting, PATIENCE_S)

    async def test_an_outbox_sees_no_commands_of_another(
        self, dispatcher: ManualDispatcher, store: OutboxStore, begin: Begin
    ) -> None:
        await store.prepare("gates", SHARDS)
        other = NewCommand(outbox="gates", device="d1", shard=shard_of("d1", SHARDS), body=b"other")
        with begin() as db:
            db.add([other])
            db.add([new("d1", b"ours")])
        assert bodies(await dispatcher.send()) == [b"ours"]
        assert [entry.body for entry in await store.commands("gates")] == [b"other"]

    async def test_a_dedupe_key_is_added_once_a_device(
        self, dispatcher: ManualDispatcher, store: OutboxStore, begin: Begin
    ) -> None:
        with begin() as db:
            first, other = db.add([new("d1", b"1", dedupe_key="k"), new("d2", b"2", dedupe_key="k")])
        with begin() as db:
            again, fresh = db.add([new("d1", b"3", dedupe_key="k"), new("d1", b"4")])
        assert again == first
        assert len({first, other, fresh}) == 3
        assert [entry.body for entry in await store.commands(OUTBOX)] == [b"1", b"2", b"4"]

    async def test_the_order_is_that_of_adding_with_dedupe_keys_or_without(
        self, dispatcher: ManualDispatcher, store: OutboxStore, begin: Begin
    ) -> None:
        keys = (None, "a", None, None, "b", "a", None)
        with begin() as db:
            ids = db.add([new("d1", b"%d" % n, dedupe_key=key) for n, key in enumerate(keys)])
        assert ids[5] == ids[1]
        assert [*ids[:5], ids[6]] == sorted({*ids})
        assert [e.body for e in await store.commands(OUTBOX)] == [b"0", b"1", b"2", b"3", b"4", b"6"]

    async def test_times_are_by_the_store_s_clock_whatever_the_caller_s_says(
        self, dispatcher: ManualDispatcher, store: OutboxStore, begin: Begin
    ) -> None:
        before = await store.now()
        with begin() as db:
            for clock in (NOW - 3600, NOW + 3600):
                timed = new("d1", created_at=clock, not_before=clock + 100, expires_at=clock + 200)
                db.add([timed, new("d2", created_at=clock)])
        slow, fast = await store.commands(OUTBOX, device="d1")
        after = await store.now()
        for entry in (slow, fast):
            assert before <= entry.created_at <= after
            assert entry.not_before - entry.created_at == pytest.approx(100, abs=0.001)
            assert (entry.expires_at or 0.0) - entry.created_at == pytest.approx(200, abs=0.001)
        assert {(e.not_before, e.expires_at) for e in await store.commands(OUTBOX, device="d2")} == {
            (0.0, None)
        }

    # --- one at a time, in order

    async def test_a_device_gets_one_at_a_time_in_order(
        self, dispatcher: ManualDispatcher, begin: Begin
    ) -> None:
        with begin() as db:
            db.add([new("d1", b"%d" % n) for n in range(5)])
        sent: list[bytes] = []
        sendings = await dispatcher.send()
        while sendings:
            [sending] = sendings
            sent.append(sending.body)
            assert await dispatcher.send() == []
            sendings = await dispatcher.send(answers=[answer(sending)])
        assert sent == [b"%d" % n for n in range(5)]

    async def test_the_higher_priority_goes_first_and_nothing_is_recalled(
        self, dispatcher: ManualDispatcher, begin: Begin
    ) -> None:
        with begin() as db:
            db.add([new("d1", b"first")])
        [sending] = await dispatcher.send()
        with begin() as db:
            db.add([new("d1", b"low"), new("d1", b"high", priority=5), new("d1", b"high too", priority=5)])
        assert await dispatcher.send() == []
        sent = []
        for _ in range(3):
            [sending] = await dispatcher.send(answers=[answer(sending)])
            sent.append(sending.body)
        assert sent == [b"high", b"high too", b"low"]

    async def test_lanes_of_a_device_go_side_by_side(
        self, dispatcher: ManualDispatcher, store: OutboxStore, begin: Begin
    ) -> None:
        await store.prepare(OUTBOX, SHARDS, WriterSettings(lanes=2))
        with begin() as db:
            db.add([new("d1", b"%d" % n, lane=n % 2) for n in range(4)])
        sendings = await dispatcher.send()
        assert bodies(sendings) == [b"0", b"1"]
        assert bodies(await dispatcher.send(answers=[answer(sendings[0])])) in ([b"2"], [b"3"])

    async def test_a_time_to_come_is_waited_for_and_holds_up_nothing(
        self, dispatcher: ManualDispatcher, store: OutboxStore, begin: Begin
    ) -> None:
        with begin() as db:
            db.add([new("d1", b"later", not_before=NOW + 100), new("d1", b"now")])
        [sending] = await dispatcher.send()
        assert sending.body == b"now"
        assert await dispatcher.send(answers=[answer(sending)]) == []
        assert await store.next_due(OUTBOX, range(SHARDS)) == NOW + 100
        dispatcher.now += 100
        assert bodies(await dispatcher.send()) == [b"later"]

    async def test_a_newer_command_replaces_unsent_ones_of_its_key(
        self, dispatcher: ManualDispatcher, store: OutboxStore, begin: Begin
    ) -> None:
        with begin() as db:
            db.add([new("d1", b"sent", supersede_key="p1")])
        [sending] = await dispatcher.send()
        with begin() as db:
            db.add([new("d1", b"old", supersede_key="p1"), new("d1", b"other", supersede_key="p2")])
            db.add([new("d2", b"another device", supersede_key="p1")])
        with begin() as db:
            db.add([new("d1", b"newest", supersede_key="p1")])
        dispatcher.told.clear()
        assert bodies(await dispatcher.send()) == [b"another device"]
        assert [(entry.body, entry.state) for entry in dispatcher.told] == [(b"old", CommandState.SUPERSEDED)]
        sent = []
        for _ in range(2):
            [sending] = await dispatcher.send(answers=[answer(sending)])
            sent.append(sending.body)
        assert sent == [b"other", b"newest"]
