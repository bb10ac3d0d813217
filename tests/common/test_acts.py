"""Effects as the record of a task holds them."""

import pytest

from holdfast.common.acts import Effect, decode_effects, encode_effects, hops_of


def test_effects_come_back_from_a_record() -> None:
    effects = (
        Effect(0, 0, "a" * 32, "hall", "k", b"\x00\xff", "t", 5.0, hops=3),
        Effect(0, 1, "b" * 32, "https://a", "", b"{}", "t", 5.0, 7.0, refused="it said 400"),
    )
    assert decode_effects(encode_effects(effects)) == effects
    assert (encode_effects(()), decode_effects(b"")) == (b"", ())


FOREIGN = ["", "-1", "many", "\u0663", "9" * 10, "9" * 5000]


@pytest.mark.parametrize("told", FOREIGN)
def test_a_number_of_hops_that_stores_can_t_hold_is_not_taken(told: str) -> None:
    """Any program may give its messages an attribute of this name."""
    assert hops_of({"hops": "3"}) == 3
    assert hops_of({"hops": told}) == 0
