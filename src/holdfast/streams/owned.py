"""The record of one stream that this node owns, and of one that is about to move here."""

from __future__ import annotations

import asyncio

from holdfast.ports.coordinator import Claim
from holdfast.ports.slots import StreamSlot
from holdfast.rules.streams.ledger import Checkpoint
from holdfast.rules.streams.options import NOTHING_BROUGHT
from holdfast.rules.streams.owner import Owner
from holdfast.streams.slots import Seat
from holdfast.streams.spec import StreamSpec


class Owned:
    """One owned key: its state machine, its claim and since when, its seat, and the slot in which its handler
    was last opened."""

    __slots__ = (
        "alone",
        "called_at",
        "claim",
        "committed_at",
        "failed_loads",
        "kept_waiting",
        "key",
        "last",
        "looks",
        "owner",
        "plain_key",
        "reopened",
        "seat",
        "since",
        "slot",
        "spec",
        "stands_since",
        "timer_at",
        "traced",
        "tries_alone",
    )

    def __init__(self, spec: StreamSpec, key: str, owner: Owner, claim: Claim, since: float) -> None:
        self.spec = spec
        self.key = key
        self.plain_key = key.partition("/")[2]
        """The key without the name of its stream."""
        self.owner = owner
        self.claim = claim
        self.since = since
        self.seat: Seat | None = None
        self.slot: StreamSlot | None = None
        self.called_at = 0.0
        """When its slot was last called for it, in monotonic seconds."""
        self.last: Checkpoint | None = None
        """The checkpoint that the last answered commit left at the store."""
        self.committed_at: float | None = None
        """When the last commit was answered, in monotonic seconds."""
        self.reopened = 0
        self.looks = 0
        """How many reads of the store aren't answered yet."""
        self.alone = ""
        """The head that has a turn in the node's quarantine, if one has."""
        self.kept_waiting = 0
        """How many of its calls wait for a suspect that has a turn there."""
        self.stands_since: float | None = None
        """Since when the stream stands still, as it changes nodes; None once there was a commit here."""
        self.timer_at: float | None = None
        """The time for which its alarm is set, in monotonic seconds."""
        self.failed_loads = 0
        """How many times an undeclared model has failed to load since a message was last handled."""
        self.traced: list[str] = []
        """The contexts of handled messages of recorded traces that no commit covers yet."""
        self.tries_alone = False
        """True while it waits for such a model, which perhaps no other stream needs."""


class Warming:
    """A stream that is about to move here: the seat that it will have, what it brings along, why it can't run
    here, once that is known, and when all was ready for the move."""

    __slots__ = ("brings", "obstacle", "ready_at", "seat")

    def __init__(self, seat: Seat) -> None:
        self.seat = seat
        self.brings = NOTHING_BROUGHT
        self.ready_at: float | None = None
        self.obstacle: asyncio.Future[str] = asyncio.get_running_loop().create_future()
