"""A message in hand keeps to the table of its life."""

import pytest

from holdfast.common.held import Held, PendingDeadLetter, Receipt
from holdfast.common.message import Life, Place, Span


def held() -> Held:
    return Held(Place(0, 7), b"body", {}, [])


def test_a_message_takes_the_steps_of_its_life() -> None:
    message = held()
    for life in (Life.WAITING, Life.RUNNING, Life.APPENDED, Life.COMMITTED, Life.DELETED):
        message.become(life)
    assert message.life is Life.DELETED


def test_a_step_that_the_table_lacks_is_a_mistake() -> None:
    with pytest.raises(AssertionError, match="0007 is received, so can't be deleted"):
        held().become(Life.DELETED)


def test_a_message_comes_back_from_wherever_it_was() -> None:
    message = held()
    message.come_back()
    message.become(Life.WAITING)
    message.come_back()
    assert message.life is Life.RECEIVED


def test_a_copy_carries_the_id_that_tells_it_apart() -> None:
    assert Held(Place(0, 7), b"", {"a": "b"}, []).again == {"a": "b"}
    assert Held(Place(0, 0, "m1"), b"", {"a": "b"}, []).again == {"a": "b", "id": "m1"}


def test_a_skipped_message_keeps_its_reason_when_it_is_skipped_once_more() -> None:
    letter = PendingDeadLetter("Boom", held(), skipped=True)
    again = Held(Place(0, 7), b"", letter.attributes, [])
    assert (held().skipped_before, again.skipped_before) == ("skipped before", "skipped before: Boom")


def test_what_is_set_aside_without_a_skip_is_sent_again_as_it_came() -> None:
    message = Held(Place(0, 0, "m1"), b"", {"a": "b"}, [])
    assert PendingDeadLetter("late", message).attributes == {"a": "b"}
    assert PendingDeadLetter("parked", message, waits=True).attributes == {"a": "b", "id": "m1"}
    assert PendingDeadLetter("never came", run=0, span=Span(1, 2)).attributes == {}


def test_what_came_before_may_be_known() -> None:
    assert not held().may_be_known
    assert Held(Place(0, 7), b"", {}, [], receives=2).may_be_known
    assert Held(Place(0, 7), b"", {}, [Receipt("r", 9.0), Receipt("r", 9.0, request=1)]).may_be_known


def test_a_message_stands_in_the_trace_of_its_handling_or_else_of_its_sender() -> None:
    sender, handling = (f"00-{'a' * 32}-{digit * 16}-01" for digit in "bc")
    message = Held(Place(0, 7), b"body", {"traceparent": sender}, [])
    assert message.context == sender
    message.traceparent = handling
    assert message.context == handling
    message.traceparent = "nonsense"
    assert message.context == ""
