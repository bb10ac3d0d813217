"""The events that wait for a turn, and what is put back where a turn didn't write them."""

from holdfast.devices.dispatcher import pending
from holdfast.devices.dispatcher.pending import Pending, RecentWrites
from holdfast.devices.rules.device_queue import Correlation, shard_of
from holdfast.devices.rules.device_turn import CommandAnswer, Sending, TurnResult, Unsent

SHARDS = 2
FIRST, SECOND = (next(f"d{n}" for n in range(9) if shard_of(f"d{n}", SHARDS) == shard) for shard in (0, 1))


def answer(device: str, tries: int = 1) -> CommandAnswer:
    return CommandAnswer(device, Correlation(1, 1, tries))


def sending(shard: int, tries: int = 1) -> Sending:
    device = (FIRST, SECOND)[shard]
    return Sending(device, shard, Correlation(1, 1, tries), b"", "", 0.0)


def filled() -> Pending:
    """Events of both shards."""
    events = Pending(SHARDS)
    events.answers += [answer(FIRST), answer(SECOND)]
    events.still_out += [sending(0), sending(1)]
    events.unsent.append(Unsent(Correlation(1, 1, 1)))
    events.back[FIRST] = None
    events.fresh[0] = None
    return events


def test_a_turn_takes_the_events_of_the_shards_that_are_served() -> None:
    events = filled()
    taken = events.take({0})
    assert (taken.answers, taken.still_out) == ([answer(FIRST)], [sending(0)])
    assert (events.answers, events.still_out) == ([answer(SECOND)], [sending(1)])
    assert (len(taken.unsent), list(taken.back), list(taken.fresh)) == (1, [FIRST], [0])
    assert (events.unsent, events.back, events.fresh) == ([], {}, {})


def test_events_that_a_turn_did_not_write_come_first() -> None:
    events = filled()
    taken = events.take({0, 1})
    events.answers.append(answer(FIRST, tries=2))
    events.still_out.append(sending(0, tries=2))
    events.put_back(taken, in_doubt=False)
    assert events.answers == [answer(FIRST), answer(SECOND), answer(FIRST, tries=2)]
    assert events.still_out == [sending(0), sending(1), sending(0, tries=2)]
    assert len(events.unsent) == 1
    assert events.needs_turn


def test_a_turn_in_doubt_gives_no_try_back_twice() -> None:
    events = filled()
    events.put_back(events.take({0, 1}), in_doubt=True)
    assert events.unsent == []
    assert len(events.answers) == 2


def test_events_of_a_shard_that_went_wait_until_it_comes_back() -> None:
    events = filled()
    events.keep_shard(1)
    assert (events.answers, events.still_out) == ([answer(FIRST)], [sending(0)])
    events.restore_shard(0)
    assert len(events.answers) == 1, "nothing was kept of it"
    events.restore_shard(1)
    events.restore_shard(1)
    assert (events.answers, events.still_out) == ([answer(FIRST), answer(SECOND)], [sending(0), sending(1)])


def test_events_of_a_shard_that_a_turn_refused_are_put_back() -> None:
    events = filled()
    events.put_back_shards(events.take({0, 1}), lost=[1])
    assert (events.answers, events.still_out) == ([answer(SECOND)], [sending(1)])


def test_a_crash_takes_back_recent_writes_only() -> None:
    writes, events = RecentWrites(), Pending(SHARDS)
    nothing = events.take(())
    writes.note(0.0, nothing, TurnResult(sendings=[sending(0)]))
    writes.note(pending.FORGOTTEN_S + 0.1, filled().take({1}), TurnResult(sendings=[sending(0, tries=2)]))
    writes.put_back(events)
    assert events.still_out == [sending(0, tries=2), sending(1)]
    assert list(events.fresh) == [0]
