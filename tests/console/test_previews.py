"""The previews of what is done to dead letters: how many are kept, how much of them, and for how long."""

from typing import Literal

from holdfast.console.pages.dead_letters import (
    PREVIEW_BYTES_MAX,
    PREVIEW_S,
    PREVIEWS_MAX,
    Preview,
    Previews,
)
from holdfast.ports.queue import DeadLetter


def preview(
    *bodies: bytes, at: float = 0.0, act: Literal["redrive", "purge"] = "redrive", whole: bool = True
) -> Preview:
    letters = [DeadLetter(f"letter-{number}", body, "failed") for number, body in enumerate(bodies)]
    return Preview(act, "cameras", letters, "anna", at, whole)


def kept(previews: Previews, *identities: str, at: float = 0.0) -> list[str]:
    """Which of these are still there. They aren't any more afterwards."""
    return [identity for identity in identities if previews.take(identity, "anna", at) is not None]


def test_a_preview_that_is_over_is_not_kept_until_many_others_come() -> None:
    previews = Previews()
    previews.keep("old", preview(b"body"))
    previews.keep("late", preview(b"body", at=PREVIEW_S))
    assert len(previews) == 2
    previews.keep("new", preview(b"body", at=PREVIEW_S + 1))
    assert len(previews) == 2
    assert kept(previews, "old", "late", "new", at=PREVIEW_S + 2) == ["late", "new"]


def test_the_newest_previews_are_kept_of_too_many() -> None:
    previews = Previews()
    for number in range(PREVIEWS_MAX + 2):
        previews.keep(f"{number}", preview(b"body"))
    assert kept(previews, "0", "1", "2", f"{PREVIEWS_MAX + 1}") == ["2", f"{PREVIEWS_MAX + 1}"]


def test_the_bodies_of_all_previews_together_have_only_so_many_bytes() -> None:
    previews, large = Previews(), b"x" * (PREVIEW_BYTES_MAX // 2 - 100)
    for identity in "abc":
        previews.keep(identity, preview(large))
    assert kept(previews, "a", "b", "c") == ["b", "c"]
    previews.keep("d", preview(large))
    previews.keep("e", preview(large))
    assert kept(previews, "d", "e") == ["d", "e"], "what was taken has no bytes any more"
    previews.keep("huge", preview(large * 3))
    assert kept(previews, "huge") == ["huge"], "the newest one can always be done"


def test_a_preview_holds_the_first_of_dead_letters_that_are_too_large_together() -> None:
    half = b"x" * (PREVIEW_BYTES_MAX // 2 - 100)
    held = preview(half, half, half).lightened()
    assert [letter.id for letter in held.letters] == ["letter-0", "letter-1"]
    assert not held.whole, "the page tells that there are more"
    assert preview(half, half).lightened().whole
    assert not preview(half, whole=False).lightened().whole
    assert len(preview(half * 3, half).lightened().letters) == 1


def test_to_remove_dead_letters_their_bodies_are_not_kept() -> None:
    large = b"x" * PREVIEW_BYTES_MAX
    held = preview(large, large, act="purge").lightened()
    assert ([letter.id for letter in held.letters], held.whole) == (["letter-0", "letter-1"], True)
    assert held.bytes < 100
    assert preview(large, act="redrive").lightened().letters[0].body == large
