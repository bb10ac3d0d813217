"""Promises of turns: the order of commands, their answers, limits, and owners of shards."""

from __future__ import annotations

import asyncio
from zlib import crc32

import msgspec
import pytest

from holdfast.devices.conformance.outbox_bench import (
    LATEST_S,
    NOW,
    OUTBOX,
    PATIENCE,
    PATIENCE_S,
    SHARDS,
    TRACEPARENT,
    Begin,
    Driver,
    OutboxFixtures,
    answer,
    bodies,
    elsewhere,
    new,
)
from holdfast.devices.ports.outbox import NewCommand, OutboxStore, WriterSettings
from holdfast.devices.rules.device_queue import CommandState, Correlation, HeadPhase, shard_of
from holdfast.devices.rules.device_turn import CommandAnswer, Sending, Unsent
from holdfast.devices.rules.group_rate import GroupRate
from holdfast.errors import ConfigError, Fenced


class TurnsConformance(OutboxFixtures):
    """Promises of turns: the order of commands, their answers, limits, and owners of shards."""

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

    # --- answers

    async def test_a_newer_command_replaces_before_its_arrival_was_read(self, driver: Driver) -> None:
        [old, _] = driver.add([new("d1", b"%d" % n, supersede_key="p1") for n in range(2)])
        result = await driver.take_turn(limit=1)
        assert ([entry.id for entry in result.closed], bodies(result.sendings)) == ([old], [b"1"])
        assert (await driver.stored(old)).state is CommandState.SUPERSEDED

    async def test_only_a_published_command_can_be_answered(self, driver: Driver) -> None:
        [number] = driver.add([new("d1")])
        driver.add([new("d2")])
        first = next(s for s in await driver.send() if s.device == "d1")
        driver.now = first.due
        second = next(s for s in await driver.send() if s.device == "d1")
        assert second.correlation.tries == 2
        epoch, command, tries = second.correlation.epoch, second.correlation.command, 2
        strays = [
            CommandAnswer("d2", second.correlation),
            CommandAnswer("d1", Correlation(epoch, command, tries + 1)),
            CommandAnswer("d1", Correlation(epoch - 1, command, tries)),
            CommandAnswer("d2", first.correlation),
            CommandAnswer("d1", Correlation(epoch, command + 1000, tries)),
        ]
        result = await driver.take_turn(answers=strays)
        assert (result.unmatched, result.closed) == (strays, [])
        assert (await driver.stored(number)).state is CommandState.PUBLISHED
        result = await driver.take_turn(answers=[answer(second), answer(second)])
        assert (len(result.closed), result.unmatched) == (1, [answer(second)])
        result = await driver.take_turn(answers=[answer(second)])
        assert (result.closed, result.unmatched) == ([], [answer(second)])
        assert len(driver.reported) == 1

    async def test_an_answer_to_an_earlier_try_counts(self, driver: Driver) -> None:
        [number, _, _] = driver.add([new("d1", b"%d" % n) for n in range(3)])
        [first] = await driver.send()
        driver.now = first.due
        [second] = await driver.send()
        driver.now += 1
        result = await driver.take_turn(answers=[answer(first, b"late")])
        assert (result.late, result.unmatched, result.freed, result.sendings) == (1, [], 0, [])
        entry = await driver.stored(number)
        assert (entry.state, entry.answer, driver.reported) == (
            CommandState.ACKNOWLEDGED,
            b"late",
            [entry],
        )
        result = await driver.take_turn(answers=[answer(first, b"late")])
        assert (len(result.unmatched), result.closed, result.sendings) == (1, [], [])
        result = await driver.take_turn(answers=[answer(second)])
        assert (result.unmatched, result.closed, result.freed) == ([], [], 1)
        [first] = result.sendings
        assert first.body == b"1"
        assert len((await driver.take_turn(answers=[answer(second)])).unmatched) == 1, "it is over"
        driver.now = first.due
        [second] = await driver.send()
        result = await driver.take_turn(answers=[answer(first)])
        assert (len(result.closed), result.freed, result.sendings) == (1, 0, [])
        driver.now += LATEST_S
        result = await driver.take_turn()
        assert (result.freed, bodies(result.sendings)) == (1, [b"2"]), "the last one will never be answered"

    async def test_a_late_answer_does_not_lengthen_the_wait_for_the_last_try(self, driver: Driver) -> None:
        driver.add([new("d1", b"1"), new("d1", b"2")])
        [first] = await driver.send()
        driver.now = first.due
        [second] = await driver.send()
        driver.now = second.due - 1
        assert await driver.send(answers=[answer(first)]) == []
        driver.now = second.due
        assert bodies(await driver.send()) == [b"2"]

    async def test_a_late_answer_to_a_held_command_frees_its_device(self, driver: Driver) -> None:
        driver.add([new("d1", b"1"), new("d1", b"2")])
        [first] = await driver.send()
        driver.now = first.due
        [second] = await driver.send()
        driver.now = second.due
        assert (await driver.take_turn(away={"d1"})).freed == 1
        result = await driver.take_turn(answers=[answer(first)], back=["d1"])
        assert (len(result.closed), result.freed, bodies(result.sendings)) == (1, 0, [b"2"])

    async def test_a_slow_device_is_not_asked_again_too_soon(self, driver: Driver) -> None:
        driver.add([new("d1")])
        [sending] = await driver.send(slow={"d1": 40.0})
        assert sending.due - driver.now == 60.0
        driver.now += 59
        assert await driver.send(check_dues=True, slow={"d1": 40.0}) == []

    async def test_a_refusal_closes_and_the_next_goes(self, driver: Driver) -> None:
        [number, _] = driver.add([new("d1", b"1"), new("d1", b"2")])
        [sending] = await driver.send()
        assert bodies(await driver.send(answers=[answer(sending, b"no", ok=False)])) == [b"2"]
        entry = await driver.stored(number)
        assert (entry.state, entry.answer, entry.reason) == (CommandState.FAILED, b"no", "the device refused")

    # --- tries, expiry, absence

    async def test_a_command_without_an_answer_is_sent_again_and_fails(self, driver: Driver) -> None:
        [number, _] = driver.add([new("d1", b"1"), new("d1", b"2")])
        [sending] = await driver.send()
        for tries, least_s in ((2, 20.0), (3, 35.0)):
            driver.now = sending.due - 0.1
            assert await driver.send() == []
            driver.now = sending.due
            result = await driver.take_turn()
            [sending] = result.sendings
            assert result.repeats == 1
            assert (sending.correlation.tries, sending.body) == (tries, b"1")
            assert sending.due - driver.now >= least_s
        driver.now = sending.due
        result = await driver.take_turn()
        assert (bodies(result.sendings), result.freed, result.repeats) == ([b"2"], 1, 0)
        entry = await driver.stored(number)
        assert (entry.state, entry.reason) == (CommandState.FAILED, "no answer in all tries")
        assert driver.reported == [entry]

    async def test_an_expired_command_is_not_sent(self, driver: Driver) -> None:
        numbers = driver.add([new("d1", b"%d" % n, expires_at=NOW + 5) for n in range(30)])
        driver.add([new("d1", b"lasting")])
        [sending] = await driver.send()
        driver.now += 5
        assert (await driver.take_turn()).closed == [], "the device may be at it"
        sendings = await driver.send(answers=[answer(sending)])
        while not sendings:
            sendings = await driver.send()
        assert bodies(sendings) == [b"lasting"]
        states = [(await driver.stored(number)).state for number in numbers]
        assert states == [CommandState.ACKNOWLEDGED, *[CommandState.EXPIRED] * 29]
        assert len(driver.reported) == 30

    async def test_a_sweep_closes_expired_commands(self, driver: Driver) -> None:
        _, number = driver.add([new("d1"), new("d1", b"short", expires_at=NOW + 5)])
        await driver.take_turn()
        driver.now += 5
        await driver.take_turn(sweep=True)
        assert (await driver.stored(number)).state is CommandState.EXPIRED
        assert [entry.body for entry in driver.reported] == [b"short"]

    async def test_a_device_that_is_away_is_only_probed(self, driver: Driver) -> None:
        [number] = driver.add([new("d1")])
        away = {"d1"}
        assert await driver.send(away=away) == []
        for tries in range(1, 5):
            driver.now += PATIENCE.probe_s
            [probe] = await driver.send(away=away)
            assert probe.correlation.tries == tries
            driver.now = probe.due
            result = await driver.take_turn(away=away)
            assert (result.sendings, result.freed) == ([], 1)
        assert (await driver.stored(number)).spent == 0
        assert [status.phases for status in await driver.store.devices(OUTBOX)] == [(HeadPhase.HELD,)]
        [sending] = await driver.send(back=["d1"])
        assert sending.correlation.tries == 5
        result = await driver.take_turn(answers=[answer(sending)])
        assert (len(result.closed), result.freed) == (1, 1)

    async def test_a_late_answer_of_a_held_command_closes_it(self, driver: Driver) -> None:
        driver.add([new("d1", b"1"), new("d1", b"2")])
        [sending] = await driver.send()
        driver.now = sending.due
        assert (await driver.take_turn(away={"d1"})).freed == 1
        result = await driver.take_turn(answers=[answer(sending)], back=["d1"])
        assert (len(result.closed), result.freed, bodies(result.sendings)) == (1, 0, [b"2"])

    async def test_an_unsent_try_is_given_back(self, driver: Driver) -> None:
        [number] = driver.add([new("d1")])
        [sending] = await driver.send()
        for tries in range(2, 6):
            await driver.take_turn(unsent=[Unsent(sending.correlation)], pause_s=1.0)
            assert await driver.send() == []
            driver.now += 2.0 ** (tries - 2)
            [sending] = await driver.send()
            assert sending.correlation.tries == tries
        entry = await driver.stored(number)
        assert (entry.tries, entry.spent) == (5, 1)
        await driver.take_turn(unsent=[Unsent(sending.correlation, certain=False)])
        driver.now += 1.0
        assert await driver.send() == [], "it may have reached the device"
        driver.now = sending.due
        assert len(await driver.send()) == 1

    async def test_a_refused_command_fails_after_all_tries(self, driver: Driver) -> None:
        [number, _] = driver.add([new("d1", b"1"), new("d1", b"2")])
        for tries in range(1, PATIENCE.max_tries):
            [sending] = await driver.send()
            await driver.take_turn(unsent=[Unsent(sending.correlation, refusal="not allowed")])
            entry = await driver.stored(number)
            assert (entry.tries, entry.spent, entry.reason) == (tries, tries, "not allowed")
            driver.now = sending.due
        assert (await driver.take_turn(away={"d1"})).freed == 1
        driver.now += PATIENCE.probe_s
        [probe] = await driver.send(away={"d1"})
        refused = Unsent(probe.correlation, spent=probe.counts, refusal="not allowed")
        result = await driver.take_turn(unsent=[refused])
        assert [(e.id, e.state, e.reason) for e in result.closed] == [
            (number, CommandState.FAILED, "not allowed")
        ]
        assert bodies(result.sendings) == [b"2"]

    # --- limits and the clock

    async def test_no_more_devices_are_sent_to_than_there_is_room_for(self, driver: Driver) -> None:
        driver.add([new(f"d{n:02d}", b"%02d %d" % (n, m)) for m in range(2) for n in range(20)])
        first = await driver.send(room=5)
        assert len(first) == 5
        assert await driver.send(room=0) == []
        rest = await driver.send(room=100)
        assert len({sending.device for sending in first + rest}) == 20
        freed = await driver.take_turn(room=0, answers=[answer(sending) for sending in first])
        assert len(freed.sendings) == 5
        assert freed.freed == 5

    async def test_of_devices_that_are_due_the_longest_due_goes_first(self, driver: Driver) -> None:
        driver.add([new("d1", b"1"), new("d1", b"3")])
        [sending] = await driver.send()
        driver.add([new("d2", b"2")])
        assert await driver.send(room=0) == []
        driver.now += 1
        assert bodies(await driver.send(room=0, answers=[answer(sending)])) == [b"2"]

    async def test_a_rate_is_kept_for_repeats_too(self, driver: Driver) -> None:
        driver.add([new(f"d{n}") for n in range(6)])
        assert len(await driver.send()) == 6
        driver.now += LATEST_S
        result = await driver.take_turn(rate=4)
        assert (len(result.sendings), result.more) == (4, True)
        assert len(await driver.send(rate=4)) == 2

    async def test_a_group_keeps_to_its_rate(self, driver: Driver) -> None:
        driver.add([new(f"slow-{n}") for n in range(5)] + [new(f"fast-{n}") for n in range(5)])
        groups = GroupRate(lambda device: device.split("-")[0], {"slow": 1.0})
        sent = [sending.device.split("-")[0] for sending in await driver.send(groups=groups)]
        assert sorted(sent) == ["fast"] * 5 + ["slow"]
        count = len(sent)
        for _ in range(6):
            driver.now += 1.0
            count += len(await driver.send(groups=groups))
        assert count == 10

    async def test_a_shard_that_can_t_send_still_hears(self, driver: Driver) -> None:
        driver.add([new("d1", b"1"), new("d1", b"2")])
        [sending] = await driver.send()
        result = await driver.take_turn(sendable=[], answers=[answer(sending)])
        assert (len(result.closed), result.sendings) == (1, [])
        assert bodies(await driver.send()) == [b"2"]

    async def test_due_times_follow_the_clock(self, driver: Driver) -> None:
        driver.add([new("d1", b"1"), new("d2", b"2", not_before=NOW + 10_000)])
        [sending] = await driver.send()
        for jump_s in (3600.0, -7200.0):
            driver.now += jump_s
            assert await driver.send(shift_s=jump_s) == []
            sending = msgspec.structs.replace(sending, due=sending.due + jump_s)
            assert await driver.store.next_due(OUTBOX, [sending.shard]) == pytest.approx(
                sending.due, abs=0.001
            )
        driver.now = sending.due
        assert bodies(await driver.send()) == [b"1"]

    async def test_a_due_time_that_is_much_too_late_is_capped(self, driver: Driver) -> None:
        driver.add([new("d1", b"1"), new("d2", b"2", not_before=NOW + 10_000)])
        assert bodies(await driver.send()) == [b"1"]
        driver.now -= 3600.0
        assert await driver.send(check_dues=True) == []
        driver.now += PATIENCE.longest_s()
        assert bodies(await driver.send()) == [b"1"]
        assert (await driver.store.next_due(OUTBOX, [shard_of("d2", SHARDS)])) is not None
        driver.now = NOW + 10_000
        assert b"2" in bodies(await driver.send())

    # --- owners

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
