"""Asks the coordinator for the owner of a key, and claims a key that has none for a node. Many gateways may
do so at once: the coordinator gives the key to one node, and all gateways learn which."""

from __future__ import annotations

import asyncio

from holdfast.cluster.view import View
from holdfast.errors import HoldfastError, MembershipLost, Unavailable
from holdfast.ports.coordinator import Claim, Coordinator, Member
from holdfast.rules.cluster.gateway import GatewayPlacing


class CoordinatorSilent(Unavailable):
    """The coordinator doesn't answer."""


class Assigner:
    """Finds the members that own keys. ``placing`` decides, and knows the routes and the members of
    ``view``."""

    def __init__(self, coordinator: Coordinator, view: View, placing: GatewayPlacing) -> None:
        self._coordinator = coordinator
        self._view = view
        self.placing = placing
        self._asking: dict[str, asyncio.Task[str]] = {}

    async def resolve(self, key: str) -> Member:
        """Return the living member that owns ``key``, or was given it now. Raises Unavailable with the reason
        without one, and CoordinatorSilent if the coordinator doesn't answer."""
        known = self.placing.owner(key)
        if known is not None:
            return known
        asked = self._asking.get(key)
        if asked is None:
            asked = self._asking[key] = asyncio.ensure_future(self._ask(key))
            asked.add_done_callback(lambda done: self._asked(key, done))
        owner = await asyncio.shield(asked)
        member = self._view.members.get(owner)
        if member is None:
            raise Unavailable(f"{key}: its node is leaving; send the request again")
        return self.placing.checked(key, member)

    def _asked(self, key: str, done: asyncio.Task[str]) -> None:
        self._asking.pop(key, None)
        if not done.cancelled():
            done.exception()  # marked as read: perhaps every client has given up

    def claimed(self, claim: Claim) -> None:
        """Note a new or ended claim of the coordinator."""
        self.placing.claimed(claim.key, claim.member, here=claim.key in self._asking)

    async def _ask(self, key: str) -> str:
        """Return the owner as the coordinator says, or a node that gets the key now. Only the coordinator
        ends a claim: a node that doesn't answer keeps its streams until its membership ends."""
        try:
            claim = await self._coordinator.lookup(key) or await self._place(key)
            if claim is None or claim.member not in self._view.members:
                await self._view.refresh()
        except MembershipLost as error:
            raise Unavailable(f"{key}: the chosen node has left; send the request again") from error
        except HoldfastError as error:
            raise CoordinatorSilent(f"{key}: the coordinator does not answer") from error
        if claim is None:
            raise self.placing.shortage(key)
        self.placing.claimed(key, claim.member, here=True)
        return claim.member

    async def _place(self, key: str) -> Claim | None:
        chosen = self.placing.choose(key)
        if chosen is None:
            return None
        claim = await self._coordinator.claim(key, chosen.id)
        self.placing.given(chosen, claim.member)
        return claim
