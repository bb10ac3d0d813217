"""Moves the streams of a node to other nodes: on request, to shed load, because a model is missing, and
before the end."""

from __future__ import annotations

import asyncio

from holdfast.cluster.host import Host
from holdfast.common.protocol import Done, Move, RebalanceRequest, Warm
from holdfast.common.retry import Backoff
from holdfast.errors import OutcomeUnknown, Unavailable
from holdfast.ports.coordinator import Member
from holdfast.rules.cluster.balance import Movable, streams_to_move
from holdfast.rules.cluster.placement import able_members, acting_streams, spread
from holdfast.rules.streams.options import MovedFrom
from holdfast.rules.streams.sequencer import Carried
from holdfast.streams.loads import Loads
from holdfast.streams.owned import OwnedStream
from holdfast.streams.owners import OwnerRegistry
from holdfast.streams.performers.loading import Loader
from holdfast.streams.slot_assignment import SlotAssignment

MOVE_AGAIN = Backoff(0.01, 1.0)
"""The pauses between rounds of moves. They grow while no node takes a stream."""

MOVES_AT_ONCE = 8
"""The most streams that a draining node moves at once."""

FAILED_S = 0.05
"""The pause after a move that failed, in seconds."""


class Moves:
    """The moves from and to one node. Set ``loader`` before the start."""

    def __init__(self, host: Host, owners: OwnerRegistry, assignment: SlotAssignment, loads: Loads) -> None:
        self._host = host
        self._owners = owners
        self._assignment = assignment
        self._loads = loads
        self.loader: Loader
        self._going: set[str] = set()
        self._going_room = asyncio.Semaphore(MOVES_AT_ONCE)

    def listen(self) -> None:
        """Begin to answer requests to move."""
        inquiries = self._host.inquiries
        inquiries.add(Warm, self.warm)
        inquiries.add(RebalanceRequest, self.shed)
        inquiries.add(Move, self.answer_move)

    async def warm(self, request: Warm) -> Done:
        """Prepare to own a stream that is about to move here."""
        if self._host.draining:
            return Done(ok=False, text="this node is draining")
        since = self._host.clock.monotonic() - request.waited_s
        carried = Carried(request.missing, since) if request.missing else None
        brings = MovedFrom(request.deep, carried)
        obstacle = await self._assignment.warm(request.stream, request.key, brings)
        return Done(obstacle == "", obstacle, reserves=True)

    async def answer_move(self, request: Move) -> Done:
        """Move a stream on request."""
        obstacle = await self.move(request.key, request.target)
        return Done(obstacle == "", obstacle)

    async def move(self, key: str, target: str) -> str:
        """Move an owned stream to the membership ``target``, which warms up before this node stops. Returns
        why the move failed, or ""."""
        host, entry = self._host, self._owners.get(key)
        member = host.membership.view.get(target)
        if entry is None or member is None or member.foreign or target == host.membership.id:
            return f"{key} is not owned here, or {target} is no other living node"
        owner = entry.owner
        deep = owner.backlog.is_reserved
        missing, waited_s = owner.commits.seq.waited(host.clock.monotonic()) or ("", 0.0)
        warm = Warm(target, entry.spec.name, key, deep, missing, max(0.0, waited_s))
        timeout_s = host.limits.move_timeout_s + host.limits.model_timeout_s * len(entry.spec.models)
        try:
            reply = await host.peer.call(member.address, warm, timeout_s)
        except (Unavailable, OutcomeUnknown) as error:
            return str(error)
        if isinstance(reply, Done) and not reply.ok:
            return reply.text
        if not host.membership.alive and not host.draining:
            return "the coordinator is silent, so the move can't be recorded"
        knows_deep = deep and isinstance(reply, Done) and reply.reserves
        if self._owners.move(key, target, knows_deep=knows_deep):
            return ""
        return f"{key} is just being opened or released"

    # -- load -------------------------------------------------------------------------------------------

    async def shed(self, request: RebalanceRequest) -> Done:
        """Move streams that make up the requested load, and answer how many. Streams that moved here lately
        stay, and so do streams that wait for a missing message."""
        rested = self._host.clock.monotonic() - self._host.limits.rest_s
        target = self._host.membership.view.get(request.target)
        streams = [self._movable(entry) for entry in self._owners]
        keys = streams_to_move(streams, request.amount, target, self.acting(), rested)
        moved = 0
        for start in range(0, len(keys), MOVES_AT_ONCE):
            some = keys[start : start + MOVES_AT_ONCE]
            obstacles = await asyncio.gather(*(self.move(key, request.target) for key in some))
            moved += obstacles.count("")
        return Done(moved > 0, str(moved))

    def _movable(self, entry: OwnedStream) -> Movable:
        owner = entry.owner
        return Movable(
            entry.key,
            self._loads.of(entry.key),
            entry.since,
            stays=owner.leaving or owner.runs.misses,
            has_models=bool(entry.spec.models),
            state_bytes=len(owner.commits.state or b""),
            state_version=owner.commits.state_version,
        )

    # -- streams that can't run here --------------------------------------------------------------------

    def acting(self) -> set[str]:
        """Return the names of the streams that send effects or set timers, as far as this node knows."""
        return acting_streams(self._host.membership.view.values()) | self._owners.acting

    def others_for(self, stream: str) -> list[Member]:
        """Return the other members that can own streams of that name."""
        membership = self._host.membership
        return able_members(stream, membership.view.values(), self.acting(), but=membership.id)

    def obstacle_changed(self, stream: str) -> None:
        """Report a changed obstacle to the others at once, and move streams that can't run here to a node
        that can."""
        self._host.membership.renew_now.set()
        if self._host.draining:
            return
        keys = {
            entry.key: entry.owner.commits.state_version for entry in self.loader.obstructed_streams(stream)
        }
        for key, to in spread(keys, self.others_for(stream)).items():
            if key not in self._going:
                self._going.add(key)
                self._host.tasks.spawn(self._bring_away(key, to))

    async def _bring_away(self, key: str, to: Member) -> None:
        try:
            await self._move_one(self._going_room, key, to)
        finally:
            self._going.discard(key)

    # -- the end ----------------------------------------------------------------------------------------

    async def move_all(self) -> None:
        """Move all streams to the other nodes by load, a few at a time."""
        failures, clock = 0, self._host.clock
        while before := len(self._owners):
            membership = self._host.membership
            others = [member for member in membership.view.values() if member.id != membership.id]
            keys = {entry.key: entry.owner.commits.state_version for entry in self._owners}
            targets = spread(keys, others, self._owners.acting)
            if targets:
                room = asyncio.Semaphore(MOVES_AT_ONCE)
                await asyncio.gather(*(self._move_one(room, key, to) for key, to in targets.items()))
            else:
                self._owners.give_up_all()
            failures = 0 if len(self._owners) < before else failures + 1
            # A stream that is just being opened can't move yet: try again.
            await clock.sleep(MOVE_AGAIN.delay_s(max(1, failures), clock.random()))

    async def _move_one(self, room: asyncio.Semaphore, key: str, target: Member) -> None:
        async with room:
            obstacle = await self.move(key, target.id)
            if obstacle:
                self._host.log.debug("could not move", key=key, to=target.name, obstacle=obstacle)
                await self._host.clock.sleep(FAILED_S)
            else:
                await self._owners.gone(key)
