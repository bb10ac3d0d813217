"""Messages in a node's hands, and the letters that say what became of some."""

from __future__ import annotations

import math

import msgspec

from holdfast.common.message import Life, Place, Span, may_follow
from holdfast.common.progress import Visibility


class Receipt(Visibility):
    """One delivery of a held message, when the queue gave it out (monotonic), and who sent it here: nobody
    (``sender`` empty: this node received it) or a membership that keeps custody under ``number`` and is
    reached at ``reply_to``. Or it is no delivery of a queue, but the ``request`` of a client that waits for
    its result; such a one is stale from the beginning, for there is nothing to extend or to delete."""

    received_at: float = math.inf
    sender: str = ""
    number: int = 0
    reply_to: str = ""
    request: int = 0


class Held(msgspec.Struct, eq=False):
    """A message in the owner's hands, with every delivery of it that is known. ``after`` is the seq of the
    message before it in its stream, where the queue tells: None if all before it are done with. ``result`` is
    what the commit that covers it says; ``aside`` why it was passed over instead."""

    place: Place
    body: bytes
    attributes: dict[str, str]
    receipts: list[Receipt]
    receives: int = 1
    after: int | None = None
    life: Life = Life.RECEIVED
    counted: bool = False
    """True where the message carries no run and has the one that its owner counts."""
    suspect: bool = False
    tries: int = 0
    retry_at: float = 0.0
    spent: bool = False
    result: bytes | None = None
    aside: str = ""
    error: str = ""
    detail: str = ""

    @property
    def may_be_known(self) -> bool:
        """True if it may have been delivered before: by a queue that says so, or by a client, who may ask as
        often as it likes."""
        return self.receives > 1 or any(receipt.request for receipt in self.receipts)

    @property
    def again(self) -> dict[str, str]:
        """The attributes with which a copy of it is known to be the same message."""
        return {**self.attributes, "id": self.place.id} if self.place.id else self.attributes

    def become(self, then: Life) -> None:
        """Take the next step of a message's life; one that the table doesn't know is a mistake of ours."""
        assert may_follow(self.life, then), (
            f"{self.place.name} is {self.life.value}, so can't be {then.value}"
        )
        self.life = then

    def come_back(self) -> None:
        """Be as if just received: the opening that held it is over."""
        if self.life is not Life.RECEIVED:
            self.become(Life.RECEIVED)


class Letter(msgspec.Struct, frozen=True):
    """A dead letter to send: for a message, or for seqs that never came."""

    reason: str
    held: Held | None = None
    run: int = 0
    span: Span | None = None
    detail: str = ""
