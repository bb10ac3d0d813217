"""The promises of every store and queue whose contents can be transferred."""

from __future__ import annotations

from typing import cast

import msgspec
import pytest

from holdfast.common.message import Span
from holdfast.errors import OperationRefused, TooLarge
from holdfast.ports.queue import DeadLetter, Outgoing, TransferableQueue, WaitingMessage
from holdfast.ports.state import Logged, StateStore, TransferableState
from holdfast.ports.tasks import TaskStore, TransferableTasks
from holdfast.rules.streams.ledger import SUSPECTS_MAX, Checkpoint, Result, RunLog, Started
from holdfast.rules.tasks.task import State, Task
from holdfast.testing.conformance.queue import LONG_S, ODD, PATIENCE_S
from holdfast.testing.conformance.state import TIMERS, effect, next_commit
from holdfast.testing.conformance.tasks import wish

KEY = "tracks/cam-1"
AT = 1700000000.25
FOREVER = 1e11

RICH = Checkpoint(
    KEY,
    epoch=41,
    number=7,
    commit_id="commit-7 \N{SNOWMAN}",
    log=RunLog(3, 10, 10**38, (Span(11, 11), Span(13, 15)), 2.5),
    past=(RunLog(1, 0, 9, (Span(4, 6),)), RunLog(2, 5, 5)),
    recent=("3:a", "3:b", "3:c"),
    state=bytes(range(256)),
    state_version=4,
    started=Started("3:18", 2, 40),
    suspects=(Started("3:19", 1, 39), Started("3:20 \N{SNOWMAN}", 3, 2**52)),
    parked="broken \N{SNOWMAN}",
    done=5,
    skipped=4,
    member="member-a",
    at=AT,
    effects=(effect(6, 0), msgspec.structs.replace(effect(7, 1), refused="unknown \N{SNOWMAN}")),
    timers=TIMERS,
    due=1234.5,
)
"""A checkpoint with a value in every field."""

CHECKPOINTS = [
    RICH,
    Checkpoint("s/bare", epoch=1),
    Checkpoint("s/expired", epoch=3, number=9, commit_id="commit-9"),
    Checkpoint("s/large", epoch=2, number=1, commit_id="c", state=bytes(60_000), at=AT),
    Checkpoint("s/waits", epoch=1, number=1, commit_id="c", parked="broken", timers=TIMERS, at=AT),
]

RESULTS = [
    Logged(3, KEY, 40, Result("3:16", b"\0r"), AT),
    Logged(7, "s/bare", 1, Result("0:1", b""), AT + 60),
    Logged(8, KEY, 41, Result("3:17 \N{SNOWMAN}", b"{}"), AT + 60),
]

TASK = Task(
    task_id="trace \N{SNOWMAN}",
    type="report.publish",
    state=State.RUNNING,
    group="group",
    epoch=12,
    attempts=2,
    member="member-a",
    node="node-1",
    until=AT + 3600,
    progress=0.1,
    note="half-way \N{SNOWMAN}",
    result=b"\0\xff",
    detail="failed once",
    cancel="no longer wanted",
    queued_at=AT,
    started_at=AT + 1,
    ended_at=AT + 2,
    pauses=3,
    follow_ups=b"\0\xfe",
    members="012",
    effects=b"\0\xfd",
    stored=b"\0\xfc",
    briefed=True,
)
"""A task with a value in every field, except the fields of a message that is yet to be sent."""

TASKS = [
    TASK,
    Task("delayed", "report.publish", message=b"\0\xff", send_at=1.0, until=1.0, queued_at=1.0),
    Task("done", "other", State.SUCCEEDED, epoch=1, result=b"{}", queued_at=AT, started_at=AT, ended_at=AT),
]

DEAD_LETTERS = [
    DeadLetter("a", b"\0\xff", "failed", {"key": ODD}, "a traceback", "s", "k \N{SNOWMAN}", 3, "0007", AT),
    DeadLetter("b", b"", "malformed", at=AT + 1),
]


@pytest.mark.asyncio
class StateTransferConformance:
    """Every promise of :class:`~holdfast.ports.state.TransferableState`. Fixture: ``state``, new and empty,
    with a ``max_state_bytes`` of at least 64 kB and 16 MiB at most."""

    @pytest.fixture
    def target(self, state: StateStore) -> TransferableState:
        return cast("TransferableState", state)

    async def test_restored_records_are_unchanged(self, target: TransferableState) -> None:
        await target.restore(CHECKPOINTS)
        for checkpoint in CHECKPOINTS:
            assert await target.stored([checkpoint.key]) == [checkpoint]
        assert [c.key for c in await target.checkpoints()] == sorted(c.key for c in CHECKPOINTS)
        keys = [checkpoint.key for checkpoint in reversed(CHECKPOINTS)]
        assert await target.stored([*keys, "s/unknown"]) == list(reversed(CHECKPOINTS))

    async def test_a_restored_stream_goes_on_where_it_was(self, target: TransferableState) -> None:
        await target.restore(CHECKPOINTS)
        opened = await target.open(KEY, RICH.epoch, "member-b")
        assert opened.epoch > RICH.epoch
        assert opened == msgspec.structs.replace(RICH, epoch=opened.epoch, member="member-b")
        assert await target.start(KEY, opened.epoch, "3:20 \N{SNOWMAN}") == 4, "the suspect is known"
        commit = next_commit(
            opened, identities=("3:d",), window=3, dropped=(RICH.effects[0].id,), effects=(effect(8, 0),)
        )
        await target.commit(commit)
        [stored] = await target.stored([KEY])
        assert (stored.number, stored.recent) == (8, ("3:b", "3:c", "3:d"))
        assert stored.effects == (RICH.effects[1], effect(8, 0))
        assert stored.state == RICH.state
        assert stored.timers == TIMERS

    async def test_a_restored_key_is_due_at_its_time(self, target: TransferableState) -> None:
        await target.restore(CHECKPOINTS)
        assert await target.due(RICH.due, 10, 60.0) == []
        assert await target.due(RICH.due + 1, 10, 60.0) == [KEY]

    async def test_streams_with_timers_or_effects_do_not_expire_and_the_others_do(
        self, target: TransferableState
    ) -> None:
        await target.restore(CHECKPOINTS)
        assert await target.expire(0.0, AT) == (0, 0)
        assert await target.expire(0.0, AT + 1) == (0, 1)
        [left] = await target.stored(["s/large"])
        assert left == Checkpoint("s/large", epoch=2, number=1, commit_id="c")

    async def test_a_known_key_keeps_what_it_has(self, target: TransferableState) -> None:
        opened = await target.open(KEY, 0, "member-b")
        await target.restore([RICH, CHECKPOINTS[1]])
        assert await target.stored([KEY]) == [opened]
        assert await target.stored(["s/bare"]) == [CHECKPOINTS[1]]
        await target.restore([Checkpoint("s/bare", epoch=9)])
        assert await target.stored(["s/bare"]) == [CHECKPOINTS[1]]

    async def test_a_restored_checkpoint_keeps_all_its_suspects(self, target: TransferableState) -> None:
        suspects = tuple(Started(f"0:{i}", i + 1, i) for i in range(SUSPECTS_MAX))
        many = Checkpoint(KEY, epoch=1, suspects=suspects, recent=tuple(f"0:{i}" for i in range(10_000)))
        await target.restore([many])
        assert await target.stored([KEY]) == [many]

    async def test_a_state_over_the_limit_is_refused(self, target: TransferableState) -> None:
        large = Checkpoint(KEY, epoch=1, state=bytes(target.max_state_bytes + 1))
        with pytest.raises(TooLarge, match="max_state_bytes"):
            await target.restore([large])
        assert await target.stored([KEY]) == []

    async def test_a_state_of_the_largest_size_is_kept(self, target: TransferableState) -> None:
        large = Checkpoint(KEY, epoch=1, state=bytes(target.max_state_bytes))
        await target.restore([large])
        assert await target.stored([KEY]) == [large]

    async def test_a_reader_of_results_goes_on_from_its_cursor(self, target: TransferableState) -> None:
        await target.restore(CHECKPOINTS)
        await target.restore_results(RESULTS[:2])
        await target.restore_results(RESULTS, above=20)
        assert await target.results(0, 10) == RESULTS
        assert await target.results(3, 10) == RESULTS[1:]
        assert await target.results(0, 10, stream="tracks") == [RESULTS[0], RESULTS[2]]
        assert await target.result(KEY, "3:16") == RESULTS[0]
        assert await target.last_cursor() >= 20
        opened = await target.open("s/bare", 1, "member-b")
        await target.commit(next_commit(opened, results=(Result("0:2", b"new"),)))
        [new] = await target.results(8, 10)
        assert new.result.body == b"new"
        assert new.cursor > 20
        assert await target.last_cursor() >= new.cursor

    async def test_cursors_are_above_all_expired_ones(self, target: TransferableState) -> None:
        assert await target.last_cursor() == 0
        far = 1 << 52
        await target.restore_results([], above=far)
        opened = await target.open(KEY, 0, "member-a")
        await target.commit(next_commit(opened, results=(Result("0:1", b"new"),)))
        [new] = await target.results(far, 10)
        assert new.result.body == b"new"

    async def test_a_known_cursor_keeps_its_result(self, target: TransferableState) -> None:
        await target.restore_results(RESULTS)
        await target.restore_results([Logged(3, KEY, 1, Result("0:1", b"other"), AT)])
        assert await target.results(0, 10) == RESULTS

    async def test_restored_results_expire_by_their_own_times(self, target: TransferableState) -> None:
        await target.restore_results(RESULTS)
        assert await target.expire(AT, 0.0) == (0, 0)
        assert await target.expire(AT + 30, 0.0) == (1, 0)
        assert await target.results(0, 10) == RESULTS[1:]
        assert await target.expire(FOREVER, 0.0) == (2, 0)
        assert await target.last_cursor() >= 8


@pytest.mark.asyncio
class QueueTransferConformance:
    """Every promise of :class:`~holdfast.ports.queue.TransferableQueue`. Fixture: ``queue``, new and
    empty."""

    @pytest.fixture
    def target(self, queue: TransferableQueue) -> TransferableQueue:
        return queue

    async def test_all_messages_wait_in_the_order_of_sending(self, target: TransferableQueue) -> None:
        sent = [Outgoing(b"one", {"k": ODD}), Outgoing(b"two", delay_s=LONG_S), Outgoing(b"\0\xff")]
        ids = await target.send(sent)
        [delivery] = await target.receive(1, PATIENCE_S, LONG_S, "node")
        waiting = await target.waiting(10)
        assert [(w.id, w.body, w.attributes) for w in waiting] == [
            (i, m.body, m.attributes) for i, m in zip(ids, sent, strict=True)
        ]
        assert [w.receives for w in waiting] == [1, 0, 0]
        assert waiting[0].number == delivery.number
        assert [w.delay_s > 0 for w in waiting] == [False, True, False]
        assert waiting[1].delay_s <= LONG_S
        assert await target.waiting(2) == waiting[:2] or (await target.waiting(2))[0].id == waiting[0].id
        assert [w.id for w in await target.waiting(10, ids[0])] == ids[1:]
        assert await target.waiting(10, ids[2]) == []

    async def test_deleted_messages_do_not_wait(self, target: TransferableQueue) -> None:
        await target.send([Outgoing(b"%d" % i) for i in range(8)])
        deliveries = await target.receive(5, PATIENCE_S, LONG_S, "node")
        await target.delete([d.receipt for d in deliveries if d.body in (b"0", b"2", b"3")])
        found: list[WaitingMessage] = []
        while page := await target.waiting(2, found[-1].id if found else ""):
            found += page
        assert [w.body for w in found] == [b"1", b"4", b"5", b"6", b"7"]

    async def test_restored_messages_are_delivered_in_their_order(self, target: TransferableQueue) -> None:
        messages = [
            WaitingMessage("x", b"one", {"id": "x", "k": ODD}, receives=2, key=ODD if target.by_key else ""),
            WaitingMessage("y", b"later", {}, delay_s=LONG_S),
            WaitingMessage("z", b"two \0\xff"),
        ]
        await target.restore(messages)
        waiting = await target.waiting(10)
        assert [(w.body, w.attributes, w.receives, w.key) for w in waiting] == [
            (m.body, m.attributes, m.receives, m.key) for m in messages
        ]
        deliveries = await target.receive(3, PATIENCE_S, LONG_S, "node")
        assert [(d.body, d.receives) for d in deliveries] == [(b"one", 3), (b"two \0\xff", 1)]
        assert [d.id for d in deliveries] == [waiting[0].id, waiting[2].id]
        depth = await target.depth()
        assert (depth.ready, depth.in_flight, depth.delayed) == (0, 2, 1)
        assert depth.lag_s < LONG_S
        assert await target.delete([d.receipt for d in deliveries]) == []
        assert [w.body for w in await target.waiting(10)] == [b"later"]

    async def test_messages_are_restored_behind_waiting_ones(self, target: TransferableQueue) -> None:
        await target.restore([WaitingMessage("x", b"%d" % i) for i in range(3)])
        await target.restore([WaitingMessage("x", b"%d" % i) for i in range(3, 6)])
        assert [w.body for w in await target.waiting(10)] == [b"%d" % i for i in range(6)]

    async def test_numbers_are_kept_and_later_ones_are_above(self, target: TransferableQueue) -> None:
        if target.seq_kind == "absent":
            return
        await target.restore([WaitingMessage("7", b"a", number=7), WaitingMessage("9", b"b", number=9)])
        await target.restore([], above=20)
        await target.send([Outgoing(b"c")])
        deliveries = await target.receive(3, PATIENCE_S, LONG_S, "node")
        numbers = [d.number or 0 for d in deliveries]
        assert [d.body for d in deliveries] == [b"a", b"b", b"c"]
        assert numbers[:2] == [7, 9]
        assert numbers[2] > 20
        assert (await target.depth()).lag_s < LONG_S

    async def test_a_number_that_is_taken_is_refused(self, target: TransferableQueue) -> None:
        if target.seq_kind == "absent":
            return
        await target.restore([WaitingMessage("7", b"a", number=7)])
        with pytest.raises(OperationRefused, match="7"):
            await target.restore([WaitingMessage("7", b"b", number=7)])
        assert [w.body for w in await target.waiting(10)] == [b"a"]

    async def test_a_body_over_the_limit_is_refused(self, target: TransferableQueue) -> None:
        with pytest.raises(TooLarge, match=str(target.max_bytes)):
            await target.restore(
                [WaitingMessage("x", b"fits"), WaitingMessage("y", bytes(target.max_bytes + 1))]
            )
        assert await target.waiting(10) == []

    async def test_restored_dead_letters_keep_the_times_they_had(self, target: TransferableQueue) -> None:
        await target.restore_dead_letters(DEAD_LETTERS)
        assert await target.dead_letters(10) == DEAD_LETTERS
        await target.restore_dead_letters([msgspec.structs.replace(DEAD_LETTERS[0], reason="other", at=1.0)])
        assert await target.dead_letters(10) == DEAD_LETTERS
        assert await target.expire(AT + 0.5) == 1
        assert await target.redrive(["b"]) == 1
        assert (await target.depth()).ready == 1


@pytest.mark.asyncio
class TasksTransferConformance:
    """Every promise of :class:`~holdfast.ports.tasks.TransferableTasks`. Fixture: ``tasks``, new and
    empty."""

    @pytest.fixture
    def target(self, tasks: TaskStore) -> TransferableTasks:
        return cast("TransferableTasks", tasks)

    async def test_restored_records_are_unchanged(self, target: TransferableTasks) -> None:
        await target.restore(TASKS)
        assert await target.list(10) == sorted(TASKS, key=lambda task: task.task_id.encode())
        for task in TASKS:
            assert await target.get(task.task_id) == task
        assert await target.counts() == {(task.type, task.state): 1 for task in TASKS}

    async def test_a_known_task_stays_as_it_is(self, target: TransferableTasks) -> None:
        await target.restore(TASKS)
        await target.restore([Task(TASK.task_id, "other")])
        assert await target.get(TASK.task_id) == TASK

    async def test_a_restored_task_keeps_its_message_and_its_tries(self, target: TransferableTasks) -> None:
        await target.restore(TASKS)
        [due] = await target.due(0.0, 10, 60.0)
        assert due.task_id == "delayed"
        assert due.message == b"\0\xff"
        await target.messages_sent(["delayed"])
        assert await target.due(3600.0, 10, 60.0) == []
        lost = msgspec.structs.replace(TASK, task_id="lost", cancel="", members="", effects=b"", until=1.0)
        await target.restore([lost])
        [begun] = await target.start([wish("lost")])
        assert begun.epoch > lost.epoch
        assert begun.attempts == lost.attempts + 1

    async def test_restored_tasks_expire_by_their_own_times(self, target: TransferableTasks) -> None:
        old = [Task(f"t{i}", "x", State.SUCCEEDED, queued_at=AT, ended_at=AT + 60 * i) for i in range(1, 3)]
        await target.restore(old)
        assert await target.expire(AT + 61) == 1
        assert await target.list(10) == old[1:]
