"""The check of streams that act tells a fault from what a store has forgotten."""

from __future__ import annotations

from holdfast.common.acts import Effect
from holdfast.rules.streams import ledger
from holdfast.rules.streams.ledger import Checkpoint, Commit, Timer
from holdfast.services.memory.state import CommitRecord, LossRecord
from simulator.acting import judge

KEY = "pings/k"
AGAIN = f"{KEY}: wake:t:1.1 fired, which stands no more"


def committed(at: float, before: Checkpoint, *, stands: bool, fired: bool = False) -> CommitRecord:
    """The next commit of a stream, after which the setting 1.1 of its timer ``stands``."""
    epoch, number = before.epoch, before.number + 1
    firing = Effect(number, 0, f"{epoch}-{number}", "sink", "", b"", "wake:t:1.1", at)
    commit = Commit(
        KEY,
        epoch,
        number,
        f"{epoch}.{number}",
        None,
        effects=(firing,) if fired else (),
        timers=(Timer("t", at, b"", "1.1"),) if stands else (),
    )
    return CommitRecord(at, commit, before, ledger.commit(before, commit, at))


def after(record: CommitRecord) -> Checkpoint:
    """What stands after a commit that was accepted."""
    assert record.after is not None
    return record.after


SET = committed(1.0, Checkpoint(KEY, epoch=1), stands=True)
FIRED = committed(2.0, after(SET), stands=False, fired=True)


def test_a_timer_that_fires_twice_is_noticed() -> None:
    again = committed(3.0, after(FIRED), stands=False, fired=True)
    assert judge([SET, FIRED])[1] == []
    assert judge([SET, FIRED, again])[1] == [AGAIN]


def test_a_timer_whose_setting_the_store_forgot_may_be_set_and_fire_in_one_commit() -> None:
    anew = committed(4.0, Checkpoint(KEY, epoch=2), stands=False, fired=True)
    assert judge([SET, FIRED, LossRecord(3.0, 0.5), anew])[1] == []


def test_a_timer_that_fires_twice_is_noticed_though_the_store_forgot_something_else() -> None:
    again = committed(4.0, after(FIRED), stands=False, fired=True)
    assert judge([SET, FIRED, LossRecord(3.0, 2.5), again])[1] == [AGAIN]
