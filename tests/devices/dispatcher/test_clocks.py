"""The clocks of a dispatcher."""

import pytest

from holdfast.devices.dispatcher.clocks import CHECKS_S, JUMP_S, ClockWatch, ListeningClock
from tests.devices.dispatcher.conftest import SetClock


@pytest.mark.parametrize("jump_s", [-3600.0, 5.0])
def test_a_clock_that_was_set_is_noticed_once(jump_s: float) -> None:
    clock = SetClock()
    watch = ClockWatch(clock)
    clock.at += 10.0
    assert watch.notice_jump(clock.wall(), clock.monotonic()) == 0.0
    clock.ahead_s += jump_s
    assert watch.notice_jump(clock.wall(), clock.monotonic()) == pytest.approx(jump_s)
    assert watch.notice_jump(clock.wall(), clock.monotonic()) == 0.0
    assert watch.shift_s == pytest.approx(jump_s)
    assert (watch.is_doubted(clock.at), watch.is_doubted(clock.at + CHECKS_S)) == (True, False)


def test_a_clock_that_drifts_is_not_taken_for_one_that_was_set() -> None:
    clock = SetClock()
    watch = ClockWatch(clock)
    for _ in range(10):
        clock.ahead_s += JUMP_S / 2
        assert watch.notice_jump(clock.wall(), clock.monotonic()) == 0.0
    assert watch.shift_s == 0.0


def test_silence_counts_while_all_shards_are_connected() -> None:
    clock = SetClock()
    listening = ListeningClock(clock)
    clock.at = 5.0
    listening.run(True)
    assert listening.now() == 0.0, "nothing was heard before"
    clock.at = 8.0
    listening.run(False)
    listening.run(False)
    clock.at = 20.0
    assert listening.now() == 3.0
    listening.run(True)
    clock.at = 21.0
    assert listening.now() == 4.0
