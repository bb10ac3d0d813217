"""Mappings that keep only their newest entries."""

from holdfast.common.recent import remember


def test_the_oldest_beyond_the_limit_is_forgotten() -> None:
    known: dict[str, int] = {}
    for number, key in enumerate(("a", "b", "a", "c")):
        remember(known, key, number, 2)
    assert known == {"a": 2, "c": 3}, "a was noted again after b"
