"""Sends messages to their owners on other nodes, one call at a time to each node."""

from __future__ import annotations

from collections.abc import Callable

from holdfast.cluster.host import Host
from holdfast.common.protocol import Answers, Forward, ForwardAnswer
from holdfast.common.retry import Backoff
from holdfast.errors import OutcomeUnknown, TooLarge, Unavailable
from holdfast.streams.pending_forwards import PendingForward, PendingForwards, forwarded_delivery

ASK_AGAIN = Backoff(0.05, 5.0)
"""The pauses before a node that failed is called again."""

FORWARDS_MAX = 200
"""The most messages in one call."""


class Forwarding:
    """The calls of one node to the others. ``on_answer`` gets each message with the owner's answer, and
    ``on_failure`` each one whose owner could not be reached, with the membership."""

    def __init__(
        self,
        host: Host,
        forwards: PendingForwards,
        *,
        on_answer: Callable[[PendingForward, ForwardAnswer | None], None],
        on_failure: Callable[[PendingForward, str], None],
    ) -> None:
        self._host = host
        self._clock, self._limits, self._tasks = host.clock, host.limits, host.tasks
        self._forwards = forwards
        self._on_answer = on_answer
        self._on_failure = on_failure
        self._address = ""
        self._outboxes: dict[str, list[PendingForward]] = {}
        self._failures: dict[str, tuple[int, float]] = {}
        """By node: how many calls in a row have failed, and when the node is called again."""

    def start(self, address: str) -> None:
        """Begin. ``address`` is where reports reach this node."""
        self._address = address

    def send(self, item: PendingForward, member: str) -> None:
        """Send a message to a member."""
        self._forwards.sent(item, member)
        outbox = self._outboxes.get(member)
        if outbox is not None:
            outbox.append(item)
        else:
            self._outboxes[member] = [item]
            self._tasks.spawn(self._empty_outbox(member))

    def left(self, member: str) -> None:
        """Note that a membership has ended."""
        self._failures.pop(member, None)

    async def _empty_outbox(self, member: str) -> None:
        """Send a peer what waits for it, one call at a time; what gathers meanwhile goes in the next call. A
        peer that can't be reached or doesn't answer is called again after growing pauses."""
        while True:
            _, ask_at = self._failures.get(member, (0, 0.0))
            if (pause_s := ask_at - self._clock.monotonic()) > 0:
                await self._clock.sleep(pause_s)
            if batch := self._next_batch(member):
                await self._forward(member, batch)
            elif not self._outboxes[member]:  # else what is next has ended, and not what comes after
                del self._outboxes[member]
                return

    def _next_batch(self, member: str) -> list[PendingForward]:
        outbox = self._outboxes[member]
        size, count = 0, 0
        for item in outbox[:FORWARDS_MAX]:
            size += len(item.held.body)
            if count and size > self._limits.forward_bytes_max:
                break
            count += 1
        batch, self._outboxes[member] = outbox[:count], outbox[count:]
        return self._still_for(member, batch)

    def _still_for(self, member: str, batch: list[PendingForward]) -> list[PendingForward]:
        return [item for item in batch if item in self._forwards and item.to == member]

    async def _forward(self, member: str, batch: list[PendingForward]) -> None:
        known = self._host.membership.view.get(member)
        if known is None:
            self._failed(batch, member)
            return
        now = self._clock.monotonic()
        deliveries = [forwarded_delivery(item, now) for item in batch]
        forward = Forward(member, self._host.membership.id, self._address, deliveries)
        try:
            reply = await self._host.peer.call(known.address, forward, self._limits.peer_timeout_s)
        except TooLarge as error:
            await self._forward_less(member, batch, error)
            return
        except (Unavailable, OutcomeUnknown):
            for item in batch:
                item.held.receives += 1  # it may be what killed its owner
                item.suspect = True
            reply = None  # offering a message again that it may hold is harmless
        if not isinstance(reply, Answers):
            self._note_failure(member)
            self._tasks.spawn(self._host.membership.suspect(member))
            self._failed(batch, member)
            return
        self._failures.pop(member, None)
        answers = {answer.number: answer for answer in reply.answers}
        for item in batch:
            if item in self._forwards and item.to == member:
                self._on_answer(item, answers.get(item.number))

    async def _forward_less(self, member: str, batch: list[PendingForward], error: TooLarge) -> None:
        """Forward in two calls what is too large for one: receipts and attributes count too."""
        half = len(batch) // 2
        if half:
            await self._forward(member, batch[:half])
            await self._forward(member, batch[half:])
        else:
            self._host.log.warning("message too large to forward", key=batch[0].key, error=str(error))
            self._failed(batch, member)

    def _note_failure(self, member: str) -> None:
        if member in self._host.membership.view:
            failures = self._failures.get(member, (0, 0.0))[0] + 1
            pause_s = ASK_AGAIN.delay_s(failures, self._clock.random())
            self._failures[member] = (failures, self._clock.monotonic() + pause_s)

    def _failed(self, batch: list[PendingForward], member: str) -> None:
        for item in batch:
            if item in self._forwards and item.to == member:
                self._on_failure(item, member)
