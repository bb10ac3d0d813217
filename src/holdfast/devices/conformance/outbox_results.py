"""Promises of results, rollouts, briefs and sources."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.devices.conformance.outbox_bench import (
    NOW,
    OUTBOX,
    SHARDS,
    Begin,
    ManualDispatcher,
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

    async def test_how_to_add_is_what_it_was_last_made_ready_with(self, store: OutboxStore) -> None:
        for adding in (WriterSettings(3, 60.0, 1_000), WriterSettings(1, None, 2_000)):
            await store.prepare(OUTBOX, SHARDS, adding)
            assert await store.writer_settings(OUTBOX) == adding
        assert await store.writer_settings("unheard-of") is None
        await store.prepare("another", 1)
        assert {"another", OUTBOX} <= {*await store.names()}
        assert await store.names() == sorted(await store.names())

    async def test_results_are_told_in_the_transaction_that_closes(
        self, dispatcher: ManualDispatcher, store: OutboxStore, begin: Begin
    ) -> None:
        with begin() as db:
            db.add([new(f"d{n}", b"%d" % n) for n in range(3)])
        sendings = await dispatcher.send()
        failing = True

        def on_result(db: Any, entry: StoredCommand) -> None:
            dispatcher.told.append(entry)
            if failing and entry.body == b"1":
                raise RuntimeError("the business failed")

        dispatcher.on_result = on_result
        result = await dispatcher.take_turn(answers=[answer(sending) for sending in sendings])
        assert len(result.closed) == 3, "a failing business holds up no device"
        dispatcher.told.clear()
        assert await store.delete_closed(OUTBOX, NOW + 1e6, 100) == 2, "what isn't told is kept"
        await dispatcher.take_turn(sweep=True)
        assert {entry.body for entry in dispatcher.told} == {b"1"}
        failing = False
        dispatcher.told.clear()
        await dispatcher.take_turn(sweep=True)
        await dispatcher.take_turn(sweep=True)
        assert [entry.body for entry in dispatcher.told] == [b"1"]
        assert await store.delete_closed(OUTBOX, NOW + 1e6, 100) == 1

    async def test_a_business_that_would_end_its_process_is_told_again(
        self, dispatcher: ManualDispatcher, store: OutboxStore, begin: Begin
    ) -> None:
        with begin() as db:
            db.add([new("d1")])
        [sending] = await dispatcher.send()
        told: list[int] = []

        def on_result(db: Any, entry: StoredCommand) -> None:
            told.append(entry.id)
            if len(told) < 3:
                raise SystemExit(1)

        dispatcher.on_result = on_result
        assert len((await dispatcher.take_turn(answers=[answer(sending)])).closed) == 1
        for _ in range(3):
            await dispatcher.take_turn(sweep=True)
        assert len(told) == 3

    # --- rollouts

    async def test_a_rollout_counts_and_stops_when_too_many_fail(
        self, dispatcher: ManualDispatcher, store: OutboxStore, begin: Begin
    ) -> None:
        with begin() as db:
            rollout = db.add_rollout(OUTBOX, "firmware", 10, 4.0, 0.2, NOW)
            db.add([new(f"d{n}", rollout=rollout, not_before=NOW + n // 4) for n in range(10)])
        first = await dispatcher.send()
        assert len(first) == 4
        answers = [answer(first[0])] + [answer(sending, ok=False) for sending in first[1:]]
        await dispatcher.take_turn(answers=answers)
        [known] = await store.rollouts(OUTBOX)
        assert (known.id, known.name, known.total, known.created_at) == (rollout, "firmware", 10, NOW)
        assert (known.rate, known.abort_share) == (4.0, 0.2)
        assert (known.done, known.failed, known.aborted, known.over) == (1, 3, True, False)
        dispatcher.now += 1
        assert await dispatcher.send() == []
        await dispatcher.take_turn(sweep=True)
        [known] = await store.rollouts(OUTBOX)
        assert (known.done, known.failed, known.over) == (1, 9, True)
        assert await store.counts(OUTBOX) == {CommandState.ACKNOWLEDGED: 1, CommandState.FAILED: 9}

    async def test_what_expires_counts_towards_the_share_that_stops_a_rollout(
        self, dispatcher: ManualDispatcher, store: OutboxStore, begin: Begin
    ) -> None:
        with begin() as db:
            rollout = db.add_rollout(OUTBOX, "firmware", 4, None, 0.25, NOW)
            late = [new(f"d{n}", rollout=rollout, not_before=NOW + 9, expires_at=NOW + 5) for n in (1, 2)]
            db.add([new("d0", rollout=rollout), *late, new("d3", rollout=rollout, not_before=NOW + 9)])
        [sending] = await dispatcher.send()
        dispatcher.now += 5
        await dispatcher.take_turn(answers=[answer(sending)], sweep=True)
        [known] = await store.rollouts(OUTBOX)
        assert (known.done, known.failed, known.aborted) == (1, 2, True)
        dispatcher.now += 5
        assert await dispatcher.send() == []
        await dispatcher.take_turn(sweep=True)
        [known] = await store.rollouts(OUTBOX)
        assert (known.done, known.failed, known.over) == (1, 3, True)

    async def test_a_rollout_follows_what_operators_do(
        self, dispatcher: ManualDispatcher, store: OutboxStore, begin: Begin
    ) -> None:
        with begin() as db:
            rollout = db.add_rollout(OUTBOX, "firmware", 5, None, 0.5, NOW)
            ids = db.add([new(f"d{n}", rollout=rollout, not_before=NOW + n) for n in range(5)])
        [sending] = await dispatcher.send()
        await dispatcher.take_turn(answers=[answer(sending, ok=False)])
        assert await store.cancel(ids[4])
        [known] = await store.rollouts(OUTBOX)
        assert (known.done, known.failed, known.aborted) == (0, 2, False)
        assert await store.retry(ids[0])
        dispatcher.now += 3
        sendings = await dispatcher.send(sweep=True)
        await dispatcher.take_turn(answers=[answer(sending) for sending in sendings])
        [known] = await store.rollouts(OUTBOX)
        assert (known.done, known.failed, known.over) == (4, 1, True)

    async def test_a_rollout_that_operators_abort_stays_so(
        self, dispatcher: ManualDispatcher, store: OutboxStore, begin: Begin
    ) -> None:
        with begin() as db:
            rollout = db.add_rollout(OUTBOX, "firmware", 2, None, 0.0, NOW)
            ids = db.add([new(f"d{n}", rollout=rollout, not_before=NOW + 10) for n in range(2)])
        assert await store.cancel(ids[0])
        await dispatcher.take_turn(sweep=True)
        [known] = await store.rollouts(OUTBOX)
        assert (known.failed, known.aborted, known.over) == (2, True, True)
        assert not await store.retry(ids[0])

    async def test_an_aborted_rollout_sends_nothing_more_and_what_is_out_may_succeed(
        self, dispatcher: ManualDispatcher, store: OutboxStore, begin: Begin
    ) -> None:
        with begin() as db:
            rollout = db.add_rollout(OUTBOX, "firmware", 4, None, 1.0, NOW)
            ids = db.add([new(f"d{n}", rollout=rollout, not_before=NOW + n // 2) for n in range(4)])
            db.add([new("other", not_before=NOW + 1)])
        sendings = await dispatcher.send()
        assert len(sendings) == 2
        assert not await store.abort("unheard-of", rollout)
        assert not await store.abort(OUTBOX, rollout + 1_000)
        assert await store.abort(OUTBOX, rollout)
        assert not await store.abort(OUTBOX, rollout), "it is aborted already"
        dispatcher.now += 1
        [other] = await dispatcher.send(answers=[answer(sending) for sending in sendings])
        assert other.device == "other"
        await dispatcher.take_turn(sweep=True, answers=[answer(other)])
        [known] = await store.rollouts(OUTBOX)
        assert (known.done, known.failed, known.aborted, known.over) == (2, 2, True, True)
        left = await store.command(ids[3])
        assert left is not None
        assert (left.state, left.reason) == (CommandState.FAILED, "its rollout was aborted")
        assert not await store.retry(ids[3])

    @pytest.mark.usefixtures("dispatcher")
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

    async def test_a_rollout_that_is_over_is_not_aborted(
        self, dispatcher: ManualDispatcher, store: OutboxStore, begin: Begin
    ) -> None:
        with begin() as db:
            rollout = db.add_rollout(OUTBOX, "firmware", 1, None, 1.0, NOW)
            db.add([new("d1", rollout=rollout)])
        sendings = await dispatcher.send()
        await dispatcher.take_turn(answers=[answer(sending) for sending in sendings])
        assert not await store.abort(OUTBOX, rollout)
        [known] = await store.rollouts(OUTBOX)
        assert known.aborted is False

    async def test_a_rollout_keeps_its_rate_when_all_its_times_have_passed(
        self, dispatcher: ManualDispatcher, begin: Begin
    ) -> None:
        with begin() as db:
            rollout = db.add_rollout(OUTBOX, "firmware", 20, 4.0, 1.0, NOW)
            db.add([new(f"d{n:02}", rollout=rollout, not_before=NOW + n / 4) for n in range(20)])
            db.add([new("other")])
        dispatcher.now += 3600
        rates = RolloutRates(share=1.0)
        sent = await dispatcher.send(rollouts=rates)
        assert len(sent) == 1 + 1, "one at a time, and what belongs to no rollout"
        for _ in range(19):
            dispatcher.now += 0.25
            sent = await dispatcher.send(rollouts=rates, answers=[answer(each) for each in sent])
            assert len(sent) == 1

    # --- briefs

    async def test_each_end_is_to_be_told_until_it_was(
        self, dispatcher: ManualDispatcher, store: OutboxStore, begin: Begin
    ) -> None:
        with begin() as db:
            ids = db.add([new(f"d{n}", b"%d" % n) for n in range(3)])
        sendings = await dispatcher.send(brief=True)
        assert await store.pending_briefs(OUTBOX, range(SHARDS), 10) == []
        sendings.sort(key=lambda sending: sending.device)
        answers = [answer(sending, ok=sending.device != "d0") for sending in sendings[:2]]
        await dispatcher.take_turn(brief=True, answers=answers)
        due = sorted(await store.pending_briefs(OUTBOX, range(SHARDS), 10), key=lambda entry: entry.id)
        assert [(entry.id, entry.state) for entry in due] == [
            (ids[0], CommandState.FAILED),
            (ids[1], CommandState.ACKNOWLEDGED),
        ]
        assert len(await store.pending_briefs(OUTBOX, range(SHARDS), 1)) == 1
        by_shard = [await store.pending_briefs(OUTBOX, [shard], 10) for shard in range(SHARDS)]
        assert [{entry.shard for entry in entries} - {shard} for shard, entries in enumerate(by_shard)] == [
            set()
        ] * SHARDS
        assert not await store.retry(ids[0]), "its end is yet to be told"
        assert await store.delete_closed(OUTBOX, NOW + 1e6, 10) == 0, "nor is it forgotten"
        await store.confirm_briefs(OUTBOX, due)
        await store.confirm_briefs(OUTBOX, due)
        assert await store.pending_briefs(OUTBOX, range(SHARDS), 10) == []
        assert await store.retry(ids[0])
        dispatcher.now += 1
        [sending] = await dispatcher.send(brief=True)
        await dispatcher.take_turn(brief=True, answers=[answer(sending)])
        await store.confirm_briefs(OUTBOX, due[:1])
        [again] = await store.pending_briefs(OUTBOX, range(SHARDS), 10)
        assert (again.id, again.state) == (ids[0], CommandState.ACKNOWLEDGED), (
            "another end than that which was told"
        )
        await store.confirm_briefs(OUTBOX, [again])
        assert await store.delete_closed(OUTBOX, NOW + 1e6, 10) == 2

    async def test_what_operators_cancel_is_told_where_anybody_listens(
        self, dispatcher: ManualDispatcher, store: OutboxStore, begin: Begin
    ) -> None:
        with begin() as db:
            first, second = db.add([new("d1"), new("d2")])
        assert await store.cancel(first)
        await dispatcher.take_turn(brief=True, sweep=True)
        [due] = await store.pending_briefs(OUTBOX, range(SHARDS), 10)
        assert due.id == first
        await store.confirm_briefs(OUTBOX, [due])
        assert not await store.cancel(second), "it is out"
        await dispatcher.take_turn(sweep=True)
        with begin() as db:
            [third] = db.add([new("d1", not_before=NOW + 100)])
        assert await store.cancel(third)
        await dispatcher.take_turn(sweep=True)
        assert await store.pending_briefs(OUTBOX, range(SHARDS), 10) == []
        assert await store.delete_closed(OUTBOX, 1e12, 10) == 2

    # --- sources

    async def test_a_page_and_its_cursor_come_together(
        self, dispatcher: ManualDispatcher, store: OutboxStore, other_store: OutboxStore
    ) -> None:
        shard, epoch = 0, dispatcher.grants[0]
        assert await store.cursor(OUTBOX, "api") is None
        await store.fill(OUTBOX, shard, epoch, "api", "p1", [new("d1", b"1", dedupe_key="1")])
        page = [new("d1", b"1", dedupe_key="1"), new("d1", b"2")]
        await store.fill(OUTBOX, shard, epoch, "api", "p2", page)
        assert await store.cursor(OUTBOX, "api") == "p2"
        assert await store.count_waiting(OUTBOX, 10) == 2
        assert await store.count_waiting(OUTBOX, 1) == 1
        await ManualDispatcher(other_store, "other").open(shard)
        with pytest.raises(Fenced):
            await store.fill(OUTBOX, shard, epoch, "api", "p3", [new("d1", b"3")])
        assert await store.cursor(OUTBOX, "api") == "p2"
        assert await store.count_waiting(OUTBOX, 10) == 2
