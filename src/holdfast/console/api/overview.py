"""The cluster at a glance, its nodes, and the audit log."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from holdfast.console.api.lists import LIMIT, Limit
from holdfast.console.api.operations import Call, Operation, described
from holdfast.console.audit import AuditEntry
from holdfast.console.overview import Need, Sample, TaskTotals
from holdfast.console.parts import ConsoleParts
from holdfast.operate import nodes
from holdfast.operate.actions import NoFields
from holdfast.operate.records import moment
from holdfast.operate.survey import QueueStatus
from holdfast.ports.coordinator import Member


class NodeRecord(msgspec.Struct):
    """A living node. ``id`` is its membership; ``foreign``: it belongs to another program."""

    name: str
    id: str
    address: str
    streams: int
    slots: int
    handled: int
    draining: bool
    foreign: bool
    queues: list[str]


class LostNodeRecord(msgspec.Struct):
    """A node that ended without a drain within the last hour, at this time. Of its ``streams``,
    ``elsewhere`` are on other nodes now, and the rest on none."""

    name: str
    id: str
    address: str
    at: str
    streams: int
    elsewhere: int


class StreamCounts(msgspec.Struct):
    """The numbers of all streams, of parked and waiting ones, and of streams with effects that no target has
    taken."""

    total: int
    parked: int
    waiting: int
    effects: int
    names: dict[str, int]


class OverviewAnswer(msgspec.Struct):
    """The cluster at a glance. ``lost`` are nodes that ended without a drain within the last hour, the last
    one first. ``needs`` is what needs attention, the worst first. ``products`` has the tables of products.
    ``samples`` are the samples of the last hour, oldest first. ``age_s`` is the age of the data from nodes,
    and ``index_age_s`` that of the data of streams; null while they are read for the first time."""

    nodes: list[NodeRecord]
    lost: list[LostNodeRecord]
    queues: list[QueueStatus]
    streams: StreamCounts
    tasks: list[TaskTotals]
    products: dict[str, list[Any]]
    needs: list[Need]
    samples: list[Sample]
    age_s: float | None
    index_age_s: float | None


class DrainingNode(msgspec.Struct):
    """A node that has begun to drain."""

    name: str
    id: str


class AuditQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The parameter that says how many entries to list."""

    limit: Limit = LIMIT


class AuditList(msgspec.Struct):
    """Entries of the audit log, the newest first."""

    entries: list[AuditEntry]


class ClusterOperations:
    """Operations on the whole cluster."""

    def __init__(self, parts: ConsoleParts) -> None:
        self._parts = parts

    def all(self) -> Sequence[Operation]:
        """Return all of them."""
        return [
            described(self._overview, "GET", "/overview", "getOverview", tag="cluster"),
            described(
                self._drain,
                "POST",
                "/nodes/{node}/drain",
                "drainNode",
                action="drain",
                status=202,
                tag="cluster",
            ),
            described(self._audit, "GET", "/audit", "listAudit", tag="cluster"),
        ]

    async def _overview(self, call: Call[NoFields, None]) -> OverviewAnswer:
        """Look at the whole cluster: nodes, queues, streams, tasks, what needs attention."""
        self._parts.attention.asked()
        overview, index = self._parts.overview, self._parts.index
        return OverviewAnswer(
            nodes=[_record(member) for member in overview.members],
            lost=[
                LostNodeRecord(
                    node.name, node.id, node.address, moment(node.at), node.streams, node.elsewhere
                )
                for node in overview.lost.all()
            ],
            queues=list(overview.queues.values()),
            streams=StreamCounts(
                len(index), len(index.parked), len(index.waits), len(index.effects), dict(index.names)
            ),
            tasks=list(overview.tasks),
            products={table.name: list(table.records) for table in overview.tables},
            needs=overview.needs(),
            samples=list(overview.samples),
            age_s=overview.age_s,
            index_age_s=index.age_s,
        )

    async def _drain(self, call: Call[NoFields, NoFields]) -> DrainingNode:
        """Have a node bring its streams to the others, and end: it begins to."""
        member = await nodes.drain(self._parts.services, call.path["node"])
        return DrainingNode(member.name, member.id)

    async def _audit(self, call: Call[AuditQuery, None]) -> AuditList:
        """List the audit log: who changed what, and the outcome."""
        return AuditList(await self._parts.audit.entries(call.query.limit))


def _record(member: Member) -> NodeRecord:
    load = member.load
    return NodeRecord(
        name=member.name,
        id=member.id,
        address=member.address,
        streams=load.streams,
        slots=load.slots,
        handled=load.handled,
        draining=load.draining,
        foreign=member.foreign,
        queues=list(load.queues),
    )
