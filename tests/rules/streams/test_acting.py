"""An owner whose handler acts: effects, timers, and when the store says that the stream is due."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from holdfast.common.acts import Acts, Effect, Send, TimerChange, hops_of
from holdfast.common.due import AHEAD_S
from holdfast.common.effects import RUN_MAX, EffectLimits, PendingReport
from holdfast.common.held import Held, Receipt
from holdfast.common.message import Place
from holdfast.common.retry import Backoff
from holdfast.rules.streams.backlog import Reserve, Take
from holdfast.rules.streams.commands import (
    HandOver,
    Open,
    Peek,
    Reclaim,
    RefuseRequests,
    Release,
    Run,
    Settle,
    Start,
    Transfer,
    Write,
)
from holdfast.rules.streams.commit_plan import DROP_AFTER_S, DUE_GRACE_S
from holdfast.rules.streams.ledger import Checkpoint, Commit, Started, Timer
from holdfast.rules.streams.owner import LOOK_S
from holdfast.rules.streams.timers import REARM_S, TIMERS, Timers, place_of
from tests.rules.streams.test_owner import IDLE_S, KEY, RETRY_S, Bench, asked, held

WALL = 1_700_000_000.0
LIMITS = EffectLimits()
YEAR_S = 365 * 86400.0


class ActingBench(Bench):
    """A bench whose wall clock is ``WALL`` ahead."""

    def __init__(self, **rules: Any) -> None:
        super().__init__(**rules)
        self.owner.agenda.wall_ahead_s = WALL

    def acted(self, *acts: Acts | None) -> None:
        """The run has handled its messages, and their handler asked for this."""
        results: list[bytes | None] = [b"done"] * len(acts)
        self.owner.ran(results, b"s", 1, "", "", False, self.now, acts)

    def sent(self, seq: int, *sends: Send) -> Commit:
        """A message is handled that sends this; returns the commit, which isn't answered."""
        self.offer(held(seq))
        [command] = self.out()
        if isinstance(command, Start):
            self.owner.started(1, self.now)
            command = self.only(Run)
        assert isinstance(command, Run)
        self.acted(Acts(sends))
        return self.write()

    def answered(self) -> list[Effect]:
        """The commit is answered; returns what is handed over."""
        self.owner.committed(self.now)
        out = self.out()
        for command in out:
            if isinstance(command, Settle):
                self.owner.settled(self.now)
        return handed_over([*out, *self.out()])

    def taken(self, effect: Effect, count: int = 1) -> None:
        self.owner.effects_taken(effect.id, count, self.owner.epoch, self.now)

    def handed_over(self) -> list[Effect]:
        """The one run that is handed over next."""
        return list(self.only(HandOver).effects)

    def wake_after(self, seconds: float, name: str = "t", body: bytes = b"") -> Acts:
        return Acts((), (TimerChange(name, WALL + self.now + seconds, body),))


def handed_over(out: Sequence[Any]) -> list[Effect]:
    return [effect for command in out if isinstance(command, HandOver) for effect in command.effects]


def to(target: str, key: str = "", body: bytes = b"{}", delay_s: float = 0.0) -> Send:
    return Send(target, key, body, delay_s)


def test_effects_are_handed_over_once_their_commit_is_answered() -> None:
    bench = ActingBench()
    bench.opened()
    commit = bench.sent(0, to("alerts", "door", b"1"), to("reports", "", b"2"))
    assert [(e.target, e.key, e.body, e.cause) for e in commit.effects] == [
        ("alerts", "door", b"1", Place(0, 0).name),
        ("reports", "", b"2", Place(0, 0).name),
    ]
    bench.silent()
    assert bench.answered() == list(commit.effects)


def test_ids_of_effects_name_epoch_and_commit() -> None:
    ids = set()
    for epoch in (1, 2):
        bench = ActingBench()
        bench.opened(epoch=epoch)
        commit = bench.sent(0, to("a"), to("a"))
        ids |= {effect.id for effect in commit.effects}
        bench.answered()
        ids |= {effect.id for effect in bench.sent(1, to("a")).effects}
    assert len(ids) == 6
    assert all(len(effect_id) == 32 for effect_id in ids)


def test_one_run_of_a_target_and_key_is_handed_over_at_a_time() -> None:
    bench = ActingBench()
    bench.opened()
    first, second, other = bench.sent(0, to("a", "x"), to("a", "x"), to("a", "y")).effects
    assert bench.answered() == [first, second, other]
    bench.taken(other)
    bench.silent()
    commit = bench.sent(1, to("a", "x"))
    [third] = commit.effects
    assert commit.dropped == (other.id,)
    assert bench.answered() == []
    bench.taken(first)  # the target takes one at a time
    assert bench.handed_over() == [second, third]
    bench.taken(second, 2)
    bench.tick()
    assert bench.write().dropped == (first.id, second.id, third.id)


def test_effects_are_handed_over_in_runs_of_limited_size() -> None:
    bench = ActingBench()
    bench.opened()
    effects = bench.sent(0, *[to("a")] * (RUN_MAX + 1)).effects
    assert bench.answered() == list(effects[:RUN_MAX])
    bench.taken(effects[0], RUN_MAX)
    assert bench.handed_over() == [effects[RUN_MAX]]


def test_a_delayed_effect_waits_for_its_time_and_keeps_nothing_else_waiting() -> None:
    bench = ActingBench()
    bench.opened()
    delayed, prompt = bench.sent(0, to("a", "x", delay_s=5.0), to("a", "x")).effects
    assert bench.answered() == [prompt]
    bench.now = 5.0
    bench.owner.ticked(bench.now)
    assert bench.handed_over() == [delayed]


def test_an_effect_that_failed_is_handed_over_again_before_the_next() -> None:
    bench = ActingBench()
    bench.opened()
    first, second = bench.sent(0, to("a"), to("a")).effects
    bench.answered()
    bench.owner.effect_failed(first.id, 1, bench.now, "no answer")
    bench.silent()
    bench.tick()
    assert bench.handed_over() == [first, second]


def test_the_next_commit_drops_what_was_taken() -> None:
    bench = ActingBench()
    bench.opened()
    [first] = bench.sent(0, to("a")).effects
    bench.answered()
    bench.taken(first)
    bench.silent()
    assert bench.sent(1).dropped == (first.id,)


def test_without_another_message_a_commit_drops_what_was_taken_soon() -> None:
    bench = ActingBench()
    bench.opened()
    [first] = bench.sent(0, to("a")).effects
    bench.answered()
    bench.taken(first)
    bench.tick()
    assert bench.now == DROP_AFTER_S
    commit = bench.write()
    assert (commit.dropped, commit.effects, commit.due) == ((first.id,), (), 0.0)


def test_a_refused_effect_goes_to_the_dead_letters_once_a_commit_says_so_and_keeps_its_turn() -> None:
    bench = ActingBench()
    bench.opened()
    first, second = bench.sent(0, to("a"), to("a")).effects
    bench.answered()
    bench.owner.effect_refused(first.id, 1, "no such door", bench.now)
    commit = bench.write()
    assert [(refused.id, refused.reason) for refused in commit.refused] == [(first.id, "no such door")]
    bench.silent()
    [letter] = bench.answered()
    assert (letter.id, letter.refused) == (first.id, "no such door")
    bench.taken(letter)
    assert bench.handed_over() == [second]


def test_answers_of_an_earlier_opening_do_not_count() -> None:
    bench = ActingBench()
    bench.opened()
    [first] = bench.sent(0, to("a")).effects
    bench.answered()
    bench.owner.fenced(bench.now)
    bench.out()
    bench.owner.claim_checked(True, bench.now)
    bench.only(Peek)
    bench.owner.peeked(Checkpoint(KEY, epoch=5), bench.now)
    bench.only(Open)
    bench.owner.opened(Checkpoint(KEY, epoch=6, number=1, effects=(first,), due=1.0), bench.now)
    assert HandOver((first,)) in bench.out()
    bench.owner.effects_taken(first.id, 1, 1, bench.now)
    bench.now += DROP_AFTER_S
    bench.owner.ticked(bench.now)
    bench.silent()
    bench.taken(first)
    bench.tick()
    assert bench.write().dropped == (first.id,)


def test_a_commit_that_was_refused_takes_effects_and_timers_with_it() -> None:
    bench = ActingBench()
    bench.opened()
    bench.begin(held(0))
    bench.acted(Acts((to("a"),), (TimerChange("t", WALL + 100.0, b""),)))
    assert len(bench.write().effects) == 1
    bench.owner.refused("too large", bench.now)
    bench.now += RETRY_S
    bench.owner.ticked(bench.now)
    bench.only(Run)
    bench.acted(None)
    commit = bench.write()
    assert (commit.effects, commit.timers or (), commit.due) == ((), (), 0.0)
    assert bench.answered() == []


def test_what_a_store_has_lost_and_its_owner_knows_is_committed_again() -> None:
    bench = ActingBench()
    bench.only(Peek)
    bench.owner.peeked(None, bench.now)
    bench.only(Open)
    timer, effect = Timer("t", WALL + 500.0, b"5", "1.1"), pending(1)
    bench.owner.opened(Checkpoint(KEY, epoch=9, effects=(effect,), timers=(timer,)), 0.0, recalled=True)
    assert_recalled(bench.write(), timer, effect)
    bench.owner.committed(bench.now)
    [again] = handed_over(bench.out())
    assert (again.body, again.id != effect.id) == (effect.body, True)


def assert_recalled(commit: Commit, timer: Timer, effect: Effect) -> None:
    assert commit.timers == (timer,)
    assert [each.body for each in commit.effects] == [effect.body]


def test_no_message_runs_while_too_many_effects_are_pending() -> None:
    bench = ActingBench()
    bench.opened(effects=tuple(pending(number) for number in range(LIMITS.pending)), due=1.0)
    effects = handed_over(bench.out())
    bench.offer(held(0))
    bench.silent()
    assert bench.owner.runs.is_gapped
    waits = bench.owner.wait_reason()
    assert waits is not None
    assert waits.kind == "effects"
    bench.taken(effects[0])
    assert any(isinstance(command, Start) for command in bench.out())


def test_a_stream_says_how_many_effects_may_be_pending_and_how_large_they_may_be() -> None:
    for limits in (EffectLimits(pending=2), EffectLimits(pending_bytes=1)):
        bench = ActingBench(effects=limits)
        bench.opened(effects=(pending(1), msgspec.structs.replace(pending(2), body=b"1")), due=1.0)
        bench.out()
        bench.offer(held(0))
        bench.silent()
        assert bench.owner.runs.is_gapped


def full(**rules: Any) -> ActingBench:
    """An owner with as many pending effects as it may have, and what it hands over taken note of."""
    bench = ActingBench(**rules)
    bench.opened(effects=tuple(pending(number) for number in range(LIMITS.pending)), due=1.0)
    bench.out()
    return bench


def test_clients_wait_for_no_target_and_what_they_sent_with_a_seq_keeps_its_place() -> None:
    bench = full()
    bench.offer(asked(0))
    refused = bench.only(RefuseRequests)
    assert [receipt.request for receipt in refused.requests] == [1]
    assert (refused.target, refused.pending) == ("a", LIMITS.pending)
    bench.offer(asked(0))
    assert len(bench.only(RefuseRequests).requests) == 1, "the same again is refused as well"
    bench.offer(held(0))
    bench.silent()
    bench.taken(pending(0))
    assert bench.only(Start).head == Place(0, 0).name, "in its place, whoever waits"


def test_a_client_without_seqs_may_send_again_what_was_refused_and_it_runs_once() -> None:
    bench = full(order={"kind": "absent"})
    client = Held(Place(0, 0, "x"), b"", {}, [Receipt("request 1", 1.0, stale=True, request=1)])
    queued = Held(Place(0, 0, "y"), b"", {}, [Receipt("r", 1.0)])
    bench.offer(client, queued)
    assert [receipt.request for receipt in bench.only(RefuseRequests).requests] == [1]
    assert len(bench.owner.inbox) == 1, "the queue's message waits"
    both = Held(Place(0, 0, "y"), b"", {}, [Receipt("request 2", 1.0, stale=True, request=2)])
    bench.offer(both)
    bench.only(RefuseRequests)
    assert len(bench.owner.inbox) == 1
    bench.taken(pending(0))
    assert bench.only(Start).head == queued.place.name


def test_clients_that_wait_as_the_limit_is_reached_are_refused_too() -> None:
    bench = ActingBench()
    bench.opened()
    bench.offer(asked(0))
    bench.only(Start)
    bench.owner.started(1, bench.now)
    bench.only(Run)
    bench.acted(Acts(tuple(to("a", str(number)) for number in range(LIMITS.pending))))
    bench.offer(asked(1), asked(2))
    bench.out()
    bench.owner.committed(bench.now)
    out = bench.out()
    assert [c.messages[0].place.seq for c in out if isinstance(c, Settle)] == [0], "which is committed"
    assert [len(c.requests) for c in out if isinstance(c, RefuseRequests)] == [2], "which wait"


@pytest.mark.slow
def test_a_refused_client_is_told_when_the_target_is_tried_again() -> None:
    bench = full()
    for number in range(LIMITS.pending):
        bench.owner.effect_failed(pending(number).id, bench.owner.epoch, bench.now, "no answer")
    bench.out()
    bench.offer(asked(0))
    assert 0.0 < bench.only(RefuseRequests).retry_after_s <= 0.2


def test_what_is_pending_is_told_with_the_target_that_has_failed_most_often() -> None:
    bench = ActingBench()
    effects = (pending(1, WALL - 60.0, "slow"), pending(2, WALL - 9.0, "away"))
    bench.opened(effects=effects, due=1.0)
    assert bench.owner.commits.effects.report() == PendingReport(2, WALL - 60.0, "slow", 0)
    bench.owner.effect_failed(effects[1].id, bench.owner.epoch, bench.now, "no answer")
    assert bench.owner.commits.effects.report() == PendingReport(2, WALL - 60.0, "away", 1, "no answer")
    bench.tick()  # it is handed over again
    bench.taken(effects[1])
    assert bench.owner.commits.effects.report() == PendingReport(1, WALL - 60.0, "slow", 0)


def pending(number: int, at: float = WALL, target: str = "a") -> Effect:
    return Effect(number, 0, f"id-{number}", target, str(number), b"", "0:1", at)


def test_a_target_that_is_away_for_too_long_gets_its_effects_no_more() -> None:
    bench = ActingBench()
    bench.opened(effects=(pending(1, WALL - LIMITS.timeout_s - 1.0),), due=1.0)
    [effect] = handed_over(bench.out())
    bench.owner.effect_failed(effect.id, 1, bench.now, "no answer")
    [refused] = bench.write().refused
    assert refused.id == "id-1"
    assert refused.reason.endswith("24 hours (effect_timeout_s); its last error: no answer")


@pytest.mark.parametrize("said, hops", [("3", 3), ("", 0), ("many", 0), ("²", 0)])
def test_a_message_tells_how_many_effects_led_to_it(said: str, hops: int) -> None:
    assert hops_of({"hops": said} if said else {}) == hops


def test_a_chain_of_effects_ends_after_sixteen_hops() -> None:
    bench = ActingBench()
    bench.opened()
    message = held(0)
    message.attributes["hops"] = "16"
    bench.begin(message)
    bench.acted(Acts((to("a"),)))
    [effect] = bench.write().effects
    assert "endless" in effect.refused


def test_a_commit_with_effects_is_due_after_a_grace_and_an_idle_stream_with_none_never() -> None:
    bench = ActingBench()
    bench.opened()
    assert bench.sent(0, to("a")).due == WALL + DUE_GRACE_S
    [effect] = bench.answered()
    bench.taken(effect)
    bench.tick()
    assert bench.write().due == 0.0


def failing(bench: ActingBench, effect: Effect) -> Commit:
    """The target of an effect gives no answer until the owner commits when it is to be tried again."""
    while True:
        bench.owner.effect_failed(effect.id, 1, bench.now, "no answer")
        if not (commits := written(bench)):
            bench.tick()
            commits = written(bench)
        if commits:
            return commits[0]


def test_a_target_that_is_away_keeps_no_owner() -> None:
    bench = ActingBench()
    bench.opened()
    bench.sent(0, to("a"))
    [effect] = bench.answered()
    commit = failing(bench, effect)
    assert bench.now >= IDLE_S
    assert WALL + bench.now < commit.due <= WALL + bench.now + 300.0
    bench.owner.committed(bench.now)
    assert any(isinstance(command, Release) for command in bench.out())


def test_a_move_waits_for_no_target_and_first_drops_what_was_taken() -> None:
    bench = ActingBench()
    bench.opened()
    first, _ = bench.sent(0, to("a", "x"), to("a", "y")).effects
    bench.answered()
    bench.taken(first)
    bench.owner.move("other", bench.now)
    assert bench.write().dropped == (first.id,)
    bench.owner.committed(bench.now)
    bench.only(Transfer)


@pytest.mark.parametrize("taken", [True, False])
def test_an_answer_of_a_target_counts_also_while_a_stream_moves_that_stays_in_the_end(taken: bool) -> None:
    bench = ActingBench()
    bench.opened()
    first, second = bench.sent(0, to("a"), to("a")).effects
    bench.answered()
    bench.owner.move("other", bench.now)
    bench.only(Transfer)
    if taken:
        bench.taken(first)
    else:
        bench.owner.effect_failed(first.id, 1, bench.now, "no answer")
    bench.silent()
    bench.owner.transferred("kept", bench.now)
    handed = handed_over(bench.out())
    while not handed:
        bench.tick()
        handed = handed_over(bench.out())
    assert handed[0].id == (second if taken else first).id


def written(bench: ActingBench) -> list[Commit]:
    return [command.commit for command in bench.out() if isinstance(command, Write)]


def test_an_answer_that_comes_twice_changes_nothing() -> None:
    bench = ActingBench()
    bench.opened()
    [effect] = bench.sent(0, to("a")).effects
    bench.answered()
    report = bench.owner.commits.effects.report()
    assert report is not None
    bench.owner.effect_failed(effect.id, 7, bench.now, "no answer")
    bench.owner.effect_refused(effect.id, 7, "no", bench.now)
    bench.taken(effect)
    bench.taken(effect)
    bench.owner.effect_failed(effect.id, 1, bench.now, "no answer")
    bench.owner.effect_refused(effect.id, 1, "no", bench.now)
    bench.tick()
    commit = bench.write()
    assert (commit.dropped, commit.refused) == ((effect.id,), ())
    assert bench.owner.commits.effects.report() is None


def test_a_nudge_to_an_owner_that_goes_changes_nothing() -> None:
    bench = ActingBench()
    bench.opened()
    bench.owner.drop()
    bench.out()
    bench.owner.nudged(bench.now)
    bench.silent()


# -- timers


def set_timer(bench: ActingBench, seq: int, seconds: float, name: str = "t", body: bytes = b"") -> Commit:
    """A message is handled that sets a timer, and its commit is answered."""
    bench.offer(held(seq))
    if any(isinstance(command, Start) for command in bench.out()):
        bench.owner.started(1, bench.now)
        bench.only(Run)
    bench.acted(bench.wake_after(seconds, name, body))
    commit = bench.write()
    bench.answered()
    return commit


def woken(bench: ActingBench) -> Run:
    """Time goes on until a timer fires that has a mark."""
    bench.tick()
    start = bench.only(Start)
    assert start.head.startswith("wake:")
    bench.owner.started(1, bench.now)
    return bench.only(Run)


def test_a_timer_fires_at_its_time_and_its_commit_removes_it() -> None:
    bench = ActingBench()
    bench.opened()
    commit = set_timer(bench, 0, 7.0, body=b"5")
    assert [(timer.name, timer.at, timer.body) for timer in commit.timers or ()] == [("t", WALL + 7.0, b"5")]
    assert commit.due == WALL + 7.0 + DUE_GRACE_S
    [fired] = woken(bench).messages
    assert bench.now == 7.0
    assert fired.body == b"5"
    bench.acted(None)
    commit = bench.write()
    assert (commit.timers, commit.due) == ((), 0.0)
    assert commit.log is not None
    assert commit.log.seq == 0
    bench.owner.committed(bench.now)
    bench.silent()


def test_a_timer_that_fires_leaves_what_was_read_of_a_backlog_as_it_is() -> None:
    bench = ActingBench(order={"inbox_limit": 1}, by_key=True)
    bench.opened()
    set_timer(bench, 0, 0.5)
    bench.offer(held(2))
    assert bench.owner.offer(held(3), bench.now) == "full"
    bench.only(Reserve)
    bench.owner.reserved(True, bench.now)
    bench.only(Take)
    bench.owner.took(0, 0, False, bench.now)
    waits = bench.owner.wait_reason()
    assert waits is not None
    assert waits.until is not None, "all of it was read, so the clock of the gap runs"
    woken(bench)
    bench.acted(None)
    bench.write()
    bench.answered()
    waits = bench.owner.wait_reason()
    assert waits is not None
    assert waits.until is not None


def test_a_timer_that_is_set_again_by_its_firing_stays() -> None:
    bench = ActingBench()
    bench.opened()
    set_timer(bench, 0, 1.0)
    woken(bench)
    bench.acted(bench.wake_after(0.0))
    [timer] = bench.write().timers or ()
    assert timer.at == WALL + 1.0 + REARM_S


def test_a_timer_does_not_fire_before_its_time_if_the_wall_clock_is_set_back() -> None:
    bench = ActingBench()
    bench.opened()
    set_timer(bench, 0, 5.0)
    bench.owner.agenda.wall_ahead_s -= 100.0
    bench.tick()
    assert bench.now == 5.0
    bench.silent()
    bench.tick()
    assert bench.now <= 65.0
    bench.silent()


def test_a_timer_whose_start_is_counted_waits_if_the_wall_clock_was_set_back_meanwhile() -> None:
    bench = ActingBench()
    bench.opened()
    set_timer(bench, 0, 5.0)
    bench.tick()
    bench.only(Start)
    bench.owner.agenda.wall_ahead_s -= 100.0
    bench.owner.started(1, bench.now)
    bench.silent()
    while bench.now < 100.0:
        bench.tick()
        if bench.now < 105.0:
            bench.silent()
    assert bench.now == 105.0
    bench.only(Run)


def test_a_cleared_timer_does_not_fire() -> None:
    bench = ActingBench()
    bench.opened()
    set_timer(bench, 0, 5.0)
    bench.begin(held(1))
    bench.acted(Acts((), (TimerChange("t", None),)))
    assert bench.write().timers == ()
    bench.answered()
    bench.now = 6.0
    bench.owner.ticked(bench.now)
    bench.silent()


def test_a_timer_that_is_cleared_while_it_waits_for_its_next_try_does_not_fire_again() -> None:
    bench = ActingBench(max_tries=2)
    bench.opened()
    set_timer(bench, 0, 1.0)
    woken(bench)
    bench.owner.ran([], None, 0, "Boom", "", False, bench.now)
    bench.silent()
    bench.begin(held(1))
    bench.acted(Acts((), (TimerChange("t", None),)))
    assert bench.write().timers == ()
    bench.answered()
    bench.now += 30.0
    bench.owner.ticked(bench.now)
    bench.silent()


def test_a_due_timer_and_messages_take_turns() -> None:
    bench = ActingBench()
    bench.opened()
    bench.begin(held(0))
    bench.acted(bench.wake_after(0.0))
    bench.offer(held(1))
    runs = []
    for _ in range(3):
        out = bench.out()
        runs += [command.messages[0].place.name for command in out if isinstance(command, Run)]
        if any(isinstance(command, Start) for command in out):
            bench.owner.started(1, bench.now)
        elif any(isinstance(command, Run) for command in out):
            bench.acted(None)
        else:
            bench.owner.committed(bench.now)
    assert any(name.startswith("wake:t:") for name in runs)


def test_a_timer_that_fails_is_tried_again_and_then_becomes_a_dead_letter_by_commit() -> None:
    bench = ActingBench(max_tries=2)
    bench.opened()
    set_timer(bench, 0, 1.0, body=b"5")
    woken(bench)
    bench.owner.ran([], None, 0, "Boom", "", False, bench.now)
    bench.silent()
    bench.tick()
    bench.only(Run)
    bench.owner.ran([], None, 0, "Boom", "", False, bench.now)
    commit = bench.write()
    assert commit.timers == ()
    [letter] = commit.effects
    assert (letter.body, letter.refused, letter.cause.startswith("wake:t:")) == (b"5", "Boom", True)
    assert [aside.name for aside in commit.aside] == [letter.cause]
    assert bench.answered() == [letter]


def test_a_timer_whose_commit_is_refused_fires_again() -> None:
    bench = ActingBench()
    bench.opened()
    set_timer(bench, 0, 1.0)
    woken(bench)
    bench.acted(Acts((to("a"),)))
    assert len(bench.write().effects) == 1
    bench.owner.refused("too large", bench.now)
    bench.silent()
    bench.tick()
    [fired] = bench.only(Run).messages
    assert fired.place.name.startswith("wake:t:")
    bench.acted(None)
    commit = bench.write()
    assert (commit.timers, commit.effects) == ((), ())


def test_a_timer_that_is_set_anew_while_its_next_try_is_awaited_fires_in_the_new_setting_only() -> None:
    bench = ActingBench()
    bench.opened()
    set_timer(bench, 0, 1.0)
    woken(bench)
    bench.owner.ran([], None, 0, "Boom", "", False, bench.now)
    bench.begin(held(1))
    bench.acted(Acts((), (*bench.wake_after(30.0).timers, *bench.wake_after(40.0, "u").timers)))
    assert {timer.name for timer in bench.write().timers or ()} == {"t", "u"}
    bench.answered()
    while not any(isinstance(command, Start | Run) for command in bench.out()):
        bench.tick()
    assert bench.now == 31.0


def test_a_stream_parks_at_a_timer_that_fails_if_it_is_to() -> None:
    bench = ActingBench(max_tries=1, on_failure="park")
    bench.opened()
    set_timer(bench, 0, 1.0)
    woken(bench)
    bench.owner.ran([], None, 0, "Boom", "", False, bench.now)
    commit = bench.write()
    assert commit.parked.startswith("wake:t:")
    assert commit.timers is None


def test_the_name_of_a_timer_is_that_of_its_place() -> None:
    timers = Timers(1, [Timer("a:b", 5.0, b"", "1.1"), Timer("c", 6.0, b"", "1.2")])
    place = place_of(timers.all[1])
    assert (place.timer, Place(0, 1).timer, len(timers.standing)) == ("c", "", 2)
    timers.fired(Held(place, b"", {}, []))
    timers.fired(Held(place, b"", {}, []))
    assert [timer.name for timer in timers.all] == ["a:b"]


def test_messages_go_on_while_a_timer_waits_for_its_next_try_and_are_counted_themselves() -> None:
    bench = ActingBench()
    bench.opened()
    set_timer(bench, 0, 1.0)
    woken(bench)
    bench.owner.ran([], None, 0, "Boom", "", False, bench.now)
    assert bench.begin(held(1)).messages[0].place == Place(0, 1)


def test_no_message_that_waits_for_its_next_try_answers_for_a_timer() -> None:
    bench = ActingBench(backoff=Backoff(100.0, 100.0, floor=1.0))
    bench.opened()
    set_timer(bench, 0, 5.0)
    bench.begin(held(1))
    bench.owner.ran([], None, 0, "Boom", "", False, bench.now)
    bench.silent()
    bench.now = 5.0
    bench.owner.ticked(bench.now)
    assert bench.only(Start).head.startswith("wake:t:")


def test_a_timer_that_was_begun_by_an_earlier_opening_is_counted_and_skipped_at_last() -> None:
    bench = ActingBench(max_starts=2)
    timer = Timer("t", WALL - 1.0, b"5", "1.1")
    name = "wake:t:1.1"
    bench.opened(timers=(timer,), due=WALL, started=Started(name, 2, 1))
    [start] = [command for command in bench.out() if isinstance(command, Start)]
    assert start.head == name
    bench.owner.started(3, bench.now)
    commit = bench.write()
    assert [aside.name for aside in commit.aside] == [name]
    assert "poison" in commit.aside[0].reason


def test_the_timers_of_a_parked_stream_wait() -> None:
    bench = ActingBench()
    timer = Timer("t", WALL - 1.0, b"", "1.1")
    bench.opened(timers=(timer,), parked="paused", due=1.0)
    assert not any(isinstance(command, Start | Run) for command in bench.out())


def test_a_stream_with_more_timers_than_it_may_have_fails_the_message_that_sets_them() -> None:
    bench = ActingBench(max_tries=1)
    bench.opened()
    bench.begin(held(0))
    changes = tuple(TimerChange(f"t{number}", WALL + 9.0) for number in range(TIMERS + 1))
    bench.acted(Acts((), changes))
    [aside] = bench.write().aside
    assert "64" in aside.reason


def test_an_owner_that_goes_says_when_the_next_timer_is_due() -> None:
    bench = ActingBench()
    bench.opened()
    set_timer(bench, 0, 1000.0)
    commits = written(bench)
    while not commits:
        bench.tick()
        commits = written(bench)
    assert [commit.due for commit in commits] == [WALL + 1000.0]
    bench.owner.committed(bench.now)
    assert any(isinstance(command, Release) for command in bench.out())


@pytest.mark.parametrize("before_s", [10 * YEAR_S, WALL, WALL + YEAR_S])
def test_a_timer_whose_time_is_long_past_fires_at_once(before_s: float) -> None:
    """Times of 1970 and before are none to stores, where 0 says that nothing is due."""
    bench = ActingBench()
    bench.opened()
    bench.begin(held(0))
    bench.acted(bench.wake_after(-before_s))
    commit = bench.write()
    assert commit.due == WALL + DUE_GRACE_S, "if this owner dies, another has to fire it"
    assert commit.starting.startswith("wake:")
    bench.owner.committed(bench.now)
    [_, run] = bench.out()
    assert isinstance(run, Run)
    bench.owner.settled(bench.now)
    bench.acted(None)
    commit = bench.write()
    assert (commit.timers, commit.due) == ((), 0.0)


def test_a_timer_that_is_due_in_a_hundred_years_stays() -> None:
    bench = ActingBench()
    bench.opened()
    commit = set_timer(bench, 0, 100 * YEAR_S)
    assert commit.due == WALL + 100 * YEAR_S + DUE_GRACE_S
    commits = written(bench)
    while not commits:
        bench.tick()
        commits = written(bench)
    assert bench.now <= IDLE_S
    assert [commit.due for commit in commits] == [WALL + 100 * YEAR_S]
    bench.owner.committed(bench.now)
    assert any(isinstance(command, Release) for command in bench.out())


def test_an_owner_with_a_timer_soon_stays() -> None:
    bench = ActingBench()
    bench.opened()
    set_timer(bench, 0, IDLE_S + 30.0)
    bench.tick()
    while bench.now < IDLE_S + 30.0:
        bench.silent()
        bench.tick()
    assert bench.only(Start).head.startswith("wake:")


def test_an_owner_stays_whose_timer_the_store_would_hand_out_again_at_once() -> None:
    bench = ActingBench(idle_timeout_s=1.0)
    bench.opened()
    set_timer(bench, 0, AHEAD_S)
    bench.tick()
    while bench.now < AHEAD_S:
        bench.silent()
        bench.tick()
    assert bench.only(Start).head.startswith("wake:")


def test_an_owner_stays_while_a_target_that_does_not_answer_is_tried_again_soon() -> None:
    bench = ActingBench(idle_timeout_s=1.0)
    bench.opened()
    bench.sent(0, to("a"))
    [effect] = bench.answered()
    assert failing(bench, effect).due - WALL - bench.now > AHEAD_S


def test_an_owner_that_stayed_after_all_says_anew_when_a_target_is_tried_again() -> None:
    bench = ActingBench(idle_timeout_s=1.0)
    bench.opened()
    bench.sent(0, to("a"))
    [effect] = bench.answered()
    due = failing(bench, effect).due
    bench.now = due - WALL  # the answer took so long that the next try is soon
    bench.owner.committed(bench.now)
    assert not any(isinstance(command, Release) for command in bench.out())
    assert failing(bench, effect).due > due + AHEAD_S


def test_a_nudge_is_answered_by_the_right_time() -> None:
    bench = ActingBench()
    bench.opened()
    set_timer(bench, 0, 20.0)
    bench.owner.nudged(bench.now)
    assert bench.write().due == WALL + 20.0 + DUE_GRACE_S
    bench.answered()
    bench.owner.nudged(bench.now)
    assert bench.write().due == WALL + 20.0 + DUE_GRACE_S


def test_effects_that_were_committed_while_the_claim_was_looked_into_are_handed_over_after_that() -> None:
    bench = ActingBench()
    bench.opened()
    commit = bench.sent(0, to("alerts"))
    bench.owner.vanished()
    bench.only(Reclaim)
    assert bench.answered() == [], "another node may own the stream by now"
    bench.owner.claim_checked(True, bench.now)
    assert bench.handed_over() == list(commit.effects)


@pytest.mark.parametrize("waits_for", ["a missing message", "a target"])
def test_a_stream_that_waits_for_others_looks_at_the_store_whatever_its_timers_and_effects_do(
    waits_for: str,
) -> None:
    bench = ActingBench(order={"on_gap": "hold"}, effects=EffectLimits(pending=1))
    bench.opened()
    if waits_for == "a target":
        bench.sent(0, to("alerts"))
        bench.answered()
    else:
        bench.begin(held(0))
        bench.acted(bench.wake_after(100_000.0))
        bench.write()
        bench.answered()
    bench.offer(held(2))
    end_at = bench.now + 10 * LOOK_S
    looks = 0
    while bench.now < end_at:
        for command in bench.out():
            if isinstance(command, Peek):
                looks += 1
                at = Checkpoint(KEY, epoch=bench.owner.epoch, number=bench.owner.commits.number)
                bench.owner.peeked(at, bench.now)
            elif isinstance(command, HandOver):
                bench.owner.effect_failed(command.effects[0].id, bench.owner.epoch, bench.now, "away")
        bench.tick()
    assert 9 <= looks <= 11
