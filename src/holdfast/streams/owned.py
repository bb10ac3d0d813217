"""The records of a stream that this node owns, and of one that is about to move here."""

from __future__ import annotations

import asyncio

from holdfast.ports.coordinator import Claim
from holdfast.ports.slots import StreamSlot
from holdfast.rules.streams.ledger import Checkpoint
from holdfast.rules.streams.options import NOTHING_BROUGHT
from holdfast.rules.streams.owner import OwnerMachine
from holdfast.streams.slots import SlotHandle
from holdfast.streams.spec import StreamSpec


class OwnedStream:
    """One owned key: its state machine, its claim, and the slot of its handler."""

    __slots__ = (
        "alone",
        "called_at",
        "claim",
        "committed_at",
        "failed_loads",
        "handle",
        "kept_waiting",
        "key",
        "last",
        "looks",
        "owner",
        "plain_key",
        "reopened",
        "since",
        "slot",
        "spec",
        "stands_since",
        "timer_at",
        "traced",
        "tries_alone",
    )

    def __init__(self, spec: StreamSpec, key: str, owner: OwnerMachine, claim: Claim, since: float) -> None:
        self.spec = spec
        self.key = key
        self.plain_key = key.partition("/")[2]
        """The key without the name of its stream."""
        self.owner = owner
        self.claim = claim
        self.since = since
        """The monotonic time at which it came here."""
        self.handle: SlotHandle | None = None
        self.slot: StreamSlot | None = None
        """The slot in which its handler was last opened; another one may be in ``handle`` by now."""
        self.called_at = 0.0
        """The monotonic time of the last call of its slot."""
        self.last: Checkpoint | None = None
        """The checkpoint that the last answered commit left at the store."""
        self.committed_at: float | None = None
        """The monotonic time of the last answered commit."""
        self.reopened = 0
        self.looks = 0
        """The number of unanswered reads of the store."""
        self.alone = ""
        """The head that has a turn in the node's quarantine, or ""."""
        self.kept_waiting = 0
        """The number of its calls that wait for a suspect that has a turn there."""
        self.stands_since: float | None = None
        """The monotonic time since which the stream waits for its change of nodes; None after a commit
        here."""
        self.timer_at: float | None = None
        """The monotonic time of its alarm."""
        self.failed_loads = 0
        """Number of failed loads of an undeclared model since the last handled message."""
        self.traced: list[str] = []
        """The trace contexts of handled messages that no commit covers yet."""
        self.tries_alone = False
        """True while it waits for such a model."""


class ArrivingStream:
    """A stream that is about to move here: the slot that it will have, its state of waiting at the node
    before, the monotonic time at which it was ready, and, later, why it can't run here."""

    __slots__ = ("brings", "handle", "obstacle", "ready_at")

    def __init__(self, handle: SlotHandle) -> None:
        self.handle = handle
        self.brings = NOTHING_BROUGHT
        self.ready_at: float | None = None
        self.obstacle: asyncio.Future[str] = asyncio.get_running_loop().create_future()
