"""What the handler of a stream works at next."""

import pytest

from holdfast.common.message import Place
from holdfast.rules.streams.commands import LoadModels, Run, Start
from holdfast.rules.streams.ledger import RunLog, Timer
from holdfast.rules.streams.standstill import Standstill
from tests.rules.streams.parts import Parts, held


def begun(parts: Parts, seqs: int) -> Run:
    """Messages come, and the first is started and runs."""
    parts.offer(*map(held, range(seqs)))
    parts.runs.plan(0.0, may_begin=True)
    assert parts.out() == [Start(Place(0, 0).name)]
    parts.runs.started(1)
    parts.runs.plan(0.0, may_begin=True)
    [run] = parts.out()
    assert isinstance(run, Run)
    return run


def test_a_head_is_started_before_it_runs() -> None:
    parts = Parts()
    run = begun(parts, 2)
    assert [message.place.seq for message in run.messages] == [0, 1]
    assert parts.runs.mark_next() == Place(0, 0).name
    assert parts.runs.at_risk == Place(0, 0).name


@pytest.mark.parametrize("may_begin, parked, obstacle", [(False, "", ""), (True, "x", ""), (True, "", "x")])
def test_nothing_begins_while_the_stream_must_wait(may_begin: bool, parked: str, obstacle: str) -> None:
    parts = Parts()
    parts.offer(held(0))
    parts.commits.parked, parts.runs.obstacle = parked, obstacle
    parts.runs.plan(0.0, may_begin=may_begin)
    assert parts.out() == []


def test_models_are_loaded_once_before_a_head_is_started() -> None:
    parts = Parts(needs_models=True)
    parts.offer(held(0))
    for _ in range(2):
        parts.runs.plan(0.0, may_begin=True)
    assert parts.out() == [LoadModels()]
    parts.runs.models_loaded()
    parts.runs.plan(0.0, may_begin=True)
    assert parts.out() == [Start(Place(0, 0).name)]


def test_a_failure_costs_its_message_a_try_and_the_ones_before_it_run_again() -> None:
    parts = Parts()
    run = begun(parts, 3)
    parts.runs.failed(1, "Boom", "trace", False, 0.0)
    assert [message.tries for message in run.messages] == [0, 1, 0]
    parts.runs.plan(0.0, may_begin=True)
    [again] = parts.out()
    assert isinstance(again, Run)
    assert (again.messages, again.fresh) == (run.messages[:1], True)


def test_the_death_of_a_slot_makes_suspects_of_all_that_ran() -> None:
    parts = Parts()
    run = begun(parts, 2)
    parts.runs.slot_died(True, "segfault", "", 0.0)
    assert [(message.tries, message.suspect) for message in run.messages] == [(0, True)] * 2


def test_one_that_was_begun_too_often_has_no_tries_left() -> None:
    parts = Parts(max_starts=3)
    message = held(0)
    parts.offer(message)
    parts.runs.plan(0.0, may_begin=True)
    parts.runs.started(4)
    assert message.spent
    assert message.error.startswith("poison: 3 openings")


def test_timers_and_messages_take_turns() -> None:
    parts = Parts({"timers": (Timer("t", 0.0, b"", "1.1"),)})
    parts.commits.parked = ""
    begun(parts, 1)
    parts.runs.ran([None], b"", 1, (), 0.0)
    parts.offer(held(1))
    parts.runs.plan(0.0, may_begin=True)
    parts.commits.compose(0.0, parts.runs.mark_next())
    parts.commits.committed()
    parts.out()
    parts.runs.plan(0.0, may_begin=True)
    [run] = parts.out()
    assert isinstance(run, Run)
    assert [message.place.timer for message in run.messages] == ["t"]


def test_a_stream_that_waits_for_no_message_has_no_standstill() -> None:
    parts = Parts()
    assert parts.runs.standstill(is_held_back=False) is None


def test_the_failed_message_is_found_among_all_that_wait() -> None:
    parts = Parts()
    parts.offer(held(1))
    begun(parts, 1)
    parts.runs.failed(0, "Boom", "", False, 0.0)
    parts.runs.plan(0.0, may_begin=True)
    waits = parts.runs.standstill(is_held_back=False)
    assert isinstance(waits, Standstill)
    assert waits.kind == "retry"


def test_messages_wait_behind_a_missing_one() -> None:
    parts = Parts({"log": RunLog(0, 0, 0)})
    parts.offer(held(2))
    parts.runs.plan(0.0, may_begin=True)
    assert parts.runs.is_gapped
    assert parts.runs.misses
