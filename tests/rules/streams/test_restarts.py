"""When numbers that begin again begin another run."""

import pytest

from holdfast.common.message import NO_RUN, Place
from holdfast.rules.streams.ledger import Checkpoint, RunLog
from holdfast.rules.streams.restarts import Restarts, come_back
from holdfast.rules.streams.sequencer import Rules, Sequencer
from tests.rules.streams.parts import KEY, held

LOG = RunLog(2, 0, 9)


def sequencer() -> Sequencer:
    return Sequencer(Rules(restart_after_s=30.0), Checkpoint(KEY, log=LOG))


@pytest.mark.parametrize("now, waits, run", [(30.0, False, 3), (29.0, False, 2), (30.0, True, 2)])
def test_a_lower_number_begins_a_run_after_a_quiet_time(now: float, waits: bool, run: int) -> None:
    restarts, message = Restarts(30.0, 0.0), held(1, run=NO_RUN)
    restarts.place(message, sequencer(), now, waits=waits)
    assert message.place == Place(run, 1)


def test_messages_that_carry_their_run_keep_it() -> None:
    message = held(1, run=7)
    Restarts(30.0, 0.0).place(message, sequencer(), 99.0, waits=False)
    Restarts(None, 0.0).place(message, sequencer(), 99.0, waits=False)
    assert message.place == Place(7, 1)


def test_only_a_run_that_no_commit_has_recorded_stays_with_a_message_that_comes_back() -> None:
    for run, kept in ((2, NO_RUN), (3, 3)):
        message = held(1, run=run)
        message.counted = True
        come_back(message, LOG)
        assert message.place == Place(kept, 1)


def test_a_commit_without_messages_records_how_long_none_came() -> None:
    restarts = Restarts(30.0, 10.0)
    assert restarts.with_quiet(LOG, 15.0, has_message=False) == RunLog(2, 0, 9, (), 5.0)
    assert restarts.with_quiet(LOG, 15.0, has_message=True) == LOG
    assert restarts.with_quiet(None, 15.0, has_message=True) is None
