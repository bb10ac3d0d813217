"""The rules of a task's life."""

from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import Fenced
from holdfast.rules.tasks import task as rules
from holdfast.rules.tasks.task import (
    LOSABLE,
    AttemptBeat,
    BriefSent,
    CancelTask,
    CountMember,
    DelayTask,
    EffectsLeft,
    EndAttempt,
    HandOutMessage,
    MessageSent,
    QueueTask,
    ResendEffects,
    ResetTask,
    RestoreTask,
    ReturnAttempt,
    StartAttempt,
    State,
    Task,
    TaskChange,
    judge,
)

NOW = 100.0


def after(known: Task | None, change: TaskChange, now: float) -> Task:
    task = judge(known, change, now)
    assert task is not None
    return task


WISH = StartAttempt("k", "t", "member", "node", tries=2, lease_s=10.0, group="g")
QUEUED = Task("k", "t", group="g", queued_at=90.0)
RUNNING = after(QUEUED, WISH, NOW)
ENDED = after(RUNNING, EndAttempt("k", 1, State.SUCCEEDED, b"r"), NOW + 1)


def test_an_unknown_task_stays_unknown() -> None:
    for change in (
        HandOutMessage("k", 1.0, 1.0), MessageSent("k"), BriefSent("k", 1), EffectsLeft("k", 1),
        ResendEffects("k", b"e"), CancelTask("k", "enough"), ResetTask("k"),
    ):  # fmt: skip
        assert judge(None, change, NOW) is None


def test_a_restored_task_is_written_as_it_was_unless_it_is_known() -> None:
    assert judge(None, RestoreTask(ENDED), NOW) is ENDED
    assert judge(QUEUED, RestoreTask(ENDED), NOW) is QUEUED
    assert QueueTask(QUEUED).task_id == RestoreTask(QUEUED).task_id == "k"


def test_no_outcome_may_be_lost() -> None:
    assert not LOSABLE & {EndAttempt, StartAttempt, QueueTask, DelayTask, CountMember, ResendEffects}


def changed(task: Task, **changes: object) -> Task:
    return msgspec.structs.replace(task, **changes)


def test_a_task_sent_twice_is_queued_once() -> None:
    assert after(None, QueueTask(changed(ENDED, queued_at=0.0)), NOW).state is State.QUEUED
    assert after(None, QueueTask(Task("k", "t")), NOW) == Task("k", "t", queued_at=NOW)
    assert after(ENDED, QueueTask(Task("k", "other")), NOW) is ENDED


def test_a_delayed_task_keeps_its_message_until_it_was_sent() -> None:
    delayed = after(None, DelayTask("k", "t", 50.0, b"m", "g"), NOW)
    assert (delayed.message, delayed.send_at, delayed.until, delayed.queued_at) == (b"m", 150.0, 150.0, NOW)
    assert after(ENDED, DelayTask("k", "t", 50.0, b"m"), NOW) is ENDED
    assert not rules.expired(delayed, 1e9)
    handed_out = after(delayed, HandOutMessage("k", 5.0, 10.0), 145.0)
    assert (handed_out.message, handed_out.send_at) == (b"m", 160.0)
    with pytest.raises(Fenced):
        after(handed_out, HandOutMessage("k", 5.0, 10.0), 154.0)
    sent = after(handed_out, MessageSent("k"), NOW)
    assert (sent.message, sent.send_at) == (b"", 0.0)
    assert after(sent, HandOutMessage("k", 5.0, 10.0), 170.0) is sent
    assert after(sent, MessageSent("k"), NOW) is sent


def test_a_task_whose_queue_delays_its_message_is_known_until_it_is_delivered() -> None:
    delayed = after(None, DelayTask("k", "t", 50.0, b"", "g"), NOW)
    assert delayed == Task("k", "t", group="g", queued_at=NOW, send_at=150.0)
    assert after(delayed, WISH, NOW).state is State.RUNNING, "whoever delivers it sooner means it"
    cancelled = after(after(delayed, CancelTask("k", "enough"), NOW), BriefSent("k", 1), NOW)
    for task in (delayed, cancelled):
        assert not rules.expired(task, 150.0)
        assert rules.expired(task, 150.5)


def test_starting_gives_the_attempt_an_epoch_and_a_lease() -> None:
    assert (RUNNING.state, RUNNING.epoch, RUNNING.attempts, RUNNING.until) == (State.RUNNING, 1, 1, 110.0)
    assert after(None, WISH, NOW) == changed(RUNNING, queued_at=NOW)


@pytest.mark.parametrize("standing", [RUNNING, ENDED])
def test_who_may_not_begin_learns_why(standing: Task) -> None:
    assert after(standing, changed_wish(member="other"), NOW + 5) is standing


def test_the_same_wish_again_gets_the_same_attempt() -> None:
    assert after(RUNNING, WISH, NOW + 99) is RUNNING


def test_a_lapsed_attempt_is_replaced_while_there_are_tries() -> None:
    other = changed_wish(member="other", node="n2")
    second = after(RUNNING, other, 110.0)
    assert (second.member, second.epoch, second.attempts) == ("other", 2, 2)
    last = after(second, changed_wish(member="third"), 200.0)
    assert (last.state, last.ended_at) == (State.FAILED, 200.0)
    assert last.detail == "attempt 2 of 2 ended without an outcome on node n2"


def test_a_task_whose_tries_are_spent_ends_with_what_went_wrong_last() -> None:
    spent = after(RUNNING, ReturnAttempt("k", 1, True, "broken"), NOW)
    assert after(spent, changed_wish(tries=1), NOW).detail == "broken"


def test_a_cancelled_task_doesn_t_begin() -> None:
    told = after(RUNNING, CancelTask("k", "enough"), NOW)
    assert (told.state, told.cancel) == (State.RUNNING, "enough")
    ended = after(after(told, ReturnAttempt("k", 1, False), NOW), WISH, NOW)
    assert (ended.state, ended.detail) == (State.FAILED, "cancelled: enough")
    waits = after(QUEUED, CancelTask("k", "enough"), NOW)
    assert (waits.state, waits.cancel, waits.cancelled, ended.cancelled) == (
        State.FAILED,
        "enough",
        True,
        True,
    )
    assert after(ENDED, CancelTask("k", "enough"), NOW) is ENDED


def test_a_beat_extends_the_lease_and_keeps_progress() -> None:
    beaten = after(RUNNING, AttemptBeat("k", 1, 30.0, 0.5, "half"), 105.0)
    assert (beaten.until, beaten.progress, beaten.note) == (135.0, 0.5, "half")
    assert beaten.member == RUNNING.member


def test_an_attempt_is_known_by_the_member_that_beat_last() -> None:
    beaten = after(RUNNING, AttemptBeat("k", 1, 30.0, member="again"), NOW)
    assert (beaten.member, beaten.epoch) == ("again", RUNNING.epoch)


def test_giving_back_queues_the_task_and_counts_spent_tries() -> None:
    spent = after(RUNNING, ReturnAttempt("k", 1, True, "broken"), NOW)
    assert (spent.state, spent.attempts, spent.member, spent.until, spent.detail) == (
        State.QUEUED,
        1,
        "",
        0.0,
        "broken",
    )
    assert after(RUNNING, ReturnAttempt("k", 1, False), NOW).attempts == 0
    assert after(spent, ReturnAttempt("k", 1, True, "broken"), NOW) is spent


def test_nothing_begins_before_a_pause_is_over_and_no_try_is_spent() -> None:
    paused = after(RUNNING, ReturnAttempt("k", 1, False, "not yet", 60.0), NOW)
    assert (paused.state, paused.attempts, paused.until, paused.pauses) == (State.QUEUED, 0, NOW + 60.0, 1)
    assert after(paused, WISH, NOW + 59.0) is paused
    begun = after(paused, WISH, NOW + 60.0)
    assert (begun.state, begun.attempts, begun.pauses) == (State.RUNNING, 1, 1)
    assert after(paused, CancelTask("k", "enough"), NOW).ended, "who waits for nothing ends at once"
    assert not rules.expired(paused, NOW + 59.0)


def test_a_cancelled_task_that_asks_for_a_pause_ends_at_once() -> None:
    told = after(RUNNING, CancelTask("k", "enough"), NOW)
    paused = after(told, ReturnAttempt("k", 1, False, "not yet", 60.0), NOW)
    ended = after(paused, WISH, NOW + 1.0)
    assert (ended.state, ended.detail) == (State.FAILED, "cancelled: enough")


def test_the_brief_of_an_earlier_outcome_is_none_of_its_being_cancelled() -> None:
    failed = after(RUNNING, EndAttempt("k", 1, State.FAILED), NOW)
    cancelled = after(after(failed, ResetTask("k"), NOW), CancelTask("k", "enough"), NOW)
    assert not after(cancelled, BriefSent("k", failed.epoch), NOW).briefed
    assert after(cancelled, BriefSent("k", cancelled.epoch), NOW).briefed


def test_a_task_that_is_queued_anew_has_all_its_pauses_again() -> None:
    paused = after(RUNNING, ReturnAttempt("k", 1, False, "not yet", 60.0), NOW)
    anew = after(paused, ResetTask("k"), NOW)
    assert (anew.pauses, anew.until) == (0, 0.0)


def test_an_outcome_is_recorded_once() -> None:
    assert (ENDED.state, ENDED.result, ENDED.progress, ENDED.ended_at) == (State.SUCCEEDED, b"r", 1.0, 101.0)
    failed = after(RUNNING, EndAttempt("k", 1, State.FAILED, detail="broken"), NOW)
    assert (failed.progress, failed.detail) == (0.0, "broken")
    assert after(ENDED, EndAttempt("k", 1, State.SUCCEEDED), NOW + 9) is ENDED


@pytest.mark.parametrize("standing", [None, QUEUED, ENDED, changed(RUNNING, epoch=2)])
@pytest.mark.parametrize(
    "deed",
    [
        lambda task: after(task, AttemptBeat("k", 1, 1.0), NOW),
        lambda task: after(task, ReturnAttempt("k", 1, True), NOW),
        lambda task: after(task, EndAttempt("k", 1, State.FAILED), NOW),
    ],
)
def test_what_no_attempt_stands_for_is_fenced(
    standing: Task | None, deed: Callable[[Task | None], Task]
) -> None:
    with pytest.raises(Fenced, match="task k: attempt 1 is over") as refusal:
        deed(standing)
    assert refusal.value.epoch == (standing.epoch if standing else 0)


def test_only_the_brief_of_the_present_epoch_is_recorded() -> None:
    assert after(ENDED, BriefSent("k", 1), NOW).briefed
    assert after(ENDED, BriefSent("k", 2), NOW) is ENDED
    assert after(RUNNING, BriefSent("k", 1), NOW) is RUNNING


def test_a_failed_task_can_be_queued_again_and_others_not() -> None:
    failed = msgspec.structs.replace(ENDED, state=State.FAILED)
    assert after(failed, ResetTask("k"), NOW) == Task("k", "t", group="g", epoch=1, queued_at=NOW)
    assert after(ENDED, ResetTask("k"), NOW) is ENDED, "it would run again though it has succeeded"
    assert after(RUNNING, ResetTask("k"), NOW) is RUNNING
    assert after(RUNNING, ResetTask("k"), 110.0).state is State.QUEUED


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
            task = after(task, changed_wish(member=deed[-1]), now)
        elif deed == "cancel":
            task = after(task, CancelTask("k", "enough"), now)
        elif task.state is State.RUNNING and deed == "end":
            task = after(task, EndAttempt("k", task.epoch, State.SUCCEEDED), now)
        elif task.state is State.RUNNING:
            pause_s = 3.0 if deed == "pause" else 0.0
            wish = ReturnAttempt("k", task.epoch, deed == "spend", pause_s=pause_s)
            task = after(task, wish, now)
        assert task.epoch >= before.epoch
        assert 0 <= task.attempts <= WISH.tries
        assert not before.ended or task is before


def changed_wish(**changes: object) -> StartAttempt:
    return msgspec.structs.replace(WISH, **changes)


def test_the_attempt_of_one_known_to_be_gone_need_not_lapse() -> None:
    wish = changed_wish(member="other", instead_of="member")
    begun = after(RUNNING, wish, NOW + 1)
    assert (begun.member, begun.epoch, begun.attempts) == ("other", 2, 2)
    assert after(RUNNING, changed_wish(member="other", instead_of="another"), NOW + 1) is RUNNING


def test_each_member_of_a_batch_counts_once_and_the_last_one_ends_it() -> None:
    batch = after(None, CountMember("b", 2, follow_ups=b"f"), NOW)
    assert (batch.members, batch.follow_ups, batch.ended) == ("00", b"f", False)
    once = after(batch, CountMember("b", 2, 1, failed=True, follow_ups=b"other"), NOW)
    assert once.follow_ups == b"f", "what was said first stands"
    assert once.members == after(once, CountMember("b", 2, 1), NOW).members == "02"
    ended = after(once, CountMember("b", 2, 0), NOW)
    assert (ended.state, ended.members) == (State.FAILED, "12")
    assert ended.detail == "1 of 2 tasks did not succeed"
    assert (rules.failed_in(batch), rules.failed_in(once), rules.failed_in(ended)) == ([], ["b-1"], ["b-1"])
    assert after(ended, CountMember("b", 2, 0, failed=True), NOW) is ended
    assert after(QUEUED, CountMember("k", 2, 0), NOW) is QUEUED
    told = after(once, CancelTask("k", "enough"), NOW)
    assert (told.ended, told.cancel) == (False, "enough")
    assert (
        after(told, CountMember("b", 2, 0), NOW).detail == "cancelled: enough; 1 of 2 tasks did not succeed"
    )
    well = after(None, CountMember("b", 1, 0), NOW)
    assert (well.state, well.detail) == (State.SUCCEEDED, "")


def test_effects_are_dropped_by_the_outcome_they_came_with_and_never_come_back() -> None:
    ended = after(RUNNING, EndAttempt("k", 1, State.SUCCEEDED, effects=b"two"), NOW)
    assert ended.effects == b"two"
    assert after(ended, EffectsLeft("k", 2), NOW) is ended
    assert after(RUNNING, EffectsLeft("k", 1, b"one"), NOW) is RUNNING
    left = after(ended, EffectsLeft("k", 1, b"one"), NOW)
    none = after(left, EffectsLeft("k", 1), NOW)
    assert (left.effects, none.effects) == (b"one", b"")
    assert after(none, EffectsLeft("k", 1, b"one"), NOW) is none


def test_a_task_with_pending_effects_is_kept_for_longer_than_a_target_may_be_away() -> None:
    ended = after(RUNNING, EndAttempt("k", 1, State.SUCCEEDED, effects=b"two"), NOW)
    assert rules.expired(changed(ended, effects=b""), NOW + 1)
    assert not rules.expired(ended, NOW + rules.EFFECTS_KEEP_S)
    assert rules.expired(ended, NOW + rules.EFFECTS_KEEP_S + 1)


def test_refused_effects_are_pending_again_at_a_new_epoch() -> None:
    again = ResendEffects("k", b"refused")
    for standing in (RUNNING, ENDED, changed(ENDED, briefed=True, effects=b"others")):
        assert after(standing, again, NOW) is standing
    failed = changed(after(RUNNING, EndAttempt("k", 1, State.FAILED), NOW), briefed=True)
    assert after(failed, again, NOW) is failed, "it sent none"
    added = after(changed(ENDED, briefed=True), again, 500.0)
    assert (added.effects, added.epoch, added.until) == (b"refused", 2, 500.0)
    assert after(added, again, 600.0) is added, "a repeat"
    assert after(added, EffectsLeft("k", 1), NOW) is added, "told late of those before"
    assert not rules.expired(changed(added, effects=b""), 500.0)


def test_refused_effects_that_are_yet_to_be_noted_are_pending_again_at_a_new_epoch() -> None:
    marked = changed(ENDED, briefed=True, effects=b"marked")
    again = ResendEffects("k", b"again", instead_of=b"marked")
    added = after(marked, again, 500.0)
    assert (added.effects, added.epoch) == (b"again", 2)
    assert after(added, again, 600.0) is added, "a repeat"
    assert after(added, EffectsLeft("k", 1), NOW) is added, "noted late"
    others = changed(marked, effects=b"others")
    assert after(others, again, 500.0) is others
    assert after(changed(marked, effects=b""), again, 500.0).effects == b"again", "noted before"


def test_where_a_large_result_is_is_forgotten_with_the_outcome() -> None:
    failed = after(RUNNING, EndAttempt("k", 1, State.FAILED, stored=b"object"), NOW)
    assert failed.stored == b"object"
    assert after(failed, ResetTask("k"), NOW).stored == b""


def test_a_task_has_its_id_under_the_name_of_earlier_versions_too() -> None:
    assert Task("t", "report").trace == "t"
