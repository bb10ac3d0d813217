"""The events that no turn has written yet, and the writes that a crash of the database may undo."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from holdfast.devices.rules.device_queue import shard_of
from holdfast.devices.rules.device_turn import CommandAnswer, Sending, TurnResult, Unsent

FORGOTTEN_S = 2.0
"""Seconds of marks as published that a crash of the database may lose."""


class TakenEvents(NamedTuple):
    """The events of one turn. See ``TurnRequest`` for each."""

    answers: list[CommandAnswer]
    unsent: list[Unsent]
    still_out: list[Sending]
    back: dict[str, None]
    fresh: dict[int, None]


class Pending:
    """The events for the next turn. See ``TurnRequest`` for each. Answers and tries of a shard that was given
    up are kept apart until the shard comes back."""

    def __init__(self, shards: int) -> None:
        self._shards = shards
        self._kept: dict[int, tuple[list[CommandAnswer], list[Sending]]] = {}
        self.answers: list[CommandAnswer] = []
        self.unsent: list[Unsent] = []
        self.still_out: list[Sending] = []
        self.back: dict[str, None] = {}
        self.fresh: dict[int, None] = {}

    @property
    def needs_turn(self) -> bool:
        """Return whether events wait for a turn."""
        return bool(self.answers or self.unsent or self.back or self.still_out)

    def take(self, served: Collection[int]) -> TakenEvents:
        """Take out the events of the ``served`` shards. Events of a shard that is being given up stay
        here."""
        answers, self.answers = self._split(self.answers, served)
        still_out, self.still_out = _split(self.still_out, served)
        taken = TakenEvents(answers, self.unsent, still_out, self.back, self.fresh)
        self.unsent, self.back, self.fresh = [], {}, {}
        return taken

    def put_back(self, taken: TakenEvents, *, in_doubt: bool) -> None:
        """Put back, in front, events that a turn didn't write; or, with ``in_doubt``, may not have written.

        A written answer may come again, because it fits no command any more. An unsent try may not, because
        two tries would be given back.
        """
        self.answers = taken.answers + self.answers
        if not in_doubt:
            self.unsent = taken.unsent + self.unsent
        self.back = taken.back | self.back
        self.still_out = taken.still_out + self.still_out
        self.fresh = taken.fresh | self.fresh

    def put_back_shards(self, taken: TakenEvents, lost: Collection[int]) -> None:
        """Put back the answers and tries of shards that a turn had lost."""
        self.answers += self._split(taken.answers, lost)[0]
        self.still_out += _split(taken.still_out, lost)[0]

    def keep_shard(self, number: int) -> None:
        """Keep the answers and tries of a shard that is given up, until it comes back."""
        answers, self.answers = self._split(self.answers, (number,))
        still_out, self.still_out = _split(self.still_out, (number,))
        self._kept[number] = answers, still_out

    def restore_shard(self, number: int) -> None:
        """Take back the kept answers and tries of a shard."""
        answers, still_out = self._kept.pop(number, ([], []))
        self.answers += answers
        self.still_out += still_out

    def _split(
        self, answers: Iterable[CommandAnswer], shards: Collection[int]
    ) -> tuple[list[CommandAnswer], list[CommandAnswer]]:
        inside: list[CommandAnswer] = []
        outside: list[CommandAnswer] = []
        for each in answers:
            (inside if shard_of(each.device, self._shards) in shards else outside).append(each)
        return inside, outside


def _split(tries: Iterable[Sending], shards: Collection[int]) -> tuple[list[Sending], list[Sending]]:
    inside: list[Sending] = []
    outside: list[Sending] = []
    for each in tries:
        (inside if each.shard in shards else outside).append(each)
    return inside, outside


class RecentWrite(NamedTuple):
    """The writes of a turn that a crash may undo. See ``TurnRequest`` and ``TurnResult`` for each."""

    at: float
    sent: Sequence[Sending]
    still_out: Sequence[Sending]
    fresh: Collection[int]


class RecentWrites:
    """The writes of the last ``FORGOTTEN_S``, the oldest first."""

    def __init__(self) -> None:
        self._writes: deque[RecentWrite] = deque()

    def note(self, began_at: float, taken: TakenEvents, result: TurnResult) -> None:
        """Note the writes of a turn that began at this monotonic time."""
        if result.sendings or taken.still_out or taken.fresh:
            write = RecentWrite(began_at, result.sendings, taken.still_out, taken.fresh)
            self._writes.append(write)
        while self._writes and began_at - self._writes[0].at > FORGOTTEN_S:
            self._writes.popleft()

    def put_back(self, pending: Pending) -> None:
        """Have the next turn write all again, because the database may have crashed."""
        for write in self._writes:
            pending.still_out += [*write.sent, *write.still_out]
            pending.fresh |= dict.fromkeys(write.fresh)
