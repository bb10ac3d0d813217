"""Messages that a node holds, and their dead letters."""

from __future__ import annotations

import math
from typing import Literal

import msgspec

from holdfast.common.message import NEXT, Life, Place, Span
from holdfast.common.progress import Visibility
from holdfast.common.redaction import redact
from holdfast.common.traceparent import TRACEPARENT, checked

SKIPPED_BEFORE = "skipped before"
"""The beginning of the reason for a message that an earlier commit has skipped."""

SKIPPED_FOR = "skipped_for"
"""The attribute of a dead letter with the reason why a commit skipped its message. A redriven message keeps
it, because the checkpoint doesn't have the reason."""

SKIPPED_FOR_CHARS = 500


class Receipt(Visibility):
    """One delivery of a held message, with the monotonic time at which the queue delivered it.

    If ``sender`` is empty, this node received it. Otherwise ``sender`` is the membership that forwarded it
    under ``number`` and gets reports at ``reply_to``. With ``request`` it is the request of a client that
    waits for its result, and no delivery of a queue. It is stale from the start: nothing can be extended or
    deleted."""

    received_at: float = math.inf
    sender: str = ""
    number: int = 0
    reply_to: str = ""
    request: int = 0


class Held(msgspec.Struct, eq=False):
    """A message that an owner holds, with all its known deliveries. ``after`` is the seq of the message
    before it in its stream, if the queue reports it; None if all before it are done. ``result`` is its result
    in its commit; ``aside`` is the reason why it was skipped instead."""

    place: Place
    body: bytes
    attributes: dict[str, str]
    receipts: list[Receipt]
    receives: int = 1
    after: int | None = None
    life: Life = Life.RECEIVED
    counted: bool = False
    """True if the message has no run of its own, and its owner has counted its run."""
    suspect: bool = False
    tries: int = 0
    retry_at: float = 0.0
    spent: bool = False
    result: bytes | None = None
    covered_as: Literal["", "done", "skip", "late", "far", "parked"] = ""
    """Its record in the commit that covers it; empty before that commit, and if an earlier opening's covers
    it."""
    aside: str = ""
    error: str = ""
    detail: str = ""
    turn: int | None = None
    traceparent: str = ""
    """The trace context for work that follows from it: of its span if the trace is recorded, else its
    sender's, which isn't checked yet."""

    @property
    def is_asked(self) -> bool:
        """True if a client waits for its result."""
        return any(receipt.request for receipt in self.receipts)

    @property
    def may_be_known(self) -> bool:
        """True if the message may have been delivered before: the queue reports it, or a client sent it,
        which may repeat its request."""
        return self.receives > 1 or self.is_asked

    @property
    def context(self) -> str:
        """Its place in a trace: of its handling, or of its sender; "" for none."""
        said = self.traceparent or self.attributes.get(TRACEPARENT, "")
        return checked(said) if said else ""

    @property
    def again(self) -> dict[str, str]:
        """The attributes by which a copy is recognised as the same message."""
        return {**self.attributes, "id": self.place.id} if self.place.id else self.attributes

    @property
    def skipped_before(self) -> str:
        """The reason of its dead letter if an earlier commit has skipped it, with that commit's reason if the
        message has it."""
        reason = self.attributes.get(SKIPPED_FOR, "")
        return f"{SKIPPED_BEFORE}: {reason}" if reason else SKIPPED_BEFORE

    def become(self, then: Life) -> None:
        """Take the next step of the message's life, which must be in ``NEXT``."""
        assert then in NEXT[self.life], f"{self.place.name} is {self.life.value}, so can't be {then.value}"
        self.life = then

    def come_back(self) -> None:
        """Reset the message to its state after the receive, because the opening that held it is over."""
        if self.life is not Life.RECEIVED:
            self.become(Life.RECEIVED)


class PendingDeadLetter(msgspec.Struct, frozen=True):
    """A dead letter to send, for a message or for seqs that never came.

    ``waits``: no commit has passed over the message. Redriven, it keeps its identity, and isn't handled a
    second time if another delivery of it was handled meanwhile. ``skipped``: a commit skips the message for
    this reason. Redriven, it stays skipped."""

    reason: str
    held: Held | None = None
    run: int = 0
    span: Span | None = None
    detail: str = ""
    waits: bool = False
    skipped: bool = False

    @property
    def attributes(self) -> dict[str, str]:
        """The attributes with which the message is redriven."""
        if self.held is None:
            return {}
        if self.waits:
            return self.held.again
        if self.skipped:
            return {**self.held.attributes, SKIPPED_FOR: redact(self.reason)[:SKIPPED_FOR_CHARS]}
        return self.held.attributes
