"""Receives from one queue, and hands each message to a taker, as long as there is room."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from holdfast.core.held import Receipt
from holdfast.core.retry import Backoff
from holdfast.errors import HoldfastError, InvalidMessage
from holdfast.ports.clock import Clock
from holdfast.ports.queue import DeadLetter, Delivery, Queue
from holdfast.runtime.limits import Limits
from holdfast.runtime.membership import Membership
from holdfast.runtime.stats import Stats

ROOM_CHECK_S = 0.02
"""Pause before looking again for room."""

Take = Callable[[Delivery, Receipt], None]


class Pump:
    """Receives while the membership is alive and there is room. ``take`` raises InvalidMessage for what
    has no usable key: that is dead-lettered, and never stops the pump."""

    def __init__(
        self,
        stream: str,
        queue: Queue,
        clock: Clock,
        limits: Limits,
        membership: Membership,
        stats: Stats,
        log: Any,
        *,
        take: Take,
        has_room: Callable[[], bool],
    ) -> None:
        self._stream = stream
        self._queue = queue
        self._clock = clock
        self._limits = limits
        self._membership = membership
        self._stats = stats
        self._log = log
        self._take = take
        self._has_room = has_room
        self._backoff = Backoff(0.1, 5.0)
        self.stopping = False

    async def run(self) -> None:
        """Receive until ``stopping``. A receive under way is allowed to end, so that nothing it brought
        stays hidden."""
        failures = 0
        while not self.stopping:
            if not self._membership.alive:
                await self._clock.wait(self._membership.joined, self._limits.renew_s)
                if not self._membership.alive:
                    await self._clock.sleep(ROOM_CHECK_S)
                continue
            if not self._has_room():
                await self._clock.sleep(ROOM_CHECK_S)
                continue
            try:
                await self._receive()
                failures = 0
            except HoldfastError as error:
                failures += 1
                self._log.warning("could not receive", stream=self._stream, error=str(error))
                await self._clock.sleep(self._backoff.delay_s(failures, self._clock.random()))

    async def _receive(self) -> None:
        self._stats.receive_calls += 1
        deliveries = await self._queue.receive(
            self._queue.max_batch, self._limits.receive_wait_s, self._limits.visibility_s, self._membership.id
        )
        expires_at = self._clock.monotonic() + self._limits.visibility_s
        self._stats.received += len(deliveries)
        malformed: list[tuple[Delivery, InvalidMessage]] = []
        for delivery in deliveries:
            try:
                self._take(delivery, Receipt(delivery.receipt, expires_at))
            except InvalidMessage as error:
                malformed.append((delivery, error))
        for delivery, reason in malformed:  # last, for this may fail
            await self._set_aside(delivery, reason)

    async def _set_aside(self, delivery: Delivery, error: InvalidMessage) -> None:
        """There is no key, so no commit can name it: the letter first, then the delete."""
        self._stats.malformed += 1
        self._log.warning("malformed message", stream=self._stream, message=delivery.id, error=str(error))
        letter = DeadLetter(
            id=f"{self._stream}/{delivery.id}",
            body=delivery.body,
            reason=f"malformed: {error}",
            attributes=delivery.attributes,
            stream=self._stream,
            at=self._clock.wall(),
        )
        await self._queue.bury([letter])
        await self._queue.delete([delivery.receipt])
