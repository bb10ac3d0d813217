"""Lengths of time and counts in words."""

import pytest

from holdfast.common.wording import counted, duration


@pytest.mark.parametrize(
    "seconds, text",
    [
        (-1.0, "0 s"),
        (95.4, "95 s"),
        (120.0, "2 min"),
        (3 * 3600.0, "3 h"),
        (5 * 86400.0, "5 d"),
        (3155759976.0, "100 years"),
        (1e12, "31,688 years"),
    ],
)
def test_a_length_of_time_is_told_in_a_unit_of_which_it_has_two(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_one_thing_is_told_without_a_plural() -> None:
    assert [counted(count, "opening") for count in (0, 1, 2)] == ["0 openings", "1 opening", "2 openings"]
