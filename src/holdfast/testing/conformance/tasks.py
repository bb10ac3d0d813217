"""The promises of every task store."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from holdfast.errors import Fenced
from holdfast.ports.queue import Outgoing, Queue
from holdfast.ports.tasks import BriefingTasks, TaskStore
from holdfast.rules.tasks.task import (
    BATCH,
    EARLIER_BYTES_MAX,
    EFFECTS_KEEP_S,
    ID_BYTES_MAX,
    AttemptBeat,
    CountMember,
    DelayTask,
    EffectsLeft,
    EndAttempt,
    ResendEffects,
    ReturnAttempt,
    StartAttempt,
    State,
    Task,
)

FOREVER = 1e11
"""A wall time that no clock reaches."""

LEASE_S = 3600.0
PAUSE_S = 0.002
TYPE = "report.publish"

ODD_TRACES = ["k", "a/b//c", "käse \N{SNOWMAN}", "'\"%_\\;--", "*?[x]{y}:z", "..", "x" * ID_BYTES_MAX]


class TasksFixtures:
    """The fixtures of all tests of a task store."""

    @pytest.fixture
    def tasks(self) -> TaskStore:
        """Override: make a fresh adapter."""
        raise NotImplementedError("define the fixture tasks")

    @pytest.fixture
    def other_tasks(self, tasks: TaskStore) -> TaskStore:
        """Override if several clients may share a store: another client of the same app and store."""
        return tasks


@pytest.mark.asyncio
class TaskRecords(TasksFixtures):
    """Promises about the life of one task."""

    async def test_a_task_that_is_unknown_is_neither_found_nor_changed(self, tasks: TaskStore) -> None:
        assert await tasks.get("k") is None
        assert await tasks.cancel("k", "why") is None
        assert await tasks.reset(["k"]) == [None]
        await tasks.briefed([("k", 1)])
        assert await tasks.list(10) == []
        assert await tasks.counts() == {}
        for refused in (
            *await tasks.beat([AttemptBeat("k", 1, LEASE_S)]),
            *await tasks.give_back([ReturnAttempt("k", 1, True)]),
            *await tasks.end([EndAttempt("k", 1, State.SUCCEEDED)]),
        ):
            assert isinstance(refused, Fenced)
            assert refused.epoch == 0

    async def test_effects_are_kept_with_the_outcome_until_they_are_handed_over(
        self, tasks: TaskStore, other_tasks: TaskStore
    ) -> None:
        first, rest = b"\x00\xff two effects", b"\x91 one"
        [begun] = await tasks.start([wish("k")])
        end = EndAttempt("k", begun.epoch, State.SUCCEEDED, effects=first)
        [ended] = await tasks.end([end])
        assert isinstance(ended, Task)
        assert ended.effects == first
        assert await tasks.end([end]) == [ended], "a repeat"
        await tasks.handed_over([EffectsLeft("k", begun.epoch + 1), EffectsLeft("unknown", 1)])
        assert await other_tasks.get("k") == ended, "that was another outcome"
        await tasks.handed_over([EffectsLeft("k", begun.epoch, rest)])
        known = await other_tasks.get("k")
        assert known is not None
        assert known.effects == rest
        await tasks.handed_over([EffectsLeft("k", begun.epoch)])
        await tasks.handed_over([EffectsLeft("k", begun.epoch, rest)])
        known = await other_tasks.get("k")
        assert known is not None
        assert known.effects == b"", "they don't come back"

    async def test_refused_effects_can_be_handed_over_again(
        self, tasks: TaskStore, other_tasks: TaskStore
    ) -> None:
        again = ResendEffects("k", b"\x00\xff refused")
        assert await tasks.resend_effects([again]) == [None], "no such task"
        [begun] = await tasks.start([wish("k")])
        assert await tasks.resend_effects([again]) == [begun], "it has not ended"
        [ended] = await tasks.end([EndAttempt("k", begun.epoch, State.SUCCEEDED, effects=b"pending")])
        assert isinstance(ended, Task)
        await tasks.briefed([("k", begun.epoch)])
        [unchanged] = await tasks.resend_effects([again])
        assert unchanged is not None
        assert (unchanged.epoch, unchanged.effects) == (begun.epoch, b"pending"), "others are pending"
        await tasks.handed_over([EffectsLeft("k", begun.epoch)])
        [added] = await other_tasks.resend_effects([again])
        assert added is not None
        assert (added.state, added.effects, added.briefed) == (State.SUCCEEDED, again.effects, True)
        assert added.epoch > begun.epoch
        assert await tasks.resend_effects([again]) == [added], "a repeat"
        await tasks.handed_over([EffectsLeft("k", begun.epoch)])
        assert await other_tasks.get("k") == added, "a late report adds the others only"
        now = await tasks.now()
        assert await tasks.expire(now + EFFECTS_KEEP_S / 2) == 0
        await tasks.handed_over([EffectsLeft("k", added.epoch)])
        known = await other_tasks.get("k")
        assert known is not None
        assert known.effects == b""

    async def test_refused_effects_that_a_node_has_yet_to_note_can_be_handed_over_again(
        self, tasks: TaskStore, other_tasks: TaskStore
    ) -> None:
        [begun] = await tasks.start([wish("k")])
        await tasks.end([EndAttempt("k", begun.epoch, State.SUCCEEDED, effects=b"\x00\xff refused")])
        await tasks.briefed([("k", begun.epoch)])
        [unchanged] = await tasks.resend_effects([ResendEffects("k", b"again", b"\x00\xff others")])
        assert unchanged is not None
        assert (unchanged.epoch, unchanged.effects) == (begun.epoch, b"\x00\xff refused")
        again = ResendEffects("k", b"again", b"\x00\xff refused")
        [added] = await tasks.resend_effects([again])
        assert added is not None
        assert added.effects == b"again"
        assert added.epoch > begun.epoch
        assert await tasks.resend_effects([again]) == [added], "a repeat"
        await other_tasks.handed_over([EffectsLeft("k", begun.epoch)])
        assert await other_tasks.get("k") == added, "what is noted late is of those before"

    async def test_where_a_large_result_is_stands_with_the_outcome(
        self, tasks: TaskStore, other_tasks: TaskStore
    ) -> None:
        [begun] = await tasks.start([wish("k")])
        end = EndAttempt("k", begun.epoch, State.SUCCEEDED, stored=b"\x00\xff object")
        [ended] = await tasks.end([end])
        assert isinstance(ended, Task)
        assert (ended.result, ended.stored) == (b"", end.stored)
        assert await other_tasks.get("k") == ended
        [begun] = await tasks.start([wish("f")])
        await tasks.end([EndAttempt("f", begun.epoch, State.FAILED, stored=b"object")])
        [renewed] = await tasks.reset(["f"])
        assert renewed is not None
        assert renewed.stored == b""

    async def test_effects_of_a_task_whose_brief_is_not_sent_wait(self, tasks: TaskStore) -> None:
        [begun] = await tasks.start([wish("k")])
        [ended] = await tasks.end([EndAttempt("k", begun.epoch, State.SUCCEEDED)])
        assert await tasks.resend_effects([ResendEffects("k", b"refused")]) == [ended]

    async def test_a_delayed_task_waits_in_the_store_until_its_message_is_sent(
        self, tasks: TaskStore, other_tasks: TaskStore
    ) -> None:
        message = b"\x00\xff a message"
        [delayed] = await tasks.delay([DelayTask("k", TYPE, LEASE_S, message, "customer-7")])
        assert (delayed.state, delayed.group, delayed.message) == (State.QUEUED, "customer-7", message)
        assert delayed.until == delayed.send_at == pytest.approx(delayed.queued_at + LEASE_S)
        assert await tasks.delay([DelayTask("k", TYPE, 0.0, b"other")]) == [delayed], "it is known"
        assert await tasks.queue([Task("k", TYPE)]) == [delayed]
        [waits] = await tasks.start([wish("k")])
        assert waits == delayed, "it begins no sooner"
        assert await tasks.due(LEASE_S / 2, 10, LEASE_S) == []
        [due] = await other_tasks.due(2 * LEASE_S, 10, LEASE_S)
        assert (due.task_id, due.message, due.until) == ("k", message, delayed.until)
        assert await tasks.due(2 * LEASE_S, 10, LEASE_S) == [], "another node has it"
        assert [task.task_id for task in await tasks.due(4 * LEASE_S, 10, LEASE_S)] == ["k"], "and then not"
        await tasks.messages_sent(["k", "unknown"])
        known = await other_tasks.get("k")
        assert known is not None
        assert (known.message, known.send_at, known.until) == (b"", 0.0, delayed.until)
        assert await tasks.due(FOREVER, 10, LEASE_S) == []

    async def test_delayed_tasks_are_handed_out_each_to_one(
        self, tasks: TaskStore, other_tasks: TaskStore
    ) -> None:
        wishes = [DelayTask(f"t{n}", TYPE, LEASE_S, b"m") for n in range(20)]
        await tasks.delay(wishes)
        found: list[Task] = []
        while len(found) < len(wishes):
            for some in await asyncio.gather(
                *(each.due(2 * LEASE_S, 3, LEASE_S) for each in (tasks, other_tasks))
            ):
                found += some
        assert await tasks.due(2 * LEASE_S, 3, LEASE_S) == []
        assert sorted(task.task_id for task in found) == sorted(each.task_id for each in wishes)

    async def test_a_delayed_task_that_is_cancelled_is_due_at_once(self, tasks: TaskStore) -> None:
        await tasks.delay([DelayTask("k", TYPE, LEASE_S, b"m"), DelayTask("later", TYPE, LEASE_S, b"m")])
        cancelled = await tasks.cancel("k", "not wanted")
        assert cancelled is not None
        assert (cancelled.state, cancelled.detail, cancelled.cancelled) == (
            State.FAILED,
            "cancelled: not wanted",
            True,
        )
        [due] = await tasks.due(0.0, 10, LEASE_S)
        assert (due.task_id, due.message) == ("k", b"m"), "its receiver notifies the producer"
        await tasks.briefed([("k", cancelled.epoch)])
        assert [task.task_id for task in await tasks.due(FOREVER, 10, LEASE_S)] == ["later"]

    async def test_a_delayed_task_never_expires_before_it_is_sent(self, tasks: TaskStore) -> None:
        await tasks.delay([DelayTask("k", TYPE, PAUSE_S, b"m")])
        assert await tasks.expire(FOREVER) == 0
        assert [task.task_id for task in await tasks.due(LEASE_S, 10, LEASE_S)] == ["k"]
        await tasks.messages_sent(["k"])
        assert await tasks.expire(FOREVER) == 1

    async def test_a_task_is_known_until_its_queue_delivers_its_delayed_message(
        self, tasks: TaskStore, other_tasks: TaskStore
    ) -> None:
        wishes = [DelayTask(task_id, TYPE, LEASE_S, b"", "customer-7") for task_id in ("k", "cancelled")]
        [delayed, _] = await tasks.delay(wishes)
        assert (delayed.state, delayed.group, delayed.message) == (State.QUEUED, "customer-7", b"")
        assert delayed.send_at == pytest.approx(delayed.queued_at + LEASE_S)
        assert await tasks.due(FOREVER, 10, LEASE_S) == [], "its queue has the message"
        cancelled = await tasks.cancel("cancelled", "not wanted")
        assert cancelled is not None
        await tasks.messages_sent(["k", "cancelled"])
        await tasks.briefed([("cancelled", cancelled.epoch)])
        assert await tasks.expire(delayed.send_at - 1.0) == 0
        assert await other_tasks.get("k") == delayed
        [refused] = await tasks.start([wish("cancelled")])
        assert refused == msgspec.structs.replace(cancelled, briefed=True), "it never runs again"
        [begun] = await tasks.start([wish("k")])
        assert (begun.state, begun.send_at) == (State.RUNNING, 0.0)
        assert await tasks.expire(FOREVER) == 2

    async def test_a_task_with_effects_is_kept_longer(self, tasks: TaskStore) -> None:
        for task_id, effects in (("a", b"pending"), ("b", b"")):
            [begun] = await tasks.start([wish(task_id)])
            await tasks.end([EndAttempt(task_id, begun.epoch, State.SUCCEEDED, effects=effects)])
        now = await tasks.now()
        assert await tasks.expire(now + EFFECTS_KEEP_S / 2) == 1
        assert await tasks.get("b") is None
        assert await tasks.get("a") is not None
        assert await tasks.expire(now + 2 * EFFECTS_KEEP_S) == 1

    async def test_an_empty_batch_changes_nothing_and_fails_nowhere(self, tasks: TaskStore) -> None:
        assert await tasks.queue([]) == []
        assert await tasks.start([]) == []
        assert await tasks.beat([]) == await tasks.give_back([]) == await tasks.end([]) == []
        assert await tasks.reset([]) == []
        assert await tasks.resend_effects([]) == []
        await tasks.briefed([])
        await tasks.handed_over([])

    async def test_a_task_goes_from_queued_to_its_outcome(
        self, tasks: TaskStore, other_tasks: TaskStore
    ) -> None:
        [queued] = await tasks.queue([Task("k", TYPE, group="customer-7")])
        assert queued == Task("k", TYPE, group="customer-7", queued_at=queued.queued_at)
        assert queued.queued_at > 0
        [begun] = await other_tasks.start([wish("k", group="customer-8")])
        assert begun == Task(
            "k",
            TYPE,
            state=State.RUNNING,
            group="customer-8",
            epoch=begun.epoch,
            attempts=1,
            member="member",
            node="node",
            until=begun.until,
            queued_at=queued.queued_at,
            started_at=begun.started_at,
        )
        assert begun.epoch > 0
        assert begun.started_at >= queued.queued_at
        assert begun.until == pytest.approx(begun.started_at + LEASE_S, abs=0.001)
        [beaten] = await other_tasks.beat(
            [AttemptBeat("k", begun.epoch, 2 * LEASE_S, 0.25, "a quarter \N{SNOWMAN}")]
        )
        assert isinstance(beaten, Task)
        assert beaten.until >= begun.until + LEASE_S
        assert beaten == msgspec.structs.replace(
            begun, until=beaten.until, progress=0.25, note="a quarter \N{SNOWMAN}"
        )
        result = bytes(range(256))
        [ended] = await other_tasks.end([EndAttempt("k", begun.epoch, State.SUCCEEDED, result)])
        assert isinstance(ended, Task)
        assert ended == msgspec.structs.replace(
            beaten, state=State.SUCCEEDED, until=0.0, progress=1.0, result=result, ended_at=ended.ended_at
        )
        assert ended.ended_at >= begun.started_at
        assert await tasks.get("k") == ended
        await other_tasks.briefed([("k", begun.epoch)])
        assert await tasks.get("k") == msgspec.structs.replace(ended, briefed=True)
        assert await tasks.queue([Task("k", "other")]) == [msgspec.structs.replace(ended, briefed=True)]

    async def test_follow_ups_stand_with_the_outcome(self, tasks: TaskStore, other_tasks: TaskStore) -> None:
        follow_ups = bytes(range(256)) * 256
        [begun] = await tasks.start([wish("k", follow_ups=follow_ups)])
        assert begun.follow_ups == follow_ups
        await tasks.beat([AttemptBeat("k", begun.epoch, LEASE_S, 0.5)])
        [ended] = await tasks.end([EndAttempt("k", begun.epoch, State.FAILED)])
        assert isinstance(ended, Task)
        assert ended.follow_ups == follow_ups
        assert await other_tasks.start([wish("k", follow_ups=b"of another message")]) == [ended]
        [renewed] = await tasks.reset(["k"])
        assert renewed is not None
        assert renewed.follow_ups == b"", "they come with the message"
        [again] = await other_tasks.start([wish("k", follow_ups=b"of its message")])
        assert again.follow_ups == b"of its message"

    async def test_a_task_may_begin_that_was_never_queued(self, tasks: TaskStore) -> None:
        [begun] = await tasks.start([wish("k")])
        assert (begun.state, begun.attempts, begun.type) == (State.RUNNING, 1, TYPE)
        assert begun.queued_at > 0

    async def test_traces_and_texts_may_be_odd(self, tasks: TaskStore, other_tasks: TaskStore) -> None:
        for task_id in ODD_TRACES:
            [begun] = await tasks.start([wish(task_id, node=task_id, group=task_id, type=task_id)])
            await tasks.end([EndAttempt(task_id, begun.epoch, State.FAILED, detail=task_id)])
            found = await other_tasks.get(task_id)
            assert found is not None
            assert (found.task_id, found.node, found.group, found.type, found.detail) == (task_id,) * 5
        assert [task.task_id for task in await tasks.list(100)] == sorted(ODD_TRACES)
        assert await tasks.counts() == {(task_id, State.FAILED): 1 for task_id in ODD_TRACES}

    async def test_a_large_result_is_stored_whole(self, tasks: TaskStore) -> None:
        result = bytes(range(256)) * 1024
        [begun] = await tasks.start([wish("k")])
        await tasks.end([EndAttempt("k", begun.epoch, State.SUCCEEDED, result, "x" * 50_000)])
        found = await tasks.get("k")
        assert found is not None
        assert (found.result, len(found.detail)) == (result, 50_000)


@pytest.mark.asyncio
class TaskAttempts(TasksFixtures):
    """Promises about attempts: who may begin and end them, and their tries."""

    async def test_of_many_starts_at_once_one_begins(self, tasks: TaskStore, other_tasks: TaskStore) -> None:
        clients = [tasks, other_tasks] * 4
        answers = await asyncio.gather(
            *(client.start([wish("k", member=f"m{i}")]) for i, client in enumerate(clients))
        )
        assert len({task.member for [task] in answers}) == 1
        assert len({task.epoch for [task] in answers}) == 1
        assert {task.attempts for [task] in answers} == {1}

    async def test_asking_again_gets_the_same_answer(self, tasks: TaskStore, other_tasks: TaskStore) -> None:
        """The answer may be lost, and the request repeated."""
        wishes = [wish("k"), wish("l")]
        begun = await tasks.start(wishes)
        assert await other_tasks.start(wishes) == begun
        first, second = (task.epoch for task in begun)
        given = await tasks.give_back([ReturnAttempt("k", first, False, "no room")])
        assert await other_tasks.give_back([ReturnAttempt("k", first, False, "no room")]) == given
        ended = await tasks.end([EndAttempt("l", second, State.FAILED, b"r", "broken")])
        assert isinstance(ended[0], Task)
        assert await other_tasks.end([EndAttempt("l", second, State.FAILED, b"r", "broken")]) == ended

    async def test_an_attempt_that_stands_keeps_others_out(
        self, tasks: TaskStore, other_tasks: TaskStore
    ) -> None:
        [begun] = await tasks.start([wish("k", member="a")])
        assert await other_tasks.start([wish("k", member="b")]) == [begun]

    async def test_a_lapsed_attempt_is_taken_over_and_fenced(
        self, tasks: TaskStore, other_tasks: TaskStore
    ) -> None:
        [lapsed] = await tasks.start([wish("k", member="a", lease_s=0.0)])
        [taken] = await other_tasks.start([wish("k", member="b")])
        assert (taken.member, taken.attempts) == ("b", 2)
        assert taken.epoch > lapsed.epoch
        for refused in (
            *await tasks.beat([AttemptBeat("k", lapsed.epoch, LEASE_S)]),
            *await tasks.give_back([ReturnAttempt("k", lapsed.epoch, True)]),
            *await tasks.end([EndAttempt("k", lapsed.epoch, State.SUCCEEDED, b"zombie")]),
        ):
            assert isinstance(refused, Fenced)
            assert refused.epoch == taken.epoch
        assert await tasks.get("k") == taken

    async def test_a_beat_keeps_an_attempt_from_lapsing(
        self, tasks: TaskStore, other_tasks: TaskStore
    ) -> None:
        [begun] = await tasks.start([wish("k", member="a", lease_s=0.0)])
        [kept] = await tasks.beat([AttemptBeat("k", begun.epoch, LEASE_S)])
        assert await other_tasks.start([wish("k", member="b")]) == [kept]

    async def test_an_attempt_is_known_by_the_member_that_beat_last(
        self, tasks: TaskStore, other_tasks: TaskStore
    ) -> None:
        [begun] = await tasks.start([wish("k", member="a")])
        [beaten] = await tasks.beat([AttemptBeat("k", begun.epoch, LEASE_S, member="a2")])
        [again] = await tasks.beat([AttemptBeat("k", begun.epoch, LEASE_S)])
        assert isinstance(beaten, Task)
        assert isinstance(again, Task)
        assert (beaten.member, again.member, beaten.epoch) == ("a2", "a2", begun.epoch)
        assert await other_tasks.start([wish("k", member="b", instead_of="a")]) == [again]
        [taken] = await other_tasks.start([wish("k", member="b", instead_of="a2")])
        assert taken.member == "b"

    async def test_an_attempt_of_a_node_known_to_be_gone_is_taken_over(
        self, tasks: TaskStore, other_tasks: TaskStore
    ) -> None:
        [begun] = await tasks.start([wish("k", member="a")])
        assert await other_tasks.start([wish("k", member="b", instead_of="c")]) == [begun]
        [taken] = await other_tasks.start([wish("k", member="b", instead_of="a")])
        assert (taken.member, taken.attempts) == ("b", 2)
        assert taken.epoch > begun.epoch

    async def test_of_several_ends_the_first_counts(self, tasks: TaskStore, other_tasks: TaskStore) -> None:
        [begun] = await tasks.start([wish("k")])
        states = [State.SUCCEEDED, State.FAILED, State.TIMEOUT] * 3
        answers = await asyncio.gather(
            *(
                client.end([EndAttempt("k", begun.epoch, state)])
                for client, state in zip([tasks, other_tasks] * 5, states, strict=False)
            )
        )
        found = await tasks.get("k")
        assert found is not None
        for state, [answer] in zip(states, answers, strict=True):
            assert isinstance(answer, Task) == (state is found.state)

    async def test_only_the_standing_outcome_is_briefed(self, tasks: TaskStore) -> None:
        [begun] = await tasks.start([wish("k")])
        await tasks.briefed([("k", begun.epoch)])
        await tasks.end([EndAttempt("k", begun.epoch, State.SUCCEEDED)])
        await tasks.briefed([("k", begun.epoch + 1), ("k", begun.epoch - 1)])
        found = await tasks.get("k")
        assert found is not None
        assert not found.briefed

    # --- tries

    async def test_a_task_whose_tries_are_spent_fails(self, tasks: TaskStore) -> None:
        epoch = 0
        for attempt in (1, 2):
            [begun] = await tasks.start([wish("k", tries=2)])
            assert (begun.state, begun.attempts) == (State.RUNNING, attempt)
            epoch = begun.epoch
            await tasks.give_back([ReturnAttempt("k", epoch, True, f"broken {attempt}")])
        [ended] = await tasks.start([wish("k", tries=2)])
        assert (ended.state, ended.epoch, ended.detail) == (State.FAILED, epoch, "broken 2")
        assert ended.ended_at > 0

    async def test_each_earlier_attempt_has_a_line_while_there_is_room(self, tasks: TaskStore) -> None:
        [begun] = await tasks.start([wish("k", tries=99)])
        assert begun.earlier == ""
        await tasks.give_back([ReturnAttempt("k", begun.epoch, True, "é broken\nby its handler")])
        [begun] = await tasks.start([wish("k", tries=99, lease_s=0.0)])
        first = f"attempt 1 on {begun.node}: é broken\n"
        assert begun.earlier == first
        await tasks.give_back([ReturnAttempt("k", begun.epoch, False)])
        [begun] = await tasks.start([wish("k", tries=99, lease_s=0.0)])
        assert begun.earlier == first, "an attempt that wasn't spent has none"
        [begun] = await tasks.start([wish("k", member="other", tries=99)])
        lines = first + f"attempt 2 on {begun.node}: it ended without an outcome\n"
        assert begun.earlier == lines
        await tasks.give_back([ReturnAttempt("k", begun.epoch, True, "x" * EARLIER_BYTES_MAX)])
        [begun] = await tasks.start([wish("k", tries=99)])
        assert begun.earlier == lines, "there is no room for another"
        await tasks.give_back([ReturnAttempt("k", begun.epoch, True, "short")])
        [begun] = await tasks.start([wish("k", tries=99)])
        assert begun.earlier == lines + f"attempt 4 on {begun.node}: short\n"
        await tasks.end([EndAttempt("k", begun.epoch, State.FAILED)])
        [queued] = await tasks.reset(["k"])
        assert queued is not None
        assert queued.earlier == ""

    async def test_an_attempt_that_died_counts_as_a_try(self, tasks: TaskStore) -> None:
        [begun] = await tasks.start([wish("k", member="a", tries=1, lease_s=0.0)])
        [ended] = await tasks.start([wish("k", member="b", tries=1)])
        assert (ended.state, ended.epoch) == (State.FAILED, begun.epoch)
        assert "attempt 1 of 1" in ended.detail
        assert "node" in ended.detail

    async def test_an_attempt_given_back_unspent_is_no_try(self, tasks: TaskStore) -> None:
        for _ in range(4):
            [begun] = await tasks.start([wish("k", tries=1)])
            assert (begun.state, begun.attempts) == (State.RUNNING, 1)
            [queued] = await tasks.give_back([ReturnAttempt("k", begun.epoch, False)])
            assert isinstance(queued, Task)
            assert (queued.state, queued.attempts, queued.member, queued.until) == (State.QUEUED, 0, "", 0.0)

    async def test_nothing_begins_before_a_pause_is_over(
        self, tasks: TaskStore, other_tasks: TaskStore
    ) -> None:
        [begun] = await tasks.start([wish("k", tries=1)])
        paused = ReturnAttempt("k", begun.epoch, False, "the other side is away", pause_s=LEASE_S)
        [queued] = await tasks.give_back([paused])
        assert isinstance(queued, Task)
        assert (queued.state, queued.attempts, queued.pauses) == (State.QUEUED, 0, 1)
        assert queued.until >= begun.started_at + LEASE_S
        assert queued.detail == "the other side is away"
        assert await other_tasks.give_back([paused]) == [queued], "a repeat isn't a second pause"
        assert await other_tasks.start([wish("k", tries=1)]) == [queued]
        ended = await other_tasks.cancel("k", "not needed")
        assert ended is not None
        assert ended.ended

    async def test_a_task_begins_once_its_pause_is_over(self, tasks: TaskStore) -> None:
        for pauses in range(4):
            [begun] = await tasks.start([wish("k", tries=1)])
            assert (begun.state, begun.attempts, begun.pauses) == (State.RUNNING, 1, pauses)
            [paused] = await tasks.give_back([ReturnAttempt("k", begun.epoch, False, pause_s=PAUSE_S)])
            assert isinstance(paused, Task)
            await asyncio.sleep(max(0.0, paused.until - await tasks.now()) + PAUSE_S)
        assert await tasks.expire(FOREVER) == 1


@pytest.mark.asyncio
class TaskRequests(TasksFixtures):
    """Promises about batches, requests of operators, listing and expiry."""

    async def test_a_batch_ends_with_the_last_of_its_tasks(
        self, tasks: TaskStore, other_tasks: TaskStore
    ) -> None:
        [batch] = await tasks.count([CountMember("b", 3, follow_ups=b"\0then")])
        assert (batch.type, batch.state, batch.members) == (BATCH, State.QUEUED, "000")
        assert batch.follow_ups == b"\0then"
        assert await tasks.start([wish("t")]) != [], "other tasks go on"
        await tasks.count([CountMember("b", 3, 1)])
        [again] = await other_tasks.count([CountMember("b", 3, 1, failed=True)])
        assert (again.members, again.state) == ("010", State.QUEUED), "each counts once"
        [_, ended] = await other_tasks.count([CountMember("b", 3, 0), CountMember("b", 3, 2)])
        assert (ended.state, ended.result, ended.detail) == (State.SUCCEEDED, b'{"tasks":3,"failed":0}', "")
        assert ended.follow_ups == b"\0then"
        assert await tasks.count([CountMember("b", 3, 0, failed=True)]) == [ended]
        assert await tasks.reset(["b"]) == [ended]
        await tasks.briefed([("b", ended.epoch)])
        found = await tasks.get("b")
        assert found is not None
        assert found.briefed

    async def test_a_batch_of_which_a_task_failed_has_failed(self, tasks: TaskStore) -> None:
        await tasks.count([CountMember("b", 2, 0, failed=True, follow_ups=b"f")])
        assert await tasks.reset(["b"]) == [await tasks.get("b")]
        [ended] = await tasks.count([CountMember("b", 2, 1)])
        assert (ended.state, ended.result) == (State.FAILED, b'{"tasks":2,"failed":1}')
        assert (ended.detail, ended.follow_ups) == ("1 of 2 tasks did not succeed", b"f")

    async def test_a_batch_that_is_cancelled_ends_with_the_last_of_its_tasks(
        self, tasks: TaskStore, other_tasks: TaskStore
    ) -> None:
        await tasks.count([CountMember("b", 2, 0)])
        found_task = await other_tasks.cancel("b", "not needed")
        assert found_task is not None
        assert (found_task.state, found_task.cancel, found_task.members) == (State.QUEUED, "not needed", "10")
        [ended] = await tasks.count([CountMember("b", 2, 1, failed=True)])
        assert (ended.state, ended.cancelled) == (State.FAILED, True)
        assert ended.detail == "cancelled: not needed; 1 of 2 tasks did not succeed"

    async def test_tasks_of_a_batch_that_end_together_are_all_counted(
        self, tasks: TaskStore, other_tasks: TaskStore
    ) -> None:
        clients = [tasks, other_tasks] * 10
        answers = await asyncio.gather(
            *(client.count([CountMember("b", 20, place)]) for place, client in enumerate(clients))
        )
        assert [batch.ended for [batch] in answers].count(True) == 1
        found = await tasks.get("b")
        assert found is not None
        assert found.members == "1" * 20

    # --- what people want

    async def test_a_waiting_task_is_cancelled_at_once(self, tasks: TaskStore) -> None:
        await tasks.queue([Task("k", TYPE)])
        ended = await tasks.cancel("k", "not needed")
        assert ended is not None
        assert (ended.state, ended.detail) == (State.FAILED, "cancelled: not needed")
        assert await tasks.start([wish("k")]) == [ended]
        assert await tasks.cancel("k", "again") == ended

    async def test_a_task_that_is_cancelled_before_it_runs_again_has_an_outcome_of_its_own(
        self, tasks: TaskStore, other_tasks: TaskStore
    ) -> None:
        [begun] = await tasks.start([wish("k")])
        await tasks.end([EndAttempt("k", begun.epoch, State.FAILED, b"", "broken")])
        await tasks.reset(["k"])
        ended = await other_tasks.cancel("k", "not needed")
        assert ended is not None
        assert ended.state is State.FAILED
        assert ended.epoch > begun.epoch
        await tasks.briefed([("k", begun.epoch)])
        assert await tasks.get("k") == ended, "that was the brief of the first one"
        await tasks.briefed([("k", ended.epoch)])
        found_task = await other_tasks.get("k")
        assert found_task is not None
        assert found_task.briefed

    async def test_a_running_task_learns_of_it(self, tasks: TaskStore, other_tasks: TaskStore) -> None:
        [begun] = await tasks.start([wish("k")])
        found_task = await other_tasks.cancel("k", "not needed")
        assert found_task is not None
        assert (found_task.state, found_task.cancel) == (State.RUNNING, "not needed")
        [beaten] = await tasks.beat([AttemptBeat("k", begun.epoch, 0.0)])
        assert isinstance(beaten, Task)
        assert beaten.cancel == "not needed"
        [ended] = await other_tasks.start([wish("k", member="b")])
        assert (ended.state, ended.detail) == (State.FAILED, "cancelled: not needed")

    async def test_only_tasks_that_do_not_run_are_queued_again(self, tasks: TaskStore) -> None:
        [first, *_] = await tasks.start(
            [wish("failed", group="g", tries=1), wish("running"), wish("lapsed", lease_s=0.0)]
        )
        await tasks.end([EndAttempt("failed", first.epoch, State.FAILED, b"r", "broken")])
        await tasks.briefed([("failed", first.epoch)])
        failed, unknown, running, lapsed = await tasks.reset(["failed", "unknown", "running", "lapsed"])
        assert unknown is None
        assert failed is not None
        assert failed == Task("failed", TYPE, group="g", epoch=first.epoch, queued_at=failed.queued_at)
        assert running == await tasks.get("running")
        assert running is not None
        assert running.state is State.RUNNING
        assert lapsed is not None
        assert lapsed.state is State.QUEUED
        [begun] = await tasks.start([wish("failed", tries=1)])
        assert (begun.state, begun.attempts) == (State.RUNNING, 1)
        assert begun.epoch > first.epoch

    async def test_a_task_that_has_succeeded_is_not_queued_again(self, tasks: TaskStore) -> None:
        [begun] = await tasks.start([wish("k")])
        [ended] = await tasks.end([EndAttempt("k", begun.epoch, State.SUCCEEDED, b"r")])
        assert await tasks.reset(["k"]) == [ended]
        assert await tasks.get("k") == ended

    # --- batches

    async def test_batches_go_in_order_and_one_refusal_harms_no_other(self, tasks: TaskStore) -> None:
        names = [f"t{i:03d}" for i in range(300)]
        begun = await tasks.start([wish(name) for name in names])
        assert [task.task_id for task in begun] == names
        answers = await tasks.end(
            [
                EndAttempt(task.task_id, task.epoch + (i % 3 == 0), State.SUCCEEDED, task.task_id.encode())
                for i, task in enumerate(begun)
            ]
        )
        for i, (name, answer) in enumerate(zip(names, answers, strict=True)):
            if i % 3 == 0:
                assert isinstance(answer, Fenced)
                assert answer.epoch == begun[i].epoch
                assert name in str(answer)
            else:
                assert isinstance(answer, Task)
                assert (answer.task_id, answer.result) == (name, name.encode())
        assert await tasks.counts() == {(TYPE, State.RUNNING): 100, (TYPE, State.SUCCEEDED): 200}

    async def test_one_task_may_be_in_a_batch_more_than_once(self, tasks: TaskStore) -> None:
        first, second, third = await tasks.start(
            [wish("k", member="a", lease_s=0.0), wish("k", member="b"), wish("k", member="c")]
        )
        assert (first.member, second.member) == ("a", "b")
        assert second.epoch > first.epoch
        assert third == second
        refused, ended, again, other = await tasks.end(
            [
                EndAttempt("k", first.epoch, State.SUCCEEDED),
                EndAttempt("k", second.epoch, State.FAILED),
                EndAttempt("k", second.epoch, State.FAILED),
                EndAttempt("k", second.epoch, State.SUCCEEDED),
            ]
        )
        assert isinstance(refused, Fenced)
        assert isinstance(ended, Task)
        assert again == ended
        assert isinstance(other, Fenced)

    async def test_many_tasks_live_at_once_without_losses(
        self, tasks: TaskStore, other_tasks: TaskStore
    ) -> None:
        async def live(client: TaskStore, name: str) -> None:
            [begun] = await client.start([wish(name)])
            await client.beat([AttemptBeat(name, begun.epoch, LEASE_S)])
            await client.end([EndAttempt(name, begun.epoch, State.SUCCEEDED, name.encode())])
            await client.briefed([(name, begun.epoch)])

        names = [f"t{i:02d}" for i in range(64)]
        await asyncio.gather(*(live([tasks, other_tasks][i % 2], name) for i, name in enumerate(names)))
        found = await tasks.list(100)
        assert [(t.task_id, t.result, t.briefed) for t in found] == [(n, n.encode(), True) for n in names]

    # --- listing and expiry

    async def test_listing_by_page_state_and_type(self, tasks: TaskStore) -> None:
        await tasks.queue([Task(f"a{i}", ["t", "t2"][i % 2]) for i in range(7)])
        begun = await tasks.start([wish(f"b{i}", type="t") for i in range(7)])
        await tasks.end([EndAttempt(task.task_id, task.epoch, State.FAILED) for task in begun[:3]])

        async def pages(limit: int, **wanted: Any) -> list[str]:
            listed: list[Task] = []
            while page := await tasks.list(limit, listed[-1].task_id if listed else "", **wanted):
                assert len(page) <= limit
                listed += page
            return [task.task_id for task in listed]

        names = [f"a{i}" for i in range(7)] + [f"b{i}" for i in range(7)]
        assert await pages(4) == await pages(100) == names
        assert await pages(2, type="t") == ["a0", "a2", "a4", "a6", *names[7:]]
        assert await pages(2, state=State.FAILED) == ["b0", "b1", "b2"]
        assert await pages(2, state=State.QUEUED, type="t2") == ["a1", "a3", "a5"]
        assert await pages(2, state=State.SUCCEEDED) == await pages(2, type="t3") == []
        assert await pages(4, down=True) == await pages(100, down=True) == names[::-1]
        assert await pages(2, down=True, type="t") == ["a0", "a2", "a4", "a6", *names[7:]][::-1]
        assert await pages(2, down=True, state=State.FAILED) == ["b2", "b1", "b0"]
        assert await pages(2, down=True, state=State.SUCCEEDED) == []
        assert await tasks.counts() == {
            ("t", State.QUEUED): 4,
            ("t2", State.QUEUED): 3,
            ("t", State.FAILED): 3,
            ("t", State.RUNNING): 4,
        }

    async def test_only_tasks_that_moved_since_a_time_are_listed(self, tasks: TaskStore) -> None:
        await tasks.queue([Task("a", TYPE), Task("c", TYPE)])
        [begun] = await tasks.start([wish("b")])
        [ended] = await tasks.end([EndAttempt("b", begun.epoch, State.SUCCEEDED)])
        assert isinstance(ended, Task)
        assert _traces(await tasks.list(10, since=1.0)) == ["a", "b", "c"]
        assert "b" in _traces(await tasks.list(10, since=ended.ended_at))
        assert _traces(await tasks.list(10, since=FOREVER)) == []

    async def test_tasks_are_dated_by_the_store_s_clock(self, tasks: TaskStore) -> None:
        before = await tasks.now()
        [queued] = await tasks.queue([Task("t", TYPE)])
        assert before <= queued.queued_at <= await tasks.now()

    async def test_expiry_drops_old_tasks_that_do_not_run(self, tasks: TaskStore) -> None:
        await tasks.queue([Task("waiting", TYPE)])
        [begun, *_] = await tasks.start(
            [wish("ended"), wish("running", lease_s=10 * LEASE_S), wish("lapsed", lease_s=0.0)]
        )
        [ended] = await tasks.end([EndAttempt("ended", begun.epoch, State.SUCCEEDED)])
        assert isinstance(ended, Task)
        waiting = await tasks.get("waiting")
        assert waiting is not None
        assert await tasks.expire(waiting.queued_at) == 0
        assert len(await tasks.list(10)) == 4
        assert await tasks.expire(ended.ended_at + LEASE_S) == 3
        assert _traces(await tasks.list(10)) == ["running"]
        assert await tasks.counts() == {(TYPE, State.RUNNING): 1}
        assert await tasks.get("ended") is None
        assert await tasks.expire(FOREVER) == 1
        assert await tasks.counts() == {}
        [begun] = await tasks.start([wish("ended")])
        assert begun.state is State.RUNNING

    async def test_expiry_drops_any_number_of_tasks_behind_any_number_that_stay(
        self, tasks: TaskStore
    ) -> None:
        await tasks.start([wish(f"a{i:04d}", lease_s=10 * LEASE_S) for i in range(510)])
        await tasks.queue([Task(f"k{i:04d}", TYPE) for i in range(700)])
        assert await tasks.expire(await tasks.now() + LEASE_S) == 700
        assert await tasks.counts() == {(TYPE, State.RUNNING): 510}


class TasksConformance(TaskRecords, TaskAttempts, TaskRequests):
    """Every promise of the task store port. Fixture: ``tasks``, new and empty."""


BRIEFS = "app-briefs"


@pytest.mark.asyncio
class BriefingConformance:
    """Every promise of :class:`~holdfast.ports.tasks.BriefingTasks`. Fixtures: ``tasks``, new and empty, and
    ``briefs``, the queue named ``BRIEFS`` in its database. Both take bodies of 10,000 bytes at most."""

    @pytest.fixture
    def tasks(self) -> BriefingTasks:
        """Override: make a fresh adapter."""
        raise NotImplementedError("define the fixture tasks")

    @pytest.fixture
    def briefs(self) -> Queue:
        """Override: open the queue in the same database."""
        raise NotImplementedError("define the fixture briefs")

    async def test_the_brief_is_sent_with_the_outcome(self, tasks: BriefingTasks, briefs: Queue) -> None:
        begun = await tasks.start([wish("a"), wish("b")])
        ends = [EndAttempt(t.task_id, t.epoch, State.SUCCEEDED, b'"done"') for t in begun]
        seen: dict[str, Task] = {}

        def brief(task: Task) -> Outgoing:
            seen[task.task_id] = task
            return Outgoing(b"of " + task.task_id.encode(), {"place": task.task_id})

        ended = await tasks.end_and_brief(ends, BRIEFS, brief)
        assert [task.briefed for task in ended if isinstance(task, Task)] == [True, True]
        for task in ended:
            assert isinstance(task, Task)
            assert await tasks.get(task.task_id) == task
            assert seen[task.task_id] == msgspec.structs.replace(task, briefed=False)
        sent = await briefs.receive(10, 1.0, LEASE_S, "reader")
        assert sorted((d.body, d.attributes) for d in sent) == [
            (b"of a", {"place": "a"}),
            (b"of b", {"place": "b"}),
        ]

    async def test_a_repeat_sends_no_second_brief(self, tasks: BriefingTasks, briefs: Queue) -> None:
        [begun] = await tasks.start([wish("k")])
        end = EndAttempt("k", begun.epoch, State.SUCCEEDED)
        first = await tasks.end_and_brief([end, end], BRIEFS, _told)
        assert first[0] == first[1] == await tasks.get("k")
        assert await tasks.end_and_brief([end], BRIEFS, _told) == first[:1]
        assert (await briefs.depth()).ready == 1

    async def test_an_outcome_that_was_stored_alone_is_briefed_once(
        self, tasks: BriefingTasks, briefs: Queue
    ) -> None:
        [begun] = await tasks.start([wish("k")])
        end = EndAttempt("k", begun.epoch, State.SUCCEEDED)
        await tasks.end([end])
        [ended] = await tasks.end_and_brief([end], BRIEFS, _told)
        assert isinstance(ended, Task)
        assert ended.briefed
        assert (await briefs.depth()).ready == 1

    async def test_a_refused_outcome_sends_no_brief(self, tasks: BriefingTasks, briefs: Queue) -> None:
        begun = await tasks.start([wish("late"), wish("fine")])
        late = EndAttempt("late", begun[0].epoch + 1, State.SUCCEEDED)
        fine = EndAttempt("fine", begun[1].epoch, State.SUCCEEDED)
        refused, ended = await tasks.end_and_brief([late, fine], BRIEFS, _told)
        assert isinstance(refused, Fenced)
        assert isinstance(ended, Task)
        assert [d.body for d in await briefs.receive(10, 1.0, LEASE_S, "reader")] == [b"fine"]

    async def test_a_brief_that_is_too_large_is_not_sent(self, tasks: BriefingTasks, briefs: Queue) -> None:
        begun = await tasks.start([wish("large"), wish("small")])
        ends = [EndAttempt(t.task_id, t.epoch, State.SUCCEEDED) for t in begun]
        answers = await tasks.end_and_brief(
            ends, BRIEFS, lambda task: Outgoing(b"x" * (10_001 if task.task_id == "large" else 10_000))
        )
        assert [(t.state, t.briefed) for t in answers if isinstance(t, Task)] == [
            (State.SUCCEEDED, False),
            (State.SUCCEEDED, True),
        ]
        assert (await briefs.depth()).ready == 1

    async def test_without_a_brief_there_is_no_outcome(self, tasks: BriefingTasks, briefs: Queue) -> None:
        [begun] = await tasks.start([wish("k")])

        def brief(task: Task) -> Outgoing:
            raise ValueError("no brief can be made")

        with pytest.raises(ValueError, match="no brief"):
            await tasks.end_and_brief([EndAttempt("k", begun.epoch, State.SUCCEEDED)], BRIEFS, brief)
        assert await tasks.get("k") == begun
        assert (await briefs.depth()).ready == 0


def _told(task: Task) -> Outgoing:
    return Outgoing(task.task_id.encode())


def wish(task_id: str, **changes: Any) -> StartAttempt:
    """Return a request to begin, with a long lease and many tries, except for ``changes``."""
    plain = StartAttempt(task_id, TYPE, "member", "node", tries=9, lease_s=LEASE_S)
    return msgspec.structs.replace(plain, **changes)


def _traces(tasks: Sequence[Task]) -> list[str]:
    return [task.task_id for task in tasks]
