"""The queue: delivers messages at least once, in any order, under its own lease (visibility)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Generator, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

import msgspec

from holdfast.common.message import SeqKind
from holdfast.common.record import reading
from holdfast.errors import HoldfastError

T = TypeVar("T")


class Outgoing(msgspec.Struct, frozen=True):
    """A message to send. ``attributes`` are short texts beside the body. ``key`` is the stream's key, for
    queues that know keys or keep the order of each. A queue that has deduplication ids drops a message whose
    ``dedupe_id`` it has seen of late; "" gives each message one of its own. Queues that know keys deliver a
    message with a ``priority`` above 0 and no delay before messages with a lower one; a repeated delivery has
    no priority."""

    body: bytes
    attributes: dict[str, str] = {}
    delay_s: float = 0.0
    key: str = ""
    dedupe_id: str = ""
    priority: int = 0


class Delivery(msgspec.Struct, frozen=True):
    """One delivery of a message.

    ``receipt`` extends, deletes or gives back this delivery, in any process. ``receives`` counts the
    deliveries so far, with this one, without deliveries that were put back. ``number`` is the queue's own
    sequence number, if it has one. ``turn`` is the message's place in the order of arrival, if the queue
    knows it; a message that is redriven keeps its turn.
    """

    receipt: str
    id: str
    body: bytes
    attributes: dict[str, str] = {}
    receives: int = 1
    number: int | None = None
    turn: int | None = None


class DeadLetter(msgspec.Struct, frozen=True):
    """A message set aside with its reason.

    ``id`` is unique to message and cause, so that sending the dead letter again changes nothing. ``stream``,
    ``key``, ``run`` and ``seq`` are empty if the message could not be understood. ``detail`` is a traceback
    or a stack. ``at`` is wall time in seconds, set by the queue. ``turn`` is the message's place in the order
    of arrival, if its queue knows it; redriven, the message has that turn again, or a lower one in a queue
    that has given out fewer.
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
    turn: int | None = None

    @property
    def kind(self) -> str:
        """The kind of its reason, such as ``parked``: the part before the first colon."""
        return self.reason.partition(":")[0]


class DeadLetterRecord(msgspec.Struct):
    """The record of a dead letter, which databases store beside its id, attributes and body.

    ``run`` is a text because it may have more digits than other programs read."""

    reason: str
    detail: str = ""
    stream: str = ""
    key: str = ""
    run: str = "0"
    seq: str = ""
    turn: int | None = None


_record = msgspec.json.Decoder(DeadLetterRecord)


def encode_dead_letter(letter: DeadLetter, turn: int | None = None) -> bytes:
    """Return the record of a dead letter; ``turn`` is in it only if given."""
    return msgspec.json.encode(
        DeadLetterRecord(
            letter.reason, letter.detail, letter.stream, letter.key, str(letter.run), letter.seq, turn
        )
    )


def decode_dead_letter(
    name: str,
    body: bytes,
    record: bytes | str,
    attributes: dict[str, str],
    at_us: int,
    turn: int | None = None,
) -> DeadLetter:
    """Return the dead letter that a database stores. ``turn`` takes the place of the record's own."""
    with reading(f"dead letter {name!r}"):
        r = _record.decode(record)
        turn = r.turn if turn is None else turn
        return DeadLetter(
            name, body, r.reason, attributes, r.detail, r.stream, r.key, int(r.run), r.seq, at_us / 1e6, turn
        )


async def delivered(delivering: Awaitable[T], give_back: Callable[[T], Awaitable[object]]) -> T:
    """Wait for deliveries. If the caller is cancelled meanwhile, give them back when they arrive."""
    deliveries = asyncio.ensure_future(delivering)
    try:
        return await asyncio.shield(deliveries)
    except asyncio.CancelledError:
        with contextlib.suppress(HoldfastError):
            await give_back(await deliveries)
        raise


class WaitingMessage(msgspec.Struct, frozen=True):
    """A message that isn't deleted, as its queue holds it.

    ``delay_s`` is the rest of its delay; 0 also for a message in flight, or of a reserved key.
    ``receives`` counts its deliveries so far. ``number`` is the queue's own sequence number, if it has one,
    and ``key`` the key of the message, if the queue knows it.
    """

    id: str
    body: bytes
    attributes: dict[str, str] = {}
    delay_s: float = 0.0
    receives: int = 0
    number: int | None = None
    key: str = ""


class Depth(msgspec.Struct, frozen=True):
    """The numbers of messages that are ready, delivered and not yet deleted, delayed, and dead-lettered.
    What a reservation keeps is ready. ``lag_s`` is the age of the oldest message that is not deleted, if the
    queue knows it."""

    ready: int
    in_flight: int
    delayed: int
    dead: int
    lag_s: float = 0.0


class Queue(Protocol):
    """One named queue and its dead letters.

    Attributes:
        max_batch: the most messages in any batch call.
        max_bytes: the largest body in bytes.
        max_receives: the number of receives that are useful at once.
        linger_s: seconds for which a receive or a delete may wait to share its call with others; 0 if calls
            cost almost nothing, or if other work waits for them.
        hold_max_s: seconds after which a delivery can't be extended any longer, so that its message must be
            reissued; infinite without such a limit.
        sends_in_order: whether a failed ``send`` has added the first of its messages, if any.
        seq_kind: ``increasing`` if deliveries carry the queue's own number, ``absent`` if not.
        fifo: whether messages with one key are delivered in order. None is delivered while an earlier one is
            in flight or ready, and a receive brings messages of a key without gaps, from the oldest on.
        delay_max_s: the longest delay of a single message; 0 if messages can't be delayed.
        tells_lag: whether ``depth`` knows the age of the oldest message.
        hides_dead_letters: whether reading dead letters hides them from other readers for a while, and costs
            calls for all of them. A redrive or a purge then reads them too, and takes any number of ids.
        tells_stale: whether a receipt becomes stale at the next delivery of its message, and every call then
            refuses and returns it. If not, an old receipt may still extend, give back or delete the later
            delivery.
        frees_on_evict: whether ``free`` makes a dead holder's deliveries visible at once.
        by_key: whether it knows the keys of its messages, so that it is a ``KeyedQueue``.
    """

    max_batch: int
    max_bytes: int
    max_receives: int
    linger_s: float
    hold_max_s: float
    sends_in_order: bool
    seq_kind: SeqKind
    fifo: bool
    delay_max_s: float
    tells_lag: bool
    hides_dead_letters: bool
    tells_stale: bool
    frees_on_evict: bool
    by_key: bool

    async def send(self, messages: Sequence[Outgoing]) -> list[str]:
        """Add messages; returns their ids in order. Raises TooLarge before anything is sent, also for a delay
        over ``delay_max_s``."""

    async def receive(self, limit: int, wait_s: float, visibility_s: float, holder: str) -> list[Delivery]:
        """Receive up to ``limit`` deliveries, waiting up to ``wait_s`` for the first.

        Each is hidden for ``visibility_s``. ``holder`` is the membership that receives.
        """

    def wake(self) -> None:
        """End the waiting receives of this process at once with what they have, if the service allows that.
        Otherwise they end after ``wait_s``."""

    async def extend(self, receipts: Sequence[str], visibility_s: float) -> list[str]:
        """Hide deliveries for ``visibility_s`` from now; returns the receipts known to be stale."""

    async def delete(self, receipts: Sequence[str]) -> list[str]:
        """Delete the messages; returns the receipts known to be stale, whose messages were not deleted."""

    async def give_back(self, receipts: Sequence[str], delay_s: float) -> list[str]:
        """End deliveries so that their messages show again in ``delay_s``; returns stale receipts."""

    async def free(self, holder: str) -> int:
        """Make the deliveries of a dead ``holder`` visible at once; returns how many. Their receipts become
        stale at the next delivery. Returns 0 if ``frees_on_evict`` is False. The reservations of the holder
        end too."""

    async def bury(self, letters: Sequence[DeadLetter]) -> None:
        """Add dead letters. The caller deletes the messages afterwards, by their receipts."""

    async def depth(self) -> Depth:
        """Return the counts at this moment. They are approximate if the service's counts are."""

    async def dead_letters(self, limit: int, after: str = "", key: str | None = None) -> list[DeadLetter]:
        """Return dead letters in order of id, after the id ``after``; only of ``key`` if given."""

    async def redrive(self, ids: Sequence[str]) -> int:
        """Send dead letters to the queue again, in the given order, and remove them; returns how many."""

    async def purge(self, ids: Sequence[str]) -> int:
        """Delete dead letters for good; returns how many."""

    async def expire(self, dead_before: float) -> int:
        """Delete dead letters older than this wall time; returns how many."""

    async def close(self) -> None:
        """Close all connections. Waiting receives end with what they have."""


class Taken(msgspec.Struct, frozen=True):
    """The deliveries of a ``take``, in order of turn. ``more``: the queue may hold further messages of the
    key behind these."""

    deliveries: list[Delivery]
    more: bool


class PutBack(msgspec.Struct, frozen=True):
    """A delivery that goes back for lack of room. ``key`` is the key in its message's body, which the queue
    stores: the message may have been sent with another key, or without. ``counted``: its receive still
    counts, because the message may have killed a node."""

    receipt: str
    key: str
    counted: bool = False


class KeyedQueue(Queue, Protocol):
    """A queue that knows the key of each message and the order in which messages arrived.

    A *reservation* keeps the undelivered messages of one key for one membership: ``receive`` brings none of
    them, ``take`` does, in order of turn. It ends when it lapses, when it is given up, and when its holder is
    freed; its messages are then delivered like others, oldest first. Deliveries that are in flight
    stay so, and reach the reservation once they end."""

    async def reserve(self, key: str, holder: str, epoch: int, for_s: float) -> bool:
        """Reserve ``key`` for the membership ``holder`` for ``for_s`` seconds from now, or renew that.
        Returns False while another holder has a reservation of a higher ``epoch``, and changes nothing then.
        A reservation of a lower or the same epoch is replaced. The same epoch means the same opening, whose
        node has joined again."""

    async def keep(self, keys: Sequence[str], holder: str, for_s: float) -> list[str]:
        """Renew reservations; returns the keys that ``holder`` has lost."""

    async def unreserve(self, key: str, holder: str) -> None:
        """Give up the reservation of ``key``. If another holder has it, nothing changes."""

    async def take(
        self, key: str, holder: str, limit: int, visibility_s: float, after: int = 0
    ) -> Taken | None:
        """Deliver up to ``limit`` messages of a reserved key to its holder, in order of turn, of those with a
        turn above ``after``. Returns None if ``holder`` has no reservation of the key. A take may bring fewer
        messages than there are, and none although there are ``more``."""

    async def put_back(self, returned: Sequence[PutBack]) -> list[str]:
        """End deliveries whose handling has not begun. Their messages are ready at once, in their old turn,
        and their receives aren't counted, though receipts stay unique; returns stale receipts."""


class CallerStatement(NamedTuple):
    """A statement of SQL. ``:name`` in the text stands for the parameter of that name."""

    text: str
    parameters: dict[str, Any]


class Addition(NamedTuple):
    """The statements that add messages within a transaction of the caller.

    Attributes:
        steps: yields each statement and gets the first column of its first row, None if it has none; returns
            the messages' ids. Raises ConfigError if the transaction is one of another database.
        committed: wakes the receivers. Call it after the commit, from any thread. Without it they find
            the messages at their next check.
    """

    steps: Callable[[], Generator[CallerStatement, Any, list[str]]]
    committed: Callable[[], None]


class TransactionalQueue(Queue, Protocol):
    """A queue in a database that programs keep their own tables in."""

    async def addition(self, messages: Sequence[Outgoing]) -> Addition:
        """Return the statements that add messages within a transaction of the caller. Raises TooLarge, as
        ``send`` does."""


class TransferableQueue(Queue, Protocol):
    """A queue whose contents can be read and written as they are, while no process receives."""

    async def waiting(self, limit: int, after: str = "") -> list[WaitingMessage]:
        """Return up to ``limit`` messages in the order in which they were sent, after the one with the id
        ``after``, whether ready, delayed or in flight. There may be fewer although more follow, but none only
        if none follow."""

    async def restore(self, messages: Sequence[WaitingMessage], above: int = 0) -> None:
        """Add messages of another queue behind the present ones, all or none, with their counts of receives
        and remaining delays.

        Those with a ``number`` keep it; only a queue that numbers its messages takes these. The ids of others
        are new. Numbers that the queue gives from now on are above all of these and above ``above``. Raises
        TooLarge, and OperationRefused if a number is taken."""

    async def restore_dead_letters(self, letters: Sequence[DeadLetter]) -> None:
        """Add dead letters of another queue, with their times. A known id stays as it is."""
