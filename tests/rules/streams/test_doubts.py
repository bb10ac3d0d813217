"""When an owner reads the store to see whether it still knows its commits."""

from holdfast.rules.streams.doubts import Doubts
from holdfast.rules.streams.sequencer import Verdict
from tests.rules.streams.parts import held


def test_one_read_decides_all_deliveries_that_came_before_it() -> None:
    doubts, first, second = Doubts(), held(1), held(2)
    for message in (first, second):
        doubts.covered[message.place] = message, Verdict.DONE
    assert doubts.look(3)
    assert doubts.answered() == [(first, Verdict.DONE), (second, Verdict.DONE)]
    assert not doubts.looks_again


def test_a_delivery_during_a_read_needs_another_one() -> None:
    doubts, message = Doubts(), held(1)
    doubts.covered[message.place] = message, Verdict.DONE
    assert doubts.doubt(message.place, 3)
    assert not doubts.doubt(message.place, 3), "a read is under way"
    assert doubts.answered() == []
    assert doubts.looks_again


def test_a_change_during_a_read_needs_another_one() -> None:
    doubts = Doubts()
    assert doubts.look(3)
    assert not doubts.look(3)
    doubts.answered()
    assert doubts.looks_again


def test_a_store_that_has_fewer_commits_than_at_the_read_has_lost_some() -> None:
    doubts = Doubts()
    doubts.look(3)
    assert [doubts.is_lost(number) for number in (2, 3, 4)] == [True, False, False]
