"""Finds the owner of a stream, or chooses a node for it. Many gateways may do so at once: the coordinator
gives the key to one node, and all gateways learn which."""

from __future__ import annotations

import asyncio

from holdfast.cluster.view import View
from holdfast.errors import HoldfastError, MembershipLost, Unavailable
from holdfast.gateway.routes import Routes
from holdfast.ports.coordinator import Claim, Coordinator, Member
from holdfast.rules.cluster.placement import Placed, choose, shortage
from holdfast.streams.asking import readers


class Unasked(Unavailable):
    """The coordinator doesn't answer."""


class Assigner:
    """Resolves keys to members. ``routes`` are the known routes. ``foreign``: members of other programs count
    too."""

    def __init__(
        self, coordinator: Coordinator, view: View, routes: Routes, *, foreign: bool = False
    ) -> None:
        self._foreign = foreign
        self._coordinator = coordinator
        self._view = view
        self._routes = routes
        self._placed = Placed()
        self._asking: dict[str, asyncio.Task[str]] = {}

    async def resolve(self, key: str) -> Member:
        """Return the living member that owns ``key``, or that was chosen to. Raises Unavailable with the
        reason if there is none, and Unasked if the coordinator doesn't answer."""
        route = self._routes.get(key)
        member = self._view.members.get(route.member) if route is not None else None
        if member is not None:
            return self._reached(key, member)
        asked = self._asking.get(key)
        if asked is None:
            asked = self._asking[key] = asyncio.ensure_future(self._ask(key))
            asked.add_done_callback(lambda done: self._asked(key, done))
        owner = await asyncio.shield(asked)
        member = self._view.members.get(owner)
        if member is None:
            raise Unavailable(f"{key}: its node is just leaving")
        return self._reached(key, member)

    def _reached(self, key: str, member: Member) -> Member:
        if member.foreign and not self._foreign:
            raise Unavailable(
                f"{key} is owned by another program, {member.name}, and foreign_streams is 'refuse'"
            )
        if member.foreign and not member.address:
            raise Unavailable(
                f"{key} is owned by another program, {member.name}, which gives no host and port"
            )
        return member

    def _asked(self, key: str, done: asyncio.Task[str]) -> None:
        self._asking.pop(key, None)
        if not done.cancelled():
            done.exception()  # mark it as read: perhaps nobody waits for it any more

    def claimed(self, claim: Claim) -> None:
        """Note a new or ended claim from the coordinator. Streams that others place are counted here; those
        that this gateway places are counted when it does so."""
        known = self._routes.get(claim.key)
        self._routes.claimed(claim)
        member = self._view.members.get(claim.member)
        is_news = claim.key not in self._asking and (known is None or known.member != claim.member)
        if member is not None and is_news:
            self._placed.add(member)

    def beside(self, key: str, member: str) -> Member | None:
        """Return another living member than ``member``, if there is one."""
        return choose(key, [other for other in self._view.members.values() if other.id != member])

    def reader(self, key: str, failures: int) -> Member:
        """Return a node that can answer a query of ``key``: the one that the route leads to, and after each
        failure another. Raises Unavailable if there is none."""
        route = self._routes.get(key)
        able = readers(key, self._view.members.values(), route.member if route is not None else "")
        if not able:
            raise Unavailable(f"{key}: no node is there")
        return able[failures % len(able)]

    async def _ask(self, key: str) -> str:
        """Return the owner as the coordinator says, or a node that gets the key there now. Only the
        coordinator ends a claim: a node that doesn't answer keeps its streams until its membership ends."""
        try:
            claim = await self._coordinator.lookup(key) or await self._place(key)
            if claim is None or claim.member not in self._view.members:
                await self._view.refresh()
        except MembershipLost as error:
            raise Unavailable(f"{key}: the node chosen has just left") from error
        except HoldfastError as error:
            raise Unasked(f"{key}: the coordinator does not answer") from error
        if claim is None:
            raise Unavailable(f"{key}: {shortage(key, self._view.members.values())}")
        self._routes.claimed(claim)
        return claim.member

    async def _place(self, key: str) -> Claim | None:
        """Claim a new key for the member with the most room; None if no member has room. Many keys are placed
        at once, so each is counted before the next is placed."""
        members = self._view.members
        target = self._placed.place(key, members.values())
        if target is None:
            return None
        claim = await self._coordinator.claim(key, target.id)
        if claim.member != target.id:  # another gateway has chosen first
            self._placed.not_taken(target, members.get(claim.member))
        return claim
