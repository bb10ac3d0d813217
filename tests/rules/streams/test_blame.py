"""Which head is to blame if an opening ends with its node."""

from typing import Any

import pytest

from holdfast.common.message import TIMER_RUN, Place
from holdfast.rules.streams.blame import ALONE_OPENINGS, NOTHING, Blame
from holdfast.rules.streams.commands import Start
from holdfast.rules.streams.ledger import Checkpoint, Started
from tests.rules.streams.parts import KEY, held

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
    assert blame.start(Place(0, 0)) == Start(name(0))


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
    assert blame.start(Place(0, 3)) == Start(name(3), alone=alone, last=last)


@pytest.mark.parametrize("openings", [ALONE_OPENINGS, 4])
def test_to_mark_that_nothing_runs_waits_for_no_other_suspect(openings: int) -> None:
    blame = opened(suspects=(Started(NOTHING.name, openings), Started(name(3), 1)))
    assert blame.start(NOTHING) == Start(NOTHING.name)


def test_openings_that_the_node_has_outlived_do_not_count() -> None:
    blame = opened(survived={name(3): 2, name(9): 7}, suspects=(Started(name(3), 3),))
    assert blame.begun == {name(3): 1}
    assert blame.survived == {name(3): 2}, "the other head isn't begun any more"
    blame.start(Place(0, 3))
    assert blame.started(4) == (Place(0, 3), 2)


def test_a_suspect_runs_only_once_it_is_counted_itself() -> None:
    blame, message = opened(started=Started(name(0), 1)), held(0)
    assert not blame.is_marked(message, None, suspect=True)
    blame.start(message.place)
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
        blame.start(message.place)
        blame.started(openings + 1)
        assert blame.waits_in_last_turn() is not gives_up
        blame.give_up_turn(message)
        assert (blame.suspect, blame.counted) == ((name(0), None) if gives_up else ("", message.place))
