"""Mappings that keep only their newest entries."""

from holdfast.common.recent import Once, remember


def test_the_oldest_beyond_the_limit_is_forgotten() -> None:
    known: dict[str, int] = {}
    for number, key in enumerate(("a", "b", "a", "c")):
        remember(known, key, number, 2)
    assert known == {"a": 2, "c": 3}, "a was noted again after b"


def test_a_thing_is_first_once_until_it_is_forgotten() -> None:
    once = Once(limit=2)
    assert [once.first(thing) for thing in "aabab"] == [True, False, True, False, False]
    assert once.first("c")
    assert once.first("a"), "two others have been said since"
    assert not once.first("c")
