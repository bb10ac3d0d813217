"""The router: it brings messages to the owners of their keys, here or on other nodes, and keeps the forwarded
ones.

A message whose key another node owns is forwarded with its receipt. This node keeps body and receipt until
the owner reports the commit, and offers them to the next owner if that one is lost.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Literal, Protocol

from holdfast.cluster.deliveries import Reporter
from holdfast.cluster.host import Host
from holdfast.common.held import Held, Receipt
from holdfast.common.message import Life
from holdfast.common.protocol import ForwardAnswer, SettleReport
from holdfast.ports.coordinator import Member
from holdfast.ports.queue import Queue
from holdfast.streams.forwarding import Forwarding
from holdfast.streams.pending_forwards import PendingForward, PendingForwards, lapsed
from holdfast.streams.placing import AdoptingOwners, Placing, Route
from holdfast.streams.reservations import Reservations
from holdfast.streams.waiting_room import FullOwners, WaitingRoom


class LocalOwners(AdoptingOwners, FullOwners, Protocol):
    """The owners on this node, as the router sees them. All keys are full keys."""

    def offer(self, key: str, held: Held) -> Literal["accepted", "full", "no", "unknown"]:
        """Offer a message to a local owner; ``unknown`` means that no owner is here."""


class Router:
    """The router of one node. ``report`` notifies senders that their deliveries are returned."""

    def __init__(
        self,
        host: Host,
        queues: Mapping[str, Queue],
        report: Reporter,
        reservations: Reservations,
        gap_timeouts_s: Mapping[str, float],
        owners: LocalOwners,
    ) -> None:
        self._host = host
        self._report = report
        self._owners = owners
        self.forwards = PendingForwards(host.clock, queues, host.limits.visibility_s / 3)
        self.placing = Placing(host, owners)
        self.waiting = WaitingRoom(
            host,
            self.forwards,
            queues,
            reservations,
            gap_timeouts_s,
            owners,
            offer=self._again,
            is_placing=self._is_placing,
        )
        self._forwarding = Forwarding(host, self.forwards, on_answer=self._answered, on_failure=self._failed)

    def start(self, address: str) -> None:
        """Start. ``address`` is where reports reach this node."""
        self._forwarding.start(address)
        self.waiting.start()
        self._host.tasks.repeat(self._check_forwards, self._host.clock, self._host.log)

    def holding(self, stream: str) -> Iterator[tuple[str, Held]]:
        """Yield the messages that no owner has accepted, whose deliveries this node must extend, each with
        its key."""
        for item in self.forwards:
            if not item.accepted and item.stream == stream and not self.waiting.lapses(item):
                yield item.key.partition("/")[2], item.held

    # -- in ---------------------------------------------------------------------------------------------

    def dispatch(self, stream: str, key: str, held: Held) -> None:
        """Bring a message that this node received to its owner, here or elsewhere."""
        if (line := self.waiting.lines.get(key)) is not None:
            item = self.forwards.take(stream, key, held)
            if line.is_before(item):
                self.waiting.join(line, item)
            else:
                self._again(item)
            return
        verdict = self._owners.offer(key, held)
        if verdict != "accepted":
            item = self.forwards.take(stream, key, held)
            if verdict == "unknown":
                self._route(item)
            else:
                self.waiting.find_room(item, verdict)

    def take_back(self, stream: str, key: str, messages: Iterable[Held], to: str = "") -> None:
        """Take messages that an owner here gives up. This node's deliveries are routed again, to ``to`` if
        given; deliveries of other nodes are reported to their senders."""
        foreign: list[Receipt] = []
        for held in messages:
            for receipt in held.receipts:
                if receipt.sender:
                    foreign.append(receipt)
                elif not receipt.stale:
                    item = self.forwards.take(stream, key, _anew(held, receipt))
                    if to:
                        self._forwarding.send(item, to)
                    else:
                        self.waiting.find_room(item)
        if foreign:
            self._host.tasks.spawn(self._report(foreign, False))

    # -- to the owner -----------------------------------------------------------------------------------

    def _route(self, item: PendingForward) -> None:
        owner = self.placing.owner_of(item.key)
        if owner is not None:
            if owner.foreign:
                self.waiting.leave(item)
            else:
                self._forwarding.send(item, owner.id)
            return
        waiting = self.placing.waiting.get(item.key)
        if waiting is not None:
            waiting.append(item)
            return
        self.placing.waiting[item.key] = [item]
        self._host.tasks.spawn(self._place(item.stream, item.key))

    def _is_placing(self, item: PendingForward) -> bool:
        return item in self.placing.waiting.get(item.key, ())

    async def _place(self, stream: str, key: str) -> None:
        """Find the owner of ``key``, or claim it for the node with the most room, and send the waiting
        messages."""
        claim = await self.placing.claim(stream, key)
        if claim is not None and self._host.news.overtook(claim):
            claim = None  # look again
        waiting = self.placing.waiting.pop(key)
        membership = self._host.membership
        if claim is not None and claim.member == membership.id:
            self.placing.arrived(key)
            if not self._owners.adopt(stream, key, claim):
                claim = None
        owner = membership.view.get(claim.member) if claim is not None else None
        if owner is not None and owner.foreign:
            self._host.log.warning("stream owned by another program", key=key, owner=owner.name)
        for item in waiting:
            if item in self.forwards:
                self._bring(item, claim.member if claim is not None else "", owner)
        if claim is not None and claim.member != membership.id:
            self.placing.note(key, claim.member)

    def _bring(self, item: PendingForward, member: str, owner: Member | None) -> None:
        """Bring a message to the member that has its key now; "" if none has."""
        if owner is not None and owner.foreign:
            self.waiting.leave(item)
        elif not member:
            self.waiting.defer(item)
        elif member != self._host.membership.id:
            self._forwarding.send(item, member)
        elif (verdict := self._owners.offer(item.key, item.held)) == "accepted":
            self.forwards.end(item.number)
        elif verdict == "full":
            is_behind_gap = self._owners.waits_for_gap(item.key)
            self.waiting.wait_for_room(item, is_behind_gap=is_behind_gap)
        else:
            self.waiting.defer(item)

    def _again(self, item: PendingForward) -> None:
        """Offer a message to its owner again."""
        verdict = self._owners.offer(item.key, item.held)
        if verdict == "accepted":
            self.forwards.end(item.number)
            self.waiting.accepted(item.key)
        elif verdict == "unknown":
            self._route(item)
        else:
            self.waiting.find_room(item, verdict)

    # -- what owners elsewhere answer -------------------------------------------------------------------

    def _failed(self, item: PendingForward, member: str) -> None:
        self.placing.forget(item.key, member)
        self.waiting.defer(item)

    def _answered(self, item: PendingForward, answer: ForwardAnswer | None) -> None:
        if answer is not None and answer.verdict == "accepted":
            self._host.stats.forwarded += 1
            self.forwards.accepted(item, held_back=answer.held_back)
            self.waiting.accepted(item.key)
        elif answer is not None and answer.verdict == "full" and answer.reserved:
            self.waiting.put_back(item)
        elif answer is not None and answer.verdict == "full":
            self.waiting.wait_for_room(item, is_behind_gap=answer.held_back)
        else:
            self._redirect(item, answer)

    def _redirect(self, item: PendingForward, answer: ForwardAnswer | None) -> None:
        route = self.placing.route(item.key) or Route(item.to)
        if answer is not None and answer.member and answer.epoch > route.epoch:
            self._host.stats.redirected += 1
            if answer.member != self._host.membership.id:
                self.placing.note(item.key, answer.member, answer.epoch)
                self._forwarding.send(item, answer.member)
                return
        self._look_again(item)

    def _look_again(self, item: PendingForward) -> None:
        """Look up the owner again, at once the first time, then after pauses: the owner has changed."""
        self.placing.forget(item.key, item.to)
        if item.tries:
            self.waiting.defer(item)
        else:
            self.forwards.take_from_owner(item)
            item.tries = 1
            self._again(item)

    def reported(self, report: SettleReport) -> None:
        """Take an owner's report on pending forwards."""
        for settled in report.settled:
            item = self.forwards.end(settled)
            if item is not None:
                item.held.become(Life.COMMITTED)
        for returned in report.returned:
            item = self.forwards.get(returned)
            if item is not None and item.to == report.sender:
                self._look_again(item)

    def left(self, member: str) -> None:
        """Note that a membership has ended: messages that it held are offered to the next owner at once."""
        self._forwarding.left(member)
        self.placing.left(member)
        for item in [item for item in self.forwards if item.to == member]:
            if item not in self.forwards:
                continue  # it went back to the queue with one before it
            self.forwards.take_from_owner(item)
            item.tries = 0
            item.held.receives += 1  # it may be what killed its owner
            item.suspect = True
            self._again(item)

    async def _check_forwards(self) -> None:
        while True:
            await self._host.clock.sleep(self._host.limits.custody_check_s / 2)
            self._check_all()

    def _check_all(self) -> None:
        """Check messages that have been in custody for long, because reports can be lost and deliveries
        lapse."""
        now, long_s = self._host.clock.monotonic(), self._host.limits.custody_check_s
        for item in self.forwards:
            if item.accepted and now - item.offered_at >= long_s:
                self._forwarding.send(item, item.to)
            elif not item.accepted and all(lapsed(receipt, now) for receipt in item.held.receipts):
                self.forwards.end(item.number)  # the queue delivers it to another node


def _anew(held: Held, receipt: Receipt) -> Held:
    """Return a message with one of its deliveries, as if it had just come."""
    return Held(
        held.place,
        held.body,
        held.attributes,
        [receipt],
        held.receives,
        after=held.after,
        counted=held.counted,
        turn=held.turn,
    )
