"""When an owner commits, and what the commit says."""

import pytest

from holdfast.common.acts import Acts, Send, TimerChange
from holdfast.common.message import Life, Place, Span
from holdfast.rules.streams.commands import Write
from holdfast.rules.streams.commit_plan import DROP_AFTER_S, DUE_GRACE_S, BatchEntry, Covered, has_message
from holdfast.rules.streams.ledger import Aside, Commit, Result, Timer
from holdfast.rules.streams.sequencer import Gap
from tests.rules.streams.parts import Parts, held


def done(seq: int, acts: Acts | None = None) -> BatchEntry:
    return BatchEntry("done", held(seq, life=Life.RUNNING), b"result", acts=acts)


def written(parts: Parts) -> Commit:
    [command] = parts.out()
    assert isinstance(command, Write)
    return command.commit


def test_a_commit_is_due_at_once_while_nothing_runs() -> None:
    parts = Parts()
    assert not parts.commits.is_time(0.0, runs=False), "there is nothing to say"
    parts.commits.append(done(0), 0.0)
    assert parts.commits.is_time(0.0, runs=False)


def test_while_the_handler_works_a_commit_waits_for_enough_entries_or_time() -> None:
    parts = Parts(checkpoint_every=2, checkpoint_after_s=5.0)
    parts.commits.append(done(0), 1.0)
    assert not parts.commits.is_time(1.0, runs=True)
    assert parts.agenda.wake_at == 6.0
    assert parts.commits.is_time(6.0, runs=True)
    parts.commits.append(done(1), 1.0)
    assert parts.commits.is_time(1.0, runs=True)


def test_one_commit_is_in_flight_at_a_time() -> None:
    parts = Parts()
    parts.commits.append(done(0), 0.0)
    parts.commits.compose(0.0, "")
    parts.commits.append(done(1), 0.0)
    assert not parts.commits.is_time(9.0, runs=False)
    assert written(parts).id == "1.1.0"
    parts.commits.committed()
    assert parts.commits.is_time(9.0, runs=False)


def test_taken_effects_are_dropped_a_little_later() -> None:
    parts = Parts()
    parts.commits.append(done(0, Acts((Send("a", "", b""),))), 0.0)
    parts.commits.compose(0.0, "")
    [effect] = written(parts).effects
    parts.commits.committed()
    parts.commits.effects.hand_over(0.0, 0.0)
    parts.commits.effects.taken(effect.id, 1, 1.0)
    assert not parts.commits.is_time(1.0, runs=False)
    assert parts.agenda.wake_at == 1.0 + DROP_AFTER_S
    assert parts.commits.is_time(1.0 + DROP_AFTER_S, runs=False)


def test_a_refused_commit_leaves_what_was_answered_and_the_records() -> None:
    parts = Parts({"state": b"old", "state_version": 3})
    message, late = held(0, life=Life.RUNNING), held(1, life=Life.WAITING)
    parts.commits.append(BatchEntry("done", message, b"result"), 0.0)
    parts.commits.append(BatchEntry("late", late, reason="late"), 0.0)
    parts.commits.state, parts.commits.dirty = b"new", True
    parts.commits.compose(0.0, "")
    parts.commits.revert([])
    assert (parts.commits.state, parts.commits.state_version, parts.commits.dirty) == (b"old", 3, False)
    assert [entry.kind for entry in parts.commits.batch] == ["late"]
    assert (message.life, parts.seq.inbox) == (Life.WAITING, [message.place])
    parts.out()
    parts.commits.compose(0.0, "")
    assert written(parts).id == "1.1.1", "another content, another id"


@pytest.mark.parametrize("parked, due", [("", 40.0 + DUE_GRACE_S), ("by hand", 0.0)])
def test_a_stream_is_due_for_its_timers_unless_it_is_parked(parked: str, due: float) -> None:
    parts = Parts({"timers": (Timer("t", 40.0, b"", "1.1"),), "parked": parked})
    assert parts.commits.due_next((), 0.0) == due


def test_a_timer_that_sets_itself_again_fires_a_little_later() -> None:
    parts = Parts({"timers": (Timer("t", 5.0, b"", "1.1"),)})
    fired = parts.commits.timers.head(9.0, 0.0)
    assert not isinstance(fired, float | None)
    fired.become(Life.RUNNING)
    again = Acts((), (TimerChange("t", 1.0),))
    parts.commits.append(BatchEntry("done", fired, acts=again), 9.0)
    [timer] = parts.commits.timers.all
    assert timer.at > 9.0


def test_before_a_release_the_store_knows_when_the_stream_is_due() -> None:
    parts = Parts({"timers": (Timer("t", 1000.0, b"", "1.1"),)}, idle_timeout_s=60.0)
    assert parts.commits.before_release(0.0, 0.0) == "wait"
    assert parts.agenda.wake_at == 60.0
    assert parts.commits.before_release(60.0, 0.0) == "record"
    parts.commits.compose(60.0, "", resting=True)
    assert written(parts).due == 1000.0
    parts.commits.committed()
    assert parts.commits.before_release(60.0, 60.0) == "release"


def test_a_stream_whose_timer_is_soon_due_is_not_released() -> None:
    parts = Parts({"timers": (Timer("t", 100.0, b"", "1.1"),)}, idle_timeout_s=60.0)
    assert parts.commits.before_release(60.0, 0.0) == "wait"


def test_a_commit_counts_what_it_covers() -> None:
    skip = BatchEntry("skip", held(1), reason="Boom")
    covered = Covered([done(0), skip, BatchEntry("gap", run=0, span=Span(2, 4)), BatchEntry("park")])
    assert covered.results == [Result(Place(0, 0).name, b"result")]
    assert covered.aside == [Aside(Place(0, 1).name, "Boom")]
    assert covered.gaps == [Gap(0, Span(2, 4))]
    assert (covered.done, covered.skipped) == (1, 4)


def test_what_the_stream_had_passed_says_nothing_of_its_run() -> None:
    assert not has_message([BatchEntry("late", held(0)), BatchEntry("far", held(1))])
    assert has_message([BatchEntry("late", held(0)), done(1)])
