"""The end of a membership that isn't renewed comes from a thread of its own: once, and only when due."""

import threading

from holdfast.services.zookeeper.expiry import LapseTimer
from holdfast.system.clock import SystemClock

PATIENCE_S = 30.0
LATE_S = 1000.0


class Clock(SystemClock):
    """A clock that stands at ``at``, and sets an event when it is read."""

    def __init__(self) -> None:
        self.at = 0.0
        self.asked = threading.Semaphore(0)

    def monotonic(self) -> float:
        self.asked.release()
        return self.at


class Membership:
    """Counts how often it was ended."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.ends = 0
        self.lapse = LapseTimer(self.clock, LATE_S, self.end)
        self.lapse.start()
        assert self.clock.asked.acquire(timeout=PATIENCE_S)

    def end(self) -> None:
        self.ends += 1

    def until_over(self) -> None:
        self.lapse.join(PATIENCE_S)
        assert not self.lapse.is_alive()


def test_it_comes_once_its_time_is_over() -> None:
    membership = Membership()
    membership.clock.at = LATE_S
    membership.lapse.put_off(LATE_S)
    membership.until_over()
    assert membership.ends == 1


def test_it_does_not_come_when_it_was_put_off() -> None:
    membership = Membership()
    membership.clock.at = LATE_S
    membership.lapse.put_off(2 * LATE_S)
    assert membership.clock.asked.acquire(timeout=PATIENCE_S)
    membership.lapse.cancel()
    membership.until_over()
    assert membership.ends == 0


def test_a_membership_that_was_left_has_neither_an_end_to_come_nor_a_thread() -> None:
    membership = Membership()
    membership.lapse.cancel()
    membership.until_over()
    assert membership.ends == 0
