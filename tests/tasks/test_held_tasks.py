"""What a task in a node's hands is, by its deliveries and by its store."""

import msgspec
import pytest

from holdfast.rules.tasks.task import CancelTask, EndAttempt, State, Task, TaskChange, judge
from holdfast.tasks.body import Body
from holdfast.tasks.completer import dead_letter_of
from holdfast.tasks.held_tasks import HeldTask
from holdfast.tasks.names import STAND_IN
from holdfast.tasks.spec import TaskSpec
from holdfast.tasks.wire import Envelope, SentTask
from tests.cluster.fakes import held

NOW = 100.0
ENDED = Task("t", "kind", State.FAILED, epoch=5, attempts=1, detail="ValueError: no\nline 3")


def in_hand(expires_at: float = NOW + 1, attributes: dict[str, str] | None = None) -> HeldTask:
    message = held(1, expires_at=expires_at)
    message.attributes |= attributes or {}
    sent = SentTask(Envelope(app="app", task_id="t", task_type="kind"), Body(b"{}"))
    return HeldTask("queue", TaskSpec(name="kind", handler=print), sent, message)


@pytest.mark.parametrize(
    "sent_at, stands_in", [("4", True), ("5", False), ("6", False), ("x", False), ("9" * 5000, False)]
)
def test_a_stand_in_is_one_only_for_outcomes_of_later_attempts(sent_at: str, stands_in: bool) -> None:
    assert in_hand(attributes={STAND_IN: sent_at}).is_stand_in(ENDED) == stands_in


def test_a_delivery_is_the_right_to_run_until_it_lapses_or_is_stale() -> None:
    assert not in_hand().lapsed(NOW)
    assert in_hand(expires_at=NOW).lapsed(NOW)
    item = in_hand()
    item.held.receipts[0].stale = True
    assert item.lapsed(NOW)
    item.here = True
    assert not item.lapsed(NOW)


def test_a_task_that_failed_leaves_a_letter_unless_it_was_cancelled() -> None:
    letter = dead_letter_of(in_hand(), ENDED)
    assert letter is not None
    assert (letter.reason, letter.detail) == ("failed: ValueError: no", "line 3")
    waits, runs = Task("t", "kind"), Task("t", "kind", State.RUNNING, epoch=1, attempts=1)
    cancel = CancelTask("t", "not needed")
    cases: list[tuple[Task, list[TaskChange]]] = [
        (waits, [cancel]),
        (runs, [cancel, EndAttempt("t", 1, State.FAILED)]),
        (runs, [EndAttempt("t", 1, State.SUCCEEDED)]),
    ]
    for known, changes in cases:
        ended: Task | None = known
        for change in changes:
            ended = judge(ended, change, NOW)
        assert ended is not None
        assert dead_letter_of(in_hand(), ended) is None


def test_a_task_that_an_older_version_cancelled_while_it_waited_leaves_no_letter() -> None:
    assert dead_letter_of(in_hand(), Task("t", "kind", State.FAILED, detail="cancelled: not needed")) is None


def test_an_error_that_speaks_of_cancelling_leaves_a_letter() -> None:
    letter = dead_letter_of(in_hand(), msgspec.structs.replace(ENDED, detail="cancelled: by the bank"))
    assert letter is not None
    assert letter.reason == "failed: cancelled: by the bank"
