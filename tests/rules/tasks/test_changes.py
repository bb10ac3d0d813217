"""Each change of a task is judged by its rule."""

from __future__ import annotations

from typing import get_args

import pytest

from holdfast.errors import Fenced
from holdfast.rules.tasks import task as rules
from holdfast.rules.tasks.changes import (
    LOSABLE,
    BriefSent,
    CancelTask,
    HandOutMessage,
    MessageSent,
    QueueTask,
    ResetTask,
    RestoreTask,
    TaskChange,
    judge,
)
from holdfast.rules.tasks.task import (
    BATCH,
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

NOW = 100.0
START = StartAttempt("k", "t", "member", "node", 3, 10.0)
QUEUED = Task("k", "t", queued_at=NOW)
RUNNING = rules.start(QUEUED, START, NOW)
SUCCEEDED = rules.end(RUNNING, EndAttempt("k", 1, State.SUCCEEDED, effects=b"e"), NOW)
BRIEFED = rules.briefed(SUCCEEDED, 1)
DELAYED = rules.delay(None, DelayTask("k", "t", 50.0, b"m"), NOW)

OF_KNOWN: list[TaskChange] = [
    HandOutMessage("k", 1.0, 1.0), MessageSent("k"), BriefSent("k", 1), EffectsLeft("k", 1),
    ResendEffects("k", b"e"), CancelTask("k", "enough"), ResetTask("k"),
]  # fmt: skip

JUDGED: list[tuple[Task | None, TaskChange, Task]] = [
    (None, QueueTask(Task("k", "t")), QUEUED),
    (QUEUED, QueueTask(Task("k", "other")), QUEUED),
    (None, RestoreTask(SUCCEEDED), SUCCEEDED),
    (QUEUED, RestoreTask(SUCCEEDED), QUEUED),
    (None, DelayTask("k", "t", 50.0, b"m"), DELAYED),
    (DELAYED, HandOutMessage("k", 60.0, 5.0), rules.hand_out(DELAYED, 60.0, 5.0, NOW)),
    (DELAYED, MessageSent("k"), rules.message_sent(DELAYED)),
    (QUEUED, START, RUNNING),
    (RUNNING, AttemptBeat("k", 1, 9.0), rules.beat(RUNNING, AttemptBeat("k", 1, 9.0), NOW)),
    (
        RUNNING,
        ReturnAttempt("k", 1, spent=True),
        rules.give_back(RUNNING, ReturnAttempt("k", 1, spent=True), NOW),
    ),
    (RUNNING, EndAttempt("k", 1, State.SUCCEEDED, effects=b"e"), SUCCEEDED),
    (None, CountMember("b", 2), Task("b", BATCH, queued_at=NOW, members="00", started_at=NOW)),
    (SUCCEEDED, BriefSent("k", 1), BRIEFED),
    (SUCCEEDED, EffectsLeft("k", 1), rules.handed_over(SUCCEEDED, EffectsLeft("k", 1))),
    (
        BRIEFED,
        ResendEffects("k", b"f", b"e"),
        rules.resend_effects(BRIEFED, ResendEffects("k", b"f", b"e"), NOW),
    ),
    (QUEUED, CancelTask("k", "enough"), rules.cancel(QUEUED, "enough", NOW)),
    (rules.cancel(QUEUED, "enough", NOW), ResetTask("k"), Task("k", "t", epoch=1, queued_at=NOW)),
]


@pytest.mark.parametrize(
    "standing, change, after", JUDGED, ids=[type(change).__name__ for _, change, _ in JUDGED]
)
def test_a_change_leaves_what_its_rule_says(standing: Task | None, change: TaskChange, after: Task) -> None:
    assert judge(standing, change, NOW) == after


def test_every_change_has_a_rule() -> None:
    assert {type(change) for _, change, _ in JUDGED} == {*get_args(TaskChange)}


@pytest.mark.parametrize("change", OF_KNOWN, ids=lambda change: type(change).__name__)
def test_a_task_that_is_unknown_stays_so(change: TaskChange) -> None:
    assert judge(None, change, NOW) is None


@pytest.mark.parametrize(
    "change", [AttemptBeat("k", 2, 9.0), ReturnAttempt("k", 2, spent=False), EndAttempt("k", 2, State.FAILED)]
)
def test_an_attempt_that_is_over_changes_nothing(change: TaskChange) -> None:
    with pytest.raises(Fenced):
        judge(RUNNING, change, NOW)


def test_no_outcome_may_be_lost() -> None:
    assert not LOSABLE & {EndAttempt, StartAttempt, QueueTask, DelayTask, CountMember, ResendEffects}


def test_a_change_names_its_task() -> None:
    assert QueueTask(QUEUED).task_id == RestoreTask(QUEUED).task_id == "k"
