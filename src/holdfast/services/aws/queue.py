"""The queue on SQS, standard or FIFO.

A FIFO queue's name ends in ``.fifo``. Its groups are the messages' keys: it keeps the order of each, and
holds back the messages behind one in flight. A message without a key has its own group, so it waits for no
other.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, TypeVar

from holdfast.common.message import SeqKind
from holdfast.common.queue_calls import check_batch, check_bodies
from holdfast.errors import ConfigError, HoldfastError, TooLarge
from holdfast.ports.clock import Clock
from holdfast.ports.queue import DeadLetter, Delivery, Depth, Outgoing
from holdfast.services.aws.channel import HOLD_MAX_S, Channel, RedrivePolicy
from holdfast.services.aws.dead_letters import COUNTS, DeadLetters
from holdfast.services.aws.message import MAX_BYTES, decode, encode
from holdfast.services.aws.sqs import NoSuchQueue, Sqs, SqsMessage

T = TypeVar("T")

POLL_MAX_S = 20.0
CLOSE_S = 5.0
"""Seconds beyond its longest poll that closing a queue may take."""

DELAY_MAX_S = 15 * 60.0
LINGER_S = 0.1
RECEIVES_MAX = 16


class SqsQueue:
    """One queue and its dead-letter queue, which must exist.

    A receive under way is never aborted, because its messages would stay hidden. When it is woken, cancelled
    or closed, its call continues for up to ``poll_max_s`` and gives back its messages.

    Args:
        sqs: the service; it stays open when the queue is closed.
        queue: the queue's name or URL.
        clock: time, and ids for deduplication.
        max_bytes: the largest body to send, 720 KiB at most.
        poll_max_s: the longest wait of one call, 20 seconds at most.
    """

    def __init__(
        self,
        sqs: Sqs,
        queue: str,
        clock: Clock,
        *,
        max_bytes: int = MAX_BYTES,
        poll_max_s: float = POLL_MAX_S,
    ) -> None:
        if max_bytes > MAX_BYTES:
            raise ConfigError(f"max_bytes is {max_bytes}; a body on SQS has {MAX_BYTES} bytes at most")
        self._sqs = sqs
        self._channel = Channel(sqs, queue, clock)
        self._clock = clock
        self._poll_max_s = min(poll_max_s, POLL_MAX_S)
        self._known_dead_letters: DeadLetters | None = None
        self._wakes = 0
        self._closed = False
        self._waiting: set[asyncio.Future[list[SqsMessage]]] = set()
        self._under_way: set[asyncio.Task[Any]] = set()
        fifo = self._channel.fifo
        self.fifo = fifo
        self.max_batch = 10
        self.max_bytes = max_bytes
        self.max_receives = RECEIVES_MAX
        self.linger_s = 0.0 if fifo else LINGER_S
        self.hold_max_s = math.inf if fifo else float(HOLD_MAX_S)
        self.delay_max_s = 0.0 if fifo else DELAY_MAX_S
        self.seq_kind: SeqKind = "increasing" if fifo else "absent"
        self.sends_in_order = self.frees_on_evict = self.by_key = False
        self.tells_lag = False
        self.hides_dead_letters = True
        self.tells_stale = False

    # --- messages

    async def send(self, messages: Sequence[Outgoing]) -> list[str]:
        check_batch(messages, self.max_batch)
        for message in messages:
            self._check(message)
        if not messages:
            return []
        entries = [encode(message.body, message.attributes) for message in messages]
        for entry, message in zip(entries, messages, strict=True):
            if message.delay_s > 0:
                entry["DelaySeconds"] = math.ceil(message.delay_s)
        return await self._channel.send(
            entries, [message.key for message in messages], [message.dedupe_id for message in messages]
        )

    async def receive(self, limit: int, wait_s: float, visibility_s: float, holder: str) -> list[Delivery]:
        check_batch(range(limit), self.max_batch)
        deadline, wakes = self._clock.monotonic() + wait_s, self._wakes
        while not self._closed:
            remaining_s = max(0.0, deadline - self._clock.monotonic())
            poll_s = min(self._poll_max_s, remaining_s)
            deliveries = await self._poll(limit, poll_s, visibility_s)
            if deliveries or poll_s == remaining_s or self._wakes != wakes:
                return deliveries
        return []

    def wake(self) -> None:
        self._wakes += 1

    async def extend(self, receipts: Sequence[str], visibility_s: float) -> list[str]:
        check_batch(receipts, self.max_batch)
        return await self._channel.hide(receipts, visibility_s)

    async def delete(self, receipts: Sequence[str]) -> list[str]:
        """See the port. A standard queue reports no stale receipts."""
        check_batch(receipts, self.max_batch)
        return await self._channel.delete(receipts)

    async def give_back(self, receipts: Sequence[str], delay_s: float) -> list[str]:
        check_batch(receipts, self.max_batch)
        return await self._channel.hide(receipts, delay_s)

    async def free(self, holder: str) -> int:
        return 0

    async def depth(self) -> Depth:
        """Return the counts of SQS, which are approximate and some seconds old, without a lag."""
        counts, dead = await asyncio.gather(self._channel.attributes(*COUNTS), self._count_dead())
        ready, in_flight, delayed = (int(counts.get(name, 0)) for name in COUNTS)
        return Depth(ready, in_flight, delayed, dead)

    # --- dead letters

    async def bury(self, letters: Sequence[DeadLetter]) -> None:
        check_batch(letters, self.max_batch)
        if letters:
            await (await self._dead_letters()).bury(letters)

    async def dead_letters(self, limit: int, after: str = "", key: str | None = None) -> list[DeadLetter]:
        """See the port, by receiving all of them. They include messages that the queue itself moved after
        the receives that its redrive policy allows."""
        return await (await self._dead_letters()).page(limit, after, key)

    async def redrive(self, ids: Sequence[str]) -> int:
        return await (await self._dead_letters()).redrive(ids) if ids else 0

    async def purge(self, ids: Sequence[str]) -> int:
        return await (await self._dead_letters()).purge(ids) if ids else 0

    async def expire(self, dead_before: float) -> int:
        """See the port. SQS itself drops messages after 14 days: for these no call is made."""
        return await (await self._dead_letters()).expire(dead_before)

    async def close(self) -> None:
        """End the waiting receives, and wait a limited time for their calls to end."""
        self._closed = True
        for answer in self._waiting:
            if not answer.done():
                answer.set_result([])
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._poll_max_s + CLOSE_S):
                while self._under_way:
                    await asyncio.wait(self._under_way)
        for task in self._under_way:
            task.cancel()

    # --- how it is done

    def _check(self, message: Outgoing) -> None:
        check_bodies([message.body], self.max_bytes)
        if message.delay_s > self.delay_max_s:
            raise TooLarge(
                f"a delay of {message.delay_s:g} s is over the queue's delay_max_s, {self.delay_max_s:g}"
                + (": a FIFO queue delays no single message" if self.fifo else "")
            )

    async def _poll(self, limit: int, wait_s: float, visibility_s: float) -> list[Delivery]:
        """Make one call for messages, which goes on if its caller is cancelled or the queue is closed."""
        answer: asyncio.Future[list[SqsMessage]] = asyncio.get_running_loop().create_future()
        self._begin(self._channel.receive(limit, wait_s, visibility_s), partial(self._end_poll, answer))
        self._waiting.add(answer)
        try:
            return [self._delivery(message) for message in await answer]
        except asyncio.CancelledError:
            if answer.done() and not answer.cancelled() and not answer.exception():
                self._return(answer.result())
            raise
        finally:
            self._waiting.discard(answer)

    def _begin(
        self, work: Coroutine[Any, Any, T], ended: Callable[[asyncio.Task[T]], None] | None = None
    ) -> None:
        """Run something in the background; ``close`` waits for it."""
        task = asyncio.create_task(work)
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)
        if ended is not None:
            task.add_done_callback(ended)

    def _end_poll(
        self, answer: asyncio.Future[list[SqsMessage]], polling: asyncio.Task[list[SqsMessage]]
    ) -> None:
        if polling.cancelled():
            answer.cancel()
        elif error := polling.exception():
            if not answer.done():
                answer.set_exception(error)
        elif answer.done():  # its caller is gone
            self._return(polling.result())
        else:
            answer.set_result(polling.result())

    def _return(self, messages: Sequence[SqsMessage]) -> None:
        """Give back, in the background, messages whose caller is gone."""

        async def give_back() -> None:
            with contextlib.suppress(HoldfastError):  # they show again after their visibility
                await self._channel.hide([message.receipt_handle for message in messages], 0)

        if messages:
            self._begin(give_back())

    def _delivery(self, message: SqsMessage) -> Delivery:
        body, attributes, _ = decode(message)
        reply = message.attributes
        number = int(reply["SequenceNumber"]) if self.fifo else None
        return Delivery(
            message.receipt_handle,
            message.message_id,
            body,
            attributes,
            int(reply.get("ApproximateReceiveCount", 1)),
            number,
            number,
        )

    async def _dead_letters(self) -> DeadLetters:
        """Return the dead letters, in the queue that the redrive policy names, or else the name."""
        if self._known_dead_letters is None:
            policy = RedrivePolicy.of(await self._channel.attributes("RedrivePolicy"))
            dead = await self._sqs.queue_url(*policy.target(self._channel.name))
            self._known_dead_letters = DeadLetters(
                self._clock, self._channel, Channel(self._sqs, dead, self._clock), policy.max_receive_count
            )
        return self._known_dead_letters

    async def _count_dead(self) -> int:
        try:
            return await (await self._dead_letters()).count()
        except NoSuchQueue:
            return 0
