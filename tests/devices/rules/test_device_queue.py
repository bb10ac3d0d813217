"""The queue of one device: its table of states, its judgement, its correlations; and rollouts."""

from itertools import pairwise

import msgspec
import pytest

from holdfast.devices.rules import device_queue as queue
from holdfast.devices.rules.device_queue import (
    CLOSED,
    SLOW_MAX_S,
    SLOW_SHARE,
    TABLE,
    Cause,
    CommandState,
    Correlation,
    Head,
    HeadPhase,
    HeadVerdict,
    Patience,
    StoredCommand,
)
from holdfast.devices.rules.device_turn import Rollout
from holdfast.errors import InvalidMessage

PATIENCE = Patience(retry_s=10.0, retry_max_s=60.0, max_tries=3)
ENTRY = StoredCommand(id=7, device="d1", lane=0, shard=0, state=CommandState.SCHEDULED, body=b"")


def test_every_state_is_reached_and_every_open_one_is_left() -> None:
    assert {CommandState.SCHEDULED, *TABLE.values()} == set(CommandState)
    assert {state for state, _ in TABLE} >= set(CommandState) - CLOSED


def test_a_closed_command_is_opened_again_by_an_operator_only() -> None:
    assert {cause for (state, cause) in TABLE if state in CLOSED} == {Cause.RETRY}


def test_a_published_command_can_t_be_cancelled_or_superseded() -> None:
    published = queue.publish(ENTRY, 3, 100.0, counts=True)
    for cause in (Cause.CANCEL, Cause.SUPERSEDE):
        with pytest.raises(KeyError):
            queue.close(published, cause, 101.0)


def test_only_the_try_that_is_out_fits() -> None:
    once = queue.publish(ENTRY, 3, 100.0, counts=True)
    twice = queue.publish(once, 4, 110.0, counts=False)
    assert (twice.tries, twice.spent, twice.epoch) == (2, 1, 4)
    assert queue.fits(once, "d1", Correlation(3, 7, 1))
    assert queue.fits(twice, "d1", Correlation(4, 7, 2))
    assert not queue.fits(twice, "d1", Correlation(3, 7, 1))
    assert not queue.fits(twice, "d2", Correlation(4, 7, 2))
    assert queue.answers(twice, "d1", Correlation(4, 7, 1))
    assert queue.answers(twice, "d1", Correlation(4, 7, 2))
    for other in (Correlation(3, 7, 1), Correlation(4, 8, 1), Correlation(4, 7, 3), Correlation(4, 7, 0)):
        assert not queue.answers(twice, "d1", other)
    assert not queue.answers(twice, "d2", Correlation(4, 7, 1))
    assert not queue.fits(queue.close(twice, Cause.ANSWER, 111.0), "d1", Correlation(4, 7, 2))


def test_the_longest_id_of_a_command_is_read_and_none_is_longer() -> None:
    longest = Correlation.longest()
    read = Correlation.parse(longest)
    assert str(read) == longest
    for more in (read.command + 1, read.tries + 1):
        with pytest.raises(InvalidMessage):
            Correlation.parse(longest.replace(str(more - 1), str(more)))


@pytest.mark.parametrize(
    "changes,phase,away,verdict",
    [
        ({}, HeadPhase.WAITING, False, HeadVerdict.SEND),
        ({}, HeadPhase.WAITING, True, HeadVerdict.HOLD),
        ({}, HeadPhase.HELD, True, HeadVerdict.PROBE),
        ({}, HeadPhase.HELD, False, HeadVerdict.SEND),
        ({"spent": 3}, HeadPhase.WAITING, False, HeadVerdict.GIVE_UP),
        ({"spent": 3}, HeadPhase.WAITING, True, HeadVerdict.HOLD),
        ({"spent": 3}, HeadPhase.HELD, True, HeadVerdict.PROBE),
        ({"expires_at": 100.0}, HeadPhase.WAITING, False, HeadVerdict.EXPIRE),
        ({"expires_at": 99.0}, HeadPhase.HELD, True, HeadVerdict.EXPIRE),
        ({"expires_at": 101.0}, HeadPhase.WAITING, False, HeadVerdict.SEND),
    ],
)
def test_each_state_of_a_command_has_its_verdict(
    changes: dict[str, float], phase: HeadPhase, away: bool, verdict: HeadVerdict
) -> None:
    entry = msgspec.structs.replace(ENTRY, **changes)
    assert queue.judge(entry, phase, 100.0, away=away, patience=PATIENCE) is verdict


@pytest.mark.parametrize("phase", [HeadPhase.WAITING, HeadPhase.OUT, HeadPhase.HELD])
@pytest.mark.parametrize("away", [True, False])
def test_nothing_goes_to_a_device_that_is_paused_not_even_a_probe_and_nothing_fails(
    phase: HeadPhase, away: bool
) -> None:
    spent = msgspec.structs.replace(ENTRY, spent=PATIENCE.max_tries)
    for entry in (ENTRY, spent):
        judged = queue.judge(entry, phase, 100.0, away=away, patience=PATIENCE, paused=True)
        assert judged is HeadVerdict.HOLD
    expired = msgspec.structs.replace(ENTRY, expires_at=99.0)
    judged = queue.judge(expired, phase, 100.0, away=away, patience=PATIENCE, paused=True)
    assert judged is HeadVerdict.EXPIRE, "its time passes all the same"


def test_only_a_newer_command_of_the_same_key_and_device_replaces() -> None:
    keyed = msgspec.structs.replace(ENTRY, supersede_key="p1")
    newer = msgspec.structs.replace(keyed, id=ENTRY.id + 1)
    assert queue.replaces(newer, keyed)
    assert not queue.replaces(keyed, newer), "never an older one"
    assert not queue.replaces(keyed, keyed), "nor itself"
    for changed in ({"supersede_key": "p2"}, {"supersede_key": None}, {"device": "d2"}):
        assert not queue.replaces(msgspec.structs.replace(newer, **changed), keyed)
    assert not queue.replaces(msgspec.structs.replace(newer, supersede_key=None), ENTRY), "no key is none"


@pytest.mark.parametrize("random", [0.0, 0.5, 0.999])
def test_intervals_double_and_never_fall_short(random: float) -> None:
    waits = [PATIENCE.interval_s(spent, random) for spent in range(1, 8)]
    assert waits[0] >= PATIENCE.retry_s + PATIENCE.late_s
    assert all(after >= before for before, after in pairwise(waits))
    assert waits[1] == pytest.approx(2 * waits[0])
    assert max(waits) <= PATIENCE.longest_s()


def test_a_device_that_was_slow_is_waited_for_longer_but_not_for_ever() -> None:
    assert PATIENCE.interval_s(1, 0.0, 1.0) == PATIENCE.interval_s(1, 0.0)
    assert PATIENCE.interval_s(1, 0.0, 30.0) == 30.0 * SLOW_SHARE
    longest_s = max(PATIENCE.retry_max_s, SLOW_MAX_S) * SLOW_SHARE
    assert PATIENCE.interval_s(1, 0.0, 1e6) == longest_s <= PATIENCE.longest_s(1e6)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1.2",
        "1.2.3.4",
        "a.b.c",
        "1.-2.3",
        "1.2.\N{SUPERSCRIPT TWO}",
        "9" * 70,
        f"1.{2**63}.1",
        f"{2**63}.1.1",
        f"1.1.{2**31}",
    ],
)
def test_an_invalid_id_is_no_correlation(text: str) -> None:
    with pytest.raises(InvalidMessage):
        Correlation.parse(text)


def test_a_rollout_is_aborted_beyond_its_share() -> None:
    rollout = Rollout(1, "firmware", 10, abort_share=0.2)
    assert not rollout.after(3, 2).aborted
    aborted = rollout.after(3, 2).after(0, 1)
    assert (aborted.aborted, aborted.over) == (True, False)
    assert aborted.after(4, 0).aborted
    assert aborted.after(4, 0).over


def test_a_device_s_place_follows_from_its_id() -> None:
    head = queue.Head("d1", 2, 0)
    assert head.pair == ("d1", 2)
    assert ENTRY.pair == ("d1", 0)
    assert {queue.shard_of(f"d{n}", 4) for n in range(50)} == {0, 1, 2, 3}


@pytest.mark.parametrize("retry_max_s", [1.0, 10.0])
def test_a_try_is_waited_for_longer_than_it_may_be_sent_late(retry_max_s: float) -> None:
    patience = Patience(retry_s=10.0, retry_max_s=retry_max_s)
    assert patience.interval_s(1, 0.0) >= patience.retry_s + patience.late_s


def test_a_head_goes_through_its_phases_and_names_what_is_out() -> None:
    waiting = Head(device="d1", lane=0, shard=0, due=5.0)
    out = waiting.out(7, 20.0)
    assert (out.phase, out.command, out.due, out.pair) == (HeadPhase.OUT, 7, 20.0, ("d1", 0))
    held = out.held(7, 30.0)
    assert (held.phase, held.command, held.due) == (HeadPhase.HELD, 7, 30.0)
    resumed = held.resumed(2, 31.0)
    assert (resumed.phase, resumed.command, resumed.shard) == (HeadPhase.WAITING, 7, 2)
    freed = resumed.freed(32.0)
    assert (freed.phase, freed.command, freed.due) == (HeadPhase.WAITING, 0, 32.0)
    assert (freed.idle().phase, freed.idle().due) == (HeadPhase.IDLE, None)
    assert [freed.due_by(9.0).due, freed.due_by(99.0).due, freed.idle().due_by(9.0).due] == [9.0, 32.0, 9.0]


def test_a_device_is_waited_for_while_its_command_is_out() -> None:
    waiting = Head(device="d1", lane=0, shard=0)
    assert [queue.is_out(each) for each in (None, waiting, waiting.out(7, None))] == [False, False, True]
    assert [queue.has_last_try(each) for each in (waiting, waiting.out(7, None), waiting.out(7, 9.0))] == [
        False,
        False,
        True,
    ]


def test_a_command_that_is_sent_again_has_all_its_tries_and_no_expiry() -> None:
    failed = queue.close(queue.publish(ENTRY, 3, 100.0, counts=True), Cause.GIVE_UP, 200.0)
    again = queue.retry(msgspec.structs.replace(failed, expires_at=150.0))
    assert (again.state, again.spent, again.expires_at) == (CommandState.SCHEDULED, 0, None)
