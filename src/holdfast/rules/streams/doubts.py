"""Decides when an owner reads the store to see whether it still knows what this owner has committed.

Another owner may have opened the stream, or a standby that has taken over may not have had the last commits.
A delivery of a message that a commit covers is therefore deleted only once the store has shown its commit.
"""

from __future__ import annotations

from holdfast.common.held import Held
from holdfast.common.message import Place
from holdfast.rules.streams.sequencer import Verdict


class Doubts:
    """The reads of the store by one opening, and the deliveries that wait for one."""

    __slots__ = ("_again", "_number", "_seen", "covered", "is_looking")

    def __init__(self) -> None:
        self.covered: dict[Place, tuple[Held, Verdict]] = {}
        """The deliveries of messages that a commit covers, each with its verdict."""
        self.is_looking = False
        """True while a read isn't answered."""
        self._seen: set[Place] = set()
        """The places in ``covered`` that the read under way decides."""
        self._number = 0
        self._again = False

    def look(self, number: int) -> bool:
        """Return True if the store is to be read now, and must then have at least commit ``number``. While a
        read is under way, another one follows it."""
        self._again = self.is_looking
        if self.is_looking:
            return False
        self.is_looking = True
        self._seen, self._number = set(self.covered), number
        return True

    def doubt(self, place: Place, number: int) -> bool:
        """Note that a covered message was delivered. Return True if the store is to be read now."""
        if not self.is_looking:
            return self.look(number)
        self._seen.discard(place)
        return False

    def is_lost(self, number: int) -> bool:
        """Return True if the store, which has commit ``number``, has lost a later one."""
        return number < self._number

    def answered(self) -> list[tuple[Held, Verdict]]:
        """Note that the store knows the commits of this owner. Return the deliveries that this decides."""
        seen, self._seen, self.is_looking = self._seen, set(), False
        return [self.covered.pop(place) for place in list(self.covered) if place in seen]

    @property
    def looks_again(self) -> bool:
        """True if the store is to be read once more after an answer."""
        return bool(self.covered) or self._again
