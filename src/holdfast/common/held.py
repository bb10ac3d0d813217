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
"""How the reason begins of a message that an earlier commit has skipped."""

SKIPPED_FOR = "skipped_for"
"""The attribute of a dead letter that holds why a commit skipped its message. Sent again, the message brings
it along, because the checkpoint doesn't know."""

SKIPPED_FOR_CHARS = 500


class Receipt(Visibility):
    """One delivery of a held message, when the queue delivered it (monotonic seconds), and who sent it here.
    If ``sender`` is empty, this node received it. Else ``sender`` is the membership that keeps custody under
    ``number``, at the address ``reply_to``. With ``request`` it isn't a delivery of a queue, but the request
    of a client that waits for its result; it is stale from the start, because there is nothing to extend or
    delete."""

    received_at: float = math.inf
    sender: str = ""
    number: int = 0
    reply_to: str = ""
    request: int = 0


class Held(msgspec.Struct, eq=False):
    """A message that an owner holds, with all its known deliveries. ``after`` is the seq of the message
    before it in its stream, if the queue says so; None if all before it are done. ``result`` is its result in
    the commit that covers it; ``aside`` is why it was skipped instead."""

    place: Place
    body: bytes
    attributes: dict[str, str]
    receipts: list[Receipt]
    receives: int = 1
    after: int | None = None
    life: Life = Life.RECEIVED
    counted: bool = False
    """True if the message carries no run and has the run that its owner counted."""
    suspect: bool = False
    tries: int = 0
    retry_at: float = 0.0
    spent: bool = False
    result: bytes | None = None
    covered_as: Literal["", "done", "skip", "late", "far", "parked"] = ""
    """As what the commit that covers it records it; empty while none does, or if an earlier opening's did."""
    aside: str = ""
    error: str = ""
    detail: str = ""
    turn: int | None = None
    traceparent: str = ""
    """The context of what its handling leads to: that of its span if the trace is recorded, else of its
    sender's, which isn't checked yet."""

    @property
    def is_asked(self) -> bool:
        """True if a client waits for its result."""
        return any(receipt.request for receipt in self.receipts)

    @property
    def may_be_known(self) -> bool:
        """True if the message may have been delivered before: the queue says so, or it comes from a client,
        which may repeat its request."""
        return self.receives > 1 or self.is_asked

    @property
    def context(self) -> str:
        """Its place in a trace: that of its handling, or of its sender; "" for none."""
        said = self.traceparent or self.attributes.get(TRACEPARENT, "")
        return checked(said) if said else ""

    @property
    def again(self) -> dict[str, str]:
        """Return the attributes that show a copy to be the same message."""
        return {**self.attributes, "id": self.place.id} if self.place.id else self.attributes

    @property
    def skipped_before(self) -> str:
        """Return why it is set aside once more if an earlier commit has skipped it, with that commit's reason
        if the message brings it along."""
        reason = self.attributes.get(SKIPPED_FOR, "")
        return f"{SKIPPED_BEFORE}: {reason}" if reason else SKIPPED_BEFORE

    def become(self, then: Life) -> None:
        """Take the next step of a message's life. A step that isn't in the table is a bug."""
        assert then in NEXT[self.life], f"{self.place.name} is {self.life.value}, so can't be {then.value}"
        self.life = then

    def come_back(self) -> None:
        """Reset the message to its state after the receive, because the opening that held it is over."""
        if self.life is not Life.RECEIVED:
            self.become(Life.RECEIVED)


class PendingDeadLetter(msgspec.Struct, frozen=True):
    """A dead letter to send, for a message or for seqs that never came. ``waits``: no commit has passed over
    the message, so it stays the same one when it is sent again, and isn't handled a second time if another
    delivery of it was handled meanwhile. ``skipped``: a commit skips the message for this reason, and so it
    stays skipped when it is sent again."""

    reason: str
    held: Held | None = None
    run: int = 0
    span: Span | None = None
    detail: str = ""
    waits: bool = False
    skipped: bool = False

    @property
    def attributes(self) -> dict[str, str]:
        """Return the attributes with which the message is sent again."""
        if self.held is None:
            return {}
        if self.waits:
            return self.held.again
        if self.skipped:
            return {**self.held.attributes, SKIPPED_FOR: redact(self.reason)[:SKIPPED_FOR_CHARS]}
        return self.held.attributes
