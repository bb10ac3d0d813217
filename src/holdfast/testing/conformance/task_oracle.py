"""A task store against the rules of a task's life: the same random operations, the same answers.

Inherit, make the store, and let Hypothesis look for a difference::

    class MyTaskMachine(TaskMachine):
        async def make(self) -> MyTasks:
            return await MyTasks.connect("my://...")

    TestMyTasks = MyTaskMachine.TestCase

Needs pytest and Hypothesis.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

import msgspec
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from holdfast.errors import Fenced
from holdfast.ports.tasks import TaskStore
from holdfast.rules.tasks import task as rules
from holdfast.rules.tasks.task import (
    Answer,
    AttemptBeat,
    BriefSent,
    CancelTask,
    CountMember,
    DelayTask,
    EffectsLeft,
    EndAttempt,
    MessageSent,
    QueueTask,
    ResendEffects,
    ResetTask,
    ReturnAttempt,
    StartAttempt,
    State,
    Task,
    TaskChange,
    judge,
)

T = TypeVar("T")

FOREVER = 1e11
"""A wall time that no clock reaches."""

IDS = ("a", "b/c:d", "käse \N{SNOWMAN}", "batch ü")

texts = st.text(st.characters(exclude_categories=("Cs", "Cc")), max_size=8)
task_ids = st.sampled_from(IDS[:3])
types = st.sampled_from(("report.publish", "t ü"))
leases = st.sampled_from((3600.0, 3600.0, 0.0))
"""A lease that lasts, or one that has ended at the next request."""

off = st.sampled_from((0, 0, 0, 0, -1, 1))
"""By how much a request differs from the right epoch: mostly not at all."""

changes: st.SearchStrategy[TaskChange] = st.one_of(
    st.builds(QueueTask, st.builds(Task, task_id=task_ids, type=types, group=texts)),
    st.builds(
        DelayTask,
        task_id=task_ids,
        type=types,
        delay_s=st.sampled_from((0.0, 3600.0)),
        message=st.binary(max_size=9),
        group=texts,
    ),
    st.builds(MessageSent, task_ids),
    st.builds(
        StartAttempt,
        task_id=task_ids,
        type=types,
        member=st.sampled_from(("member-a", "member-b")),
        node=st.sampled_from(("node-1", "node \N{SNOWMAN}")),
        tries=st.integers(1, 3),
        lease_s=leases,
        group=texts,
        follow_ups=st.binary(max_size=9),
    ),
    st.builds(
        AttemptBeat,
        task_id=task_ids,
        epoch=off,
        lease_s=leases,
        progress=st.floats(0, 1, allow_subnormal=False),
        note=texts,
        member=st.sampled_from(("", "member-c")),
    ),
    st.builds(
        ReturnAttempt,
        task_id=task_ids,
        epoch=off,
        spent=st.booleans(),
        detail=texts,
        pause_s=st.sampled_from((0.0, 3600.0)),
    ),
    st.builds(
        EndAttempt,
        task_id=task_ids,
        epoch=off,
        state=st.sampled_from(sorted(rules.ENDED)),
        result=st.binary(max_size=9),
        detail=texts,
        effects=st.binary(max_size=9),
        stored=st.binary(max_size=9),
    ),
    st.builds(
        CountMember,
        task_id=st.just("batch ü"),
        size=st.just(3),
        place=st.integers(-1, 3),
        failed=st.booleans(),
        follow_ups=st.binary(max_size=9),
    ),
    st.builds(BriefSent, task_ids, off),
    st.builds(EffectsLeft, task_id=task_ids, epoch=off, effects=st.binary(max_size=9)),
    st.builds(
        ResendEffects,
        task_id=task_ids,
        effects=st.binary(min_size=1, max_size=9),
        instead_of=st.sampled_from((b"", b"\x00")),
    ),
    st.builds(CancelTask, task_ids, texts),
    st.builds(ResetTask, task_ids),
)


class TaskMachine(RuleBasedStateMachine):
    """Sends a store and the rules the same right and wrong requests; compares their answers and contents."""

    def __init__(self) -> None:
        super().__init__()
        self._runner = asyncio.Runner()
        self._standing: dict[str, Task] = {}
        self._now = 1.0
        self._again: Callable[[], None] = lambda: None

    async def make(self) -> TaskStore:
        """Override: make a fresh, empty store."""
        raise NotImplementedError("define make")

    async def reopen(self, store: TaskStore) -> TaskStore:
        """Override if a store survives its client: close this one and return another client of the same
        store."""
        return store

    @initialize()
    def begin(self) -> None:
        self._store = self._run(self.make())

    @rule(batch=st.lists(changes, min_size=1, max_size=4), same=st.booleans())
    def change(self, batch: list[TaskChange], same: bool) -> None:
        """Make several changes, of one kind or of many, perhaps of one task."""
        kind = type(batch[0])
        self._check([self._aimed(change) for change in batch if not same or type(change) is kind])

    @rule()
    def due(self) -> None:
        """Everything is due; the next caller gets nothing."""
        due = self._run(self._store.due(7200.0, 10, 7200.0))
        held = {task_id for task_id, task in self._standing.items() if task.message}
        assert {task.task_id for task in due} <= held
        for task in due:
            assert timeless(task) == timeless(self._standing[task.task_id])
        assert self._run(self._store.due(7200.0, 10, 3600.0)) == []

    @rule()
    def repeat(self) -> None:
        """Repeat the last request, as after a lost answer."""
        self._again()

    @rule()
    def expire(self) -> None:
        assert self._run(self._store.expire(1.0)) == 0
        kept = {task_id: task for task_id, task in self._standing.items() if task.message}
        assert self._run(self._store.expire(FOREVER)) == len(self._standing) - len(kept)
        self._standing = kept

    @rule(limit=st.integers(1, 3), state=st.none() | st.sampled_from(State), type=st.just("") | types)
    def list_pages(self, limit: int, state: State | None, type: str) -> None:  # noqa: A002
        listed: list[Task] = []
        while page := self._run(
            self._store.list(limit, listed[-1].task_id if listed else "", state=state, type=type)
        ):
            assert len(page) <= limit
            listed += page
        assert [timeless(task) for task in listed] == [
            timeless(task)
            for _, task in sorted(self._standing.items())
            if state in (None, task.state) and type in ("", task.type)
        ]

    @rule()
    def restart(self) -> None:
        self._store = self._run(self.reopen(self._store))

    @rule()
    def transfer(self) -> None:
        """Go on in another store, where this one's tasks can be brought to one."""
        if not hasattr(self._store, "restore"):
            return
        source, target = self._store, self._run(self.make())
        tasks = self._run(source.list(1000))
        self._run(target.restore(tasks))  # type: ignore[attr-defined]
        assert self._run(target.list(1000)) == tasks
        self._run(source.close())
        self._store = target

    @invariant()
    def the_same_is_kept(self) -> None:
        for task_id in IDS:
            found, wanted = self._run(self._store.get(task_id)), self._standing.get(task_id)
            assert (found and timeless(found)) == (wanted and timeless(wanted))
        counts = Counter((task.type, task.state) for task in self._standing.values())
        assert self._run(self._store.counts()) == counts

    def teardown(self) -> None:
        if hasattr(self, "_store"):
            self._run(self._store.close())
        self._runner.close()

    def _check(self, changes: Sequence[TaskChange]) -> None:
        """Send the changes to the store in one call, and to the rules one by one."""

        def check() -> None:
            self._now += 1.0
            answers = self._run(self._store.change(changes))
            for change, answer in zip(changes, answers, strict=True):
                assert answer_of(answer) == self._decide(change, answer)

        self._again = check
        check()

    def _decide(self, change: TaskChange, answer: Answer) -> object:
        """Return the decision of the rules. The epoch of a new attempt comes from the store."""
        try:
            after = judge(self._standing.get(change.task_id), change, self._now)
        except Fenced as refusal:
            return answer_of(refusal)
        if after is not None:
            if after.epoch > self._epoch(change.task_id) and isinstance(answer, Task):
                assert answer.epoch >= after.epoch
                after = msgspec.structs.replace(after, epoch=answer.epoch)
            self._standing[change.task_id] = after
        return answer_of(after)

    def _aimed(self, change: TaskChange) -> TaskChange:
        """Return a change at the present epoch of its task, or at a slightly different one."""
        off = getattr(change, "epoch", None)
        if off is None:
            return change
        return msgspec.structs.replace(change, epoch=self._epoch(change.task_id) + off)

    def _epoch(self, task_id: str) -> int:
        return self._standing[task_id].epoch if task_id in self._standing else 0

    def _run(self, call: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(call)


def answer_of(answer: Answer) -> object:
    """Return an answer in a form that can be compared."""
    if isinstance(answer, Fenced):
        return "fenced at", answer.epoch
    return answer and timeless(answer)


def timeless(task: Task) -> Task:
    """Return a task whose times show only whether they are set."""
    return msgspec.structs.replace(
        task,
        until=float(task.until > 0),
        queued_at=float(task.queued_at > 0),
        started_at=float(task.started_at > 0),
        ended_at=float(task.ended_at > 0),
        send_at=float(task.send_at > 0),
    )
