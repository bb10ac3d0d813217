"""The versions of the protocol between nodes: which of them two processes use."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.common.spoken import SPOKEN, UNTOLD, Spoken, apart, spoken_in

ranges = st.builds(
    lambda oldest, more: Spoken(oldest, oldest + more), st.integers(0, 10**6), st.integers(0, 9)
)


@given(ranges, ranges)
def test_two_processes_use_the_highest_version_that_both_speak(one: Spoken, other: Spoken) -> None:
    shared = set(range(one.oldest, one.newest + 1)) & set(range(other.oldest, other.newest + 1))
    assert one.common(other) == other.common(one) == max(shared, default=None)


@given(ranges)
def test_a_range_is_read_as_it_was_told(spoken: Spoken) -> None:
    assert spoken_in(str(spoken)) == spoken
    assert spoken_in(str(spoken.newest)) == Spoken(spoken.newest, spoken.newest)


@pytest.mark.parametrize(
    "told", [None, "", "one", "1-", "-1", "1-2-3", "1 ", "1.0", "1" * 20, "\N{SUPERSCRIPT ONE}"]
)
def test_what_tells_no_range_is_not_taken_for_one(told: str | None) -> None:
    assert spoken_in(told) is None


def test_this_version_speaks_with_nodes_of_0_2_which_do_not_tell() -> None:
    assert SPOKEN.common(UNTOLD) is not None


def test_who_has_no_version_in_common_is_told_what_to_do() -> None:
    said = apart(Spoken(3, 4), Spoken(1, 2))
    assert "speaks peer protocol 3-4, this process 1-2" in said
    assert "holdfast doctor --upgrade" in said
