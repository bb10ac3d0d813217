"""Promises to operators: retry, cancel, pause, list and drop."""

from __future__ import annotations

import asyncio

import pytest

from holdfast.devices.conformance.outbox_bench import (
    NOW,
    OUTBOX,
    PATIENCE,
    PATIENCE_S,
    SHARDS,
    Begin,
    ManualDispatcher,
    OutboxFixtures,
    answer,
    bodies,
    new,
)
from holdfast.devices.ports.outbox import OutboxStore
from holdfast.devices.rules.device_queue import CommandState, HeadPhase, shard_of
from holdfast.devices.rules.device_turn import Unsent


class OperatorsConformance(OutboxFixtures):
    """Promises to operators: retry, cancel, pause, list and drop."""

    async def test_a_failed_command_can_be_retried(
        self, dispatcher: ManualDispatcher, store: OutboxStore, begin: Begin
    ) -> None:
        with begin() as db:
            [number] = db.add([new("d1", expires_at=NOW + 60)])
        [sending] = await dispatcher.send()
        assert not await store.retry(number)
        await dispatcher.take_turn(answers=[answer(sending, ok=False)])
        assert await store.retry(number)
        [again] = await dispatcher.send()
        assert again.correlation.tries == 2
        await dispatcher.take_turn(answers=[answer(again)])
        assert (await self.standing(store, number)).state is CommandState.ACKNOWLEDGED
        assert not await store.retry(number)
        assert not await store.retry(number + 1000)

    async def test_what_a_newer_command_has_replaced_is_not_retried(
        self, dispatcher: ManualDispatcher, store: OutboxStore, begin: Begin
    ) -> None:
        with begin() as db:
            [old] = db.add([new("d1", b"in", supersede_key="951")])
        [sending] = await dispatcher.send()
        await dispatcher.take_turn(answers=[answer(sending, ok=False)])
        with begin() as db:
            db.add([new("d1", b"out", supersede_key="951"), new("d2", b"in", supersede_key="951")])
        for sending in await dispatcher.send():
            await dispatcher.take_turn(answers=[answer(sending)])
        assert not await store.retry(old), "who was taken off must not come in again"
        assert await dispatcher.send() == []

    async def test_a_newer_command_replaces_what_was_retried(
        self, dispatcher: ManualDispatcher, store: OutboxStore, begin: Begin
    ) -> None:
        with begin() as db:
            [old, other] = db.add([new("d1", b"in", supersede_key="951"), new("d1", b"other")])
        [sending] = await dispatcher.send()
        [sending] = await dispatcher.send(answers=[answer(sending, ok=False)])
        assert sending.correlation.command == other
        assert await store.retry(old)
        with begin() as db:
            db.add([new("d1", b"out", supersede_key="951", priority=1)])
        [sending] = await dispatcher.send(answers=[answer(sending)])
        assert sending.body == b"out"
        assert await dispatcher.send(answers=[answer(sending)]) == []
        assert (await self.standing(store, old)).state is CommandState.SUPERSEDED

    async def test_only_what_isn_t_out_can_be_cancelled(
        self, dispatcher: ManualDispatcher, store: OutboxStore, begin: Begin
    ) -> None:
        with begin() as db:
            out, waiting, last = db.add([new("d1", b"%d" % n) for n in range(3)])
        [sending] = await dispatcher.send()
        assert not await store.cancel(out)
        assert await store.cancel(waiting)
        entry = await self.standing(store, waiting)
        assert (entry.state, entry.reason) == (CommandState.FAILED, "cancelled")
        await dispatcher.take_turn(sweep=True)
        assert [told.id for told in dispatcher.told] == [waiting]
        [sending] = await dispatcher.send(answers=[answer(sending)])
        assert sending.correlation.command == last

    async def test_a_caller_takes_back_one_command_with_its_own_change(
        self, dispatcher: ManualDispatcher, store: OutboxStore, begin: Begin
    ) -> None:
        with begin() as db:
            out, waiting, last = db.add([new("d1", b"%d" % n) for n in range(3)])
        [sending] = await dispatcher.send()
        transaction = begin()
        assert transaction.__enter__().cancel(OUTBOX, command=waiting) == 1
        assert not transaction.__exit__(ZeroDivisionError, ZeroDivisionError(), None)
        assert (await dispatcher.take_turn()).closed == [], "it was rolled back"
        with begin() as db:
            assert db.cancel(OUTBOX, command=waiting) == 1
            assert db.cancel(OUTBOX, command=out) == 0, "its device may be at it"
            assert db.cancel(OUTBOX, command=last + 1000) == 0
            assert db.cancel("gates", command=last) == 0
        result = await dispatcher.take_turn()
        assert [(e.id, e.state, e.reason) for e in result.closed] == [
            (waiting, CommandState.FAILED, "cancelled")
        ]
        assert dispatcher.told == result.closed
        [sending] = await dispatcher.send(answers=[answer(sending)])
        assert sending.correlation.command == last
        assert (await dispatcher.take_turn(answers=[answer(sending)])).sendings == []

    async def test_a_caller_takes_back_all_of_a_device_or_of_a_key(
        self, dispatcher: ManualDispatcher, store: OutboxStore, begin: Begin
    ) -> None:
        with begin() as db:
            db.add([new("d1", b"out"), new("d1", b"a", supersede_key="951"), new("d1", b"b")])
            db.add([new("d2", b"c", supersede_key="951", not_before=NOW + 100), new("d2", b"d")])
            db.add([new("d3", b"e", supersede_key="952", not_before=NOW + 100)])
        await dispatcher.take_turn(room=0)
        with begin() as db:
            assert db.cancel(OUTBOX, supersede_key="951") == 2
            assert db.cancel(OUTBOX, device="d3", supersede_key="951") == 0
            db.add([new("d2", b"later", supersede_key="951")])
        result = await dispatcher.take_turn(room=0)
        assert sorted(entry.body for entry in result.closed) == [b"a", b"c"]
        with begin() as db:
            assert db.cancel(OUTBOX, device="d1") == 2
            db.add([new("d1", b"after")])
        result = await dispatcher.take_turn()
        assert sorted(entry.body for entry in result.closed) == [b"b", b"out"]
        assert bodies(result.sendings) == [b"after", b"d"], "nothing that is taken back goes out"
        assert await store.cancel_all(OUTBOX, device="d3", supersede_key="952") == 1
        assert [entry.body for entry in (await dispatcher.take_turn()).closed] == [b"e"]

    async def test_what_is_taken_back_does_not_go_out_however_much_it_is(
        self, dispatcher: ManualDispatcher, store: OutboxStore, begin: Begin
    ) -> None:
        with begin() as db:
            db.add([new("d1", b"%d" % n) for n in range(7)])
        with begin() as db:
            assert db.cancel(OUTBOX, device="d1") == 7
        closed, more = 0, True
        while more:
            result = await dispatcher.take_turn(limit=3)
            assert result.sendings == []
            closed, more = closed + len(result.closed), result.more
        assert closed == 7
        with begin() as db:
            db.add([new("d1", b"again")])
        assert bodies(await dispatcher.send()) == [b"again"]

    async def test_nothing_goes_to_a_device_that_is_paused(
        self, dispatcher: ManualDispatcher, store: OutboxStore, begin: Begin
    ) -> None:
        with begin() as db:
            [number, _] = db.add([new("d1", b"1"), new("d1", b"2")])
            db.add([new("d2", b"3", not_before=NOW + 1)])
        [sending] = await dispatcher.send()
        with begin() as db:
            db.pause(OUTBOX, "d1", NOW)
            db.pause(OUTBOX, "d1", NOW + 5)
            db.pause(OUTBOX, "d9", NOW)
        assert await store.paused(OUTBOX) == {"d1": NOW, "d9": NOW}
        assert [status.paused for status in await store.devices(OUTBOX, device="d1")] == [True]
        for _ in range(5):
            dispatcher.now = max(sending.due, dispatcher.now + PATIENCE.probe_s)
            assert b"1" not in bodies(await dispatcher.send())
        assert (await self.standing(store, number)).spent == 1
        result = await dispatcher.take_turn(answers=[answer(sending)], back=["d1"])
        assert (len(result.closed), result.sendings) == (1, []), "its answer counts, and nothing follows"
        assert await store.resume(OUTBOX, "d1")
        assert not await store.resume(OUTBOX, "d1")
        assert bodies(await dispatcher.send()) == [b"2"]

    async def test_what_was_out_when_its_device_was_paused_goes_again_once_it_is_resumed(
        self, dispatcher: ManualDispatcher, store: OutboxStore, begin: Begin
    ) -> None:
        with begin() as db:
            db.add([new("d1")])
        [sending] = await dispatcher.send()
        await store.pause(OUTBOX, "d1")
        dispatcher.now = sending.due
        assert (await dispatcher.take_turn()).freed == 1
        assert await store.resume(OUTBOX, "d1")
        [again] = await dispatcher.send()
        assert again.correlation.tries == 2

    @pytest.mark.parametrize("is_resumed", [False, True])
    async def test_a_device_that_is_no_longer_waited_for_is_not_freed_by_its_answer(
        self, dispatcher: ManualDispatcher, store: OutboxStore, begin: Begin, is_resumed: bool
    ) -> None:
        with begin() as db:
            db.add([new("d1")])
        [sending] = await dispatcher.send()
        await store.pause(OUTBOX, "d1")
        dispatcher.now = sending.due
        assert (await dispatcher.take_turn()).freed == 1
        if is_resumed:
            assert await store.resume(OUTBOX, "d1")
            assert (await dispatcher.take_turn(room=0)).sendings == [], "it waits for its turn"
        result = await dispatcher.take_turn(answers=[answer(sending)])
        assert (len(result.closed), result.freed) == (1, 0)

    async def test_what_the_broker_did_not_take_of_a_paused_device_waits_as_it_did(
        self, dispatcher: ManualDispatcher, store: OutboxStore, begin: Begin
    ) -> None:
        with begin() as db:
            db.add([new("d1"), new("d2")])
        sendings = await dispatcher.send()
        await store.pause(OUTBOX, "d1")
        await store.pause(OUTBOX, "d2")
        dispatcher.now = max(sending.due for sending in sendings)
        assert (await dispatcher.take_turn()).freed == 2
        unsent = [Unsent(sending.correlation) for sending in sendings]
        result = await dispatcher.take_turn(unsent=unsent, away={"d2"})
        assert (result.sendings, result.freed) == ([], 0)
        assert await store.in_flight(OUTBOX, range(SHARDS)) == 0
        assert await store.resume(OUTBOX, "d1")
        assert [sending.device for sending in await dispatcher.send(away={"d2"})] == ["d1"]

    async def test_nothing_goes_out_while_the_outbox_is_paused(
        self, dispatcher: ManualDispatcher, store: OutboxStore, begin: Begin
    ) -> None:
        with begin() as db:
            db.add([new("d1", b"1"), new("d1", b"2")])
        [sending] = await dispatcher.send()
        await store.pause(OUTBOX)
        with begin() as db:
            db.add([new("d2", b"3"), new("d2", b"short", expires_at=NOW + 1)])
        dispatcher.now = sending.due
        result = await dispatcher.take_turn(sweep=True)
        assert (result.paused, result.sendings, len(result.closed)) == (True, [], 1)
        result = await dispatcher.take_turn(answers=[answer(sending)])
        assert (len(result.closed), result.sendings) == (1, [])
        assert await store.resume(OUTBOX)
        result = await dispatcher.take_turn()
        assert (result.paused, bodies(result.sendings)) == (False, [b"2", b"3"])

    async def test_commands_are_listed_by_page_state_and_device(
        self, dispatcher: ManualDispatcher, store: OutboxStore, begin: Begin
    ) -> None:
        with begin() as db:
            numbers = db.add([new(f"d{n % 2}", b"%d" % n) for n in range(6)])
        await dispatcher.take_turn()
        assert [entry.id for entry in await store.commands(OUTBOX)] == numbers
        assert [entry.id for entry in await store.commands(OUTBOX, after=numbers[1], limit=2)] == numbers[2:4]
        newest = await store.commands(OUTBOX, limit=2, newest=True)
        assert [entry.id for entry in newest] == numbers[:-3:-1]
        before = await store.commands(OUTBOX, after=newest[-1].id, limit=2, newest=True)
        assert [entry.id for entry in before] == numbers[-3:-5:-1]
        assert [entry.id for entry in await store.commands(OUTBOX, state=CommandState.PUBLISHED)] == numbers[
            :2
        ]
        assert [entry.id for entry in await store.commands(OUTBOX, device="d1")] == numbers[1::2]
        assert await store.command(numbers[-1] + 1000) is None
        assert await store.counts(OUTBOX) == {CommandState.SCHEDULED: 4, CommandState.PUBLISHED: 2}

    async def test_devices_are_listed_with_what_waits_and_when_seen(
        self, dispatcher: ManualDispatcher, store: OutboxStore, begin: Begin
    ) -> None:
        with begin() as db:
            db.add([new(f"d{n}") for n in (1, 1, 2, 3)])
        await dispatcher.take_turn(seen={"d2": NOW - 5, "d4": NOW - 500}, away={"d4"})
        statuses = await store.devices(OUTBOX)
        told = [(s.device, s.phases, s.waiting, s.seen_at, s.away) for s in statuses]
        assert told == [
            ("d1", (HeadPhase.OUT,), 2, None, False),
            ("d2", (HeadPhase.OUT,), 1, NOW - 5, False),
            ("d3", (HeadPhase.OUT,), 1, None, False),
            ("d4", (), 0, NOW - 500, True),
        ]
        assert all(status.shard == shard_of(status.device, SHARDS) for status in statuses)
        assert await store.devices(OUTBOX, after="d1", limit=2) == statuses[1:3]
        assert await store.devices(OUTBOX, device="d3") == statuses[2:3]
        await dispatcher.take_turn(seen={"d4": NOW})
        [status] = await store.devices(OUTBOX, device="d4")
        assert (status.seen_at, status.away) == (NOW, False)

    async def test_closed_commands_are_dropped_by_age(
        self, dispatcher: ManualDispatcher, store: OutboxStore, begin: Begin
    ) -> None:
        with begin() as db:
            db.add([new(f"d{n}") for n in range(5)])
        sendings = await dispatcher.send()
        await dispatcher.take_turn(answers=[answer(sending) for sending in sendings[:3]])
        dispatcher.now += 2
        await dispatcher.take_turn(answers=[answer(sendings[3])])
        assert await store.delete_closed(OUTBOX, NOW, 10) == 0
        assert await store.delete_closed(OUTBOX, NOW + 1, 2) == 2
        assert await store.delete_closed(OUTBOX, NOW + 1, 2) == 1
        assert await store.delete_closed(OUTBOX, NOW + 1, 2) == 0
        assert await store.counts(OUTBOX) == {CommandState.PUBLISHED: 1, CommandState.ACKNOWLEDGED: 1}

    async def test_what_is_archived_is_dropped_too(
        self, dispatcher: ManualDispatcher, store: OutboxStore, begin: Begin
    ) -> None:
        with begin() as db:
            ids = db.add([new(f"d{n}") for n in range(3)])
        sendings = await dispatcher.send()
        await dispatcher.take_turn(answers=[answer(sending) for sending in sendings])
        assert await store.delete_closed(OUTBOX, NOW + 1, 2, archive=True) == 2
        assert await store.delete_closed(OUTBOX, NOW + 1, 2, archive=True) == 1
        assert await store.delete_closed(OUTBOX, NOW + 1, 2, archive=True) == 0
        assert await store.commands(OUTBOX) == []
        with begin() as db:
            [fresh] = db.add([new("d1")])
        assert fresh not in ids, "an id is never given twice"

    async def test_who_comes_later_knows_devices_and_who_was_away(
        self, dispatcher: ManualDispatcher, store: OutboxStore, begin: Begin
    ) -> None:
        with begin() as db:
            db.add([new(f"d{n}", lane=lane) for n in range(4) for lane in range(2)])
        away = {"d1", "d3"}
        await dispatcher.take_turn(seen={"d0": NOW - 5, "d1": NOW - 500, "d3": None, "d9": NOW}, away=away)
        known = [each for shard in range(SHARDS) for each in await store.known_devices(OUTBOX, shard)]
        assert sorted((each.device, each.seen_at, each.away) for each in known) == [
            ("d0", NOW - 5, False),
            ("d1", NOW - 500, True),
            ("d2", None, False),
            ("d3", None, True),
        ]
        assert all(shard_of(each.device, SHARDS) == 0 for each in await store.known_devices(OUTBOX, 0)), (
            "each shard has its own"
        )
        await dispatcher.take_turn(seen={"d1": None}, away=away)
        [status] = await store.devices(OUTBOX, device="d1")
        assert (status.seen_at, status.away) == (NOW - 500, True), "what was seen stands"

    async def test_closing_ends_who_waits_for_arrivals(
        self, dispatcher: ManualDispatcher, store: OutboxStore
    ) -> None:
        await store.wait_for_arrival(OUTBOX, 0.01)
        waiting = asyncio.ensure_future(store.wait_for_arrival(OUTBOX, 3600))
        await asyncio.sleep(0)
        await store.close()
        await asyncio.wait_for(waiting, PATIENCE_S)
