"""One node: a membership, an address for peers, and the kinds of work that it runs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from holdfast.cluster.balancer import Balancer
from holdfast.cluster.limits import Limits
from holdfast.cluster.membership import Membership
from holdfast.cluster.service import Startable, Tasks
from holdfast.cluster.stats import Stats
from holdfast.common.protocol import Done, Drain, Probe, Reply, Request, SettleReport, Stranger
from holdfast.errors import HoldfastError
from holdfast.ports.clock import Clock
from holdfast.ports.coordinator import Claim, Coordinator, Load
from holdfast.ports.meter import Meter
from holdfast.ports.peer import Peer

MAINTENANCE_S = 600.0


class Work(Protocol):
    """One kind of work (streams, tasks, devices) on a node."""

    async def prepare(self) -> None:
        """Make ready what must work before the node joins. Raises ConfigError."""

    def begin(self, address: str) -> None:
        """The node has joined and is reached at ``address``: start to receive."""

    async def drain(self) -> None:
        """Take nothing new, and bring what is owned to other nodes or back to the queue."""

    async def close(self) -> None:
        """Release what ``prepare`` made."""

    async def handle(self, request: Request) -> Reply | None:
        """Answer a peer's request, or None if it is for another kind of work."""

    def load(self) -> Load:
        """What the node tells of itself."""

    def left(self, member: str) -> None:
        """A membership ended."""

    def vanished(self) -> None:
        """This node's membership was lost; another is being sought."""

    def claim_changed(self, claim: Claim) -> None:
        """A key's claim is another now."""

    def missed(self) -> None:
        """Changes of claims may have gone by unseen."""

    async def maintain(self) -> None:
        """Drop what is kept too long."""


class Host:
    """What a node gives to its work. Made before the work, filled when the node starts. ``machine`` tells the
    shares of processors and of memory in use; ``told_to_drain`` is set when an operator wants it to end."""

    def __init__(
        self,
        coordinator: Coordinator,
        peer: Peer,
        clock: Clock,
        limits: Limits,
        log: Any,
        name: str,
        meter: Meter | None = None,
        machine: Callable[[], tuple[float, float]] = lambda: (0.0, 0.0),
    ) -> None:
        self.coordinator = coordinator
        self.peer = peer
        self.clock = clock
        self.limits = limits
        self.log = log
        self.name = name
        self.meter = meter or Meter()
        self.machine = machine
        self.told_to_drain = asyncio.Event()
        self.stats = Stats()
        self.crashed: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()
        self.tasks = Tasks(self._crash)
        self.draining = False
        self.membership: Membership

    def _crash(self, error: BaseException) -> None:
        if not self.crashed.done():
            self.crashed.set_result(error)


class Node(Startable):
    """Joins, serves peers and runs its work until stopped; ``host.crashed`` tells what ended it."""

    def __init__(self, host: Host, works: Sequence[Work]) -> None:
        super().__init__()
        self._host = host
        self._works = works
        self._ids: dict[str, None] = {}
        host.membership = Membership(
            host.coordinator,
            host.peer,
            host.clock,
            host.limits,
            host.tasks,
            host.stats,
            host.log,
            name=host.name,
            load=self.load,
            on_left=self._left,
            on_lost=self._lost,
            on_claim=self._claim_changed,
            on_missed=self._missed,
        )
        self._balancer = Balancer(host.peer, host.clock, host.limits, host.membership, host.log)

    @property
    def host(self) -> Host:
        """What the node is made of."""
        return self._host

    async def _start(self) -> None:
        host = self._host
        address = await host.peer.serve(self._handle)
        for work in self._works:
            await work.prepare()
        await host.membership.start(address)
        for work in self._works:
            work.begin(address)
        host.tasks.spawn(self._tell_namesakes())
        host.tasks.repeat(self._maintain, host.clock, host.log)
        if host.limits.balance_s:
            host.tasks.repeat(self._balancer.run, host.clock, host.log)

    async def _tell_namesakes(self) -> None:
        """Memberships have ids of their own, but people tell nodes apart by name."""
        host = self._host
        for member in list(host.membership.view.values()):
            if member.name != host.name or member.foreign or member.id == host.membership.id:
                continue
            try:
                reply = await host.peer.call(member.address, Probe(member.id), host.limits.peer_timeout_s)
            except HoldfastError:
                continue  # its predecessor, perhaps, whose membership is about to lapse
            if isinstance(reply, Done):
                host.log.warning(
                    "another living node has this name; give each its own: set node_name, or leave it out",
                    name=host.name,
                    member=member.id,
                    address=member.address,
                )

    async def _stop(self) -> None:
        """Drain, leave, and release. What cannot be moved in time goes back to the queue."""
        host = self._host
        host.draining = True
        host.membership.renew_now.set()
        for work in self._works:
            await work.drain()
        await host.membership.leave()
        await host.tasks.close()
        for work in self._works:
            await work.close()
        await host.peer.close()

    def abandon(self) -> None:
        """Stop at once, in the way a crash does: nothing is said to anybody."""
        self._host.tasks.cancel()

    def load(self) -> Load:
        """What the node tells of itself."""
        loads = [work.load() for work in self._works]
        cpu, memory = self._host.machine()
        return Load(
            streams=sum(load.streams for load in loads),
            slots=max((load.slots for load in loads), default=1),
            room=max((load.room for load in loads), default=0),  # of streams: other work has none
            draining=self._host.draining,
            handled=self._host.stats.handled,
            calls=self._host.meter.calls.total(),
            busy=sum(load.busy for load in loads),
            cpu=cpu,
            memory=memory,
            serves=tuple(name for load in loads for name in load.serves),
            outboxes=tuple(name for load in loads for name in load.outboxes),
            warm=tuple(name for load in loads for name in load.warm),
            models=tuple(name for load in loads for name in load.models),
            queues=tuple(sorted({name for load in loads for name in load.queues})),
            lacks=tuple(name for load in loads for name in load.lacks),
        )

    def _left(self, member: str) -> None:
        for work in self._works:
            work.left(member)

    def _lost(self) -> None:
        for work in self._works:
            work.vanished()

    def _claim_changed(self, claim: Claim) -> None:
        for work in self._works:
            work.claim_changed(claim)

    def _missed(self) -> None:
        for work in self._works:
            work.missed()

    async def _handle(self, request: Request) -> Reply:
        member = self._host.membership.id
        self._ids[member] = None
        # A report is good under any name this node has had: custody outlives a membership.
        if request.to != member and not (isinstance(request, SettleReport) and request.to in self._ids):
            return Stranger(member)
        if isinstance(request, Probe):
            return Done()
        if isinstance(request, Drain):
            self._host.told_to_drain.set()
            return Done()
        for work in self._works:
            reply = await work.handle(request)
            if reply is not None:
                return reply
        return Done(ok=False, text=f"nothing here answers a {type(request).__name__}")

    async def _maintain(self) -> None:
        while True:
            await self._host.clock.sleep(MAINTENANCE_S * (0.5 + self._host.clock.random()))
            for work in self._works:
                await work.maintain()
