"""What follows for a task whose attempt has ended."""

from __future__ import annotations

import pytest

from holdfast.rules.tasks.attempt import HANDED_ON, PAUSES_MAX, AttemptEnd, How, NextStep, Stop, judge
from holdfast.rules.tasks.task import State, Task

TRIES = 3
FIRST = Task("t", "kind", State.RUNNING, epoch=1, attempts=1)
LAST = Task("t", "kind", State.RUNNING, epoch=3, attempts=TRIES)
RAISED = AttemptEnd(How.RAISED, "ValueError: no", "line 3")
ASKED = AttemptEnd(How.RAISED, "to be tried again after 5 s", pause_s=5.0)
NOT_BEGUN = AttemptEnd(How.CANCELLED, "its node stops", begun=False)


def test_a_value_that_was_returned_is_the_task_s_success() -> None:
    assert judge(AttemptEnd(How.RETURNED), LAST, TRIES)[:2] == (NextStep.SUCCEEDED, State.SUCCEEDED)


@pytest.mark.parametrize("stop", [Stop.CANCELLED, *sorted(HANDED_ON, key=str)])
def test_a_value_counts_though_its_attempt_was_asked_to_end(stop: Stop) -> None:
    assert judge(AttemptEnd(How.RETURNED), FIRST, TRIES, stop).step is NextStep.SUCCEEDED


@pytest.mark.parametrize("how", How)
def test_nothing_counts_of_an_attempt_whose_delivery_lapsed(how: How) -> None:
    assert judge(AttemptEnd(how, pause_s=1.0), FIRST, TRIES, Stop.LAPSED).step is NextStep.LAPSE


@pytest.mark.parametrize("how", [How.RAISED, How.TIMED_OUT, How.DIED])
def test_a_failure_is_tried_again_while_there_are_tries(how: How) -> None:
    assert judge(AttemptEnd(how, "no"), FIRST, TRIES) == (NextStep.RETRY, State.QUEUED, "no")
    assert judge(AttemptEnd(how, "no"), LAST, TRIES).step is NextStep.FAIL


def test_a_task_that_fails_says_why_and_whether_its_time_was_over() -> None:
    assert judge(RAISED, LAST, TRIES) == (NextStep.FAIL, State.FAILED, "ValueError: no\nline 3")
    assert judge(AttemptEnd(How.TIMED_OUT, "late"), LAST, TRIES) == (NextStep.FAIL, State.TIMEOUT, "late")


def test_a_failure_that_no_retry_can_help_is_the_last() -> None:
    assert judge(AttemptEnd(How.RAISED, "no", permanent=True), FIRST, TRIES).step is NextStep.FAIL


@pytest.mark.parametrize("stop", sorted(HANDED_ON, key=str))
@pytest.mark.parametrize("how", [How.RAISED, How.CANCELLED, How.TIMED_OUT, How.DIED])
def test_an_attempt_that_is_handed_on_spends_no_try(stop: Stop, how: How) -> None:
    assert judge(AttemptEnd(how, permanent=True), LAST, TRIES, stop).step is NextStep.RETURN


@pytest.mark.parametrize("stop", [None, Stop.CANCELLED])
def test_an_attempt_that_never_began_spends_no_try(stop: Stop | None) -> None:
    assert judge(NOT_BEGUN, LAST, TRIES, stop).step is NextStep.RETURN


@pytest.mark.parametrize("how", [How.RAISED, How.CANCELLED, How.TIMED_OUT, How.DIED])
def test_a_task_that_is_cancelled_ends_by_that_however_its_attempt_ends(how: How) -> None:
    assert judge(AttemptEnd(how), FIRST, TRIES, Stop.CANCELLED)[:2] == (NextStep.CANCEL, State.FAILED)
    assert judge(ASKED, FIRST, TRIES, Stop.CANCELLED).step is NextStep.CANCEL


@pytest.mark.parametrize("stop", [None, *sorted(HANDED_ON, key=str)])
def test_an_attempt_may_ask_for_a_pause_and_spends_no_try(stop: Stop | None) -> None:
    assert judge(ASKED, LAST, TRIES, stop) == (NextStep.PAUSE, State.QUEUED, ASKED.error)


def test_what_asks_for_too_many_pauses_has_failed() -> None:
    tired = Task("t", "kind", State.RUNNING, epoch=1, attempts=1, pauses=PAUSES_MAX)
    step, _, detail = judge(ASKED, tired, TRIES)
    assert step is NextStep.RETRY
    assert detail == f"{ASKED.error}; it has used all its {PAUSES_MAX} pauses"
    assert judge(ASKED, tired, TRIES, Stop.DRAIN).step is NextStep.RETURN
