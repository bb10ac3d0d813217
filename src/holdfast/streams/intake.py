"""Takes messages in, from the queues and from other nodes."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from holdfast.cluster.host import Host
from holdfast.cluster.pump import Seen, Take
from holdfast.common.held import Held, Receipt
from holdfast.common.message import Place
from holdfast.common.protocol import (
    Answers,
    Done,
    Forward,
    ForwardAnswer,
    ForwardedDelivery,
    SettleReport,
    WakeUp,
)
from holdfast.errors import HoldfastError, InvalidMessage
from holdfast.ports.queue import Delivery, Queue
from holdfast.streams.addressing import address
from holdfast.streams.owners import OwnerRegistry
from holdfast.streams.router import Router
from holdfast.streams.spec import QUEUE_NUMBER, StreamSpec


class Intake:
    """The intake of one node."""

    def __init__(
        self, host: Host, queues: Mapping[str, Queue], owners: OwnerRegistry, router: Router
    ) -> None:
        self._host = host
        self._queues = queues
        self.owners = owners
        self._router = router

    def listen(self) -> None:
        """Begin to answer nodes that forward messages."""
        inquiries = self._host.inquiries
        inquiries.add(Forward, self.accept)
        # PendingForwards outlives a membership, and reports on it name the membership that took it.
        inquiries.add(SettleReport, self.reported, outlives_membership=True)
        inquiries.add(WakeUp, self.nudge)

    def taker(self, spec: StreamSpec) -> Take:
        """Return the function that takes the deliveries of a stream."""
        max_bytes = self._queues[spec.name].max_bytes
        linked = self._queues[spec.name].fifo and spec.seq == QUEUE_NUMBER
        prefix = spec.full_key("")

        def take(delivery: Delivery, receipt: Receipt, seen: Seen) -> None:
            if len(delivery.body) > max_bytes:
                raise InvalidMessage(
                    f"the body has {len(delivery.body)} bytes, over max_message_bytes = {max_bytes};"
                    " raise that on every node, or put what is large into the object store"
                )
            key, place = address(spec, delivery.body, delivery.attributes, delivery.id, delivery.number)
            held = Held(
                place, delivery.body, delivery.attributes, [receipt], delivery.receives, turn=delivery.turn
            )
            if linked:
                before = seen.setdefault(key, {})
                # One of a later run comes after this one, whatever its number is.
                held.after = max((seq for run, seq in before.items() if run <= place.run), default=None)
                before[place.run] = place.seq
            self._router.dispatch(spec.name, prefix + key, held)

        return take

    async def accept(self, forward: Forward) -> Answers:
        """Take the deliveries for streams that this node owns, or whose claim proves to be its own."""
        unknown = {
            forwarded.key: forwarded.stream
            for forwarded in forward.deliveries
            if not self.owners.get(forwarded.key)
        }
        await asyncio.gather(*(self._adopt_claimed(stream, key) for key, stream in unknown.items()))
        now = self._host.clock.monotonic()
        return Answers([self._offer(forwarded, forward, now) for forwarded in forward.deliveries])

    async def _adopt_claimed(self, stream: str, key: str) -> None:
        try:
            claim = await self._host.coordinator.lookup(key)
        except HoldfastError as error:
            self._host.log.debug("could not look up a claim", key=key, error=str(error))
            return
        if claim is not None and claim.member == self._host.membership.id:
            self.owners.adopt(stream, key, claim)

    def _offer(self, forwarded: ForwardedDelivery, forward: Forward, now: float) -> ForwardAnswer:
        verdict = self.owners.offer(forwarded.key, unpack(forwarded, forward, now))
        if verdict == "accepted":
            self._host.stats.accepted += 1
            return ForwardAnswer(forwarded.number, verdict, held_back=self.owners.is_gapped(forwarded.key))
        if verdict == "full":
            return ForwardAnswer(
                forwarded.number,
                verdict,
                held_back=self.owners.waits_for_gap(forwarded.key),
                reserved=self.owners.is_reserved(forwarded.key),
            )
        hint = self._router.placing.hint(forwarded.key)
        return ForwardAnswer(forwarded.number, "no", hint.member, hint.epoch)

    async def reported(self, report: SettleReport) -> Done:
        """Take an owner's report on deliveries that this node forwarded."""
        self._router.reported(report)
        return Done()

    async def nudge(self, request: WakeUp) -> Done:
        """Have the owner of a stream that is due look after it, and adopt the stream if its claim is ours."""
        if self.owners.get(request.key) is None:
            await self._adopt_claimed(request.stream, request.key)
        return Done(self.owners.nudge(request.key))


def unpack(forwarded: ForwardedDelivery, forward: Forward, now: float) -> Held:
    """Return the message that another node has forwarded, as this node holds it."""
    receipt = Receipt(
        forwarded.receipt,
        now + forwarded.expires_in_s,
        received_at=now - forwarded.age_s,
        sender=forward.sender,
        number=forwarded.number,
        reply_to=forward.reply_to,
    )
    return Held(
        Place(int(forwarded.run), int(forwarded.seq), forwarded.id),
        forwarded.body,
        forwarded.attributes,
        [receipt],
        forwarded.receives,
        None if forwarded.after is None else int(forwarded.after),
        counted=forwarded.counted,
        turn=None if forwarded.turn is None else int(forwarded.turn),
    )
