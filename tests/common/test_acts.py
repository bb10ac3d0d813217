"""Effects as the record of a task holds them."""

from holdfast.common.acts import Effect, decode_effects, encode_effects


def test_effects_come_back_from_a_record() -> None:
    effects = (
        Effect(0, 0, "a" * 32, "hall", "k", b"\x00\xff", "t", 5.0, hops=3),
        Effect(0, 1, "b" * 32, "https://a", "", b"{}", "t", 5.0, 7.0, refused="it said 400"),
    )
    assert decode_effects(encode_effects(effects)) == effects
    assert (encode_effects(()), decode_effects(b"")) == (b"", ())
