"""The task store: the records of all tasks of one app, and who may end a task."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, cast

from holdfast.errors import Fenced
from holdfast.ports.queue import Outgoing
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
)


class TaskStore(Protocol):
    """The tasks of one app by task id. A store makes all changes by one method, ``change``, and inherits the
    methods that name the change.

    Every call may raise Unavailable (nothing happened) or OutcomeUnknown; all may be repeated as they are.
    """

    async def change(self, changes: Sequence[TaskChange]) -> list[Answer]:
        """Make changes in order, each as :func:`holdfast.rules.tasks.task.judge` says, and return what
        stands after each. Each is atomic: one that is Fenced doesn't affect others. A store that may have
        lost its last writes gives an attempt a higher epoch than the rule does, one that was never issued
        for the task. One of the ``LOSABLE`` changes may be lost by a crash."""

    async def queue(self, tasks: Sequence[Task]) -> list[Task]:
        """Record tasks as sent; returns the record of each. A known task is unchanged."""
        return cast("list[Task]", await self.change([QueueTask(task) for task in tasks]))

    async def delay(self, wishes: Sequence[DelayTask]) -> list[Task]:
        """Record tasks that may begin later, with the messages that are sent later; returns the record of
        each. A known task is unchanged."""
        return cast("list[Task]", await self.change(wishes))

    async def messages_sent(self, task_ids: Sequence[str]) -> None:
        """Record that the messages of these tasks were sent, so that ``due`` doesn't return them again.
        Unknown ones are ignored."""
        await self.change([MessageSent(task_id) for task_id in task_ids])

    async def start(self, wishes: Sequence[StartAttempt]) -> list[Task]:
        """Begin attempts; returns the new record of each task."""
        return cast("list[Task]", await self.change(wishes))

    async def beat(self, beats: Sequence[AttemptBeat]) -> list[Task | Fenced]:
        """Extend attempts and record their progress; returns the record of each task (check its ``cancel``),
        or Fenced if the attempt is over."""
        return cast("list[Task | Fenced]", await self.change(beats))

    async def give_back(self, returns: Sequence[ReturnAttempt]) -> list[Task | Fenced]:
        """End attempts without an outcome."""
        return cast("list[Task | Fenced]", await self.change(returns))

    async def end(self, ends: Sequence[EndAttempt]) -> list[Task | Fenced]:
        """Record outcomes."""
        return cast("list[Task | Fenced]", await self.change(ends))

    async def count(self, wishes: Sequence[CountMember]) -> list[Task]:
        """Record batches, and that tasks of them have ended; returns the record of each batch."""
        return cast("list[Task]", await self.change(wishes))

    async def briefed(self, sent: Sequence[tuple[str, int]]) -> None:
        """Record (trace, epoch) of outcomes whose briefs were sent. Unknown ones are ignored."""
        await self.change([BriefSent(task_id, epoch) for task_id, epoch in sent])

    async def handed_over(self, left: Sequence[EffectsLeft]) -> None:
        """Record which effects of outcomes are still to be handed over. Unknown tasks are ignored."""
        await self.change(left)

    async def resend_effects(self, wishes: Sequence[ResendEffects]) -> list[Task | None]:
        """Record effects of ended tasks that are to be handed over again; returns the record of each task,
        None for one that isn't known."""
        return cast("list[Task | None]", await self.change(wishes))

    async def cancel(self, task_id: str, reason: str) -> Task | None:
        """Cancel a task; returns its record, or None if it isn't known."""
        [task] = await self.change([CancelTask(task_id, reason)])
        return cast("Task | None", task)

    async def reset(self, task_ids: Sequence[str]) -> list[Task | None]:
        """Queue tasks again with all their tries, except running and succeeded ones; returns the record
        of each, None for one that isn't known."""
        return cast("list[Task | None]", await self.change([ResetTask(task_id) for task_id in task_ids]))

    async def due(self, ahead_s: float, limit: int, lease_s: float) -> list[Task]:
        """Return up to ``limit`` tasks whose messages are to be sent within ``ahead_s``, soonest first. A
        store of several parts keeps that order in each. For ``lease_s`` after that none of them is returned
        again."""

    async def get(self, task_id: str) -> Task | None:
        """Return the record of a task; None if it isn't known."""

    async def list(
        self,
        limit: int,
        after: str = "",
        *,
        state: State | None = None,
        type: str = "",  # noqa: A002 - the task's word for it
        since: float = 0.0,
        down: bool = False,
    ) -> list[Task]:
        """Return tasks in order of trace, after the trace ``after``; with ``down``, in reverse order, before
        that trace. If given, only tasks of one state or type, or queued, started or ended at ``since`` (wall
        time) or later. Traces are compared as UTF-8."""

    async def counts(self) -> dict[tuple[str, State], int]:
        """Return how many tasks of each type are in each state."""

    async def now(self) -> float:
        """Return the wall time of the clock that dates the tasks."""

    async def expire(self, before: float) -> int:
        """Delete tasks that haven't changed since this wall time; returns how many."""

    async def close(self) -> None:
        """Close all connections."""


class BriefingTasks(TaskStore, Protocol):
    """A task store in the database that keeps the queues too."""

    async def end_and_brief(
        self, ends: Sequence[EndAttempt], queue: str, brief: Callable[[Task], Outgoing]
    ) -> list[Task | Fenced]:
        """Record outcomes, and send the brief of each to the queue of this name: both, or neither.

        ``brief`` makes the message from the record with its outcome, and may be called more than once. The
        returned record is ``briefed``, or the message was too large for the queue and wasn't sent. An outcome
        that was briefed before isn't again."""


class TransferableTasks(TaskStore, Protocol):
    """A task store whose records can be written as they are."""

    async def restore(self, tasks: Sequence[Task]) -> None:
        """Write tasks as another store had them. A task that this store knows stays unchanged. Later epochs
        of a task are above that of its record."""
