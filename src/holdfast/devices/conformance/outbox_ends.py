"""Promises of results, rollouts, briefs and sources, and promises to operators."""

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
    Begin,
    Driver,
    OutboxFixtures,
    answer,
    bodies,
    new,
)
from holdfast.devices.ports.outbox import OutboxStore, WriterSettings
from holdfast.devices.rules.device_queue import CommandState, HeadPhase, StoredCommand, shard_of
from holdfast.devices.rules.device_turn import Unsent
from holdfast.devices.rules.group_rate import RolloutRates
from holdfast.errors import Fenced


class EndsConformance(OutboxFixtures):
    """Promises of results, rollouts, briefs and sources, and promises to operators."""

    # --- results

    async def test_the_last_writer_settings_are_stored(self, store: OutboxStore) -> None:
        for adding in (WriterSettings(3, 60.0, 1_000), WriterSettings(1, None, 2_000)):
            await store.prepare(OUTBOX, SHARDS, adding)
            assert await store.writer_settings(OUTBOX) == adding
        assert await store.writer_settings("unheard-of") is None
        await store.prepare("another", 1)
        assert {"another", OUTBOX} <= {*await store.names()}
        assert await store.names() == sorted(await store.names())

    async def test_on_result_runs_in_the_transaction_that_closes_a_command(self, driver: Driver) -> None:
        driver.add([new(f"d{n}", b"%d" % n) for n in range(3)])
        sendings = await driver.send()
        failing = True

        def on_result(db: Any, entry: StoredCommand) -> None:
            driver.reported.append(entry)
            if failing and entry.body == b"1":
                raise RuntimeError("the business failed")

        driver.on_result = on_result
        result = await driver.take_turn(answers=[answer(sending) for sending in sendings])
        assert len(result.closed) == 3, "a failing business holds up no device"
        driver.reported.clear()
        assert await driver.store.delete_closed(OUTBOX, NOW + 1e6, 100) == 2, "an unreported end is kept"
        await driver.take_turn(sweep=True)
        assert {entry.body for entry in driver.reported} == {b"1"}
        failing = False
        driver.reported.clear()
        await driver.take_turn(sweep=True)
        await driver.take_turn(sweep=True)
        assert [entry.body for entry in driver.reported] == [b"1"]
        assert await driver.store.delete_closed(OUTBOX, NOW + 1e6, 100) == 1

    async def test_an_on_result_that_raises_system_exit_is_called_again(self, driver: Driver) -> None:
        driver.add([new("d1")])
        [sending] = await driver.send()
        calls: list[int] = []

        def on_result(db: Any, entry: StoredCommand) -> None:
            calls.append(entry.id)
            if len(calls) < 3:
                raise SystemExit(1)

        driver.on_result = on_result
        assert len((await driver.take_turn(answers=[answer(sending)])).closed) == 1
        for _ in range(3):
            await driver.take_turn(sweep=True)
        assert len(calls) == 3

    # --- rollouts

    async def test_a_rollout_counts_and_stops_when_too_many_fail(self, driver: Driver) -> None:
        with driver.begin() as db:
            rollout = db.add_rollout(OUTBOX, "firmware", 10, 4.0, 0.2, NOW)
            db.add([new(f"d{n}", rollout=rollout, not_before=NOW + n // 4) for n in range(10)])
        first = await driver.send()
        assert len(first) == 4
        answers = [answer(first[0])] + [answer(sending, ok=False) for sending in first[1:]]
        await driver.take_turn(answers=answers)
        [known] = await driver.store.rollouts(OUTBOX)
        assert (known.id, known.name, known.total, known.created_at) == (rollout, "firmware", 10, NOW)
        assert (known.rate, known.abort_share) == (4.0, 0.2)
        assert (known.done, known.failed, known.aborted, known.over) == (1, 3, True, False)
        driver.now += 1
        assert await driver.send() == []
        await driver.take_turn(sweep=True)
        [known] = await driver.store.rollouts(OUTBOX)
        assert (known.done, known.failed, known.over) == (1, 9, True)
        assert await driver.store.counts(OUTBOX) == {CommandState.ACKNOWLEDGED: 1, CommandState.FAILED: 9}

    async def test_expired_commands_count_towards_a_rollout_s_abort_share(self, driver: Driver) -> None:
        with driver.begin() as db:
            rollout = db.add_rollout(OUTBOX, "firmware", 4, None, 0.25, NOW)
            late = [new(f"d{n}", rollout=rollout, not_before=NOW + 9, expires_at=NOW + 5) for n in (1, 2)]
            db.add([new("d0", rollout=rollout), *late, new("d3", rollout=rollout, not_before=NOW + 9)])
        [sending] = await driver.send()
        driver.now += 5
        await driver.take_turn(answers=[answer(sending)], sweep=True)
        [known] = await driver.store.rollouts(OUTBOX)
        assert (known.done, known.failed, known.aborted) == (1, 2, True)
        driver.now += 5
        assert await driver.send() == []
        await driver.take_turn(sweep=True)
        [known] = await driver.store.rollouts(OUTBOX)
        assert (known.done, known.failed, known.over) == (1, 3, True)

    async def test_a_rollout_counts_retries_and_cancellations(self, driver: Driver) -> None:
        with driver.begin() as db:
            rollout = db.add_rollout(OUTBOX, "firmware", 5, None, 0.5, NOW)
            ids = db.add([new(f"d{n}", rollout=rollout, not_before=NOW + n) for n in range(5)])
        [sending] = await driver.send()
        await driver.take_turn(answers=[answer(sending, ok=False)])
        assert await driver.store.cancel(ids[4])
        [known] = await driver.store.rollouts(OUTBOX)
        assert (known.done, known.failed, known.aborted) == (0, 2, False)
        assert await driver.store.retry(ids[0])
        driver.now += 3
        sendings = await driver.send(sweep=True)
        await driver.take_turn(answers=[answer(sending) for sending in sendings])
        [known] = await driver.store.rollouts(OUTBOX)
        assert (known.done, known.failed, known.over) == (4, 1, True)

    async def test_a_rollout_that_operators_abort_stays_so(self, driver: Driver) -> None:
        with driver.begin() as db:
            rollout = db.add_rollout(OUTBOX, "firmware", 2, None, 0.0, NOW)
            ids = db.add([new(f"d{n}", rollout=rollout, not_before=NOW + 10) for n in range(2)])
        assert await driver.store.cancel(ids[0])
        await driver.take_turn(sweep=True)
        [known] = await driver.store.rollouts(OUTBOX)
        assert (known.failed, known.aborted, known.over) == (2, True, True)
        assert not await driver.store.retry(ids[0])

    async def test_an_aborted_rollout_sends_nothing_more(self, driver: Driver) -> None:
        with driver.begin() as db:
            rollout = db.add_rollout(OUTBOX, "firmware", 4, None, 1.0, NOW)
            ids = db.add([new(f"d{n}", rollout=rollout, not_before=NOW + n // 2) for n in range(4)])
            db.add([new("other", not_before=NOW + 1)])
        sendings = await driver.send()
        assert len(sendings) == 2
        assert not await driver.store.abort("unheard-of", rollout)
        assert not await driver.store.abort(OUTBOX, rollout + 1_000)
        assert await driver.store.abort(OUTBOX, rollout)
        assert not await driver.store.abort(OUTBOX, rollout), "it is aborted already"
        driver.now += 1
        [other] = await driver.send(answers=[answer(sending) for sending in sendings])
        assert other.device == "other"
        await driver.take_turn(sweep=True, answers=[answer(other)])
        [known] = await driver.store.rollouts(OUTBOX)
        assert (known.done, known.failed, known.aborted, known.over) == (2, 2, True, True)
        left = await driver.store.command(ids[3])
        assert left is not None
        assert (left.state, left.reason) == (CommandState.FAILED, "its rollout was aborted")
        assert not await driver.store.retry(ids[3])

    @pytest.mark.usefixtures("driver")
    async def test_rollouts_are_listed_by_page_from_either_end(
        self, store: OutboxStore, begin: Begin
    ) -> None:
        with begin() as db:
            first, second, third, fourth = (
                db.add_rollout(OUTBOX, "firmware", 1, None, 1.0, NOW) for _ in range(4)
            )
            db.add_rollout("other", "firmware", 1, None, 1.0, NOW)

        async def listed(**asked: Any) -> list[int]:
            return [rollout.id for rollout in await store.rollouts(OUTBOX, **asked)]

        assert await listed() == [first, second, third, fourth]
        assert await listed(after=first, limit=2) == [second, third]
        assert await listed(newest=True, limit=2) == [fourth, third]
        assert await listed(newest=True, after=third, limit=1) == [second]

    async def test_a_rollout_that_is_over_is_not_aborted(self, driver: Driver) -> None:
        with driver.begin() as db:
            rollout = db.add_rollout(OUTBOX, "firmware", 1, None, 1.0, NOW)
            db.add([new("d1", rollout=rollout)])
        sendings = await driver.send()
        await driver.take_turn(answers=[answer(sending) for sending in sendings])
        assert not await driver.store.abort(OUTBOX, rollout)
        [known] = await driver.store.rollouts(OUTBOX)
        assert known.aborted is False

    async def test_a_rollout_keeps_its_rate_when_all_its_times_have_passed(self, driver: Driver) -> None:
        with driver.begin() as db:
            rollout = db.add_rollout(OUTBOX, "firmware", 20, 4.0, 1.0, NOW)
            db.add([new(f"d{n:02}", rollout=rollout, not_before=NOW + n / 4) for n in range(20)])
            db.add([new("other")])
        driver.now += 3600
        rates = RolloutRates(share=1.0)
        sent = await driver.send(rollouts=rates)
        assert len(sent) == 1 + 1, "one at a time, and what belongs to no rollout"
        for _ in range(19):
            driver.now += 0.25
            sent = await driver.send(rollouts=rates, answers=[answer(each) for each in sent])
            assert len(sent) == 1

    # --- briefs

    async def test_a_brief_is_pending_until_it_is_confirmed(self, driver: Driver) -> None:
        ids = driver.add([new(f"d{n}", b"%d" % n) for n in range(3)])
        sendings = await driver.send(brief=True)
        assert await driver.store.pending_briefs(OUTBOX, range(SHARDS), 10) == []
        sendings.sort(key=lambda sending: sending.device)
        answers = [answer(sending, ok=sending.device != "d0") for sending in sendings[:2]]
        await driver.take_turn(brief=True, answers=answers)
        due = sorted(await driver.store.pending_briefs(OUTBOX, range(SHARDS), 10), key=lambda entry: entry.id)
        assert [(entry.id, entry.state) for entry in due] == [
            (ids[0], CommandState.FAILED),
            (ids[1], CommandState.ACKNOWLEDGED),
        ]
        assert len(await driver.store.pending_briefs(OUTBOX, range(SHARDS), 1)) == 1
        by_shard = [await driver.store.pending_briefs(OUTBOX, [shard], 10) for shard in range(SHARDS)]
        assert [{entry.shard for entry in entries} - {shard} for shard, entries in enumerate(by_shard)] == [
            set()
        ] * SHARDS
        assert not await driver.store.retry(ids[0]), "its brief is pending"
        assert await driver.store.delete_closed(OUTBOX, NOW + 1e6, 10) == 0, "nor is it forgotten"
        await driver.store.confirm_briefs(OUTBOX, due)
        await driver.store.confirm_briefs(OUTBOX, due)
        assert await driver.store.pending_briefs(OUTBOX, range(SHARDS), 10) == []
        assert await driver.store.retry(ids[0])
        driver.now += 1
        [sending] = await driver.send(brief=True)
        await driver.take_turn(brief=True, answers=[answer(sending)])
        await driver.store.confirm_briefs(OUTBOX, due[:1])
        [again] = await driver.store.pending_briefs(OUTBOX, range(SHARDS), 10)
        assert (again.id, again.state) == (ids[0], CommandState.ACKNOWLEDGED), (
            "a later end has a brief of its own"
        )
        await driver.store.confirm_briefs(OUTBOX, [again])
        assert await driver.store.delete_closed(OUTBOX, NOW + 1e6, 10) == 2

    async def test_a_cancelled_command_has_a_brief_if_the_outbox_has_briefs(self, driver: Driver) -> None:
        first, second = driver.add([new("d1"), new("d2")])
        assert await driver.store.cancel(first)
        await driver.take_turn(brief=True, sweep=True)
        [due] = await driver.store.pending_briefs(OUTBOX, range(SHARDS), 10)
        assert due.id == first
        await driver.store.confirm_briefs(OUTBOX, [due])
        assert not await driver.store.cancel(second), "it is out"
        await driver.take_turn(sweep=True)
        [third] = driver.add([new("d1", not_before=NOW + 100)])
        assert await driver.store.cancel(third)
        await driver.take_turn(sweep=True)
        assert await driver.store.pending_briefs(OUTBOX, range(SHARDS), 10) == []
        assert await driver.store.delete_closed(OUTBOX, 1e12, 10) == 2

    # --- sources

    async def test_a_page_and_its_cursor_come_together(
        self, driver: Driver, other_store: OutboxStore
    ) -> None:
        shard, epoch = 0, driver.grants[0]
        assert await driver.store.cursor(OUTBOX, "api") is None
        await driver.store.fill(OUTBOX, shard, epoch, "api", "p1", [new("d1", b"1", dedupe_key="1")])
        page = [new("d1", b"1", dedupe_key="1"), new("d1", b"2")]
        await driver.store.fill(OUTBOX, shard, epoch, "api", "p2", page)
        assert await driver.store.cursor(OUTBOX, "api") == "p2"
        assert await driver.store.count_waiting(OUTBOX, 10) == 2
        assert await driver.store.count_waiting(OUTBOX, 1) == 1
        await Driver(other_store, "other").open(shard)
        with pytest.raises(Fenced):
            await driver.store.fill(OUTBOX, shard, epoch, "api", "p3", [new("d1", b"3")])
        assert await driver.store.cursor(OUTBOX, "api") == "p2"
        assert await driver.store.count_waiting(OUTBOX, 10) == 2

    # --- operators

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
