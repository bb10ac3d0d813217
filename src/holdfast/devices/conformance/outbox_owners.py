"""Promises of owners: what a crash or another owner left, and commands added for other shards."""

from __future__ import annotations

from zlib import crc32

import pytest

from holdfast.devices.conformance.outbox_bench import (
    NOW,
    OUTBOX,
    PATIENCE,
    SHARDS,
    Begin,
    Driver,
    OutboxFixtures,
    answer,
    bodies,
    elsewhere,
    new,
)
from holdfast.devices.ports.outbox import OutboxStore, WriterSettings
from holdfast.devices.rules.device_queue import Correlation, shard_of
from holdfast.devices.rules.device_turn import Sending, Unsent
from holdfast.errors import ConfigError, Fenced


class OwnersConformance(OutboxFixtures):
    """Promises of owners: what a crash or another owner left, and commands added for other shards."""

    async def test_a_try_that_may_have_come_late_is_waited_for(self, driver: Driver) -> None:
        driver.add([new("d1"), new("d4")])  # in different shards
        first, second = await driver.send()
        driver.now = max(first.due, second.due)
        [again] = await driver.send(still_out=[first])
        assert again.device == second.device
        assert await driver.send(still_out=[second]) == []
        assert await driver.store.next_due(OUTBOX, [again.shard]) == pytest.approx(again.due, abs=0.001)
        driver.now += PATIENCE.retry_s
        assert (await driver.take_turn(still_out=[first], answers=[answer(first)])).closed
        assert not (await driver.take_turn(still_out=[first])).closed

    async def test_a_try_that_the_database_forgot_is_out_again(self, driver: Driver) -> None:
        """As after a crash of a database that had not written yet what it answered."""
        [number] = driver.add([new("d1", b"1")])
        driver.add([new("d1", b"2")])
        shard = shard_of("d1", SHARDS)
        correlation = Correlation(driver.grants[shard], number, 3)
        forgotten = Sending("d1", shard, correlation, b"1", "", NOW)
        result = await driver.take_turn(still_out=[forgotten])
        assert (result.sendings, result.freed) == ([], -1)
        assert await driver.store.in_flight(OUTBOX, [shard]) == 1
        result = await driver.take_turn(answers=[answer(forgotten)])
        assert (len(result.closed), result.freed, bodies(result.sendings)) == (1, 1, [b"2"])
        assert (await driver.take_turn(still_out=[forgotten])).freed == 0

    async def test_a_last_try_that_may_have_come_late_is_waited_for_after_an_answer(
        self, driver: Driver
    ) -> None:
        """The answer to an earlier try closed the command; its device has the last one still before it."""
        driver.add([new("d1", b"1"), new("d1", b"2")])
        [first] = await driver.send()
        driver.now = first.due
        [second] = await driver.send()
        driver.now += 1
        assert (await driver.take_turn(answers=[answer(first)])).late == 1
        due = await driver.store.next_due(OUTBOX, [first.shard]) or 0.0
        driver.now = due - 1
        assert await driver.send(still_out=[second]) == []
        driver.now = due
        assert await driver.send() == [], "it takes one at a time"
        driver.now = await driver.store.next_due(OUTBOX, [first.shard]) or 0.0
        assert driver.now >= due - 1 + PATIENCE.retry_s
        assert bodies(await driver.send()) == [b"2"]

    async def test_a_late_try_of_a_deleted_command_or_lost_shard_is_ignored(self, driver: Driver) -> None:
        driver.add([new("d1")])
        [sending] = await driver.send()
        await driver.take_turn(answers=[answer(sending)])
        assert await driver.store.delete_closed(OUTBOX, driver.now + 1, 10) == 1
        result = await driver.take_turn(still_out=[sending])
        assert (result.freed, result.sendings) == (0, [])
        assert await driver.store.next_due(OUTBOX, range(SHARDS)) is None
        driver.add([new("d1")])
        [sending] = await driver.send()
        await Driver(driver.store, "other").open(sending.shard)
        driver.now += 5
        assert (await driver.take_turn(still_out=[sending])).lost == [sending.shard]
        assert await driver.store.next_due(OUTBOX, [sending.shard]) == pytest.approx(sending.due, abs=0.001)

    async def test_a_fresh_connection_gives_tries_of_earlier_owners_their_time(self, driver: Driver) -> None:
        driver.add([new("d1")])
        [sending] = await driver.send()
        await driver.open()
        driver.now = sending.due
        assert await driver.send(fresh=list(driver.grants)) == []
        driver.now += PATIENCE.retry_s
        assert await driver.send() == []
        driver.now += PATIENCE.retry_s
        assert len(await driver.send()) == 1

    async def test_every_opening_has_a_higher_epoch_and_fences_the_last(
        self, driver: Driver, other_store: OutboxStore
    ) -> None:
        before = dict(driver.grants)
        with pytest.raises(Fenced) as refusal:
            await driver.store.open(OUTBOX, 0, before[0] - 1, "member")
        assert refusal.value.epoch == before[0]
        other = Driver(other_store, "other")
        await other.open(0)
        assert other.grants[0] > before[0]
        assert (await driver.store.epochs(OUTBOX)) == {**before, 0: other.grants[0]}
        driver.add([new(f"d{n}", b"%d" % n) for n in range(8)])
        result = await driver.take_turn()
        assert result.lost == [0]
        assert {sending.shard for sending in result.sendings} == {*range(1, SHARDS)}
        taken = await other.send()
        assert {sending.shard for sending in taken} == {0}
        assert len(result.sendings) + len(taken) == 8

    async def test_a_dispatcher_that_lost_its_shards_changes_no_row(
        self, driver: Driver, other_store: OutboxStore
    ) -> None:
        [number, _] = driver.add([new("d1", b"1"), new("d1", b"2")])
        [sending] = await driver.send()
        other = Driver(other_store, "other")
        await other.open()
        before = await driver.store.commands(OUTBOX)
        driver.now = sending.due
        brought = [answer(sending)], [Unsent(sending.correlation)]
        result = await driver.take_turn(answers=brought[0], unsent=brought[1], sweep=True, seen={"d1": NOW})
        assert (result.lost, result.closed, result.sendings) == ([*range(SHARDS)], [], [])
        assert await driver.store.commands(OUTBOX) == before
        assert await driver.store.next_due(OUTBOX, range(SHARDS)) == sending.due
        assert [status.seen_at for status in await driver.store.devices(OUTBOX)] == [None]
        result = await other.take_turn(answers=[answer(sending)])
        assert [entry.id for entry in result.closed] == [number], "the answer still fits its one try"
        assert bodies(result.sendings) == [b"2"]

    async def test_the_loss_of_a_shard_leaves_last_seen_of_the_others(
        self, driver: Driver, other_store: OutboxStore
    ) -> None:
        await Driver(other_store, "other").open(0)
        devices = [f"d{n}" for n in range(8)]
        result = await driver.take_turn(sweep=True, seen=dict.fromkeys(devices, NOW), away=set(devices))
        assert result.lost == [0]
        stored = {status.device for status in await driver.store.devices(OUTBOX) if status.seen_at == NOW}
        assert stored == {device for device in devices if shard_of(device, SHARDS) != 0}

    async def test_it_counts_how_many_are_waited_for(self, driver: Driver) -> None:
        driver.add([new(f"d{n}") for n in range(7)])
        await driver.take_turn(room=5)
        assert await driver.store.in_flight(OUTBOX, range(SHARDS)) == 5
        assert sum([await driver.store.in_flight(OUTBOX, [shard]) for shard in range(SHARDS)]) == 5

    async def test_another_number_of_shards_is_refused(self, driver: Driver) -> None:
        await driver.store.prepare(OUTBOX, SHARDS)
        with pytest.raises(ConfigError, match="shards"):
            await driver.store.prepare(OUTBOX, SHARDS + 1)
        assert await driver.store.epochs(OUTBOX) == driver.grants

    async def test_commands_go_to_the_outbox_s_own_shards_and_lanes(self, driver: Driver) -> None:
        """A program may take it for one with other numbers of these."""
        await driver.store.prepare(OUTBOX, SHARDS, WriterSettings(lanes=2))
        devices = [f"d{n}" for n in range(9)]
        driver.add([new(device, lane=7, supersede_key=device) for device in devices])
        driver.add([elsewhere("again", lane=3), elsewhere("again", 1, supersede_key="again")])
        found = await driver.store.commands(OUTBOX)
        assert {entry.device: entry.shard for entry in found} == {
            device: shard_of(device, SHARDS) for device in [*devices, "again"]
        }
        lanes = [crc32(device.encode()) % 2 for device in devices]
        assert [entry.lane for entry in found] == [*lanes, 1, crc32(b"again") % 2]
        sent = {sending.device for sending in await driver.send()}
        assert sent == {*devices, "again"}

    async def test_commands_added_before_the_first_node_move_to_their_shard(
        self, store: OutboxStore, begin: Begin
    ) -> None:
        """Then only the program that adds has said how many shards there are."""
        await store.prepare("another", 1)
        driver = Driver(store, begin=begin)
        driver.add([elsewhere(f"d{n}", shard) for n in range(4) for shard in (0, 1, 2, 9, -1)])
        await store.prepare(OUTBOX, SHARDS)
        await driver.open()
        moved: set[str] = set()
        sent: dict[str, int] = {}
        for _ in range(4):
            result = await driver.take_turn(sweep=True)
            moved |= {*result.moved}
            sent |= {sending.device: sending.shard for sending in result.sendings}
        assert sent == {f"d{n}": shard_of(f"d{n}", SHARDS) for n in range(4)}
        assert moved == {f"d{n}" for n in range(4)}
        found = await store.commands(OUTBOX)
        assert [entry.shard for entry in found] == [shard_of(entry.device, SHARDS) for entry in found]
        assert (await driver.take_turn(sweep=True)).moved == []

    async def test_a_cancel_in_a_wrong_shard_is_carried_out(self, store: OutboxStore, begin: Begin) -> None:
        await store.prepare("another", 1)
        with begin() as db:
            [number] = db.add([elsewhere("d1", 9, not_before=NOW + 60)])
            assert db.cancel(OUTBOX, device="d1") == 1
        await store.prepare(OUTBOX, SHARDS)
        driver = Driver(store)
        await driver.open()
        await driver.take_turn(sweep=True)
        result = await driver.take_turn(sweep=True)
        assert [(entry.id, entry.reason) for entry in result.closed] == [(number, "cancelled")]
