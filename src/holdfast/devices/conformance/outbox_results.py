"""Promises of results, rollouts, briefs and sources."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.devices.conformance.outbox_bench import (
    NOW,
    OUTBOX,
    SHARDS,
    Begin,
    Driver,
    OutboxFixtures,
    answer,
    new,
)
from holdfast.devices.ports.outbox import OutboxStore, WriterSettings
from holdfast.devices.rules.device_queue import CommandState, StoredCommand
from holdfast.devices.rules.group_rate import RolloutRates
from holdfast.errors import Fenced


class ResultsConformance(OutboxFixtures):
    """Promises of results, rollouts, briefs and sources."""

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
