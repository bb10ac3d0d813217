"""Receives messages from one queue while there is room, and passes each to a function. The number of
concurrent receives follows the load."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from holdfast.cluster.host import Host
from holdfast.cluster.tracer import Tracer
from holdfast.common import conventions
from holdfast.common.held import Receipt
from holdfast.common.polling import Polling
from holdfast.common.reception import Reception
from holdfast.common.redaction import redact
from holdfast.common.retry import Backoff
from holdfast.common.traceparent import TRACEPARENT
from holdfast.errors import HoldfastError, InvalidMessage
from holdfast.ports.queue import DeadLetter, Delivery, Queue

Seen = dict[str, dict[int, int]]
"""The number of the last message, by key and run."""

Take = Callable[[Delivery, Receipt, Seen], None]
"""Takes a delivery. All deliveries of one receive share the last argument, to note earlier messages."""


class Pump:
    """Receives while ``may`` returns True, and at most as many messages as ``room`` returns. ``take`` raises
    InvalidMessage for a message without a usable key, which is dead-lettered. ``hide_s``: the time for which
    the queue hides a received message before it is first extended. ``reception`` counts the time in which the
    node receives nothing."""

    def __init__(
        self,
        stream: str,
        queue: Queue,
        host: Host,
        *,
        take: Take,
        room: Callable[[], int],
        may: Callable[[], bool],
        is_crowded: Callable[[], bool] = lambda: False,
        hide_s: float | None = None,
        reception: Reception | None = None,
    ) -> None:
        self._stream = stream
        self._queue = queue
        self._host = host
        self._clock, self._limits, self._stats, self._log = host.clock, host.limits, host.stats, host.log
        self._take = take
        self._room = room
        self._is_crowded = is_crowded
        self._may = may
        self._hide_s = host.limits.visibility_s if hide_s is None else hide_s
        self._reception = reception or Reception()
        self._backoff = Backoff(0.1, 5.0)
        self._polling = Polling(queue.max_batch, queue.max_receives, queue.linger_s)
        self._polls = 0
        self.stopping = False

    async def run(self) -> None:
        """Receive until ``stopping``. A receive that has begun may end, so that no received message stays
        hidden."""
        async with asyncio.TaskGroup() as polls:
            self._join(polls)

    def _join(self, polls: asyncio.TaskGroup) -> None:
        self._polls += 1
        polls.create_task(self._poll(polls))

    async def _poll(self, polls: asyncio.TaskGroup) -> None:
        failures, ended_at = 0, self._clock.monotonic()
        while not self.stopping and self._polls <= self._polling.wanted:
            if not self._may():
                self._reception.paused(self._clock.monotonic())
                await self._clock.wait(self._host.membership.joined, self._limits.renew_s)
                if not self._may():
                    await self._clock.sleep(self._limits.room_check_s)
                continue
            room = self._room()
            if room <= 0:
                self._reception.full(self._clock.monotonic())
                await self._clock.sleep(self._limits.room_check_s)
                continue
            try:
                count = await self._receive(min(room, self._queue.max_batch))
            except (HoldfastError, OSError) as error:
                failures += 1
                self._polling.failed()
                self._reception.failed(self._clock.monotonic())
                self._log.warning("cannot receive messages", stream=self._stream, error=str(error))
                await self._clock.sleep(self._backoff.delay_s(failures, self._clock.random()))
                continue
            failures, began_at, ended_at = 0, ended_at, self._clock.monotonic()
            rest_s = self._polling.received(count, ended_at - began_at)
            if self._is_crowded():
                rest_s = self._polling.crowded()
            if self._polls < self._polling.wanted and not self.stopping:
                self._join(polls)
            if rest_s:
                await self._clock.sleep(rest_s)
        self._polls -= 1

    async def _receive(self, limit: int) -> int:
        self._stats.receive_calls += 1
        tracer = self._host.tracer
        began_ns = 0 if tracer is None else tracer.now_ns()
        self._reception.asked(self._clock.monotonic())
        deliveries = await self._queue.receive(
            limit, self._limits.receive_wait_s, self._hide_s, self._host.membership.id
        )
        self._reception.answered(self._clock.monotonic())
        if tracer is not None:
            self._trace(tracer, deliveries, began_ns)
        await self.bring(deliveries)
        return len(deliveries)

    async def bring(self, deliveries: Sequence[Delivery]) -> None:
        """Pass new deliveries to ``take``, and dead-letter the malformed ones."""
        now = self._clock.monotonic()
        expires_at = now + self._hide_s
        self._stats.received += len(deliveries)
        seen: Seen = {}
        malformed: list[tuple[Delivery, InvalidMessage]] = []
        for delivery in deliveries:
            try:
                self._take(delivery, Receipt(delivery.receipt, expires_at, received_at=now), seen)
            except InvalidMessage as error:
                malformed.append((delivery, error))
        for delivery, reason in malformed:  # last, because this may fail
            await self._set_aside(delivery, reason)

    def _trace(self, tracer: Tracer, deliveries: Sequence[Delivery], began_ns: int) -> None:
        """Record a receive with messages of recorded traces, which their producers began."""
        parents = (delivery.attributes.get(TRACEPARENT) for delivery in deliveries)
        causes = [each for each in parents if each and tracer.is_recorded(each)]
        if causes:
            attributes = {
                **conventions.operation(conventions.RECEIVE, self._stream),
                conventions.BATCH_COUNT: len(deliveries),
            }
            name = f"{conventions.RECEIVE} {self._stream}"
            tracer.begin_for(causes, name, "client", attributes, start_ns=began_ns).end()

    async def _set_aside(self, delivery: Delivery, error: InvalidMessage) -> None:
        """Dead-letter a message without a key. No commit covers it, so the dead letter is sent before the
        message is deleted."""
        self._stats.malformed += 1
        self._log.warning("malformed message", stream=self._stream, message=delivery.id, error=str(error))
        letter = DeadLetter(
            id=f"{self._stream}/{delivery.id}",
            body=delivery.body,
            reason=redact(f"malformed: {error}"),
            attributes=delivery.attributes,
            stream=self._stream,
            at=self._clock.wall(),
        )
        await self._queue.bury([letter])
        await self._queue.delete([delivery.receipt])
