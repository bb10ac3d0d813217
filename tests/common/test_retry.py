"""Retries back off, without end and without a crowd."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.common.retry import Backoff


@pytest.mark.parametrize("failures, cap", [(1, 0.2), (2, 0.4), (3, 0.8), (8, 25.6), (9, 30), (5000, 30)])
def test_the_cap_doubles_up_to_its_limit(failures: int, cap: float) -> None:
    assert Backoff().delay_s(failures, 0.0) == pytest.approx(cap / 2)
    assert Backoff(floor=1.0).delay_s(failures, 0.0) == pytest.approx(cap)


@given(st.integers(1, 10_000), st.floats(0, 1, exclude_max=True), st.floats(0, 1))
def test_delays_stay_between_floor_and_cap(failures: int, random: float, floor: float) -> None:
    backoff = Backoff(floor=floor)
    cap = Backoff(floor=1.0).delay_s(failures, 0.0)
    assert cap * floor * (1 - 1e-9) <= backoff.delay_s(failures, random) <= cap * (1 + 1e-9)


def test_the_delay_before_a_retry_is_spread_at_random() -> None:
    backoff = Backoff()
    assert backoff.delay_s(3, 0.1) < backoff.delay_s(3, 0.9)
