"""Token buckets."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.common.rate import Limiter, Rate
from holdfast.errors import ConfigError

TEN = Rate(per_s=10, burst=20)


def test_a_burst_goes_at_once_then_the_rate_holds() -> None:
    limiter = Limiter(TEN)
    assert [limiter.take("a", 10, 0.0) for _ in range(3)] == [0, 0, 1]
    assert limiter.take("a", 10, 0.5) == 0.5
    assert limiter.take("a", 10, 1.0) == 0


def test_what_was_refused_was_not_taken() -> None:
    limiter = Limiter(TEN)
    limiter.take("a", 20, 0.0)
    assert [limiter.take("a", 5, 0.0) for _ in range(3)] == [0.5] * 3


def test_spending_owes_and_says_how_long() -> None:
    limiter = Limiter(TEN)
    assert [limiter.spend("a", 20, 0.0) for _ in range(3)] == [0, 2, 4]
    assert limiter.take("a", 1, 4.0) == pytest.approx(0.1)


def test_keys_have_buckets_and_rates_of_their_own() -> None:
    limiter = Limiter(TEN, {"slow": Rate(1, 1)})
    assert limiter.spend("a", 20, 0.0) == 0
    assert limiter.spend("b", 20, 0.0) == 0
    assert limiter.spend("slow", 20, 0.0) == 19


def test_a_limiter_without_a_rate_limits_nothing() -> None:
    limiter = Limiter(None)
    assert limiter.take("a", 1e12, 0.0) == 0
    assert limiter.spend("a", 1e12, 0.0) == 0
    assert len(limiter) == 0


def test_more_than_a_burst_takes_a_full_bucket_and_owes_the_rest() -> None:
    limiter = Limiter(TEN)
    assert limiter.take("a", 100, 0.0) == 0
    assert limiter.take("a", 1, 0.0) == pytest.approx(8.1)
    assert limiter.take("a", 100, 8.0) == pytest.approx(2)


def test_a_bucket_that_is_full_again_is_forgotten() -> None:
    limiter = Limiter(TEN)
    for key in "abc":
        limiter.take(key, 10, 0.0)
    limiter.take("c", 10, 0.5)
    limiter.forget(1.0)
    assert len(limiter) == 1
    assert limiter.take("a", 20, 1.0) == 0


@pytest.mark.parametrize("per_s, burst", [(0, 1), (1, 0), (-1, 1), (float("inf"), 1), (1, float("nan"))])
def test_a_rate_of_zero_or_below_is_refused(per_s: float, burst: float) -> None:
    with pytest.raises(ConfigError, match=r"rate: .*; it must be a number above 0"):
        Rate(per_s, burst)


@given(st.lists(st.tuples(st.floats(0, 3), st.integers(1, 30)), max_size=50))
def test_never_more_than_burst_and_rate_allow(steps: list[tuple[float, int]]) -> None:
    limiter, now, taken = Limiter(TEN), 0.0, 0
    for pause, units in steps:
        now += pause
        if limiter.take("a", min(units, 20), now) == 0:
            taken += min(units, 20)
        assert taken <= 20 + 10 * now + 1e-6


def test_a_rate_that_changes_leaves_debts() -> None:
    limiter = Limiter(TEN)
    assert [limiter.spend("a", 20, 0.0) for _ in range(2)] == [0, 2]
    limiter.change(Rate(per_s=1, burst=1))
    assert limiter.spend("a", 1, 0.0) == pytest.approx(4)
    assert [limiter.spend("b", 1, 0.0) for _ in range(2)] == [0, 1]
    limiter.change(None)
    assert limiter.spend("b", 100, 0.0) == 0
