"""What is said once."""

from holdfast.common.once import Once


def test_a_thing_is_first_once_until_it_is_forgotten() -> None:
    once = Once(limit=2)
    assert [once.first(thing) for thing in "aabab"] == [True, False, True, False, False]
    assert once.first("c")
    assert once.first("a"), "two others have been said since"
    assert not once.first("c")
