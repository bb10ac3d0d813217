"""What an owner does about messages that it has no room for, as rules."""

from typing import Any

from holdfast.rules.streams.backlog import (
    AWAY_MAX,
    AWAY_S,
    LOOK_AGAIN_S,
    TAKE_MAX,
    Backlog,
    Reserve,
    Take,
    Unreserve,
)

LIMIT = 256


def plan(backlog: Backlog, now: float, waiting: int = 0, **state: Any) -> Any:
    """Plan for an owner with an inbox of 256 that misses nothing."""
    said = {"limit": LIMIT, "missing": False, "may_take": True} | state
    return backlog.plan(now, waiting=waiting, **said)


def unread(backlog: Backlog) -> bool:
    """Return whether the queue may have messages that the owner hasn't seen."""
    return backlog.is_unread


def reserved(now: float = 0.0) -> Backlog:
    """Return a backlog whose key is reserved, after a message found no room."""
    backlog = Backlog(by_key=True)
    backlog.turned_away((0, 300), now)
    assert plan(backlog, now, LIMIT) == Reserve()
    backlog.reserved(True, now)
    return backlog


def test_nothing_is_planned_while_there_is_room() -> None:
    assert plan(Backlog(by_key=True), 0.0) is None


def test_a_queue_that_knows_no_keys_is_asked_for_nothing() -> None:
    backlog = Backlog()
    backlog.turned_away((0, 300), 0.0)
    assert plan(backlog, 0.0) is None
    assert backlog.awaited(0.0) == ((0, 300), AWAY_S)


def test_the_first_message_without_room_reserves_the_key_once() -> None:
    backlog = reserved()
    assert backlog.is_reserved
    assert plan(backlog, 0.0, LIMIT) is None


def test_messages_are_taken_once_half_the_inbox_is_free_and_one_take_at_a_time() -> None:
    backlog = reserved()
    assert plan(backlog, 0.0, LIMIT // 2 + 1) is None
    assert plan(backlog, 0.0, LIMIT // 2) == Take(LIMIT // 2)
    assert plan(backlog, 0.0, 0) is None
    backlog.took(LIMIT // 2, 428, True, 0.1)
    assert plan(backlog, 0.1, 0) == Take(TAKE_MAX)


def test_nothing_is_taken_that_would_not_run() -> None:
    backlog = reserved()
    assert plan(backlog, 0.0, 0, may_take=False) is None
    assert backlog.is_reserved


def test_the_reservation_ends_when_the_queue_has_no_more() -> None:
    backlog = reserved()
    assert plan(backlog, 0.0, 0) == Take(TAKE_MAX)
    backlog.came((0, 300))
    backlog.took(10, 310, False, 0.1)
    assert plan(backlog, 0.1, 10) == Unreserve()
    assert not backlog.is_used


def test_the_reservation_stays_while_a_message_that_was_turned_away_is_expected_back() -> None:
    backlog = reserved()
    assert plan(backlog, 0.0, 0) == Take(TAKE_MAX)
    backlog.took(0, 0, False, 0.1)
    assert plan(backlog, 0.1, 0) is None
    assert backlog.wake_at is not None
    assert plan(backlog, backlog.wake_at, 0) == Take(TAKE_MAX)


def test_a_message_that_is_put_back_during_a_take_is_taken_again() -> None:
    backlog = reserved()
    backlog.came((0, 300))
    assert plan(backlog, 0.0, 0) == Take(TAKE_MAX)
    backlog.turned_away(None, 0.1)
    backlog.took(TAKE_MAX, 400, False, 0.1)
    assert plan(backlog, 0.1, 0) == Take(TAKE_MAX)


def test_a_pass_for_a_missing_message_reads_on_to_the_end_and_then_begins_again() -> None:
    backlog = reserved()
    backlog.gap_began()
    assert plan(backlog, 0.0, LIMIT, missing=True) == Take(TAKE_MAX, 0)
    backlog.took(TAKE_MAX, 400, True, 0.1)
    assert unread(backlog)
    assert plan(backlog, 0.1, LIMIT, missing=True) == Take(TAKE_MAX, 400)
    backlog.took(50, 450, False, 0.2)
    assert unread(backlog) is False, "all that the queue has was seen"
    assert plan(backlog, 0.2, LIMIT, missing=True) is None
    assert plan(backlog, 0.2 + LOOK_AGAIN_S, LIMIT, missing=True) == Take(TAKE_MAX, 0)
    backlog.gap_began()
    assert unread(backlog), "nothing was seen yet for another gap"


def test_a_lost_reservation_is_asked_for_again() -> None:
    backlog = reserved()
    assert plan(backlog, 0.0, 0) == Take(TAKE_MAX)
    backlog.lost(1.0)
    assert not backlog.is_reserved
    assert plan(backlog, 1.0, 0) == Reserve()


def test_a_message_that_comes_though_it_is_reserved_has_the_key_reserved_again_once_a_second() -> None:
    backlog = reserved()
    backlog.turned_away(None, LOOK_AGAIN_S / 2)
    assert plan(backlog, LOOK_AGAIN_S / 2, LIMIT) is None, "it was on the way as the key was reserved"
    backlog.turned_away(None, LOOK_AGAIN_S)
    assert plan(backlog, LOOK_AGAIN_S, LIMIT) == Reserve()
    assert backlog.is_reserved, "what comes meanwhile goes back as before"
    assert plan(backlog, LOOK_AGAIN_S, 0) is None, "its answer comes first"
    backlog.reserved(True, LOOK_AGAIN_S)
    assert plan(backlog, LOOK_AGAIN_S, 0) == Take(TAKE_MAX)


def test_a_message_of_a_take_that_finds_no_room_says_nothing_of_the_reservation() -> None:
    backlog = reserved()
    assert plan(backlog, 5.0, LIMIT, missing=True) == Take(TAKE_MAX)
    backlog.turned_away(None, 5.0)
    backlog.took(TAKE_MAX, 400, True, 5.0)
    assert plan(backlog, 5.0, LIMIT, missing=True) == Take(TAKE_MAX, 400)


def test_a_pass_pauses_while_a_take_brings_nothing_though_there_is_more() -> None:
    backlog = reserved()
    assert plan(backlog, 0.0, LIMIT, missing=True) == Take(TAKE_MAX)
    backlog.took(TAKE_MAX, 400, True, 0.1)
    assert plan(backlog, 0.1, LIMIT, missing=True) == Take(TAKE_MAX, 400)
    backlog.took(0, 0, True, 0.2)
    assert plan(backlog, 0.2, LIMIT, missing=True) is None
    assert backlog.wake_at is not None
    assert 0.2 < backlog.wake_at <= 0.2 + LOOK_AGAIN_S
    assert plan(backlog, backlog.wake_at, LIMIT, missing=True) == Take(TAKE_MAX, 400)


def test_a_deep_backlog_begins_only_with_an_answer_of_its_queue() -> None:
    backlog = Backlog(by_key=True, is_deep=True, by_turn=True)
    assert plan(backlog, 0.0) == Reserve()
    backlog.reserved(True, 0.0)
    assert plan(backlog, 0.0) == Take(TAKE_MAX)
    backlog.took(0, 0, True, 0.1)
    assert backlog.begins, "nothing is known: the node had no room, or the queue failed"
    assert backlog.wake_at is not None
    assert plan(backlog, backlog.wake_at) == Take(TAKE_MAX)
    backlog.took(0, 0, False, 0.2)
    assert not backlog.begins


def test_a_refused_reservation_is_asked_for_after_a_pause() -> None:
    backlog = Backlog(by_key=True)
    backlog.turned_away((0, 300), 0.0)
    assert plan(backlog, 0.0) == Reserve()
    backlog.reserved(False, 0.0)
    assert plan(backlog, 0.0) is None
    assert backlog.wake_at == LOOK_AGAIN_S
    assert plan(backlog, LOOK_AGAIN_S) == Reserve()


def test_the_next_opening_reserves_again_what_this_one_had() -> None:
    backlog = reserved()
    backlog.reopened()
    assert backlog.may_stand, "the queue may still keep it"
    assert plan(backlog, 1.0) == Reserve()


def test_a_deep_backlog_that_moved_here_is_reserved_before_anything_runs() -> None:
    backlog = Backlog(by_key=True, is_deep=True, by_turn=True)
    assert backlog.begins
    assert plan(backlog, 0.0) == Reserve()
    backlog.reserved(True, 0.0)
    assert plan(backlog, 0.0) == Take(TAKE_MAX)
    assert backlog.begins
    backlog.took(5, 5, True, 0.1)
    assert not backlog.begins


def test_the_lowest_of_what_was_turned_away_is_awaited_for_a_while() -> None:
    backlog = Backlog()
    for turn in (9, 7, 8):
        backlog.turned_away((0, turn), 0.0)
    backlog.turned_away((0, 7), 5.0)
    assert backlog.awaited(10.0) == ((0, 7), 5.0 + AWAY_S)
    assert backlog.awaited(10.0, above=(0, 7)) == ((0, 8), AWAY_S)
    backlog.came((0, 8))
    assert backlog.awaited(AWAY_S - 1.0) == ((0, 9), AWAY_S)
    assert backlog.awaited(AWAY_S) is None


def test_no_more_is_remembered_than_fits() -> None:
    backlog = Backlog()
    for turn in range(AWAY_MAX + 1, 0, -1):
        backlog.turned_away((0, turn), 0.0)
    backlog.came((0, 1))
    assert backlog.awaited(0.0) == ((0, 2), AWAY_S)


def test_what_comes_behind_a_message_that_was_turned_away_is_known() -> None:
    backlog = Backlog()
    assert not backlog.is_awaited_before((0, 9))
    backlog.turned_away((0, 5), 0.0)
    assert backlog.is_awaited_before((0, 9))
    assert not backlog.is_awaited_before((0, 5))


def test_a_message_that_was_never_turned_away_changes_nothing_when_it_comes() -> None:
    backlog = Backlog()
    backlog.turned_away((0, 5), 0.0)
    backlog.came(None)
    backlog.came((0, 4))
    assert backlog.awaited(0.0) == ((0, 5), AWAY_S)
