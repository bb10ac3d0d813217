"""What forms and addresses say."""

from __future__ import annotations

import pytest

from holdfast.console.pages.acting import NUMBER_MAX, number, whole_number
from holdfast.errors import ConfigError


@pytest.mark.parametrize("text, found", [("0", 0), ("007", 7), ("999", 999)])
def test_a_whole_number_is_read_from_its_digits(text: str, found: int) -> None:
    assert whole_number(text, 999) == found


@pytest.mark.parametrize("text", ["1000", "-1", "1.0", "", "x", "²", "٣", " 1", "0" * 5000])
def test_what_is_none_or_too_large_is_no_number(text: str) -> None:
    assert whole_number(text, 999) is None


def test_a_limit_in_the_middle_of_its_digits_holds() -> None:
    assert [whole_number(text, 45) for text in ("45", "46")] == [45, None]


def test_a_field_that_is_no_number_is_refused_by_its_name() -> None:
    assert number({}, "run", "the run") is None
    assert number({"run": f" {NUMBER_MAX} "}, "run", "the run") == NUMBER_MAX
    with pytest.raises(ConfigError, match="the run must be a number"):
        number({"run": "two"}, "run", "the run")
