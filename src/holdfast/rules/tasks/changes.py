"""The changes that a task store makes, each judged by one of the rules of tasks.

A store reads the record of the task, has the change judged, and writes the record that stands after it."""

from __future__ import annotations

import msgspec

from holdfast.errors import Fenced
from holdfast.rules.tasks import task as rules
from holdfast.rules.tasks.task import (
    AttemptBeat,
    CountMember,
    DelayTask,
    EffectsLeft,
    EndAttempt,
    ResendEffects,
    ReturnAttempt,
    StartAttempt,
    Task,
)


class QueueTask(msgspec.Struct, frozen=True):
    """The task is sent."""

    task: Task

    @property
    def task_id(self) -> str:
        """Its id."""
        return self.task.task_id


class RestoreTask(QueueTask, frozen=True):
    """The task is written as another store had it, unless it is known."""


class HandOutMessage(msgspec.Struct, frozen=True):
    """The message of a delayed task is handed out if it is to be sent within ``ahead_s``. For ``lease_s``
    after that it isn't handed out again."""

    task_id: str
    ahead_s: float
    lease_s: float


class MessageSent(msgspec.Struct, frozen=True):
    """The message that the store held of a task is in its queue."""

    task_id: str


class BriefSent(msgspec.Struct, frozen=True):
    """The brief of the outcome of ``epoch`` is sent."""

    task_id: str
    epoch: int


class CancelTask(msgspec.Struct, frozen=True):
    """The task is cancelled."""

    task_id: str
    reason: str


class ResetTask(msgspec.Struct, frozen=True):
    """The task is queued again with all its tries."""

    task_id: str


TaskChange = (
    QueueTask
    | RestoreTask
    | DelayTask
    | HandOutMessage
    | MessageSent
    | StartAttempt
    | AttemptBeat
    | ReturnAttempt
    | EndAttempt
    | CountMember
    | BriefSent
    | EffectsLeft
    | ResendEffects
    | CancelTask
    | ResetTask
)

Answer = Task | Fenced | None
"""The record after a change, None if the task isn't known, or Fenced if the change is refused."""

LOSABLE = frozenset({AttemptBeat, MessageSent, BriefSent, EffectsLeft})
"""The changes that a store may lose by a crash: a beat that is lost ends the attempt, and what was sent or
handed over is so again."""


def judge(standing: Task | None, change: TaskChange, now: float) -> Task | None:
    """Return the record after a change; None if the task isn't known. Raises Fenced if it is refused."""
    match change:
        case StartAttempt():
            return rules.start(standing, change, now)
        case EndAttempt():
            return rules.end(standing, change, now)
        case AttemptBeat():
            return rules.beat(standing, change, now)
        case ReturnAttempt():
            return rules.give_back(standing, change, now)
        case RestoreTask(task):
            return standing or task
        case QueueTask(task):
            return rules.queue(standing, task, now)
        case DelayTask():
            return rules.delay(standing, change, now)
        case CountMember():
            return rules.count(standing, change, now)
        case _:
            return standing and _judge_known(standing, change, now)


def _judge_known(
    task: Task,
    change: HandOutMessage | MessageSent | BriefSent | EffectsLeft | ResendEffects | CancelTask | ResetTask,
    now: float,
) -> Task:
    match change:
        case BriefSent(_, epoch):
            return rules.briefed(task, epoch)
        case EffectsLeft():
            return rules.handed_over(task, change)
        case ResendEffects():
            return rules.resend_effects(task, change, now)
        case HandOutMessage(_, ahead_s, lease_s):
            return rules.hand_out(task, ahead_s, lease_s, now)
        case MessageSent():
            return rules.message_sent(task)
        case CancelTask(_, reason):
            return rules.cancel(task, reason, now)
        case _:
            assert isinstance(change, ResetTask)
            return rules.reset(task, now)
