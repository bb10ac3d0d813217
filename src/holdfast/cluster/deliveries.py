"""Tracks deliveries: extends them while their messages are handled, and deletes them after the commit. A call
has ten deliveries, or as many as the queue allows."""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from functools import partial
from itertools import accumulate
from typing import Any, Protocol

import msgspec

from holdfast.cluster.host import Host
from holdfast.common.held import Held, PendingDeadLetter, Receipt
from holdfast.common.message import CommitPlace, Life, fixed
from holdfast.common.progress import Visibility, chunks, due
from holdfast.common.reception import Reception
from holdfast.common.redaction import redact
from holdfast.errors import HoldfastError, Retry
from holdfast.ports.queue import DeadLetter, Outgoing, Queue
from holdfast.system.retrying import retry_call

CHECKS_PER_VISIBILITY = 10
"""Checks of deliveries during one visibility. A delivery is extended when almost half of its visibility is
left."""

DELETE_LINGER_FACTOR = 4
"""The time that a delete waits for others to share its call, as a multiple of the queue's. No message waits
for it."""

EXTENDS_AT_ONCE = 8
"""The most concurrent extend calls. With thousands of deliveries, one call after the other would take too
long."""

REISSUE_VISIBILITIES = 4
"""The time before the queue's limit at which a message is reissued, in visibilities: enough for a few
tries."""

ANSWER_SLACK_S = 5.0
"""Seconds that a receive may take longer than its wait for messages, before its queue counts as silent."""

Reporter = Callable[[list[Receipt], bool], Coroutine[Any, Any, None]]


class Settlement(msgspec.Struct, frozen=True):
    """The work that follows an accepted commit: messages are archived if the stream has an archive, then dead
    letters sent, deliveries deleted, and senders notified. Then ``done`` is called.

    ``commit`` is the commit that covers the messages, and ``archived`` is called once they are in the
    archive."""

    key: str
    letters: tuple[PendingDeadLetter, ...]
    messages: tuple[Held, ...]
    done: Callable[[], None]
    commit: CommitPlace | None = None
    archived: Callable[[], None] = lambda: None


class Archive(Protocol):
    """The archive of a stream. Settlements wait up to ``linger_s`` to be written together, until there are
    ``enough`` messages."""

    linger_s: float
    enough: int

    @property
    def is_full(self) -> bool:
        """True while too many messages wait for the archive."""

    def expect(self, settlement: Settlement) -> None:
        """Note a settlement that will be written."""

    async def write(self, settlements: Sequence[Settlement]) -> None:
        """Write the messages of settlements; return when the archive has them all."""


class DeliveryTracker:
    """Extends and settles the deliveries of one stream's queue. It extends deliveries until they are deleted,
    because the queue may be slow.

    ``holding`` returns the messages whose deliveries must be extended now, with their keys. ``report``
    notifies the senders of forwarded deliveries. ``may_reissue`` returns whether a message may be replaced by
    a copy."""

    def __init__(
        self,
        stream: str,
        queue: Queue,
        host: Host,
        *,
        holding: Callable[[str], Sequence[tuple[str, Held]]],
        report: Reporter,
        may_reissue: Callable[[Held], bool] = lambda _: True,
        visibility_s: float | None = None,
        archive: Archive | None = None,
    ) -> None:
        self._stream = stream
        self._queue = queue
        self._clock, self._tasks, self._stats, self._log = host.clock, host.tasks, host.stats, host.log
        self._retry = host.limits.retry
        self._visibility_s = host.limits.visibility_s if visibility_s is None else visibility_s
        self._holding = holding
        self._report = report
        self._may_reissue = may_reissue
        self._archive = archive
        self.archives = archive is not None
        """Whether the stream has an archive."""
        self.reception = Reception(host.clock.monotonic(), host.limits.receive_wait_s + ANSWER_SLACK_S)
        """The time in which this node received nothing from the queue."""
        self._pending: list[Settlement] = []
        self._taken: list[Settlement] = []
        self._waiting = 0
        self._patient = True
        self._wake = asyncio.Event()
        self._hurry = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()

    def start(self) -> None:
        """Start the loops that extend and settle."""
        self._tasks.repeat(self._extend_loop, self._clock, self._log)
        self._tasks.repeat(self._settle_loop, self._clock, self._log)

    @property
    def is_full(self) -> bool:
        """True while too many messages wait for the archive."""
        return self._archive is not None and self._archive.is_full

    def settle(self, settlement: Settlement, *, at_once: bool = False) -> None:
        """Settle the messages of an accepted commit, even if the stream leaves this node meanwhile. With
        ``at_once`` a client waits for it."""
        if self._archive is not None:
            self._archive.expect(settlement)
        self._pending.append(settlement)
        self._waiting += len(settlement.messages)
        self._idle.clear()
        self._wake.set()
        if at_once or self._waiting >= self._enough:
            self._hurry.set()

    @property
    def _enough(self) -> int:
        """The number of messages that are settled at once."""
        return self._queue.max_batch if self._archive is None else self._archive.enough

    async def settled(self) -> None:
        """Wait until all settlements are done. Until then, calls are made before they are full."""
        self._patient = False
        self._hurry.set()
        await self._idle.wait()
        self._patient = True

    # A waiting loop must hold no message: the body would stay in memory.

    async def _extend_loop(self) -> None:
        while True:
            await self._clock.sleep(self._visibility_s / CHECKS_PER_VISIBILITY)
            await self._extend_due()

    async def _extend_due(self) -> None:
        now, holding = self._clock.monotonic(), self._holding(self._stream)
        await self.reissue(holding, now)
        settling = [held for item in (*self._taken, *self._pending) for held in item.messages]
        receipts = [r for held in (*(held for _, held in holding), *settling) for r in held.receipts]
        near = due(receipts, now, self._visibility_s)
        await self._extend({receipt.receipt: receipt for receipt in near})

    async def reissue(self, holding: Sequence[tuple[str, Held]], now: float) -> None:
        """Replace messages that have almost reached the queue's limit: send a copy with the same identity,
        then delete the old one. The copy comes back as another delivery of the same message."""
        margin_s = min(REISSUE_VISIBILITIES * self._visibility_s, self._queue.hold_max_s / 2)
        before = now - self._queue.hold_max_s + margin_s
        aged = [
            (key, held, old)
            for key, held in holding
            if self._may_reissue(held)
            and (old := [r for r in held.receipts if not r.stale and r.received_at <= before])
        ]
        for start in range(0, len(aged), self._queue.max_batch):
            batch = aged[start : start + self._queue.max_batch]
            old = [receipt for _, _, receipts in batch for receipt in receipts]
            copies = [Outgoing(held.body, held.again, key=key) for key, held, _ in batch]
            try:
                await self._queue.send(copies)
            except HoldfastError as error:
                self._log.warning("cannot reissue messages", stream=self._stream, error=str(error))
                return  # the next check tries again
            self._stats.reissued += len(batch)
            for receipt in old:
                receipt.stale = True
            await self._delete([receipt.receipt for receipt in old])

    async def _extend(self, receipts: dict[str, Visibility]) -> None:
        """Extend deliveries with a few concurrent calls. A failed or slow call doesn't affect the others."""
        batches = chunks(list(receipts), self._queue.max_batch)
        for start in range(0, len(batches), EXTENDS_AT_ONCE):
            some = batches[start : start + EXTENDS_AT_ONCE]
            if not any(await asyncio.gather(*(self._extend_batch(batch, receipts) for batch in some))):
                return  # the next check tries again: half of the visibility is left

    async def _extend_batch(self, batch: Sequence[str], receipts: dict[str, Visibility]) -> bool:
        """Extend a batch; return False if the call failed."""
        sent_at = self._clock.monotonic()
        self._stats.extend_calls += 1
        try:
            stale = await self._queue.extend(batch, self._visibility_s)
        except HoldfastError as error:
            self._log.warning("cannot extend deliveries", stream=self._stream, error=str(error))
            return False
        for name in batch:
            receipts[name].expires_at = sent_at + self._visibility_s
        for name in stale:
            receipts[name].stale = True
        return True

    async def _settle_loop(self) -> None:
        while True:
            await self._wake.wait()
            linger_s = (
                DELETE_LINGER_FACTOR * self._queue.linger_s
                if self._archive is None
                else self._archive.linger_s
            )
            linger_s = min(linger_s, self._visibility_s / CHECKS_PER_VISIBILITY)
            full = linger_s > 0 and await self._clock.wait(self._hurry, linger_s) and self._patient
            await self._settle_waiting(whole_calls=full and self._archive is None)

    async def _settle_waiting(self, *, whole_calls: bool) -> None:
        taken = self._taken = self._whole_calls() if whole_calls else list(self._pending)
        del self._pending[: len(taken)]
        self._waiting -= sum(len(item.messages) for item in taken)
        if self._waiting < self._enough and self._patient:
            self._hurry.clear()
        if not self._pending:
            self._wake.clear()
        if taken:
            await self._settle(taken)
        self._taken = []
        if not self._pending:
            self._idle.set()

    def _whole_calls(self) -> list[Settlement]:
        """Return the first settlements, as many as fill whole calls."""
        counts = list(accumulate(len(item.messages) for item in self._pending))
        room = counts[-1] - counts[-1] % self._queue.max_batch
        return self._pending[: max(1, bisect_right(counts, room))]

    async def _settle(self, taken: list[Settlement]) -> None:
        if self._archive is not None:
            await self._archive.write(taken)
        await self._release(taken)

    async def _release(self, taken: list[Settlement]) -> None:
        """Send the dead letters, delete the deliveries and report to their senders."""
        messages = [held for item in await self._send_dead_letters(taken) for held in item.messages]
        receipts = [receipt for held in messages for receipt in held.receipts]
        # The queue has delivered the message of a stale receipt again, and judges that delivery.
        names = list(dict.fromkeys(receipt.receipt for receipt in receipts if not receipt.stale))
        await self._delete(names)
        foreign = [receipt for receipt in receipts if receipt.sender]
        if foreign:
            self._tasks.spawn(self._report(foreign, True))
        for held in messages:
            held.become(Life.DELETED)
        for item in taken:
            item.done()

    async def _delete(self, names: list[str]) -> None:
        batches = chunks(names, self._queue.max_batch)
        self._stats.delete_calls += len(batches)
        await asyncio.gather(*(self._retry_call(partial(self._queue.delete, batch)) for batch in batches))

    async def _send_dead_letters(self, taken: list[Settlement]) -> list[Settlement]:
        """Send the dead letters; return the settlements whose messages may be deleted. The message of a dead
        letter that the queue refuses stays in the queue, and is judged again at its next delivery."""
        letters = [(item, letter) for item in taken for letter in item.letters]
        refused: list[Settlement] = []
        for batch in chunks(letters, self._queue.max_batch):
            refused += await self._send_batch(batch)
        return [item for item in taken if not any(item is other for other in refused)]

    async def _send_batch(self, batch: Sequence[tuple[Settlement, PendingDeadLetter]]) -> list[Settlement]:
        """Send dead letters in one call; if the queue refuses it, one by one, so that a refused letter stops
        no other. Return the settlements of refused letters."""
        sent = [dead_letter(self._stream, item.key, letter, self._clock.wall()) for item, letter in batch]
        if not await self._retry_call(partial(self._queue.bury, sent)):
            if len(batch) == 1:
                return [item for item, _ in batch]
            return [item for each in batch for item in await self._send_batch([each])]
        self._stats.set_aside += len(batch)
        for _, letter in batch:
            if letter.held is not None:
                letter.held.become(Life.BURIED)
        return []

    async def _retry_call(self, call: Callable[[], Awaitable[Any]]) -> bool:
        """Repeat an idempotent call until the queue answers; return False if the queue refuses it for
        good."""

        def failed(error: Exception) -> None:
            if isinstance(error, HoldfastError) and error.retry is Retry.NEVER:
                raise error
            self._log.warning(
                "queue call failed", stream=self._stream, error=str(error), fix="none: it is repeated"
            )

        try:
            await retry_call(call, self._clock, self._retry, failed)
        except HoldfastError as error:
            self._log.error("queue call refused", stream=self._stream, error=str(error))
            return False
        return True


async def free(queues: Iterable[Queue], member: str, log: Any) -> None:
    """End the visibility of deliveries that only a dead node had received, if the queue can."""
    for queue in queues:
        if queue.frees_on_evict:
            try:
                await queue.free(member)
            except HoldfastError as error:
                log.warning("cannot free a dead node's deliveries", error=str(error))


async def expire(queues: Iterable[Queue], before: float, log: Any) -> None:
    """Delete dead letters older than this wall time, from each queue that answers."""
    for queue in queues:
        try:
            await queue.expire(before)
        except HoldfastError as error:
            log.warning("cannot delete old dead letters", error=str(error))


def dead_letter(stream: str, key: str, letter: PendingDeadLetter, at: float) -> DeadLetter:
    """Return the record of a dead letter. Its id follows from the message's identity, so that sending it
    again changes nothing."""
    plain = key.partition("/")[2]
    reason, detail = redact(letter.reason), redact(letter.detail)
    held = letter.held
    if held is None:
        assert letter.span is not None
        span = f"{letter.span.first}-{letter.span.last}"
        name = f"{key}:{letter.run}:{span}"
        return DeadLetter(name, b"", reason, {}, detail, stream, plain, letter.run, span, at)
    return DeadLetter(
        f"{key}:{held.place.name}",
        held.body,
        reason,
        letter.attributes,
        detail,
        stream,
        plain,
        held.place.run,
        held.place.id or fixed(held.place.seq),
        at,
        turn=held.turn,
    )
