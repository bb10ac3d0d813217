"""The queue: delivers messages at least once, in any order, under its own lease (visibility)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from holdfast.common.message import SeqKind


class Outgoing(msgspec.Struct, frozen=True):
    """A message to send. ``attributes`` are short texts that travel beside the body. ``key`` is the stream's
    key, for queues that keep order by it."""

    body: bytes
    attributes: dict[str, str] = {}
    delay_s: float = 0.0
    key: str = ""


class Delivery(msgspec.Struct, frozen=True):
    """One delivery of a message.

    ``receipt`` extends, deletes or gives back this delivery, in any process. ``receives`` counts
    deliveries so far, this one included. ``number`` is the queue's own order number, where it has one.
    """

    receipt: str
    id: str
    body: bytes
    attributes: dict[str, str] = {}
    receives: int = 1
    number: int | None = None


class DeadLetter(msgspec.Struct, frozen=True):
    """A message set aside with its reason.

    ``id`` is unique to message and cause, so that sending the letter again changes nothing.
    ``stream``, ``key``, ``run`` and ``seq`` are empty where the message could not be understood.
    ``detail`` holds a traceback or a stack. ``at`` is wall time in seconds; the queue sets it.
    """

    id: str
    body: bytes
    reason: str
    attributes: dict[str, str] = {}
    detail: str = ""
    stream: str = ""
    key: str = ""
    run: int = 0
    seq: str = ""
    at: float = 0.0


class Depth(msgspec.Struct, frozen=True):
    """How many messages are ready, delivered and not yet deleted, delayed, and dead. ``lag_s`` is the age
    of the oldest that is not deleted, where the queue tells it."""

    ready: int
    in_flight: int
    delayed: int
    dead: int
    lag_s: float = 0.0


class Queue(Protocol):
    """One named queue and its dead letters.

    Attributes:
        max_batch: messages a call at most, for every batch call.
        max_bytes: largest body in bytes.
        max_receives: receives worth having under way at once.
        linger_s: how long a receive or a delete may wait to share its call with others; 0 where calls
            cost next to nothing, or where what follows waits for them.
        hold_max_s: after so long a delivery can't be extended any more, and its message must be sent
            again under its identity; infinite where nothing of the kind is needed.
        seq_kind: ``increasing`` if deliveries carry the queue's own number, ``absent`` if not.
        fifo: of messages sent with one key, none is delivered while an earlier one is in flight or ready: a
            receive brings an unbroken piece of the key's order, beginning with the oldest there is.
        delay_max_s: longest delay of a single message; 0 where none can be delayed.
        tells_lag: ``depth`` knows the age of the oldest message.
        tells_stale: a receipt goes stale at the next delivery of its message, and is then refused and told
            by every call. Where not, one may still extend, give back or delete that later delivery.
        frees_on_evict: ``free`` makes a dead holder's deliveries visible at once.
    """

    max_batch: int
    max_bytes: int
    max_receives: int
    linger_s: float
    hold_max_s: float
    seq_kind: SeqKind
    fifo: bool
    delay_max_s: float
    tells_lag: bool
    tells_stale: bool
    frees_on_evict: bool

    async def send(self, messages: Sequence[Outgoing]) -> list[str]:
        """Add messages; returns their ids in order. Raises TooLarge before anything is sent, for a delay
        over ``delay_max_s`` too."""

    async def receive(self, limit: int, wait_s: float, visibility_s: float, holder: str) -> list[Delivery]:
        """Up to ``limit`` deliveries, waiting up to ``wait_s`` for the first.

        Each stays invisible for ``visibility_s``. ``holder`` is the membership that receives.
        """

    def wake(self) -> None:
        """Let the receives that wait in this process end at once with what they have, where the service
        allows that; else they end by themselves."""

    async def extend(self, receipts: Sequence[str], visibility_s: float) -> list[str]:
        """Make deliveries invisible for ``visibility_s`` from now; returns the receipts known to be stale."""

    async def delete(self, receipts: Sequence[str]) -> list[str]:
        """Delete the messages; returns the receipts known to be stale, whose messages still stand."""

    async def give_back(self, receipts: Sequence[str], delay_s: float) -> list[str]:
        """End deliveries so that their messages show again in ``delay_s``; returns stale receipts."""

    async def free(self, holder: str) -> int:
        """Make visible at once what a dead ``holder`` received; returns how many. Receipts of those
        deliveries go stale at the next delivery. 0 where ``frees_on_evict`` is False."""

    async def bury(self, letters: Sequence[DeadLetter]) -> None:
        """Add dead letters. The message itself is deleted by its receipts, afterwards."""

    async def depth(self) -> Depth:
        """Counts at this moment (may be approximate where the service's are)."""

    async def dead_letters(self, limit: int, after: str = "", key: str | None = None) -> list[DeadLetter]:
        """Dead letters in order of id, after the id ``after``; only those of ``key`` if given."""

    async def redrive(self, ids: Sequence[str]) -> int:
        """Send dead letters to the queue again, in the order given, and remove them; returns how many."""

    async def purge(self, ids: Sequence[str]) -> int:
        """Remove dead letters for good; returns how many."""

    async def expire(self, dead_before: float) -> int:
        """Drop dead letters older than this wall time; returns how many."""

    async def close(self) -> None:
        """Release connections. Waiting receives end with what they have."""
