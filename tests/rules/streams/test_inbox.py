"""What an owner does with each delivery."""

from holdfast.common.held import Receipt
from holdfast.common.message import Life
from holdfast.rules.streams.commands import Peek, Return, Settle
from holdfast.rules.streams.inbox import Doubts, is_request
from holdfast.rules.streams.ledger import RunLog
from holdfast.rules.streams.sequencer import Verdict
from tests.rules.streams.parts import Parts, held


def test_messages_are_held_unjudged_until_the_stream_is_open() -> None:
    parts, early = Parts({"log": RunLog(0, 0, 4)}, {"inbox_limit": 1}), held(3)
    assert parts.inbox.offer(early, 0.0, is_open=False, is_moving=False)
    assert not parts.inbox.offer(held(5), 0.0, is_open=False, is_moving=False)
    assert (early.life, parts.inbox.all) == (Life.RECEIVED, (early,))
    parts.inbox.judge_held(0.0, just_opened=True)
    assert parts.out() == [Settle((), (early,), duplicate=True)]


def test_another_delivery_is_deleted_with_the_first() -> None:
    parts, first, again = Parts(), held(0), held(0)
    again.receipts = [Receipt("again", 100.0)]
    parts.offer(first, again)
    assert [receipt.receipt for receipt in first.receipts] == ["r0", "again"]
    assert parts.inbox.all == (first,)


def test_a_message_that_a_commit_covers_waits_until_the_store_has_shown_it() -> None:
    parts, message = Parts({"log": RunLog(0, 0, 4)}), held(3)
    parts.offer(message)
    assert parts.out() == [Peek()]
    parts.inbox.known()
    assert parts.out() == [Settle((), (message,), duplicate=True)]


def test_a_lower_message_takes_the_room_of_a_higher_one() -> None:
    parts, high, low = Parts(order={"inbox_limit": 1}), held(5), held(3)
    parts.offer(high, low)
    assert parts.out() == [Return((high,))]
    assert parts.inbox.all == (low,)


def test_what_a_moving_stream_has_reserved_stays_in_the_queue() -> None:
    parts = Parts(by_key=True)
    parts.backlog.reserved(True, 0.0)
    assert not parts.inbox.offer(held(0), 0.0, is_open=True, is_moving=True)
    assert parts.inbox.offer(held(0), 0.0, is_open=True, is_moving=False)


def test_all_messages_go_as_they_came() -> None:
    parts, message = Parts(), held(0)
    parts.offer(message)
    assert parts.inbox.empty() == (message,)
    assert (message.life, parts.inbox.all) == (Life.RECEIVED, ())


def test_a_message_that_a_queue_has_brought_too_is_no_request() -> None:
    message = held(0)
    request = Receipt("q", 100.0, stale=True, request=1)
    message.receipts.append(request)
    assert not is_request(message)
    message.receipts = [request]
    assert is_request(message)


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


def test_each_settlement_is_counted_until_it_is_answered() -> None:
    parts, message = Parts(), held(0)
    parts.inbox.settle((), (message,))
    parts.inbox.settle((), (message,), duplicate=True)
    assert parts.out() == [Settle((), (message,)), Settle((), (message,), duplicate=True)]
    assert parts.agenda.settling == 2
