"""Decides which head is to blame if an opening ends with the death of its node.

Before a head's handler first runs in an opening, the head is marked at the store: by a ``Start``, which is
counted, or by the commit before (``starting``). The mark stays until a commit after which nothing runs, so
one mark covers a steady stream. An opening that finds a mark is cautious, because its predecessor died at
work. The messages that may have been begun under that mark run one at a time, each counted by its own name,
and one that was begun too often is skipped. Where messages have no order, every message that may have been
delivered before runs in this way.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from holdfast.common.held import Held
from holdfast.common.message import TIMER_RUN, Place, is_timer_name
from holdfast.rules.streams.commands import Start
from holdfast.rules.streams.ledger import Checkpoint

ALONE_OPENINGS = 2
"""A head that so many openings have begun and not finished runs while no other suspect runs on its node."""

NOTHING = Place(TIMER_RUN, 0, "nothing")
"""Marked instead of a head that waits in its last turn. A start of another head takes this opening off the
head's count."""

REACH = 4
"""How many calls of the slot a mark may cover: one whose commit's answer was lost, one in the batch, one that
made the batch larger, and one in the slot. The message that killed an opening is at most that far behind the
marked one."""


class Blame:
    """The marks and counts of one opening. ``max_starts`` is how many openings may end while the handler of a
    head runs. ``survived`` counts, by head, the openings that began it and ended without the node's death.
    ``is_unordered``: messages have no order."""

    __slots__ = (
        "begun",
        "cautious",
        "counted",
        "found_mark",
        "is_unordered",
        "marked",
        "max_starts",
        "starting",
        "survived",
        "suspect",
    )

    def __init__(
        self, max_starts: int, survived: Mapping[str, int] | None = None, *, is_unordered: bool = False
    ) -> None:
        self.max_starts = max_starts
        self.is_unordered = is_unordered
        self.survived = Counter(survived or {})
        self.starting: Place | None = None
        """The head whose start isn't answered yet."""
        self.marked = ""
        """The head that the store marks."""
        self.counted: Place | None = None
        """The head that this opening was counted for, while it is marked."""
        self.suspect = ""
        """A head whose mark this opening has found, or that gave up its turn: it is counted again first."""
        self.found_mark = False
        self.cautious = 0
        """How many more messages run one at a time."""
        self.begun: dict[str, int] = {}
        """By head: how many openings that began it may have ended by it."""

    def opened(self, checkpoint: Checkpoint, reach: int) -> None:
        """Take over what a checkpoint says. A mark covers at most ``reach`` messages."""
        begun = {head.head: head.openings for head in checkpoint.suspects}
        if checkpoint.started is not None:
            self.found_mark, self.suspect = True, checkpoint.started.head
            self.cautious = reach
            begun[checkpoint.started.head] = checkpoint.started.openings
        self.survived = Counter({head: self.survived[head] for head in begun})
        self.begun = {head: openings - self.survived[head] for head, openings in begun.items()}

    def is_suspect(self, held: Held) -> bool:
        """Return True if the message may have killed a slot or a node."""
        if held.suspect or self.cautious > 0 or (self.begun and held.place.name in self.begun):
            return True
        return self.found_mark and self.is_unordered and held.may_be_known

    def is_last(self, head: str) -> bool:
        """Return True if the head is passed over as poison should this opening end with it too."""
        return 0 < self.begun.get(head, 0) == self.max_starts - 1

    def is_marked(self, head: Held, in_flight: str | None, *, suspect: bool) -> bool:
        """Return True if the head may run under the mark that stands. ``in_flight`` is what a commit marks
        that isn't answered yet; None if there is none. ``suspect``: the head is one."""
        if suspect:
            return self.counted == head.place
        marks = (self.marked,) if in_flight is None else (self.marked, in_flight)
        if head.place.run == TIMER_RUN:  # a message that waits for its next try must not answer for it
            return all(mark == head.place.name for mark in marks)
        return "" not in marks and not any(map(is_timer_name, marks))

    def start(self, place: Place) -> Start:
        """Return the command that counts this opening for a head. ``NOTHING`` runs no handler, so it waits
        for no other suspect."""
        self.starting = place
        name = place.name
        if place == NOTHING or not self.begun:
            return Start(name)
        last = self.is_last(name)
        return Start(name, alone=last or self.begun.get(name, 0) >= ALONE_OPENINGS, last=last)

    def started(self, openings: int) -> tuple[Place, int]:
        """Note that the store counts ``openings`` of the head. Return the head, and how many of them may end
        by it."""
        assert self.starting is not None
        place, self.starting = self.starting, None
        self.marked, self.counted, self.suspect = place.name, place, ""
        return place, openings - self.survived.get(self.marked, 0)

    def committed(self, head: str) -> None:
        """Note which head the store marks now. A mark that was found at the opening isn't ours yet."""
        if not head or head != self.suspect:
            self.marked = head
        if self.counted is not None and self.counted.name != head:
            self.counted = None

    def give_up_turn(self, head: Held) -> None:
        """Let another suspect run alone on the node while this one waits for a model. Its start is counted
        again after that, and its mark stays until then."""
        if self.counted == head.place and self.is_suspect(head) and not self.is_last(head.place.name):
            self.suspect, self.counted = head.place.name, None

    def waits_in_last_turn(self) -> bool:
        """Return True if the counted head, which doesn't run now, would be passed over if the node ended for
        another reason."""
        return self.counted not in (None, NOTHING) and self.is_last(self.counted.name)
