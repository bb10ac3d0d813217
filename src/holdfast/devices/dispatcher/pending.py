"""The events that no turn has written yet, and the writes that a crash of the database may take back."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from holdfast.devices.rules.device_queue import shard_of
from holdfast.devices.rules.device_turn import CommandAnswer, Sending, TurnResult, Unsent

FORGOTTEN_S = 2.0
"""Seconds for which a database that crashes may forget what was marked as published."""


class TakenEvents(NamedTuple):
    """The events that one turn writes. See ``TurnRequest`` for each."""

    answers: list[CommandAnswer]
    unsent: list[Unsent]
    still_out: list[Sending]
    back: dict[str, None]
    fresh: dict[int, None]


class Pending:
    """The events of an outbox's devices that the next turn writes. See ``TurnRequest`` for each.

    Answers and tries of a shard that went are kept apart, and wait until the shard comes back.
    """

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
        """Return whether devices or tries wait for a turn."""
        return bool(self.answers or self.unsent or self.back or self.still_out)

    def take(self, served: Collection[int]) -> TakenEvents:
        """Take out the events of the ``served`` shards. Those of a shard that goes just now stay here."""
        answers, self.answers = self._split(self.answers, served)
        still_out, self.still_out = _split(self.still_out, served)
        taken = TakenEvents(answers, self.unsent, still_out, self.back, self.fresh)
        self.unsent, self.back, self.fresh = [], {}, {}
        return taken

    def put_back(self, taken: TakenEvents, *, in_doubt: bool) -> None:
        """Put back, in front, what a turn didn't write; or, with ``in_doubt``, what it may not have written.

        An answer that was written fits nothing any more, and so may be repeated. A try that wasn't sent may
        not: it would give back two tries.
        """
        self.answers = taken.answers + self.answers
        if not in_doubt:
            self.unsent = taken.unsent + self.unsent
        self.back = taken.back | self.back
        self.still_out = taken.still_out + self.still_out
        self.fresh = taken.fresh | self.fresh

    def put_back_shards(self, taken: TakenEvents, lost: Collection[int]) -> None:
        """Put back the answers and tries of shards in which a turn wrote nothing."""
        self.answers += self._split(taken.answers, lost)[0]
        self.still_out += _split(taken.still_out, lost)[0]

    def keep_shard(self, number: int) -> None:
        """Keep what is pending of a shard that goes, until it comes back."""
        answers, self.answers = self._split(self.answers, (number,))
        still_out, self.still_out = _split(self.still_out, (number,))
        self._kept[number] = answers, still_out

    def restore_shard(self, number: int) -> None:
        """Take up again what was kept of a shard."""
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
    """The writes of a turn that a crash may take back: tries that it marked as published, tries whose answers
    are waited for from then on, and shards whose tries were given their time."""

    at: float
    sent: Sequence[Sending]
    still_out: Sequence[Sending]
    fresh: Collection[int]


class RecentWrites:
    """The writes of the last ``FORGOTTEN_S``, the oldest first."""

    def __init__(self) -> None:
        self._writes: deque[RecentWrite] = deque()

    def note(self, began_at: float, taken: TakenEvents, result: TurnResult) -> None:
        """Remember what a turn wrote that began at this monotonic time."""
        if result.sendings or taken.still_out or taken.fresh:
            write = RecentWrite(began_at, result.sendings, taken.still_out, taken.fresh)
            self._writes.append(write)
        while self._writes and began_at - self._writes[0].at > FORGOTTEN_S:
            self._writes.popleft()

    def put_back(self, pending: Pending) -> None:
        """Let the next turn write it all again: the database may have crashed."""
        for write in self._writes:
            pending.still_out += [*write.sent, *write.still_out]
            pending.fresh |= dict.fromkeys(write.fresh)
