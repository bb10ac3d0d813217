"""The router: it finds the owner of a key or chooses a node for it, forwards messages and keeps custody of
them.

A message whose key another node owns is forwarded with its receipt. This node keeps body and receipt until
the owner reports the commit, and offers them to the next owner if that one is lost. A message that no owner
has accepted is offered again after growing pauses. As a last resort, it goes back to the queue, with jitter.
A message whose owner has no room, and has reserved the key, goes back at once: the owner takes it from there.
If the queue knows no keys, the message waits here in the line of its key, as long as the line has room.
"""

from __future__ import annotations

import asyncio
import heapq
import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Literal, Protocol

import msgspec

from holdfast.cluster.host import Host
from holdfast.cluster.keeper import Reporter
from holdfast.common.held import Held, Receipt
from holdfast.common.message import Life
from holdfast.common.progress import chunks
from holdfast.common.protocol import (
    Answers,
    Done,
    Explain,
    Forward,
    Move,
    Nudge,
    Parcel,
    ParcelAnswer,
    Request,
    SettleReport,
    number,
)
from holdfast.common.retry import Backoff
from holdfast.errors import HoldfastError, MembershipLost, OutcomeUnknown, TooLarge, Unavailable
from holdfast.ports.coordinator import Claim, Member
from holdfast.ports.queue import Queue
from holdfast.rules.cluster.placement import Placed, choose, shortage
from holdfast.streams.lines import Line
from holdfast.streams.reservations import Reservations

ASK_AGAIN = Backoff(0.05, 5.0)
"""The pauses before a node that failed is called again."""

FORWARD_PARCELS_MAX = 200
DEPARTED_MAX = 10_000
TELL_EVERY_S = 5.0
"""How often it is told of a stream that nobody takes its keys."""

UNPLACED_S = 60.0
"""For how long after the last try a stream counts as one that no node takes. Its messages may lie in their
queue meanwhile."""

LINE_SHARE = 4
"""The fraction (1/4) of ``custody_limit`` that the messages of one key may take while they wait for room."""

PAUSE_MAX_S = 30.0
"""The longest pause of a message that goes back for want of room, in seconds: its owner expects it back for
twice as long (``AWAY_S``)."""

GAP_SHARE = 3
"""The fraction (1/3) of a stream's gap timeout that such a pause may take at most."""

ROUTES_MAX = 100_000
"""How many routes are remembered. For further streams, the coordinator is asked again."""


class LocalOwners(Protocol):
    """The owners on this node, as the router sees them. All keys are full keys."""

    def offer(self, key: str, held: Held) -> Literal["accepted", "full", "no", "unknown"]:
        """Offer a message to a local owner; ``unknown`` means that there is none."""

    def adopt(self, stream: str, key: str, claim: Claim) -> bool:
        """Begin to own a key whose claim is ours; return False if its stream isn't declared here."""

    def is_reserved(self, key: str) -> bool:
        """Return True if the key's owner here has reserved it at the queue."""

    def waits_for_gap(self, key: str) -> bool:
        """Return True if the key's owner here waits for a missing message."""

    def nudge(self, key: str) -> bool:
        """Tell the owner of a key that it is due; return False if it isn't owned here."""


class Route(msgspec.Struct, frozen=True):
    """The owner of a key, as far as is known. What an owner reports is believed only with a higher epoch."""

    member: str
    epoch: int = 0


class Unplaced(msgspec.Struct):
    """A stream that no node takes: why, since when, and when it was last tried, in monotonic seconds, for how
    many messages."""

    reason: str
    since: float
    tried_at: float
    messages: int


class Custody(msgspec.Struct, eq=False):
    """A message that this node keeps for an owner elsewhere.

    ``to`` is the membership that it was sent to, if any. ``accepted`` is true once that member holds it.
    ``suspect``: it may have killed an owner."""

    number: int
    stream: str
    key: str
    held: Held
    to: str = ""
    accepted: bool = False
    tries: int = 0
    offered_at: float = 0.0
    suspect: bool = False


class Router:
    """The routes and the custody of one node. ``report`` reports to senders that their parcels are returned.
    Set ``owners`` before the start: the owners are made with this router."""

    def __init__(
        self,
        host: Host,
        queues: Mapping[str, Queue],
        report: Reporter,
        reservations: Reservations,
        gap_timeouts_s: Mapping[str, float],
    ) -> None:
        self._host = host
        self._gap_timeouts_s = gap_timeouts_s
        self._reservations = reservations
        self._queues = queues
        self._report = report
        self._coordinator, self._peer, self._clock = host.coordinator, host.peer, host.clock
        self._limits, self._tasks, self._stats, self._log = host.limits, host.tasks, host.stats, host.log
        self.owners: LocalOwners
        self._address = ""
        self._number = 0
        self._custody: dict[int, Custody] = {}
        self._held_back: set[int] = set()
        """Of these, what an owner holds behind a gap, or behind effects that nobody takes."""
        self._shortage_told: dict[str, float] = {}
        """By stream: when it was last told that nobody takes its keys."""
        self._routes: dict[str, Route] = {}
        self._departed: dict[str, Route] = {}
        self._placing: dict[str, list[Custody]] = {}
        self._unplaced: dict[str, Unplaced] = {}
        self._failures: dict[str, tuple[int, float]] = {}
        """By node: how many calls in a row have failed, and when the node is called again."""
        self._outboxes: dict[str, list[Custody]] = {}
        self._deferred: list[tuple[float, int]] = []
        self._lines: dict[str, Line[Custody]] = {}
        self._lines_due: list[tuple[float, str]] = []
        self._leaving: dict[str, list[Custody]] = {}
        """By stream: messages that go back to the queue for want of room."""
        self._defer_changed = asyncio.Event()
        self._placed = Placed()
        self._given: dict[str, Route] = {}

    def start(self, address: str) -> None:
        """Start. ``address`` is where reports reach this node."""
        self._address = address
        self._tasks.repeat(self._offer_deferred, self._clock, self._log)
        self._tasks.repeat(self._check_custody, self._clock, self._log)

    @property
    def custody(self) -> int:
        """The number of messages in custody."""
        return len(self._custody)

    @property
    def kept(self) -> int:
        """The number of messages in custody, without those that their owners hold back: a target that is away
        must not stop what doesn't need it, and a missing message must get in. Of these, owners take no more
        than ``inbox_limit`` a stream."""
        return len(self._custody) - len(self._held_back)

    @property
    def deferred(self) -> int:
        """The number of messages in custody that found no room and wait to be offered again."""
        return len(self._deferred) + sum(map(len, self._lines.values()))

    def is_crowded(self, stream: str) -> bool:
        """Return True if messages that wait for room fill half of the custody, or of the share of their key.
        At full speed, others would soon go back to the queue too, and return in any order. A key whose owner
        waits for a missing message doesn't count: that one is to be found soon."""
        lines = {key: line for key, line in self._lines.items() if not line.is_behind_gap}
        if len(self._deferred) + sum(map(len, lines.values())) > self._limits.custody_limit / 2:
            return True
        return any(
            2 * len(line) > self._line_max and key.startswith(f"{stream}/") for key, line in lines.items()
        )

    def unplaced(self) -> Mapping[str, Unplaced]:
        """Return the streams that no node takes, by full key."""
        now = self._clock.monotonic()
        self._unplaced = {
            key: known for key, known in self._unplaced.items() if now - known.tried_at < UNPLACED_S
        }
        return self._unplaced

    def holding(self, stream: str) -> Iterator[tuple[str, Held]]:
        """Yield the messages that no owner has accepted, whose deliveries this node must extend, each with
        its key. A queue that keeps order delivers nothing of a key before what is in flight of it. If the
        owner waits for a missing message, those in line lapse, as those that it holds do: the missing one, or
        what is left, comes first then."""
        for item in self._custody.values():
            if not item.accepted and item.stream == stream and not self._lapses(item):
                yield item.key.partition("/")[2], item.held

    def _lapses(self, item: Custody) -> bool:
        line = self._lines.get(item.key) if self._queues[item.stream].fifo else None
        return line is not None and line.is_behind_gap

    # -- in ---------------------------------------------------------------------------------------------

    def dispatch(self, stream: str, key: str, held: Held) -> None:
        """Bring a message that this node received to its owner, here or elsewhere."""
        if (line := self._lines.get(key)) is not None:
            item = self._take(stream, key, held)
            if line.is_before(item):
                self._join(line, item)
            else:
                self._again(item)
            return
        verdict = self.owners.offer(key, held)
        if verdict != "accepted":
            item = self._take(stream, key, held)
            if verdict == "unknown":
                self._route(item)
            else:
                self._find_room(item, verdict)

    def take_back(self, stream: str, key: str, messages: Iterable[Held], to: str = "") -> None:
        """Take messages that an owner here gives up. This node's deliveries are routed again, to ``to`` if
        given, and those of other nodes are reported to their senders."""
        foreign: list[Receipt] = []
        for held in messages:
            for receipt in held.receipts:
                if receipt.sender:
                    foreign.append(receipt)
                elif not receipt.stale:
                    own = Held(
                        held.place,
                        held.body,
                        held.attributes,
                        [receipt],
                        held.receives,
                        after=held.after,
                        counted=held.counted,
                        turn=held.turn,
                    )
                    item = self._take(stream, key, own)
                    if to:
                        self._send(item, to)
                    else:
                        self._find_room(item)
        if foreign:
            self._tasks.spawn(self._report(foreign, False))

    def _take(self, stream: str, key: str, held: Held) -> Custody:
        self._number += 1
        item = self._custody[self._number] = Custody(self._number, stream, key, held)
        return item

    def _end(self, number: int) -> Custody | None:
        self._held_back.discard(number)
        return self._custody.pop(number, None)

    # -- placing ----------------------------------------------------------------------------------------

    def departed(self, key: str, to: str, epoch: int) -> None:
        """Note that a stream has moved from here to the membership ``to``, which opens it at a higher epoch
        than ours."""
        _remember(self._departed, key, Route(to, epoch + 1), DEPARTED_MAX)
        _remember(self._routes, key, Route(to, epoch + 1), ROUTES_MAX)

    async def call_up(self, stream: str, key: str, to: str) -> None:
        """Have a stream that has moved to the membership ``to`` begin there: no message of it may come, as
        its queue keeps them all. If the call fails, that ends by itself."""
        if (owner := self._host.membership.view.get(to)) is not None:
            await self._ask(owner, Nudge(to, stream, key))

    def hint(self, key: str) -> Route:
        """Return the owner of a key that isn't owned here, as far as this node knows."""
        return self._departed.get(key, Route(""))

    def _route(self, item: Custody) -> None:
        route = self._routes.get(item.key)
        owner = self._host.membership.view.get(route.member) if route is not None else None
        if owner is not None:
            if owner.foreign:
                self._leave(item)
            else:
                self._send(item, owner.id)
            return
        waiting = self._placing.get(item.key)
        if waiting is not None:
            waiting.append(item)
            return
        self._placing[item.key] = [item]
        self._tasks.spawn(self._place(item.stream, item.key))

    async def _place(self, stream: str, key: str) -> None:
        """Find the owner of ``key``, or claim it for the node with the most room, and send the waiting
        messages."""
        claim = await self._claim(stream, key)
        if claim is not None and self._host.news.overtook(claim):
            claim = None  # look again
        waiting = self._placing.pop(key)
        membership = self._host.membership
        if claim is not None and claim.member == membership.id:
            self._routes.pop(key, None)
            self._departed.pop(key, None)
            if not self.owners.adopt(stream, key, claim):
                claim = None
        owner = membership.view.get(claim.member) if claim is not None else None
        if owner is not None and owner.foreign:
            self._log.warning(
                "another program owns a stream; its messages go back to the queue", key=key, owner=owner.name
            )
        for item in waiting:
            if item.number not in self._custody:
                continue
            if owner is not None and owner.foreign:
                self._leave(item)
            elif claim is None:
                self._defer(item)
            elif claim.member == membership.id:
                self._keep_here(item)
            else:
                self._send(item, claim.member)
        if claim is not None and claim.member != membership.id:
            _remember(self._routes, key, Route(claim.member), ROUTES_MAX)

    async def nudge(self, stream: str, key: str) -> bool:
        """Have the owner of a key that is due look after it; without an owner, place the key. An owner of
        an older version, which knows no timers and no effects, is asked to move it. Return False if nobody
        looks after it now."""
        claim = await self._claim(stream, key, acting=(stream,))
        owner = self._host.membership.view.get(claim.member) if claim is not None else None
        if claim is None or owner is None or owner.foreign:
            return False
        if owner.load.acting is None and owner.id != self._host.membership.id:
            return await self._bring_away(stream, claim, owner)
        return await self._nudge(stream, claim, owner)

    async def _nudge(self, stream: str, claim: Claim, owner: Member) -> bool:
        if owner.id == self._host.membership.id:
            return self.owners.adopt(stream, claim.key, claim) and self.owners.nudge(claim.key)
        reply = await self._ask(owner, Nudge(owner.id, stream, claim.key))
        return reply is not None and reply.ok

    async def _bring_away(self, stream: str, claim: Claim, older: Member) -> bool:
        """Have a stream that is due leave a node that can't look after it. One that has the claim and no
        owner can't move it either, so the claim is taken from it."""
        key = claim.key
        others = [member for member in self._host.membership.view.values() if member.id != older.id]
        target = choose(key, others, self._placed.pending(others), (stream,))
        if target is None:
            return False
        moved = await self._ask(older, Move(older.id, stream, key, target.id))
        if moved is None or moved.ok:
            return moved is not None
        owned = await self._ask(older, Explain(older.id, stream, key))
        if owned is None or owned.ok:
            return False
        try:
            claim = await self._coordinator.transfer(claim, target.id)
        except HoldfastError as error:
            self._log.debug("could not take a claim", key=key, owner=older.name, error=str(error))
            return False
        return await self._nudge(stream, claim, target)

    async def _ask(self, member: Member, request: Request) -> Done | None:
        """Return a member's answer; None if it gives none, which makes it suspect."""
        try:
            reply = await self._peer.call(member.address, request, self._limits.peer_timeout_s)
        except (Unavailable, OutcomeUnknown):
            self._tasks.spawn(self._host.membership.suspect(member.id))
            return None
        return reply if isinstance(reply, Done) else None

    def _tell_shortage(self, stream: str, key: str, text: str) -> None:
        """Note that no node takes a key. It is logged at intervals for its stream: thousands of keys may be
        tried every second."""
        now = self._clock.monotonic()
        known = self._unplaced.get(key)
        if known is not None or len(self._unplaced) < DEPARTED_MAX:
            since, messages = now if known is None else known.since, len(self._placing.get(key, ()))
            self._unplaced[key] = Unplaced(text, since, now, messages)
        if now >= self._shortage_told.get(stream, -math.inf) + TELL_EVERY_S:
            self._shortage_told[stream] = now
            self._log.warning("no node takes a stream", stream=stream, key=key, reason=text)

    async def _claim(self, stream: str, key: str, acting: Collection[str] = ()) -> Claim | None:
        membership = self._host.membership
        if not membership.alive:
            return None
        members = membership.view.values()
        target = choose(key, members, self._placed.pending(members), acting)
        if target is None:
            self._tell_shortage(stream, key, shortage(key, members))
            return None
        self._placed.add(target)  # before the answer: many keys are placed at once, on different nodes
        claim: Claim | None = None
        try:
            claim = await self._coordinator.claim(key, target.id)
            if claim.member not in membership.view:
                await membership.refresh()
        except MembershipLost:
            await self._refresh()
        except HoldfastError as error:
            self._log.debug("could not place a stream", key=key, error=str(error))
        if claim is None or claim.member != target.id:
            self._placed.add(target, -1)
        else:
            _remember(self._given, key, Route(target.id), ROUTES_MAX)
        if claim is not None:
            self._unplaced.pop(key, None)
        return claim if claim is not None and claim.member in membership.view else None

    async def _refresh(self) -> None:
        try:
            await self._host.membership.refresh()
        except HoldfastError as error:
            self._log.debug("could not read members", error=str(error))

    def _leave(self, item: Custody) -> None:
        """Give a message back to the queue because another program owns the stream and receives for
        itself."""
        item.tries = self._limits.give_back_after
        self._defer(item, is_foreign=True)

    def _keep_here(self, item: Custody) -> None:
        verdict = self.owners.offer(item.key, item.held)
        if verdict == "accepted":
            self._end(item.number)
        elif verdict == "full":
            self._wait_for_room(item, is_behind_gap=self.owners.waits_for_gap(item.key))
        else:
            self._defer(item)

    # -- forwarding -------------------------------------------------------------------------------------

    def _send(self, item: Custody, member: str) -> None:
        if not item.to:
            item.held.become(Life.FORWARDED)
        self._keep_alive(item)
        if member != item.to:
            self._held_back.discard(item.number)
        item.to, item.accepted = member, False
        outbox = self._outboxes.get(member)
        if outbox is not None:
            outbox.append(item)
        else:
            self._outboxes[member] = [item]
            self._tasks.spawn(self._empty_outbox(member))

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

    def _next_batch(self, member: str) -> list[Custody]:
        outbox = self._outboxes[member]
        size, count = 0, 0
        for item in outbox[:FORWARD_PARCELS_MAX]:
            size += len(item.held.body)
            if count and size > self._limits.forward_bytes_max:
                break
            count += 1
        batch, self._outboxes[member] = outbox[:count], outbox[count:]
        return [item for item in batch if item.number in self._custody and item.to == member]

    async def _forward(self, member: str, batch: list[Custody]) -> None:
        known = self._host.membership.view.get(member)
        if known is None:
            self._failed(batch, member)
            return
        now = self._clock.monotonic()
        forward = Forward(
            member, self._host.membership.id, self._address, [_parcel(item, now) for item in batch]
        )
        try:
            reply = await self._peer.call(known.address, forward, self._limits.peer_timeout_s)
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
            if item.number in self._custody and item.to == member:
                self._answered(item, answers.get(item.number))

    async def _forward_less(self, member: str, batch: list[Custody], error: TooLarge) -> None:
        """Forward in two calls what is too large for one: receipts and attributes count too."""
        half = len(batch) // 2
        if half:
            await self._forward(member, batch[:half])
            await self._forward(member, batch[half:])
        else:
            self._log.warning("a message is too large to be forwarded", key=batch[0].key, error=str(error))
            self._failed(batch, member)

    def _note_failure(self, member: str) -> None:
        if member in self._host.membership.view:
            failures = self._failures.get(member, (0, 0.0))[0] + 1
            pause_s = ASK_AGAIN.delay_s(failures, self._clock.random())
            self._failures[member] = (failures, self._clock.monotonic() + pause_s)

    def _failed(self, batch: list[Custody], member: str) -> None:
        for item in batch:
            if item.number in self._custody and item.to == member:
                self._forget_route(item.key, member)
                self._defer(item)

    def _answered(self, item: Custody, answer: ParcelAnswer | None) -> None:
        if answer is not None and answer.verdict == "accepted":
            self._stats.forwarded += 1
            self._accept(item, held_back=answer.held_back)
        elif answer is not None and answer.verdict == "full" and answer.reserved:
            self._put_back(item)
        elif answer is not None and answer.verdict == "full":
            self._wait_for_room(item, is_behind_gap=answer.held_back)
        else:
            self._redirect(item, answer)

    def _accept(self, item: Custody, *, held_back: bool) -> None:
        """Note that the owner holds a message and extends its delivery. Body and receipt stay here until the
        owner reports the commit."""
        item.accepted = True
        (self._held_back.add if held_back else self._held_back.discard)(item.number)
        item.offered_at = self._clock.monotonic()
        if (line := self._lines.get(item.key)) is not None:
            line.accepted()

    def _redirect(self, item: Custody, answer: ParcelAnswer | None) -> None:
        route = self._routes.get(item.key, Route(item.to))
        if answer is not None and answer.member and answer.epoch > route.epoch:
            self._stats.redirected += 1
            if answer.member != self._host.membership.id:
                _remember(self._routes, item.key, Route(answer.member, answer.epoch), ROUTES_MAX)
                self._send(item, answer.member)
                return
        self._look_again(item)

    def _look_again(self, item: Custody) -> None:
        """Look up the owner again, at once the first time, then after pauses: the owner has changed."""
        self._forget_route(item.key, item.to)
        if item.tries:
            self._defer(item)
        else:
            self._take_from_owner(item)
            item.tries = 1
            self._again(item)

    def _forget_route(self, key: str, member: str) -> None:
        route = self._routes.get(key)
        if route is not None and route.member == member:
            del self._routes[key]

    def reported(self, report: SettleReport) -> None:
        """Take an owner's report on parcels."""
        for settled in report.settled:
            item = self._end(settled)
            if item is not None:
                item.held.become(Life.COMMITTED)
        for returned in report.returned:
            item = self._custody.get(returned)
            if item is not None and item.to == report.sender:
                self._look_again(item)

    def claim_changed(self, claim: Claim) -> None:
        """Note a claim that changed at the coordinator, so that it is known when the coordinator can't be
        reached. Streams placed by others are counted too, before the loads of their nodes show them."""
        self._unplaced.pop(claim.key, None)
        given = self._given.pop(claim.key, None)
        member = self._host.membership.view.get(claim.member)
        is_ours = claim.key in self._placing or (given is not None and given.member == claim.member)
        if member is not None and not is_ours:
            self._placed.add(member)
        route = self._routes.get(claim.key)
        if route is not None and route.member == claim.member:
            return
        self._routes.pop(claim.key, None)
        if claim.member not in ("", self._host.membership.id):
            _remember(self._routes, claim.key, Route(claim.member), ROUTES_MAX)

    def missed(self) -> None:
        """Forget routes to foreign members, because changes of their claims may have been missed."""
        self._routes = {
            key: route for key, route in self._routes.items() if not self._is_foreign(route.member)
        }

    def _is_foreign(self, member: str) -> bool:
        known = self._host.membership.view.get(member)
        return known is not None and known.foreign

    def left(self, member: str) -> None:
        """Note that a membership has ended: messages that it held are offered to the next owner at once."""
        self._failures.pop(member, None)
        self._routes = {key: route for key, route in self._routes.items() if route.member != member}
        for item in [item for item in self._custody.values() if item.to == member]:
            if item.number not in self._custody:
                continue  # it went back to the queue with one before it
            self._take_from_owner(item)
            item.tries = 0
            item.held.receives += 1  # it may be what killed its owner
            item.suspect = True
            self._again(item)

    def _again(self, item: Custody) -> None:
        verdict = self.owners.offer(item.key, item.held)
        if verdict == "accepted":
            self._end(item.number)
            if (line := self._lines.get(item.key)) is not None:
                line.accepted()
        elif verdict == "unknown":
            self._route(item)
        else:
            self._find_room(item, verdict)

    # -- waiting ----------------------------------------------------------------------------------------

    def _keep_alive(self, item: Custody) -> None:
        """Note that the deliveries were extended until now by the owner that held the message."""
        if item.accepted:
            alive_until = self._clock.monotonic() + self._limits.visibility_s / 3
            for receipt in item.held.receipts:
                receipt.expires_at = max(receipt.expires_at, alive_until)

    def _take_from_owner(self, item: Custody) -> None:
        self._keep_alive(item)
        self._held_back.discard(item.number)
        item.to, item.accepted = "", False
        item.held.come_back()

    def _defer(self, item: Custody, *, is_foreign: bool = False) -> None:
        """Offer a message again after a pause. After the last try it goes back to the queue. ``is_foreign``:
        for another program."""
        self._take_from_owner(item)
        item.tries += 1
        if item.tries > self._limits.give_back_after or self.kept > self._limits.custody_limit:
            if self._host.membership.alive:
                items = self._let_go([item])
                self._tasks.spawn(self._give_back(item.stream, items, at_once=not is_foreign))
                return
            item.tries = self._limits.give_back_after
        pause_s = self._limits.defer.delay_s(item.tries, self._clock.random())
        heapq.heappush(self._deferred, (self._clock.monotonic() + pause_s, item.number))
        self._defer_changed.set()

    def _find_room(self, item: Custody, verdict: str = "full") -> None:
        """Have a message wait that its owner here didn't take: in the queue, if it keeps the message for the
        owner."""
        if self.owners.is_reserved(item.key):
            self._put_back(item)
        elif verdict == "full":
            self._wait_for_room(item, is_behind_gap=self.owners.waits_for_gap(item.key))
        else:
            self._defer(item)

    @property
    def _line_max(self) -> int:
        return max(1, self._limits.custody_limit // LINE_SHARE)

    def _wait_for_room(self, item: Custody, *, is_behind_gap: bool) -> None:
        """Have a message wait until its owner has room for it: in the line of its key, if the queue knows no
        keys. The highest one goes back to the queue if there are too many. ``is_behind_gap``: the owner waits
        for a missing message."""
        if self._queues[item.stream].by_key:
            self._defer(item)
            return
        self._take_from_owner(item)
        line = self._lines.get(item.key)
        if line is None:
            line = self._lines[item.key] = Line(_order, self._waits, FORWARD_PARCELS_MAX)
            self._offer_later(item.key, line)
        line.refused()
        line.is_behind_gap = is_behind_gap
        self._join(line, item)

    def _join(self, line: Line[Custody], item: Custody) -> None:
        line.add(item)
        is_over = len(line) > self._line_max or self.kept > self._limits.custody_limit
        if is_over and self._host.membership.alive and (highest := line.pop_highest()) is not None:
            self._leave_for_room(highest)

    def _waits(self, item: Custody) -> bool:
        """Return True if a message in a line still waits for its owner's room."""
        return item.number in self._custody and not item.to and item not in self._placing.get(item.key, ())

    def _offer_later(self, key: str, line: Line[Custody]) -> None:
        pause_s = self._limits.defer.delay_s(1 + line.refusals, self._clock.random())
        heapq.heappush(self._lines_due, (self._clock.monotonic() + pause_s, key))
        self._defer_changed.set()

    def _offer_line(self, key: str) -> None:
        """Offer the lowest of a line to the owner, until it has no room. An empty line stays until it is due
        the next time, because messages of it may be under way to the owner."""
        line = self._lines[key]
        was_empty = not line
        offered = line.offer()
        for index, item in enumerate(offered):
            self._again(item)
            if self._waits(item):
                for behind in offered[index + 1 :]:
                    line.add(behind)
                break
        if was_empty:
            del self._lines[key]
        else:
            self._offer_later(key, line)

    def _leave_for_room(self, item: Custody) -> None:
        """Give a message back to the queue because too many of its key wait, in calls with others."""
        if self._queues[item.stream].fifo:
            self._tasks.spawn(self._give_back(item.stream, self._let_go([item]), at_once=True))
            return
        self._end(item.number)
        self._stats.given_back += 1
        item.held.become(Life.GIVEN_BACK)
        leaving = self._leaving.setdefault(item.stream, [])
        leaving.append(item)
        if len(leaving) == 1:
            self._tasks.spawn(self._give_back_leaving(item.stream))

    async def _give_back_leaving(self, stream: str) -> None:
        """Give back what has gathered, the highest first, each for a pause that doubles with its receives."""
        leaving = sorted(self._leaving.pop(stream), key=_order, reverse=True)
        longest_s = min(PAUSE_MAX_S, max(1.0, self._gap_timeouts_s[stream] / GAP_SHARE))
        pauses = Backoff(self._limits.give_back_s, longest_s)
        for receives in sorted({item.held.receives for item in leaving}):
            receipts = [
                receipt.receipt
                for item in leaving
                if item.held.receives == receives
                for receipt in item.held.receipts
                if not receipt.stale
            ]
            await self._return(stream, receipts, pauses.delay_s(receives, self._clock.random()))

    def _put_back(self, item: Custody) -> None:
        """Put a message back to the queue, from which its owner takes it in order."""
        if not self._reservations.knows_keys(item.stream):
            self._defer(item)  # an owner of another version, with another queue
            return
        self._take_from_owner(item)
        self._end(item.number)
        item.held.become(Life.GIVEN_BACK)
        plain = item.key.partition("/")[2]
        self._reservations.put_back(item.stream, plain, [item.held], counted=item.suspect)

    def reserved(self, key: str) -> None:
        """Note that the owner here has reserved a key: what waits for room in it goes back to the queue."""
        for item in [item for item in self._custody.values() if item.key == key and not item.to]:
            if item not in self._placing.get(key, ()):
                self._put_back(item)

    def _let_go(self, items: list[Custody]) -> list[Custody]:
        """End the custody of messages that go back to the queue. A queue that keeps order delivers nothing of
        a key while any of it is in flight. So what comes after such a message goes back with it, though an
        owner may hold it: that one waits for the message which goes back. Returns all that go back."""
        first: dict[str, tuple[int, int, int]] = {}
        for item in items:
            if self._queues[item.stream].fifo:
                first[item.key] = min(_order(item), first.get(item.key, _order(item)))
        kept = self._custody.values() if first else ()
        later = (item for item in kept if item.key in first and _order(item) > first[item.key])
        gone = {item.number: item for item in (*items, *later)}
        for item in gone.values():
            self._take_from_owner(item)
            self._end(item.number)
        return list(gone.values())

    async def _give_back(self, stream: str, items: list[Custody], *, at_once: bool = False) -> None:
        """Give messages back to the queue, the highest first: one that keeps order then delivers none of them
        before the lowest is there. Of such a queue a pause would only stop the key. So there is none
        ``at_once``, for messages that this program goes on with."""
        pause_s = self._limits.give_back_s * (0.5 + self._clock.random())
        if at_once and self._queues[stream].fifo:
            pause_s = 0.0
        for item in items:
            item.held.become(Life.GIVEN_BACK)
        self._stats.given_back += len(items)
        items = sorted(items, key=_order, reverse=True)
        receipts = [r.receipt for item in items for r in item.held.receipts if not r.stale]
        await self._return(stream, receipts, pause_s)

    async def _return(self, stream: str, receipts: list[str], pause_s: float) -> None:
        for batch in chunks(receipts, self._queues[stream].max_batch):
            try:
                await self._queues[stream].give_back(batch, pause_s)
            except HoldfastError as error:
                self._log.warning(
                    "could not give back messages; they show again by themselves", error=str(error)
                )

    async def give_back_all(self) -> int:
        """Give messages that no owner has accepted back to the queue, before a stop. Returns how many."""
        items = self._let_go([item for item in self._custody.values() if not item.accepted])
        for stream, queue in self._queues.items():
            own = [item for item in items if item.stream == stream]
            for start in range(0, len(own), queue.max_batch):
                await self._give_back(stream, own[start : start + queue.max_batch], at_once=True)
        return len(items)

    async def _offer_deferred(self) -> None:
        while True:
            self._defer_changed.clear()
            timeout_s = None
            if due := [heap[0][0] for heap in (self._deferred, self._lines_due) if heap]:
                timeout_s = max(0.0, min(due) - self._clock.monotonic())
            if timeout_s is None or timeout_s > 0:
                await self._clock.wait(self._defer_changed, timeout_s)
            self._offer_due()

    def _offer_due(self) -> None:
        now = self._clock.monotonic()
        while self._deferred and self._deferred[0][0] <= now:
            item = self._custody.get(heapq.heappop(self._deferred)[1])
            if item is not None and self._waits(item):
                self._again(item)
        while self._lines_due and self._lines_due[0][0] <= now:
            self._offer_line(heapq.heappop(self._lines_due)[1])

    async def _check_custody(self) -> None:
        while True:
            await self._clock.sleep(self._limits.custody_check_s / 2)
            self._check_all()

    def _check_all(self) -> None:
        """Check messages that have been in custody for long, because reports can be lost and deliveries
        lapse."""
        now = self._clock.monotonic()
        for item in list(self._custody.values()):
            if item.accepted and now - item.offered_at >= self._limits.custody_check_s:
                self._send(item, item.to)
            elif not item.accepted and all(_lapsed(receipt, now) for receipt in item.held.receipts):
                self._end(item.number)  # the queue delivers it to another node


def _remember(routes: dict[str, Route], key: str, route: Route, most: int) -> None:
    """Add a route, and forget the oldest beyond ``most``: new streams appear for as long as a node runs."""
    routes.pop(key, None)
    routes[key] = route
    if len(routes) > most:
        del routes[next(iter(routes))]


def _order(item: Custody) -> tuple[int, int, int]:
    """Return the place of a message in the order of its stream. Those without a seq are in the order of their
    turn, if the queue knows it."""
    return item.held.place.run, item.held.place.seq, item.held.turn or 0


def _lapsed(receipt: Receipt, now: float) -> bool:
    return receipt.stale or receipt.expires_at <= now


def _parcel(item: Custody, now: float) -> Parcel:
    receipt = item.held.receipts[0]
    place = item.held.place
    return Parcel(
        number=item.number,
        stream=item.stream,
        key=item.key,
        run=number(place.run),
        seq=number(place.seq),
        id=place.id,
        receipt=receipt.receipt,
        body=item.held.body,
        attributes=item.held.attributes,
        expires_in_s=receipt.expires_at - now,
        receives=item.held.receives,
        age_s=max(0.0, now - receipt.received_at),
        after=None if item.held.after is None else number(item.held.after),
        counted=item.held.counted,
        turn=None if item.held.turn is None else number(item.held.turn),
    )
