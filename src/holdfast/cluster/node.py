"""One node: a membership, an address for peers, and the kinds of work that it runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from holdfast.cluster.balancer import Balancer
from holdfast.cluster.host import Host
from holdfast.cluster.lifecycle import Startable
from holdfast.cluster.membership import Membership
from holdfast.common.protocol import Done, Drain, Probe, Reply, Request, UnknownMember
from holdfast.common.protocol_versions import OUR_VERSIONS
from holdfast.errors import HoldfastError
from holdfast.ports.coordinator import Load
from holdfast.ports.metrics import MetricsPush

if TYPE_CHECKING:
    from prometheus_client.registry import Collector

    from holdfast.http.metrics_page import MetricsPage

MAINTENANCE_S = 600.0


class Work(Protocol):
    """One kind of work on a node. By its :class:`~holdfast.cluster.host.Host` it answers requests of other
    nodes, and follows changes of members and claims."""

    async def prepare(self) -> None:
        """Do the work that must succeed before the node joins. Raises ConfigError."""

    def begin(self, address: str) -> None:
        """Start to receive. The node has joined under ``address``."""

    async def drain(self) -> None:
        """Take no new work, and move owned work to other nodes or back to the queue."""

    async def close(self) -> None:
        """Release the resources of ``prepare``."""

    def load(self) -> Load:
        """Return the load that the node reports."""

    async def maintain(self) -> None:
        """Delete expired data."""


class NodePart(NamedTuple):
    """The part of a node that a product adds: its work and its metrics."""

    works: Sequence[Work] = ()
    collectors: Sequence[Collector] = ()


class Node(Startable):
    """A member of the cluster that serves peers and runs its work until it is stopped. If it crashes,
    ``host.crashed`` has the error. ``metrics`` pushes its metrics, and ``page`` serves them. ``app`` is the
    name of the app, ``version`` the version of Holdfast, and ``revision`` the revision of the app."""

    def __init__(
        self,
        host: Host,
        works: Sequence[Work],
        metrics: MetricsPush | None = None,
        app: str = "",
        version: str = "",
        revision: str = "",
        *,
        page: MetricsPage | None = None,
    ) -> None:
        super().__init__()
        self.host = host
        self._app, self._version, self._revision = app, version, revision
        self._started_at = host.clock.wall()
        self._works = works
        self._metrics = metrics
        self._page = page
        self._ids: dict[str, None] = {}
        host.membership = Membership(host, self.load)
        self._balancer = Balancer(host)

    async def _start(self) -> None:
        host = self.host
        address = await host.peer.serve(self.handle)
        if self._page is not None:
            await self._page.serve()
            host.log.info("metrics page served", url=self._page.url)
        for work in self._works:
            await work.prepare()
        await host.membership.start(address)
        for work in self._works:
            work.begin(address)
        host.tasks.spawn(self._check_name())
        if self._metrics is not None:
            host.tasks.repeat(self._metrics.run, host.clock, host.log)
        host.tasks.repeat(self._maintain, host.clock, host.log)
        if host.limits.balance_s:
            host.tasks.repeat(self._balancer.run, host.clock, host.log)

    async def _check_name(self) -> None:
        """Warn if another living node has the same name, which would confuse people."""
        host = self.host
        for member in list(host.membership.view.values()):
            if member.name != host.name or member.foreign or member.id == host.membership.id:
                continue
            try:
                reply = await host.peer.call(member.address, Probe(member.id), host.limits.peer_timeout_s)
            except HoldfastError:
                continue  # perhaps this node's predecessor, whose membership ends soon
            if isinstance(reply, Done):
                host.log.warning(
                    "another living node has this name",
                    name=host.name,
                    member=member.id,
                    address=member.address,
                    fix="set another node_name, or none",
                )

    async def _stop(self) -> None:
        """Drain, leave the cluster, and close all parts. Work that can't be moved in time goes back to the
        queue."""
        host = self.host
        host.draining = True
        host.membership.renew_now.set()
        for work in self._works:
            await work.drain()
        await host.membership.leave()
        await host.tasks.close()
        for work in self._works:
            await work.close()
        if host.tracer is not None:
            await host.tracer.exporter.close()
        if self._metrics is not None:
            await self._metrics.close()
        if self._page is not None:
            await self._page.close()
        await host.peer.close()

    def abandon(self) -> None:
        """Stop at once, as in a crash."""
        self.host.tasks.cancel()

    def load(self) -> Load:
        """Return the load that the node reports."""
        loads = [work.load() for work in self._works]
        cpu, memory = self.host.machine()
        return Load(
            streams=sum(load.streams for load in loads),
            slots=max((load.slots for load in loads), default=1),
            room=max((load.room for load in loads), default=0),  # room is for streams; other work has none
            draining=self.host.draining,
            handled=self.host.stats.handled,
            calls=self.host.meter.calls.total(),
            busy=sum(load.busy for load in loads),
            cpu=cpu,
            memory=memory,
            serves=tuple(name for load in loads for name in load.serves),
            offers=tuple(name for load in loads for name in load.offers),
            warm=tuple(name for load in loads for name in load.warm),
            models=tuple(name for load in loads for name in load.models),
            queues=tuple(sorted({name for load in loads for name in load.queues})),
            lacks=tuple(name for load in loads for name in load.lacks),
            acting=tuple(name for load in loads for name in load.acting or ()),
            reads={stream: version for load in loads for stream, version in (load.reads or {}).items()},
            version=self._version,
            speaks=OUR_VERSIONS,
            app=self._app,
            revision=self._revision,
            started_at=self._started_at,
            metrics=self._page.url if self._page is not None else "",
            works=tuple(work for load in loads for work in load.works),
            troubles=tuple(trouble for load in loads for trouble in load.troubles),
        )

    async def handle(self, request: Request) -> Reply:
        """Answer a request of another node."""
        member = self.host.membership.id
        self._ids[member] = None
        if request.to != member and not (
            self.host.inquiries.outlives_membership(request) and request.to in self._ids
        ):
            return UnknownMember(member)
        if isinstance(request, Probe):
            return Done()
        if isinstance(request, Drain):
            self.host.drain_requested.set()
            return Done()
        return await self.host.inquiries.answer(request)

    async def _maintain(self) -> None:
        while True:
            await self.host.clock.sleep(MAINTENANCE_S * (0.5 + self.host.clock.random()))
            for work in self._works:
                await work.maintain()
