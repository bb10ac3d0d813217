"""The rules of a task's life."""

from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import Fenced
from holdfast.rules.tasks import task as rules
from holdfast.rules.tasks.task import (
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
WISH = StartAttempt("k", "t", "member", "node", tries=2, lease_s=10.0, group="g")
QUEUED = Task("k", "t", group="g", queued_at=90.0)
RUNNING = rules.start(QUEUED, WISH, NOW)
ENDED = rules.end(RUNNING, EndAttempt("k", 1, State.SUCCEEDED, b"r"), NOW + 1)


def changed(task: Task, **changes: object) -> Task:
    return msgspec.structs.replace(task, **changes)


def test_a_task_sent_twice_is_queued_once() -> None:
    assert rules.queue(None, changed(ENDED, queued_at=0.0), NOW).state is State.QUEUED
    assert rules.queue(None, Task("k", "t"), NOW) == Task("k", "t", queued_at=NOW)
    assert rules.queue(ENDED, Task("k", "other"), NOW) is ENDED


def test_a_delayed_task_keeps_its_message_until_it_was_sent() -> None:
    delayed = rules.delay(None, DelayTask("k", "t", 50.0, b"m", "g"), NOW)
    assert (delayed.message, delayed.send_at, delayed.until, delayed.queued_at) == (b"m", 150.0, 150.0, NOW)
    assert rules.delay(ENDED, DelayTask("k", "t", 50.0, b"m"), NOW) is ENDED
    assert not rules.expired(delayed, 1e9)
    handed_out = rules.hand_out(delayed, 5.0, 10.0, 145.0)
    assert (handed_out.message, handed_out.send_at) == (b"m", 160.0)
    with pytest.raises(Fenced):
        rules.hand_out(handed_out, 5.0, 10.0, 154.0)
    sent = rules.message_sent(handed_out)
    assert (sent.message, sent.send_at) == (b"", 0.0)
    assert rules.hand_out(sent, 5.0, 10.0, 170.0) is sent
    assert rules.message_sent(sent) is sent


def test_a_task_whose_queue_delays_its_message_is_known_until_it_is_delivered() -> None:
    delayed = rules.delay(None, DelayTask("k", "t", 50.0, b"", "g"), NOW)
    assert delayed == Task("k", "t", group="g", queued_at=NOW, send_at=150.0)
    assert rules.start(delayed, WISH, NOW).state is State.RUNNING, "whoever delivers it sooner means it"
    cancelled = rules.briefed(rules.cancel(delayed, "enough", NOW), 1)
    for task in (delayed, cancelled):
        assert not rules.expired(task, 150.0)
        assert rules.expired(task, 150.5)


def test_starting_gives_the_attempt_an_epoch_and_a_lease() -> None:
    assert (RUNNING.state, RUNNING.epoch, RUNNING.attempts, RUNNING.until) == (State.RUNNING, 1, 1, 110.0)
    assert rules.start(None, WISH, NOW) == changed(RUNNING, queued_at=NOW)


@pytest.mark.parametrize("standing", [RUNNING, ENDED])
def test_who_may_not_begin_learns_why(standing: Task) -> None:
    assert rules.start(standing, changed_wish(member="other"), NOW + 5) is standing


def test_the_same_wish_again_gets_the_same_attempt() -> None:
    assert rules.start(RUNNING, WISH, NOW + 99) is RUNNING


def test_a_lapsed_attempt_is_replaced_while_there_are_tries() -> None:
    other = changed_wish(member="other", node="n2")
    second = rules.start(RUNNING, other, 110.0)
    assert (second.member, second.epoch, second.attempts) == ("other", 2, 2)
    last = rules.start(second, changed_wish(member="third"), 200.0)
    assert (last.state, last.ended_at) == (State.FAILED, 200.0)
    assert last.detail == "attempt 2 of 2 ended without an outcome on node n2"


def test_a_task_whose_tries_are_spent_ends_with_what_went_wrong_last() -> None:
    spent = rules.give_back(RUNNING, ReturnAttempt("k", 1, True, "broken"), NOW)
    assert rules.start(spent, changed_wish(tries=1), NOW).detail == "broken"


def test_a_cancelled_task_doesn_t_begin() -> None:
    told = rules.cancel(RUNNING, "enough", NOW)
    assert (told.state, told.cancel) == (State.RUNNING, "enough")
    ended = rules.start(rules.give_back(told, ReturnAttempt("k", 1, False), NOW), WISH, NOW)
    assert (ended.state, ended.detail) == (State.FAILED, "cancelled: enough")
    waits = rules.cancel(QUEUED, "enough", NOW)
    assert (waits.state, waits.cancel, waits.cancelled, ended.cancelled) == (
        State.FAILED,
        "enough",
        True,
        True,
    )
    assert rules.cancel(ENDED, "enough", NOW) is ENDED


def test_a_beat_extends_the_lease_and_keeps_progress() -> None:
    beaten = rules.beat(RUNNING, AttemptBeat("k", 1, 30.0, 0.5, "half"), 105.0)
    assert (beaten.until, beaten.progress, beaten.note) == (135.0, 0.5, "half")
    assert beaten.member == RUNNING.member


def test_an_attempt_is_known_by_the_member_that_beat_last() -> None:
    beaten = rules.beat(RUNNING, AttemptBeat("k", 1, 30.0, member="again"), NOW)
    assert (beaten.member, beaten.epoch) == ("again", RUNNING.epoch)


def test_giving_back_queues_the_task_and_counts_spent_tries() -> None:
    spent = rules.give_back(RUNNING, ReturnAttempt("k", 1, True, "broken"), NOW)
    assert (spent.state, spent.attempts, spent.member, spent.until, spent.detail) == (
        State.QUEUED,
        1,
        "",
        0.0,
        "broken",
    )
    assert rules.give_back(RUNNING, ReturnAttempt("k", 1, False), NOW).attempts == 0
    assert rules.give_back(spent, ReturnAttempt("k", 1, True, "broken"), NOW) is spent


def test_nothing_begins_before_a_pause_is_over_and_no_try_is_spent() -> None:
    paused = rules.give_back(RUNNING, ReturnAttempt("k", 1, False, "not yet", 60.0), NOW)
    assert (paused.state, paused.attempts, paused.until, paused.pauses) == (State.QUEUED, 0, NOW + 60.0, 1)
    assert rules.start(paused, WISH, NOW + 59.0) is paused
    begun = rules.start(paused, WISH, NOW + 60.0)
    assert (begun.state, begun.attempts, begun.pauses) == (State.RUNNING, 1, 1)
    assert rules.cancel(paused, "enough", NOW).ended, "who waits for nothing ends at once"
    assert not rules.expired(paused, NOW + 59.0)


def test_a_cancelled_task_that_asks_for_a_pause_ends_at_once() -> None:
    told = rules.cancel(RUNNING, "enough", NOW)
    paused = rules.give_back(told, ReturnAttempt("k", 1, False, "not yet", 60.0), NOW)
    ended = rules.start(paused, WISH, NOW + 1.0)
    assert (ended.state, ended.detail) == (State.FAILED, "cancelled: enough")


def test_the_brief_of_an_earlier_outcome_is_none_of_its_being_cancelled() -> None:
    failed = rules.end(RUNNING, EndAttempt("k", 1, State.FAILED), NOW)
    cancelled = rules.cancel(rules.reset(failed, NOW), "enough", NOW)
    assert not rules.briefed(cancelled, failed.epoch).briefed
    assert rules.briefed(cancelled, cancelled.epoch).briefed


def test_a_task_that_is_queued_anew_has_all_its_pauses_again() -> None:
    paused = rules.give_back(RUNNING, ReturnAttempt("k", 1, False, "not yet", 60.0), NOW)
    anew = rules.reset(paused, NOW)
    assert (anew.pauses, anew.until) == (0, 0.0)


def test_an_outcome_is_recorded_once() -> None:
    assert (ENDED.state, ENDED.result, ENDED.progress, ENDED.ended_at) == (State.SUCCEEDED, b"r", 1.0, 101.0)
    failed = rules.end(RUNNING, EndAttempt("k", 1, State.FAILED, detail="broken"), NOW)
    assert (failed.progress, failed.detail) == (0.0, "broken")
    assert rules.end(ENDED, EndAttempt("k", 1, State.SUCCEEDED), NOW + 9) is ENDED


@pytest.mark.parametrize("standing", [None, QUEUED, ENDED, changed(RUNNING, epoch=2)])
@pytest.mark.parametrize(
    "deed",
    [
        lambda task: rules.beat(task, AttemptBeat("k", 1, 1.0), NOW),
        lambda task: rules.give_back(task, ReturnAttempt("k", 1, True), NOW),
        lambda task: rules.end(task, EndAttempt("k", 1, State.FAILED), NOW),
    ],
)
def test_what_no_attempt_stands_for_is_fenced(
    standing: Task | None, deed: Callable[[Task | None], Task]
) -> None:
    with pytest.raises(Fenced, match="task k: attempt 1 is over") as refusal:
        deed(standing)
    assert refusal.value.epoch == (standing.epoch if standing else 0)


def test_only_the_brief_of_the_present_epoch_is_recorded() -> None:
    assert rules.briefed(ENDED, 1).briefed
    assert rules.briefed(ENDED, 2) is ENDED
    assert rules.briefed(RUNNING, 1) is RUNNING


def test_a_failed_task_can_be_queued_again_and_others_not() -> None:
    failed = msgspec.structs.replace(ENDED, state=State.FAILED)
    assert rules.reset(failed, NOW) == Task("k", "t", group="g", epoch=1, queued_at=NOW)
    assert rules.reset(ENDED, NOW) is ENDED, "it would run again though it has succeeded"
    assert rules.reset(RUNNING, NOW) is RUNNING
    assert rules.reset(RUNNING, 110.0).state is State.QUEUED


def test_only_old_tasks_that_do_not_run_expire() -> None:
    assert ENDED.moved_at == 101.0
    assert rules.expired(ENDED, 101.5)
    assert not rules.expired(ENDED, 101.0)
    assert rules.expired(QUEUED, 90.5)
    assert not rules.expired(RUNNING, 105.0)
    assert rules.expired(RUNNING, 110.5)


deeds = st.lists(
    st.sampled_from(["start a", "start b", "lapse", "end", "return", "spend", "pause", "cancel"])
)


@given(deeds)
def test_a_task_has_one_outcome_within_its_tries_whatever_happens(deeds: list[str]) -> None:
    """Whatever comes, epochs grow, tries are kept to, and an outcome stays."""
    now, task = 0.0, QUEUED
    for deed in deeds:
        before, now = task, now + 1.0
        if deed == "lapse":
            now += 20.0
        elif deed.startswith("start"):
            task = rules.start(task, changed_wish(member=deed[-1]), now)
        elif deed == "cancel":
            task = rules.cancel(task, "enough", now)
        elif task.state is State.RUNNING and deed == "end":
            task = rules.end(task, EndAttempt("k", task.epoch, State.SUCCEEDED), now)
        elif task.state is State.RUNNING:
            pause_s = 3.0 if deed == "pause" else 0.0
            wish = ReturnAttempt("k", task.epoch, deed == "spend", pause_s=pause_s)
            task = rules.give_back(task, wish, now)
        assert task.epoch >= before.epoch
        assert 0 <= task.attempts <= WISH.tries
        assert not before.ended or task is before


def changed_wish(**changes: object) -> StartAttempt:
    return msgspec.structs.replace(WISH, **changes)


def test_the_attempt_of_one_known_to_be_gone_need_not_lapse() -> None:
    wish = changed_wish(member="other", instead_of="member")
    begun = rules.start(RUNNING, wish, NOW + 1)
    assert (begun.member, begun.epoch, begun.attempts) == ("other", 2, 2)
    assert rules.start(RUNNING, changed_wish(member="other", instead_of="another"), NOW + 1) is RUNNING


def test_each_member_of_a_batch_counts_once_and_the_last_one_ends_it() -> None:
    batch = rules.count(None, CountMember("b", 2, follow_ups=b"f"), NOW)
    assert (batch.members, batch.follow_ups, batch.ended) == ("00", b"f", False)
    once = rules.count(batch, CountMember("b", 2, 1, failed=True, follow_ups=b"other"), NOW)
    assert once.follow_ups == b"f", "what was said first stands"
    assert once.members == rules.count(once, CountMember("b", 2, 1), NOW).members == "02"
    ended = rules.count(once, CountMember("b", 2, 0), NOW)
    assert (ended.state, ended.members) == (State.FAILED, "12")
    assert ended.detail == "1 of 2 tasks did not succeed"
    assert (rules.failed_in(batch), rules.failed_in(once), rules.failed_in(ended)) == ([], ["b-1"], ["b-1"])
    assert rules.count(ended, CountMember("b", 2, 0, failed=True), NOW) is ended
    assert rules.count(QUEUED, CountMember("k", 2, 0), NOW) is QUEUED
    told = rules.cancel(once, "enough", NOW)
    assert (told.ended, told.cancel) == (False, "enough")
    assert (
        rules.count(told, CountMember("b", 2, 0), NOW).detail
        == "cancelled: enough; 1 of 2 tasks did not succeed"
    )
    well = rules.count(None, CountMember("b", 1, 0), NOW)
    assert (well.state, well.detail) == (State.SUCCEEDED, "")


def test_effects_are_dropped_by_the_outcome_they_came_with_and_never_come_back() -> None:
    ended = rules.end(RUNNING, EndAttempt("k", 1, State.SUCCEEDED, effects=b"two"), NOW)
    assert ended.effects == b"two"
    assert rules.handed_over(ended, EffectsLeft("k", 2)) is ended
    assert rules.handed_over(RUNNING, EffectsLeft("k", 1, b"one")) is RUNNING
    left = rules.handed_over(ended, EffectsLeft("k", 1, b"one"))
    none = rules.handed_over(left, EffectsLeft("k", 1))
    assert (left.effects, none.effects) == (b"one", b"")
    assert rules.handed_over(none, EffectsLeft("k", 1, b"one")) is none


def test_a_task_with_pending_effects_is_kept_for_longer_than_a_target_may_be_away() -> None:
    ended = rules.end(RUNNING, EndAttempt("k", 1, State.SUCCEEDED, effects=b"two"), NOW)
    assert rules.expired(changed(ended, effects=b""), NOW + 1)
    assert not rules.expired(ended, NOW + rules.EFFECTS_KEEP_S)
    assert rules.expired(ended, NOW + rules.EFFECTS_KEEP_S + 1)


def test_refused_effects_are_pending_again_at_a_new_epoch() -> None:
    again = ResendEffects("k", b"refused")
    for standing in (RUNNING, ENDED, changed(ENDED, briefed=True, effects=b"others")):
        assert rules.resend_effects(standing, again, NOW) is standing
    failed = changed(rules.end(RUNNING, EndAttempt("k", 1, State.FAILED), NOW), briefed=True)
    assert rules.resend_effects(failed, again, NOW) is failed, "it sent none"
    added = rules.resend_effects(changed(ENDED, briefed=True), again, 500.0)
    assert (added.effects, added.epoch, added.until) == (b"refused", 2, 500.0)
    assert rules.resend_effects(added, again, 600.0) is added, "a repeat"
    assert rules.handed_over(added, EffectsLeft("k", 1)) is added, "told late of those before"
    assert not rules.expired(changed(added, effects=b""), 500.0)


def test_refused_effects_that_are_yet_to_be_noted_are_pending_again_at_a_new_epoch() -> None:
    marked = changed(ENDED, briefed=True, effects=b"marked")
    again = ResendEffects("k", b"again", instead_of=b"marked")
    added = rules.resend_effects(marked, again, 500.0)
    assert (added.effects, added.epoch) == (b"again", 2)
    assert rules.resend_effects(added, again, 600.0) is added, "a repeat"
    assert rules.handed_over(added, EffectsLeft("k", 1)) is added, "noted late"
    others = changed(marked, effects=b"others")
    assert rules.resend_effects(others, again, 500.0) is others
    assert rules.resend_effects(changed(marked, effects=b""), again, 500.0).effects == b"again", (
        "noted before"
    )


def test_where_a_large_result_is_is_forgotten_with_the_outcome() -> None:
    failed = rules.end(RUNNING, EndAttempt("k", 1, State.FAILED, stored=b"object"), NOW)
    assert failed.stored == b"object"
    assert rules.reset(failed, NOW).stored == b""
