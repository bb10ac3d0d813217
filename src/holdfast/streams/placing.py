"""Finds the owners of keys, and chooses nodes for keys that have none."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Protocol

import msgspec

from holdfast.cluster.host import Host
from holdfast.common.protocol import Done, Explain, Move, Request, WakeUp
from holdfast.common.recent import remember
from holdfast.errors import HoldfastError, MembershipLost, OutcomeUnknown, Unavailable
from holdfast.ports.coordinator import Claim, Member
from holdfast.rules.cluster.placement import Placed, choose, shortage
from holdfast.streams.pending_forwards import PendingForward

DEPARTED_MAX = 10_000
"""The most streams that are remembered as moved away, and as taken by no node."""

LOG_EVERY_S = 5.0
"""Seconds between two log lines about a stream that no node takes."""

UNPLACED_S = 60.0
"""For how long after the last try a stream counts as one that no node takes. Its messages may lie in their
queue meanwhile."""

ROUTES_MAX = 100_000
"""The most routes that are remembered. For further streams, the coordinator is asked again."""


class AdoptingOwners(Protocol):
    """The owners on this node, as those see them who place keys. All keys are full keys."""

    def adopt(self, stream: str, key: str, claim: Claim) -> bool:
        """Begin to own a key whose claim is ours; return False if its stream isn't declared here."""

    def nudge(self, key: str) -> bool:
        """Wake the owner of a key that is due; return False if it isn't owned here."""


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


class Placing:
    """The routes that one node knows, and the claims that it asks for. At most ``routes_max`` routes are
    remembered."""

    def __init__(self, host: Host, owners: AdoptingOwners, routes_max: int = ROUTES_MAX) -> None:
        self._host = host
        self._owners = owners
        self._routes_max = routes_max
        self._coordinator, self._clock, self._log = host.coordinator, host.clock, host.log
        self.waiting: dict[str, list[PendingForward]] = {}
        """By key: the messages that wait for it to be placed."""
        self._routes: dict[str, Route] = {}
        self._departed: dict[str, Route] = {}
        self._placed = Placed()
        self.given: dict[str, Route] = {}
        """By key: the member that this node has just given it to."""
        self._unplaced: dict[str, Unplaced] = {}
        self._shortage_logged: dict[str, float] = {}
        """By stream: when it was last logged that no node takes its keys."""

    # -- routes -----------------------------------------------------------------------------------------

    def owner_of(self, key: str) -> Member | None:
        """Return the living member that owns a key, as far as is known."""
        route = self._routes.get(key)
        return self._host.membership.view.get(route.member) if route is not None else None

    def route(self, key: str) -> Route | None:
        """Return the known route of a key."""
        return self._routes.get(key)

    def note(self, key: str, member: str, epoch: int = 0) -> None:
        """Note the owner of a key."""
        remember(self._routes, key, Route(member, epoch), self._routes_max)

    def forget(self, key: str, member: str) -> None:
        """Forget that a member owns a key."""
        route = self._routes.get(key)
        if route is not None and route.member == member:
            del self._routes[key]

    def arrived(self, key: str) -> None:
        """Note that a stream is owned here."""
        self._routes.pop(key, None)
        self._departed.pop(key, None)

    def departed(self, key: str, to: str, epoch: int) -> None:
        """Note that a stream has moved from here to the membership ``to``, which opens it at a higher epoch
        than ours."""
        remember(self._departed, key, Route(to, epoch + 1), DEPARTED_MAX)
        self.note(key, to, epoch + 1)

    def hint(self, key: str) -> Route:
        """Return the owner of a key that isn't owned here, as far as this node knows."""
        return self._departed.get(key, Route(""))

    def left(self, member: str) -> None:
        """Forget the routes to a membership that has ended."""
        self._routes = {key: route for key, route in self._routes.items() if route.member != member}

    def missed(self) -> None:
        """Forget routes to foreign members, because changes of their claims may have been missed."""
        self._routes = {
            key: route for key, route in self._routes.items() if not self._is_foreign(route.member)
        }

    def _is_foreign(self, member: str) -> bool:
        known = self._host.membership.view.get(member)
        return known is not None and known.foreign

    def claim_changed(self, claim: Claim) -> None:
        """Note a claim that changed at the coordinator, so that it is known when the coordinator can't be
        reached. Streams placed by others are counted too, before the loads of their nodes show them."""
        self._unplaced.pop(claim.key, None)
        given = self.given.pop(claim.key, None)
        member = self._host.membership.view.get(claim.member)
        is_ours = claim.key in self.waiting or (given is not None and given.member == claim.member)
        if member is not None and not is_ours:
            self._placed.add(member)
        route = self._routes.get(claim.key)
        if route is not None and route.member == claim.member:
            return
        self._routes.pop(claim.key, None)
        if claim.member not in ("", self._host.membership.id):
            self.note(claim.key, claim.member)

    # -- claims -----------------------------------------------------------------------------------------

    async def claim(self, stream: str, key: str, acting: Collection[str] = ()) -> Claim | None:
        """Return the claim on a key, which the node with the most room gets if it has none; None if no living
        member has it."""
        membership = self._host.membership
        if not membership.alive:
            return None
        members = membership.view.values()
        target = self._placed.place(key, members, acting)
        if target is None:
            self._note_shortage(stream, key, shortage(key, members))
            return None
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
            self._placed.not_taken(target)
        else:
            remember(self.given, key, Route(target.id), self._routes_max)
        if claim is not None:
            self._unplaced.pop(key, None)
        return claim if claim is not None and claim.member in membership.view else None

    async def _refresh(self) -> None:
        try:
            await self._host.membership.refresh()
        except HoldfastError as error:
            self._log.debug("could not read members", error=str(error))

    def _note_shortage(self, stream: str, key: str, text: str) -> None:
        """Note that no node takes a key. It is logged at intervals for its stream: thousands of keys may be
        tried every second."""
        now = self._clock.monotonic()
        known = self._unplaced.get(key)
        if known is not None or len(self._unplaced) < DEPARTED_MAX:
            since, messages = now if known is None else known.since, len(self.waiting.get(key, ()))
            self._unplaced[key] = Unplaced(text, since, now, messages)
        if now >= self._shortage_logged.get(stream, -math.inf) + LOG_EVERY_S:
            self._shortage_logged[stream] = now
            self._log.warning("cannot place stream", stream=stream, key=key, reason=text)

    def unplaced(self) -> Mapping[str, Unplaced]:
        """Return the streams that no node takes, by full key."""
        now = self._clock.monotonic()
        self._unplaced = {
            key: known for key, known in self._unplaced.items() if now - known.tried_at < UNPLACED_S
        }
        return self._unplaced

    # -- streams that are due -----------------------------------------------------------------------------

    async def nudge(self, stream: str, key: str) -> bool:
        """Have the owner of a key that is due look after it; without an owner, place the key. An owner of
        an older version, which knows no timers and no effects, is asked to move it. Return False if no node
        looks after it now."""
        claim = await self.claim(stream, key, acting=(stream,))
        owner = self._host.membership.view.get(claim.member) if claim is not None else None
        if claim is None or owner is None or owner.foreign:
            return False
        if owner.load.acting is None and owner.id != self._host.membership.id:
            return await self._bring_away(stream, claim, owner)
        return await self.nudge_owner(stream, claim, owner)

    async def nudge_owner(self, stream: str, claim: Claim, owner: Member) -> bool:
        """Have the member that has the claim look after a stream that is due; return False if it doesn't."""
        if owner.id == self._host.membership.id:
            return self._owners.adopt(stream, claim.key, claim) and self._owners.nudge(claim.key)
        reply = await self._ask(owner, WakeUp(owner.id, stream, claim.key))
        return reply is not None and reply.ok

    async def call_up(self, stream: str, key: str, to: str) -> None:
        """Have a stream that has moved to the membership ``to`` begin there: no message of it may come, as
        its queue keeps them all. If the call fails, that ends by itself."""
        if (owner := self._host.membership.view.get(to)) is not None:
            await self._ask(owner, WakeUp(to, stream, key))

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
        return await self.nudge_owner(stream, claim, target)

    async def _ask(self, member: Member, request: Request) -> Done | None:
        """Return a member's answer; None if it gives none, which makes it suspect."""
        try:
            reply = await self._host.peer.call(member.address, request, self._host.limits.peer_timeout_s)
        except (Unavailable, OutcomeUnknown):
            self._host.tasks.spawn(self._host.membership.suspect(member.id))
            return None
        return reply if isinstance(reply, Done) else None
