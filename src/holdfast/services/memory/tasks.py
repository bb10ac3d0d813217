"""The task store in memory: the rules of tasks make every decision, and all are recorded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from holdfast.errors import Fenced
from holdfast.ports.clock import Clock
from holdfast.ports.queue import Outgoing
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
    HandOutMessage,
    MessageSent,
    QueueTask,
    ResendEffects,
    ResetTask,
    RestoreTask,
    ReturnAttempt,
    StartAttempt,
    State,
    Task,
    TaskChange,
    judge,
)
from holdfast.services.memory.queue import MemoryQueue
from holdfast.services.memory.state import LossRecord

CALLS = {
    QueueTask: "queue",
    RestoreTask: "restore",
    DelayTask: "delay",
    HandOutMessage: "due",
    MessageSent: "messages_sent",
    StartAttempt: "start",
    AttemptBeat: "beat",
    ReturnAttempt: "give_back",
    EndAttempt: "end",
    CountMember: "count",
    BriefSent: "briefed",
    EffectsLeft: "handed_over",
    ResendEffects: "resend_effects",
    CancelTask: "cancel",
    ResetTask: "reset",
}
"""The port's call that makes each change."""


class Changed(msgspec.Struct, frozen=True):
    """An attempt to change a task by the port's ``call``. ``before`` stood; ``after`` stands now, or None: it
    was refused."""

    at: float
    call: str
    task_id: str
    before: Task | None
    after: Task | None


class MemoryTasks(TaskStore):
    """The tasks of one app, for all nodes and producers.

    Args:
        clock: its time.
        history: where attempts go; share one list between services to have one order of all events.
        queues: the queues in the same database, by name.
    """

    def __init__(
        self,
        clock: Clock,
        *,
        history: list[Any] | None = None,
        queues: Mapping[str, MemoryQueue] | None = None,
    ) -> None:
        self.history: list[Any] = [] if history is None else history
        self.standing: dict[str, Task] = {}
        self._clock = clock
        self._queues = {} if queues is None else queues
        self._issued: dict[str, int] = {}

    # --- changes

    async def change(self, changes: Sequence[TaskChange]) -> list[Answer]:
        now = self._clock.wall()
        return [self._change(change, now) for change in changes]

    async def due(self, ahead_s: float, limit: int, lease_s: float) -> list[Task]:
        before = self._clock.wall() + ahead_s
        due = [task for task in self.standing.values() if task.message and task.send_at <= before]
        due.sort(key=lambda task: (task.send_at, task.task_id))
        answers = await self.change([HandOutMessage(task.task_id, ahead_s, lease_s) for task in due[:limit]])
        return [task for task in answers if isinstance(task, Task)]

    async def end_and_brief(
        self, ends: Sequence[EndAttempt], queue: str, brief: Callable[[Task], Outgoing]
    ) -> list[Task | Fenced]:
        answers: list[Task | Fenced] = []
        for end in ends:
            try:  # before the outcome is stored: it isn't if its outcome event can't be made
                ended = judge(self.standing.get(end.task_id), end, self._clock.wall())
                message = None if ended is None or ended.briefed else brief(ended)
            except Fenced:
                message = None
            [answer] = await self.end([end])
            if message is not None and len(message.body) <= self._queues[queue].max_bytes:
                await self._queues[queue].send([message])
                await self.briefed([(end.task_id, end.epoch)])
                answer = self.standing[end.task_id]
            answers.append(answer)
        return answers

    # --- reading

    async def get(self, task_id: str) -> Task | None:
        return self.standing.get(task_id)

    async def list(
        self,
        limit: int,
        after: str = "",
        *,
        state: State | None = None,
        type: str = "",  # noqa: A002 - the port's
        since: float = 0.0,
        down: bool = False,
    ) -> list[Task]:
        found = [
            task
            for task_id, task in sorted(self.standing.items(), reverse=down)
            if ((not after or task_id < after) if down else task_id > after)
            and state in (None, task.state)
            and type in ("", task.type)
            and task.moved_at >= since
        ]
        return found[:limit]

    async def counts(self) -> dict[tuple[str, State], int]:
        return dict(Counter((task.type, task.state) for task in self.standing.values()))

    async def now(self) -> float:
        return self._clock.wall()

    async def expire(self, before: float) -> int:
        expired = [task_id for task_id, task in self.standing.items() if rules.expired(task, before)]
        for task_id in expired:
            del self.standing[task_id]
            self._issued.pop(task_id, None)
        return len(expired)

    async def restore(self, tasks: Sequence[Task]) -> None:
        await self.change([RestoreTask(task) for task in tasks])

    async def close(self) -> None:
        pass

    def rewind(self, seconds: float) -> None:
        """Forget the last changes, as where a server's replica takes over. No epoch is issued again."""
        now = self._clock.monotonic()
        since = now - seconds
        for event in reversed(self.history):
            if isinstance(event, LossRecord) or (isinstance(event, Changed) and event.at < since):
                break
            if not isinstance(event, Changed) or event.after is None:
                continue
            if event.before is None:
                self.standing.pop(event.task_id, None)
            else:
                self.standing[event.task_id] = event.before
        self.history.append(LossRecord(now, since))

    def _change(self, change: TaskChange, now: float) -> Answer:
        before, at = self.standing.get(change.task_id), self._clock.monotonic()
        call = CALLS[type(change)]
        try:
            after = judge(before, change, now)
        except Fenced as refusal:
            self.history.append(Changed(at, call, change.task_id, before, None))
            return refusal
        if after is None:
            return None
        if after.epoch > (before.epoch if before else 0):
            epoch = self._issued[change.task_id] = max(after.epoch, self._issued.get(change.task_id, 0) + 1)
            after = msgspec.structs.replace(after, epoch=epoch)
        self.standing[change.task_id] = after
        self.history.append(Changed(at, call, change.task_id, before, after))
        return after
