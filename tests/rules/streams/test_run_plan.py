"""What the handler of a stream works at next, and which head is to blame for a death."""

from typing import Any

import pytest

from holdfast.common.message import TIMER_RUN, Place
from holdfast.rules.streams.commands import LoadModels, Run, Start
from holdfast.rules.streams.ledger import Checkpoint, RunLog, Started, Timer
from holdfast.rules.streams.run_plan import ALONE_OPENINGS, NOTHING, Blame
from holdfast.rules.streams.wait_reason import WaitReason
from tests.rules.streams.parts import KEY, Parts, held


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
    parts.commits.compose(0.0, parts.runs.next_head)
    commit, _, _ = parts.commits.committed()
    parts.blame.committed(commit.starting)
    parts.out()
    parts.runs.plan(0.0, may_begin=True)
    [run] = parts.out()
    assert isinstance(run, Run)
    assert [message.place.timer for message in run.messages] == ["t"]


def test_a_stream_that_waits_for_no_message_has_no_standstill() -> None:
    parts = Parts()
    assert parts.runs.wait_reason(is_held_back=False) is None


def test_the_failed_message_is_found_among_all_that_wait() -> None:
    parts = Parts()
    parts.offer(held(1))
    begun(parts, 1)
    parts.runs.failed(0, "Boom", "", False, 0.0)
    parts.runs.plan(0.0, may_begin=True)
    waits = parts.runs.wait_reason(is_held_back=False)
    assert isinstance(waits, WaitReason)
    assert waits.kind == "retry"


def test_messages_wait_behind_a_missing_one() -> None:
    parts = Parts({"log": RunLog(0, 0, 0)})
    parts.offer(held(2))
    parts.runs.plan(0.0, may_begin=True)
    assert parts.runs.is_gapped
    assert parts.runs.misses


REACH = 2


def opened(*, survived: dict[str, int] | None = None, max_starts: int = 5, **checkpoint: Any) -> Blame:
    blame = Blame(max_starts, survived)
    blame.opened(Checkpoint(KEY, **checkpoint), REACH)
    return blame


def name(seq: int) -> str:
    return Place(0, seq).name


def test_without_a_mark_no_message_is_suspected() -> None:
    blame = opened()
    assert not blame.is_suspect(held(0))
    assert blame.start(Place(0, 0), name(0)) == Start(name(0))


def test_behind_a_mark_as_many_messages_are_suspects_as_it_reaches() -> None:
    blame = opened(started=Started(name(0), 1))
    suspects = []
    for seq in range(5, 9):
        suspects.append(blame.is_suspect(held(seq)))
        blame.cautious = max(0, blame.cautious - 1)
    assert suspects == [True] * REACH + [False] * 2


@pytest.mark.parametrize(
    "openings, alone, last", [(1, False, False), (ALONE_OPENINGS, True, False), (4, True, True)]
)
def test_a_head_that_was_begun_often_runs_alone_and_then_for_the_last_time(
    openings: int, alone: bool, last: bool
) -> None:
    blame = opened(suspects=(Started(name(3), openings),))
    assert blame.start(Place(0, 3), name(3)) == Start(name(3), alone=alone, last=last)


@pytest.mark.parametrize("openings", [ALONE_OPENINGS, 4])
def test_to_mark_that_nothing_runs_waits_for_no_other_suspect(openings: int) -> None:
    blame = opened(suspects=(Started(NOTHING.name, openings), Started(name(3), 1)))
    assert blame.start(NOTHING, NOTHING.name) == Start(NOTHING.name)


def test_openings_that_the_node_has_outlived_do_not_count() -> None:
    blame = opened(survived={name(3): 2, name(9): 7}, suspects=(Started(name(3), 3),))
    assert blame.begun == {name(3): 1}
    assert blame.survived == {name(3): 2}, "the other head isn't begun any more"
    blame.start(Place(0, 3), name(3))
    assert blame.started(4) == (Place(0, 3), 2)


def test_a_suspect_runs_only_once_it_is_counted_itself() -> None:
    blame, message = opened(started=Started(name(0), 1)), held(0)
    assert not blame.is_marked(message, None, suspect=True)
    blame.start(message.place, message.place.name)
    blame.started(2)
    assert blame.is_marked(message, None, suspect=True)
    blame.committed("")
    assert not blame.is_marked(message, None, suspect=True)


def test_a_message_runs_under_any_mark_of_a_message_and_a_timer_under_its_own() -> None:
    blame, message, other = opened(), held(1), held(2)
    timer = held(0, run=TIMER_RUN)
    blame.committed(message.place.name)
    assert blame.is_marked(other, None, suspect=False)
    assert not blame.is_marked(other, "", suspect=False), "the commit in flight takes the mark away"
    assert not blame.is_marked(timer, None, suspect=False)
    blame.committed(timer.place.name)
    assert blame.is_marked(timer, timer.place.name, suspect=False)
    assert not blame.is_marked(other, None, suspect=False)


def test_a_mark_that_was_found_is_not_this_opening_s_own() -> None:
    blame = opened(started=Started(name(0), 1))
    blame.committed(name(0))
    assert blame.marked == ""


def test_a_head_that_waits_for_a_model_gives_up_its_turn_unless_it_is_its_last() -> None:
    for openings, gives_up in ((1, True), (4, False)):
        blame, message = opened(started=Started(name(0), openings)), held(0)
        blame.start(message.place, message.place.name)
        blame.started(openings + 1)
        assert blame.waits_in_last_turn() is not gives_up
        blame.give_up_turn(message)
        assert (blame.suspect, blame.counted) == ((name(0), None) if gives_up else ("", message.place))
