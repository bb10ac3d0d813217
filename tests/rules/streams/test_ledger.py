"""The three rules by which a stream's checkpoint changes."""

import msgspec
import pytest

from holdfast.common.acts import Effect, RefusedEffect, effect_id
from holdfast.common.message import Place, Span
from holdfast.errors import Fenced
from holdfast.rules.streams.ledger import (
    COUNT_MAX,
    SKIPS_MAX,
    SUSPECTS_MAX,
    Checkpoint,
    Commit,
    RunLog,
    Started,
    Timer,
    commit,
    due_when_resumed,
    expire,
    identity,
    is_repeat,
    lease_due,
    may_expire,
    open_,
    start,
)

LOG = RunLog(0, 0, 7)
STANDING = Checkpoint(
    "s/k", epoch=3, number=5, commit_id="3.5", log=RunLog(0, 0, 6), state=b"old", member="m"
)
NEXT = Commit("s/k", epoch=3, number=6, id="3.6", log=LOG)


def applied(standing: Checkpoint | None, change: Commit) -> Checkpoint:
    after = commit(standing, change, at=9.0)
    assert after is not None
    return after


def changed(**fields: object) -> Commit:
    return msgspec.structs.replace(NEXT, **fields)


def test_a_new_stream_opens_at_one() -> None:
    assert open_(None, "s/k", 0, "m") == Checkpoint("s/k", epoch=1, member="m")


def test_an_opening_keeps_all_but_epoch_and_member() -> None:
    after = open_(STANDING, "s/k", 3, "n")
    assert after == msgspec.structs.replace(STANDING, epoch=4, member="n")


@pytest.mark.parametrize("expect", [0, 2, 4])
def test_an_opening_applies_only_at_what_it_expects(expect: int) -> None:
    with pytest.raises(Fenced) as caught:
        open_(STANDING, "s/k", expect, "n")
    assert caught.value.epoch == 3


def test_starts_of_one_head_are_counted() -> None:
    once = start(STANDING, "s/k", 3, "0:7")
    twice = start(open_(once, "s/k", 3, "n"), "s/k", 4, "0:7")
    assert (once.started, twice.started) == (Started("0:7", 1, 3), Started("0:7", 2, 4))
    assert start(twice, "s/k", 4, "0:8").started == Started("0:8", 1, 4)


def test_a_start_that_is_asked_for_again_counts_once() -> None:
    once = start(STANDING, "s/k", 3, "0:7")
    assert start(once, "s/k", 3, "0:7") == once
    other = start(once, "s/k", 3, "0:8")
    assert start(other, "s/k", 3, "0:7").started == Started("0:7", 1, 3), "another was begun between"
    named = applied(STANDING, changed(starting="0:7"))
    assert start(named, "s/k", 3, "0:7").started == Started("0:7", 1, 3), "a commit had counted it"


def begun_each_in_an_opening(*heads: str) -> Checkpoint:
    standing = STANDING
    for head in heads:
        standing = open_(standing, "s/k", standing.epoch, "n")
        standing = start(standing, "s/k", standing.epoch, head)
    return standing


def test_a_head_that_another_supplants_stays_suspect_with_its_count() -> None:
    other = begun_each_in_an_opening("0:7", "0:8")
    assert (other.started, other.suspects) == (Started("0:8", 1, 5), (Started("0:7", 1, 4),))
    again = start(open_(other, "s/k", 5, "n"), "s/k", 6, "0:7")
    assert (again.started, again.suspects) == (Started("0:7", 2, 6), (Started("0:8", 1, 5),))
    assert applied(again, changed(epoch=6, starting="")).suspects == (Started("0:8", 1, 5),)


def test_an_opening_counts_for_the_head_that_began_last() -> None:
    opened = open_(begun_each_in_an_opening("0:7"), "s/k", 4, "n")
    failed = start(opened, "s/k", 5, "0:7")
    other = start(failed, "s/k", 5, "0:8")
    assert (other.started, other.suspects) == (Started("0:8", 1, 5), (Started("0:7", 1, 4),))
    again = start(other, "s/k", 5, "0:7")
    assert (again.started, again.suspects) == (Started("0:7", 2, 5), ())


def test_a_commit_may_clear_the_suspects() -> None:
    other = begun_each_in_an_opening("0:7", "0:8")
    kept = Started("0:8", 1, 5)
    after = applied(other, changed(epoch=5, clear_suspects=True, starting="0:8"))
    assert (after.started, after.suspects) == (kept, ())


def test_only_the_newest_suspects_are_remembered() -> None:
    standing = begun_each_in_an_opening(*(f"0:{seq}" for seq in range(SUSPECTS_MAX + 2)))
    assert [suspect.head for suspect in standing.suspects] == [f"0:{i}" for i in range(1, SUSPECTS_MAX + 1)]


@pytest.mark.parametrize("standing, stands", [(None, 0), (STANDING, 3)])
def test_a_start_or_commit_of_another_epoch_is_fenced(standing: Checkpoint | None, stands: int) -> None:
    with pytest.raises(Fenced) as caught:
        start(standing, "s/k", 2, "0:7")
    assert caught.value.epoch == stands
    with pytest.raises(Fenced) as caught:
        commit(standing, changed(epoch=2), 9.0)
    assert caught.value.epoch == stands


@pytest.mark.parametrize("number", [4, 5, 7])
def test_only_the_next_commit_is_taken(number: int) -> None:
    with pytest.raises(Fenced, match="not next after 5"):
        commit(STANDING, changed(number=number), 9.0)


def test_a_commit_moves_the_checkpoint() -> None:
    after = applied(STANDING, changed(done=1, skipped=2, past=(LOG,), parked="by hand"))
    assert (after.number, after.commit_id, after.log, after.at) == (6, "3.6", LOG, 9.0)
    assert (after.done, after.skipped, after.past, after.parked) == (1, 2, (LOG,), "by hand")
    assert after.member == "m"


def test_the_last_commit_again_changes_nothing() -> None:
    after = applied(STANDING, NEXT)
    assert is_repeat(after, NEXT)
    assert commit(after, NEXT, 10.0) is None
    with pytest.raises(Fenced):
        commit(after, changed(id="other"), 10.0)


@pytest.mark.parametrize(
    "fields, state, version",
    [
        ({"state_version": 2}, b"old", 0),
        ({"state": b"new", "state_version": 2}, b"new", 2),
        ({"state": b"", "state_version": 2}, b"", 2),
        ({"clear_state": True}, None, 0),
    ],
)
def test_state_is_kept_replaced_or_cleared(
    fields: dict[str, object], state: bytes | None, version: int
) -> None:
    after = applied(STANDING, changed(**fields))
    assert (after.state, after.state_version) == (state, version)


def test_the_window_keeps_the_newest_identities() -> None:
    standing = msgspec.structs.replace(STANDING, recent=("a", "b", "c"))
    assert applied(standing, changed(identities=("d", "e"), window=4)).recent == ("b", "c", "d", "e")
    assert applied(standing, changed(identities=("d",))).recent == ()


def test_a_commit_renames_or_clears_the_mark() -> None:
    standing = msgspec.structs.replace(STANDING, started=Started("0:7", 4, 2))
    assert applied(standing, NEXT).started is None
    assert applied(standing, changed(starting="0:7")).started == Started("0:7", 4, 2)
    assert applied(standing, changed(starting="0:8")).started == Started("0:8", 1, 3)
    assert applied(STANDING, changed(starting="0:8")).started == Started("0:8", 1, 3)


def test_what_is_left_of_an_expired_checkpoint_still_fences() -> None:
    left = expire(applied(STANDING, NEXT))
    assert left == Checkpoint("s/k", 3, 6, "3.6")
    assert commit(left, NEXT, 9.0) is None
    with pytest.raises(Fenced):
        open_(left, "s/k", 0, "m")


def test_a_log_knows_which_seqs_were_skipped() -> None:
    log = RunLog(0, 0, 9, (Span(2, 3), Span(7, 7)))
    assert [seq for seq in range(10) if log.skipped(seq)] == [2, 3, 7]


def test_a_log_keeps_neighbouring_skips_as_one_range() -> None:
    log = RunLog(0, 0, 4).passing_over(Span(5, 6)).passing_over(Span(7, 9))
    assert log == RunLog(0, 0, 9, (Span(5, 9),))


def test_a_log_of_many_skips_joins_the_oldest_and_forgets_none() -> None:
    log = RunLog(0, 0, -1)
    for seq in range(1, 2 * SKIPS_MAX + 5, 2):
        log = log.passing_over(Span(seq, seq))
    assert len(log.skips) == SKIPS_MAX
    assert log.skips[0] == Span(1, 5)
    assert log.seq == 2 * SKIPS_MAX + 3
    assert all(log.skipped(seq) for seq in range(1, log.seq + 1, 2))
    assert not any(log.skipped(seq) for seq in range(6, log.seq, 2))


def test_a_longer_log_of_an_older_version_is_shortened_by_the_next_skip() -> None:
    skips = tuple(Span(seq, seq) for seq in range(0, 4 * SKIPS_MAX, 2))
    log = RunLog(0, 0, 4 * SKIPS_MAX, skips).passing_over(Span(4 * SKIPS_MAX + 1, 4 * SKIPS_MAX + 1))
    assert len(log.skips) == SKIPS_MAX
    assert log.skips[0].first == 0
    assert log.skips[-2:] == (skips[-1], Span(4 * SKIPS_MAX + 1, 4 * SKIPS_MAX + 1))


def test_the_identity_of_a_message_is_its_key_run_and_seq() -> None:
    assert identity("s/k", Place(1, 0, "x")) == "s/k:1:x"


def test_counts_of_skips_end_where_stores_can_still_count() -> None:
    standing = msgspec.structs.replace(STANDING, skipped=COUNT_MAX - 1)
    assert applied(standing, changed(skipped=COUNT_MAX)).skipped == COUNT_MAX


EFFECTS = tuple(Effect(1, place, f"id-{place}", "a", "", b"", "0:1", 5.0) for place in range(3))
TIMER = Timer("t", 50.0, b"", "1.1")


def test_a_commit_adds_effects_behind_what_is_pending() -> None:
    standing = msgspec.structs.replace(STANDING, effects=EFFECTS[:1])
    assert applied(standing, changed(effects=EFFECTS[1:])).effects == EFFECTS


def test_a_commit_drops_and_marks_what_it_names() -> None:
    standing = msgspec.structs.replace(STANDING, effects=EFFECTS)
    after = applied(standing, changed(dropped=("id-0",), refused=(RefusedEffect("id-2", "no"),)))
    assert after.effects == (EFFECTS[1], msgspec.structs.replace(EFFECTS[2], refused="no"))


def test_a_key_that_is_due_is_leased() -> None:
    standing = msgspec.structs.replace(STANDING, due=10.0)
    assert lease_due(standing, 10.0, 5.0) is None
    assert lease_due(STANDING, 99.0, 5.0) is None
    leased = lease_due(standing, 11.0, 5.0)
    assert leased is not None
    assert leased.due == 16.0


def test_a_resumed_stream_is_due_for_its_timers_and_effects() -> None:
    assert due_when_resumed(STANDING) == 0.0
    timed = msgspec.structs.replace(STANDING, timers=(TIMER,))
    assert due_when_resumed(timed) == 50.0
    assert due_when_resumed(msgspec.structs.replace(timed, due=7.0)) == 7.0
    ancient = msgspec.structs.replace(TIMER, at=-5.0)
    assert due_when_resumed(msgspec.structs.replace(timed, timers=(ancient,))) > 0.0


def test_a_checkpoint_with_effects_or_timers_does_not_expire() -> None:
    idle = msgspec.structs.replace(STANDING, at=1.0)
    assert may_expire(idle, 2.0)
    assert not may_expire(idle, 1.0)
    for acts in ({"effects": EFFECTS}, {"timers": (TIMER,)}, {"due": 3.0}):
        assert not may_expire(msgspec.structs.replace(idle, **acts), 2.0)


def test_an_effect_s_id_follows_from_its_commit() -> None:
    ids = {
        effect_id("s/k", epoch, number, place) for epoch in (1, 2) for number in (1, 2) for place in (0, 1)
    }
    assert len(ids) == 8
    assert {len(each) for each in ids} == {32}


def test_a_run_has_passed_no_seq_before_its_first() -> None:
    begun = RunLog(run=1, start=10, seq=9)
    assert begun.last is None
    assert msgspec.structs.replace(begun, seq=10).last == 10
    assert begun.passing_over(Span(10, 12)).last == 12
