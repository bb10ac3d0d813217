"""The versions of the protocol between nodes that a process speaks. Two processes use the highest that both
speak."""

from __future__ import annotations

import re
from typing import NamedTuple

_TOLD = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?")


class Spoken(NamedTuple):
    """A range of versions, with both ends. As text it is ``1-2``, or ``1`` for a single version."""

    oldest: int
    newest: int

    def __str__(self) -> str:
        return str(self.newest) if self.oldest == self.newest else f"{self.oldest}-{self.newest}"

    def common(self, other: Spoken) -> int | None:
        """Return the highest version that both speak; None if there is none."""
        if self.newest < other.oldest or other.newest < self.oldest:
            return None
        return min(self.newest, other.newest)


SPOKEN = Spoken(1, 1)
"""What this version of Holdfast speaks. A change that the release before would misread gets a new version;
what that release speaks stays in the range, so that nodes of both run in one cluster."""

UNTOLD = Spoken(1, 1)
"""What a node of Holdfast 0.2 speaks, which doesn't tell it."""


def spoken_in(told: str | None) -> Spoken | None:
    """Return the range that a text tells; None if it tells none."""
    found = _TOLD.fullmatch(told or "")
    return Spoken(int(found[1]), int(found[2] or found[1])) if found else None


def apart(theirs: Spoken, ours: Spoken) -> str:
    """Say that two processes have no version in common."""
    return (
        f"it speaks peer protocol {theirs}, this process {ours}; only a release and the one before it run in"
        " one cluster: see `holdfast doctor --upgrade`"
    )
