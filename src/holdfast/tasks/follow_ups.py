"""Follow-ups: the tasks that are sent once another has ended.

They travel in its message, and are in its record from the beginning of each attempt, so they are stored with
the outcome in one write. They are sent before the outcome event: the receiver of a message of an ended task
whose event was never sent sends its follow-ups. Their ids are made of the task and the epoch of its outcome,
so a second sending makes no second task."""

from __future__ import annotations

import msgspec

from holdfast.rules.tasks.task import Task
from holdfast.tasks.names import follow_up_id
from holdfast.tasks.outcome import RESULT_BYTES_MAX, Outcome
from holdfast.tasks.wire import Envelope, SentTask, decode_follow_ups, encode_event

DETAIL_CHARS = 1000
"""The most characters of a reason in a follow-up, or in an outcome event that was too large."""

AFTER_BYTES_MAX = RESULT_BYTES_MAX * 4 // 3 + (10 << 10)
"""The most bytes that the outcome of the task before adds to the message of a follow-up."""


class DueFollowUp(msgspec.Struct, frozen=True):
    """A follow-up that is due, with its task id. It may begin after ``delay_s`` seconds. ``traceparent``
    is the place in a trace of the task before it."""

    task: SentTask
    delay_s: float = 0.0
    traceparent: str = ""

    @property
    def task_id(self) -> str:
        """Its task id."""
        return self.task.envelope.task_id

    @property
    def type(self) -> str:
        """Its type."""
        return self.task.envelope.task_type


def due(task: Task, outcome: Outcome, message: SentTask, traceparent: str = "") -> list[DueFollowUp]:
    """Return the follow-ups of an outcome. If its event was sent, they were sent before. ``message`` counts
    for a task that ended before an attempt had begun."""
    if task.briefed:
        return []
    stored = task.attempts or task.members
    known = decode_follow_ups(task.follow_ups, outcome.app) if stored else message.follow_ups
    handed, after = [], b""
    for place, each in enumerate(known):
        if each.on_failure is not outcome.ok:
            after = after or event_of(outcome)
            envelope = each.task.envelope
            if not envelope.task_id:
                task_id = follow_up_id(envelope.task_type, task.task_id, task.epoch, place)
                envelope = msgspec.structs.replace(envelope, task_id=task_id)
            handed.append(
                DueFollowUp(
                    msgspec.structs.replace(each.task, envelope=envelope, after=after),
                    each.delay_s,
                    traceparent,
                )
            )
    return handed


def without_value(follow_up: DueFollowUp, outcome: Outcome, why: Exception) -> DueFollowUp:
    """Return a follow-up without the value of the task before it, which its queue can't take."""
    detail = f"its value is left out: {why}"
    after = event_of(msgspec.structs.replace(outcome, value=None, stored=None, detail=detail))
    return msgspec.structs.replace(follow_up, task=msgspec.structs.replace(follow_up.task, after=after))


def event_of(outcome: Outcome) -> bytes:
    """Return the outcome event that a follow-up carries."""
    envelope = Envelope(app=outcome.app, task_id=outcome.task_id, task_type=outcome.task_type)
    return encode_event(envelope, msgspec.structs.replace(outcome, detail=outcome.detail[:DETAIL_CHARS]))
