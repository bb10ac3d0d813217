"""Evens out load between nodes.

One node at a time decides: the one with the oldest membership. Two nodes that decide at once do no harm:
moves are conditional, and a stream that has just moved doesn't move again soon.
"""

from __future__ import annotations

import asyncio

import msgspec

from holdfast.cluster.host import Host
from holdfast.common.protocol import Done, RebalanceRequest
from holdfast.errors import HoldfastError
from holdfast.ports.coordinator import Member
from holdfast.rules.cluster.balance import STREAM_LOAD, NodeLoad, Shift, plan
from holdfast.rules.cluster.placement import newest_revision

SHIFTS_A_ROUND = 8
SHARE_MIN = 0.02
"""The smallest load that is moved away from a node, as a share of its slots."""


class Balancer:
    """The balancer of one node."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._clock, self._limits, self._log = host.clock, host.limits, host.log

    async def run(self) -> None:
        """Compare the loads at each interval, and ask hot nodes to move work away."""
        while True:
            await self._clock.sleep(self._limits.balance_s * (0.9 + 0.2 * self._clock.random()))
            if self._host.membership.alive and self.elected:
                await asyncio.gather(*(self._request(shift) for shift in self.shifts()))

    @property
    def elected(self) -> bool:
        """True if this node decides."""
        nodes = (name for name, member in self._host.membership.view.items() if not member.foreign)
        return self._host.membership.id == min(nodes, default="")

    def shifts(self) -> list[Shift]:
        """Return the loads to move between nodes, from the loads that they report. Nodes of an older
        revision, which will be replaced soon, get none."""
        groups: dict[tuple[str, ...], list[NodeLoad]] = {}
        members = self._host.membership.view.values()
        newest = newest_revision(members)
        for member in members:
            if not (member.load.draining or member.foreign):
                load = msgspec.structs.replace(node_load(member), takes=member.load.revision == newest)
                groups.setdefault(member.load.serves, []).append(load)
        shifts: list[Shift] = []
        for _, nodes in sorted(groups.items()):
            if max(node.load / node.capacity for node in nodes) > SHARE_MIN:
                shifts += plan(nodes, SHIFTS_A_ROUND)
        return shifts[:SHIFTS_A_ROUND]

    async def _request(self, shift: Shift) -> None:
        source, target = (self._host.membership.view.get(name) for name in (shift.source, shift.target))
        if source is None or target is None:
            return
        try:
            request = RebalanceRequest(source.id, target.id, shift.amount)
            reply = await self._host.peer.call(source.address, request, self._limits.drain_timeout_s)
        except HoldfastError as error:
            self._log.warning("cannot rebalance", source=source.name, target=target.name, error=str(error))
            return
        if isinstance(reply, Done) and reply.ok:
            self._log.info("rebalanced", source=source.name, target=target.name, moved=reply.text)


def node_load(member: Member) -> NodeLoad:
    """Return a member's load and capacity in slots."""
    load = member.load
    return NodeLoad(member.id, load.busy + load.streams * STREAM_LOAD, max(1, load.slots))
