"""Permits of rates that nodes share: never more than there are, and none is missing for long."""

import math
from random import Random

import pytest

from holdfast.rules.tasks.fair_queue import Permits
from holdfast.rules.tasks.rates import CLOCKS_DIFFER_S, WINDOW_S, RateBuckets, reserve

TYPE = "t"


def take(buckets: RateBuckets, number: int, rate: float, now: float) -> tuple[RateBuckets, int, float]:
    """Take permits of one type; returns how many there were."""
    after, permits, wait_s = reserve(buckets, {TYPE: number}, {TYPE: rate}, now)
    return after, permits.get(TYPE, 0), wait_s


def test_a_full_bucket_holds_the_permits_of_a_second_and_at_least_one() -> None:
    for rate, most in ((10.0, 10), (0.1, 1), (2.5, 2)):
        buckets, got, _ = take(RateBuckets(), 1000, rate, 1e9)
        assert got == most
        buckets, got, wait_s = take(buckets, 1000, rate, 1e9)
        assert got == 0
        assert take(buckets, 1000, rate, 1e9 + wait_s - 0.01 / rate)[1] == 0
        assert take(buckets, 1000, rate, 1e9 + wait_s + 1e-6)[1] == 1


@pytest.mark.parametrize("rate", [0.05, 1.0, 7.3, 100.0])
def test_no_more_are_given_than_the_rate_says_whoever_asks_when(rate: float) -> None:
    random, buckets, now, times = Random(1), RateBuckets(), 1e9, list[float]()
    for _ in range(2000):
        now += random.expovariate(3 * rate)
        buckets, got, _ = take(buckets, random.randint(1, 5), rate, now)
        times += [now] * got
    burst = max(1.0, rate * WINDOW_S)
    for first in range(0, len(times), 7):
        for last in range(first, min(first + 300, len(times)), 13):
            assert last - first + 1 <= burst + rate * (times[last] - times[first]) + 1e-3
    assert len(times) >= rate * (times[-1] - times[0]) * 0.5, "and not many fewer"


def test_no_more_are_taken_than_are_wanted() -> None:
    buckets, got, _ = take(RateBuckets(), 3, 10.0, 1e9)
    assert got == 3
    assert take(buckets, 100, 10.0, 1e9)[1] == 7


def test_a_clock_that_is_set_back_keeps_nothing_waiting() -> None:
    buckets, _, _ = take(RateBuckets(), 10, 10.0, 1e9 + 86_400.0)
    buckets, got, wait_s = take(buckets, 10, 10.0, 1e9)
    assert got == 0
    assert wait_s == pytest.approx(0.1)
    assert take(buckets, 10, 10.0, 1e9 + 0.35)[1] == 3


def test_a_bucket_stands_that_a_clock_wrote_which_is_ahead_by_no_more_than_clocks_differ() -> None:
    ahead = RateBuckets({TYPE: 1e9 + WINDOW_S + CLOCKS_DIFFER_S})
    after, got, wait_s = take(ahead, 1, 10.0, 1e9)
    assert (after, got) == (ahead, 0)
    assert wait_s == pytest.approx(CLOCKS_DIFFER_S + 0.1)


def test_nodes_whose_clocks_differ_keep_one_rate() -> None:
    """One that found a bucket full too late by its own clock wrote what it thought right."""
    rate, buckets, times = 10.0, RateBuckets(), list[float]()
    for n in range(400):
        now = 1e9 + n * 0.05
        buckets, got, _ = take(buckets, 100, rate, now + 0.5 * (n % 2))
        times += [now] * got
    assert rate * 20 * 0.95 <= len(times) <= rate * (20 + 2 * WINDOW_S)


def test_it_is_told_when_there_is_a_permit_by_the_clock_that_is_behind() -> None:
    buckets, _, _ = take(RateBuckets(), 10, 10.0, 1e9 + 0.5)
    after, got, wait_s = take(buckets, 10, 10.0, 1e9)
    assert (got, after) == (0, buckets)
    assert wait_s == pytest.approx(0.6)


def test_a_bucket_that_is_full_again_is_forgotten() -> None:
    buckets, _, _ = take(RateBuckets(), 10, 10.0, 1e9)
    assert buckets.full_at
    assert reserve(buckets, {}, {}, 1e9 + 0.9).buckets == buckets
    assert reserve(buckets, {}, {}, 1e9 + 1.0).buckets == RateBuckets()


def test_unused_permits_lapse_after_their_window() -> None:
    permits = Permits(lambda name: 1.0 if name == TYPE else 0.0)
    assert (permits.left(TYPE), permits.left("other")) == (0, math.inf)
    permits.add({TYPE: 2}, 10.0)
    permits.spend(TYPE)
    permits.spend("other")
    permits.lapse(10.0 + WINDOW_S - 0.01)
    assert permits.left(TYPE) == 1
    permits.lapse(10.0 + WINDOW_S)
    assert permits.left(TYPE) == 0


def test_permits_of_the_next_window_are_there_soon() -> None:
    permits = Permits(lambda name: 2.5 if name == TYPE else 0.0)
    assert (permits.soon(TYPE), permits.soon("other")) == (3, math.inf)
    permits.add({TYPE: 4}, 0.0)
    assert permits.soon(TYPE) == 4


def test_permits_of_one_type_leave_those_of_others_as_they_are() -> None:
    permits = Permits(lambda _: 1.0)
    permits.add({"a": 3}, 0.0)
    permits.add({"b": 1}, 0.5)
    permits.spend("a")
    assert (permits.left("a"), permits.left("b")) == (2, 1)
    permits.lapse(WINDOW_S)
    assert (permits.left("a"), permits.left("b")) == (0, 1)
