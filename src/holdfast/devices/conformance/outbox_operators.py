"""Promises to operators: retry, cancel, pause, list and drop."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holdfast.devices.conformance.outbox_bench import (
    NOW,
    OUTBOX,
    PATIENCE,
    PATIENCE_S,
    SHARDS,
    Driver,
    OutboxFixtures,
    answer,
    bodies,
    new,
)
from holdfast.devices.rules.device_queue import CommandState, HeadPhase, shard_of
from holdfast.devices.rules.device_turn import Unsent


class OperatorsConformance(OutboxFixtures):
    """Promises to operators: retry, cancel, pause, list and drop."""

    async def test_a_failed_command_can_be_retried(self, driver: Driver) -> None:
        [number] = driver.add([new("d1", expires_at=NOW + 60)])
        [sending] = await driver.send()
        assert not await driver.store.retry(number)
        await driver.take_turn(answers=[answer(sending, ok=False)])
        assert await driver.store.retry(number)
        [again] = await driver.send()
        assert again.correlation.tries == 2
        await driver.take_turn(answers=[answer(again)])
        assert (await driver.stored(number)).state is CommandState.ACKNOWLEDGED
        assert not await driver.store.retry(number)
        assert not await driver.store.retry(number + 1000)

    async def test_a_replaced_command_is_not_retried(self, driver: Driver) -> None:
        [old] = driver.add([new("d1", b"in", supersede_key="951")])
        [sending] = await driver.send()
        await driver.take_turn(answers=[answer(sending, ok=False)])
        driver.add([new("d1", b"out", supersede_key="951"), new("d2", b"in", supersede_key="951")])
        for sending in await driver.send():
            await driver.take_turn(answers=[answer(sending)])
        assert not await driver.store.retry(old), "who was taken off must not come in again"
        assert await driver.send() == []

    async def test_a_newer_command_replaces_a_retried_one(self, driver: Driver) -> None:
        [old, other] = driver.add([new("d1", b"in", supersede_key="951"), new("d1", b"other")])
        [sending] = await driver.send()
        [sending] = await driver.send(answers=[answer(sending, ok=False)])
        assert sending.correlation.command == other
        assert await driver.store.retry(old)
        driver.add([new("d1", b"out", supersede_key="951", priority=1)])
        [sending] = await driver.send(answers=[answer(sending)])
        assert sending.body == b"out"
        assert await driver.send(answers=[answer(sending)]) == []
        assert (await driver.stored(old)).state is CommandState.SUPERSEDED

    async def test_only_a_scheduled_command_can_be_cancelled(self, driver: Driver) -> None:
        out, waiting, last = driver.add([new("d1", b"%d" % n) for n in range(3)])
        [sending] = await driver.send()
        assert not await driver.store.cancel(out)
        assert await driver.store.cancel(waiting)
        entry = await driver.stored(waiting)
        assert (entry.state, entry.reason) == (CommandState.FAILED, "cancelled")
        await driver.take_turn(sweep=True)
        assert [entry.id for entry in driver.reported] == [waiting]
        [sending] = await driver.send(answers=[answer(sending)])
        assert sending.correlation.command == last

    async def test_a_caller_takes_back_one_command_with_its_own_change(self, driver: Driver) -> None:
        out, waiting, last = driver.add([new("d1", b"%d" % n) for n in range(3)])
        [sending] = await driver.send()
        transaction = driver.begin()
        assert transaction.__enter__().cancel(OUTBOX, command=waiting) == 1
        assert not transaction.__exit__(ZeroDivisionError, ZeroDivisionError(), None)
        assert (await driver.take_turn()).closed == [], "it was rolled back"
        with driver.begin() as db:
            assert db.cancel(OUTBOX, command=waiting) == 1
            assert db.cancel(OUTBOX, command=out) == 0, "its device may be at it"
            assert db.cancel(OUTBOX, command=last + 1000) == 0
            assert db.cancel("gates", command=last) == 0
        result = await driver.take_turn()
        assert [(e.id, e.state, e.reason) for e in result.closed] == [
            (waiting, CommandState.FAILED, "cancelled")
        ]
        assert driver.reported == result.closed
        [sending] = await driver.send(answers=[answer(sending)])
        assert sending.correlation.command == last
        assert (await driver.take_turn(answers=[answer(sending)])).sendings == []

    async def test_a_caller_takes_back_all_of_a_device_or_of_a_key(self, driver: Driver) -> None:
        driver.add([new("d1", b"out"), new("d1", b"a", supersede_key="951"), new("d1", b"b")])
        driver.add([new("d2", b"c", supersede_key="951", not_before=NOW + 100), new("d2", b"d")])
        driver.add([new("d3", b"e", supersede_key="952", not_before=NOW + 100)])
        await driver.take_turn(room=0)
        with driver.begin() as db:
            assert db.cancel(OUTBOX, supersede_key="951") == 2
            assert db.cancel(OUTBOX, device="d3", supersede_key="951") == 0
            db.add([new("d2", b"later", supersede_key="951")])
        result = await driver.take_turn(room=0)
        assert sorted(entry.body for entry in result.closed) == [b"a", b"c"]
        with driver.begin() as db:
            assert db.cancel(OUTBOX, device="d1") == 2
            db.add([new("d1", b"after")])
        result = await driver.take_turn()
        assert sorted(entry.body for entry in result.closed) == [b"b", b"out"]
        assert bodies(result.sendings) == [b"after", b"d"], "nothing that is taken back goes out"
        assert await driver.store.cancel_all(OUTBOX, device="d3", supersede_key="952") == 1
        assert [entry.body for entry in (await driver.take_turn()).closed] == [b"e"]

    async def test_more_cancelled_commands_than_a_turn_takes_are_not_sent(self, driver: Driver) -> None:
        driver.add([new("d1", b"%d" % n) for n in range(7)])
        with driver.begin() as db:
            assert db.cancel(OUTBOX, device="d1") == 7
        closed, more = 0, True
        while more:
            result = await driver.take_turn(limit=3)
            assert result.sendings == []
            closed, more = closed + len(result.closed), result.more
        assert closed == 7
        driver.add([new("d1", b"again")])
        assert bodies(await driver.send()) == [b"again"]

    async def test_nothing_goes_to_a_device_that_is_paused(self, driver: Driver) -> None:
        [number, _] = driver.add([new("d1", b"1"), new("d1", b"2")])
        driver.add([new("d2", b"3", not_before=NOW + 1)])
        [sending] = await driver.send()
        with driver.begin() as db:
            db.pause(OUTBOX, "d1", NOW)
            db.pause(OUTBOX, "d1", NOW + 5)
            db.pause(OUTBOX, "d9", NOW)
        assert await driver.store.paused(OUTBOX) == {"d1": NOW, "d9": NOW}
        assert [status.paused for status in await driver.store.devices(OUTBOX, device="d1")] == [True]
        for _ in range(5):
            driver.now = max(sending.due, driver.now + PATIENCE.probe_s)
            assert b"1" not in bodies(await driver.send())
        assert (await driver.stored(number)).spent == 1
        result = await driver.take_turn(answers=[answer(sending)], back=["d1"])
        assert (len(result.closed), result.sendings) == (1, []), "its answer counts, and nothing follows"
        assert await driver.store.resume(OUTBOX, "d1")
        assert not await driver.store.resume(OUTBOX, "d1")
        assert bodies(await driver.send()) == [b"2"]

    async def test_a_command_out_at_a_pause_is_sent_again_after_it(self, driver: Driver) -> None:
        driver.add([new("d1")])
        [sending] = await driver.send()
        await driver.store.pause(OUTBOX, "d1")
        driver.now = sending.due
        assert (await driver.take_turn()).freed == 1
        assert await driver.store.resume(OUTBOX, "d1")
        [again] = await driver.send()
        assert again.correlation.tries == 2

    @pytest.mark.parametrize("is_resumed", [False, True])
    async def test_an_answer_frees_only_a_device_that_is_waited_for(
        self, driver: Driver, is_resumed: bool
    ) -> None:
        driver.add([new("d1")])
        [sending] = await driver.send()
        await driver.store.pause(OUTBOX, "d1")
        driver.now = sending.due
        assert (await driver.take_turn()).freed == 1
        if is_resumed:
            assert await driver.store.resume(OUTBOX, "d1")
            assert (await driver.take_turn(room=0)).sendings == [], "it waits for its turn"
        result = await driver.take_turn(answers=[answer(sending)])
        assert (len(result.closed), result.freed) == (1, 0)

    async def test_an_unsent_try_of_a_paused_device_waits(self, driver: Driver) -> None:
        driver.add([new("d1"), new("d2")])
        sendings = await driver.send()
        await driver.store.pause(OUTBOX, "d1")
        await driver.store.pause(OUTBOX, "d2")
        driver.now = max(sending.due for sending in sendings)
        assert (await driver.take_turn()).freed == 2
        unsent = [Unsent(sending.correlation) for sending in sendings]
        result = await driver.take_turn(unsent=unsent, away={"d2"})
        assert (result.sendings, result.freed) == ([], 0)
        assert await driver.store.in_flight(OUTBOX, range(SHARDS)) == 0
        assert await driver.store.resume(OUTBOX, "d1")
        assert [sending.device for sending in await driver.send(away={"d2"})] == ["d1"]

    async def test_nothing_goes_out_while_the_outbox_is_paused(self, driver: Driver) -> None:
        driver.add([new("d1", b"1"), new("d1", b"2")])
        [sending] = await driver.send()
        await driver.store.pause(OUTBOX)
        driver.add([new("d2", b"3"), new("d2", b"short", expires_at=NOW + 1)])
        driver.now = sending.due
        result = await driver.take_turn(sweep=True)
        assert (result.paused, result.sendings, len(result.closed)) == (True, [], 1)
        result = await driver.take_turn(answers=[answer(sending)])
        assert (len(result.closed), result.sendings) == (1, [])
        assert await driver.store.resume(OUTBOX)
        result = await driver.take_turn()
        assert (result.paused, bodies(result.sendings)) == (False, [b"2", b"3"])

    async def test_commands_are_listed_by_page_state_and_device(self, driver: Driver) -> None:
        numbers = driver.add([new(f"d{n % 2}", b"%d" % n) for n in range(6)])
        await driver.take_turn()

        async def listed(**chosen: Any) -> list[int]:
            return [entry.id for entry in await driver.store.commands(OUTBOX, **chosen)]

        assert await listed() == numbers
        assert await listed(after=numbers[1], limit=2) == numbers[2:4]
        assert await listed(limit=2, newest=True) == numbers[:-3:-1]
        assert await listed(after=numbers[-2], limit=2, newest=True) == numbers[-3:-5:-1]
        assert await listed(state=CommandState.PUBLISHED) == numbers[:2]
        assert await listed(device="d1") == numbers[1::2]
        assert await driver.store.command(numbers[-1] + 1000) is None
        assert await driver.store.counts(OUTBOX) == {CommandState.SCHEDULED: 4, CommandState.PUBLISHED: 2}

    async def test_devices_are_listed_with_waiting_commands_and_last_seen(self, driver: Driver) -> None:
        driver.add([new(f"d{n}") for n in (1, 1, 2, 3)])
        await driver.take_turn(seen={"d2": NOW - 5, "d4": NOW - 500}, away={"d4"})
        statuses = await driver.store.devices(OUTBOX)
        listed = [(s.device, s.phases, s.waiting, s.seen_at, s.away) for s in statuses]
        assert listed == [
            ("d1", (HeadPhase.OUT,), 2, None, False),
            ("d2", (HeadPhase.OUT,), 1, NOW - 5, False),
            ("d3", (HeadPhase.OUT,), 1, None, False),
            ("d4", (), 0, NOW - 500, True),
        ]
        assert all(status.shard == shard_of(status.device, SHARDS) for status in statuses)
        assert await driver.store.devices(OUTBOX, after="d1", limit=2) == statuses[1:3]
        assert await driver.store.devices(OUTBOX, device="d3") == statuses[2:3]
        await driver.take_turn(seen={"d4": NOW})
        [status] = await driver.store.devices(OUTBOX, device="d4")
        assert (status.seen_at, status.away) == (NOW, False)

    async def test_closed_commands_are_dropped_by_age(self, driver: Driver) -> None:
        driver.add([new(f"d{n}") for n in range(5)])
        sendings = await driver.send()
        await driver.take_turn(answers=[answer(sending) for sending in sendings[:3]])
        driver.now += 2
        await driver.take_turn(answers=[answer(sendings[3])])
        assert await driver.store.delete_closed(OUTBOX, NOW, 10) == 0
        assert await driver.store.delete_closed(OUTBOX, NOW + 1, 2) == 2
        assert await driver.store.delete_closed(OUTBOX, NOW + 1, 2) == 1
        assert await driver.store.delete_closed(OUTBOX, NOW + 1, 2) == 0
        assert await driver.store.counts(OUTBOX) == {CommandState.PUBLISHED: 1, CommandState.ACKNOWLEDGED: 1}

    async def test_archived_commands_are_deleted(self, driver: Driver) -> None:
        ids = driver.add([new(f"d{n}") for n in range(3)])
        sendings = await driver.send()
        await driver.take_turn(answers=[answer(sending) for sending in sendings])
        assert await driver.store.delete_closed(OUTBOX, NOW + 1, 2, archive=True) == 2
        assert await driver.store.delete_closed(OUTBOX, NOW + 1, 2, archive=True) == 1
        assert await driver.store.delete_closed(OUTBOX, NOW + 1, 2, archive=True) == 0
        assert await driver.store.commands(OUTBOX) == []
        [fresh] = driver.add([new("d1")])
        assert fresh not in ids, "an id is never given twice"

    async def test_a_later_owner_knows_devices_and_which_were_away(self, driver: Driver) -> None:
        driver.add([new(f"d{n}", lane=lane) for n in range(4) for lane in range(2)])
        away = {"d1", "d3"}
        await driver.take_turn(seen={"d0": NOW - 5, "d1": NOW - 500, "d3": None, "d9": NOW}, away=away)
        known = [each for shard in range(SHARDS) for each in await driver.store.known_devices(OUTBOX, shard)]
        assert sorted((each.device, each.seen_at, each.away) for each in known) == [
            ("d0", NOW - 5, False),
            ("d1", NOW - 500, True),
            ("d2", None, False),
            ("d3", None, True),
        ]
        assert all(
            shard_of(each.device, SHARDS) == 0 for each in await driver.store.known_devices(OUTBOX, 0)
        ), "each shard has its own"
        await driver.take_turn(seen={"d1": None}, away=away)
        [status] = await driver.store.devices(OUTBOX, device="d1")
        assert (status.seen_at, status.away) == (NOW - 500, True), "what was seen stands"

    async def test_closing_ends_the_wait_for_arrivals(self, driver: Driver) -> None:
        await driver.store.wait_for_arrival(OUTBOX, 0.01)
        waiting = asyncio.ensure_future(driver.store.wait_for_arrival(OUTBOX, 3600))
        await asyncio.sleep(0)
        await driver.store.close()
        await asyncio.wait_for(waiting, PATIENCE_S)
