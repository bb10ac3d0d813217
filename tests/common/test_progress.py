"""Deliveries are extended while work advances, in few calls."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.common.progress import Visibility, chunks, due, hung


@pytest.mark.parametrize("stood_s, dead", [(0, False), (29.9, False), (30, True), (31, True)])
def test_work_that_stands_still_is_hung(stood_s: float, dead: bool) -> None:
    assert hung(progress_at=100, now=100 + stood_s, timeout_s=30) is dead


def test_deliveries_are_extended_when_half_is_left() -> None:
    fresh, half, over = (Visibility(name, at) for name, at in (("a", 130.1), ("b", 115), ("c", 90)))
    assert due([fresh, half, over], now=100, visibility_s=30) == [half, over]


def test_stale_receipts_are_never_used_again() -> None:
    assert due([Visibility("a", 0, stale=True)], now=100, visibility_s=30) == []


@given(st.lists(st.text()), st.integers(1, 10))
def test_calls_are_full_and_leave_nothing_out(items: list[str], size: int) -> None:
    calls = chunks(items, size)
    assert [item for call in calls for item in call] == items
    assert all(len(call) == size for call in calls[:-1])
    assert all(0 < len(call) <= size for call in calls)
