"""The busiest streams and the longest attempts. Only nodes are asked, no queue and no state store."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from heapq import nlargest
from operator import attrgetter
from typing import TypeVar

import msgspec

from holdfast.common.protocol import Busiest, RunningTasks
from holdfast.common.record import reading
from holdfast.errors import HoldfastError, OperationRefused
from holdfast.operate import nodes
from holdfast.operate.survey import ASK_TIMEOUT_S
from holdfast.ports.coordinator import Member
from holdfast.rules.streams.activity import FIGURES, StreamActivity
from holdfast.tasks.held_tasks import TaskActivity
from holdfast.wiring.services import Services


class StreamOnNode(StreamActivity):
    """The activity of a stream, and its node."""

    node: str = ""


class TaskOnNode(TaskActivity):
    """A running attempt, and its node."""

    node: str = ""


T = TypeVar("T", StreamOnNode, TaskOnNode)


class Activity(msgspec.Struct):
    """The living nodes, the busiest streams and the longest attempts at one moment. ``troubles`` names
    nodes that didn't answer."""

    nodes: list[Member]
    streams: list[StreamOnNode]
    tasks: list[TaskOnNode]
    troubles: list[str]


async def activity(services: Services, by: str, most: int, only: Collection[str] = ()) -> Activity:
    """Ask all nodes for the ``most`` streams that are highest by ``by``, one of ``FIGURES``. With ``only``,
    of the streams with these names. Raises as the coordinator does."""
    if by not in FIGURES:
        raise OperationRefused(f"streams have no {by!r}; they have {', '.join(FIGURES)}")
    found = Activity([*await services.coordinator().members()], [], [], [])

    async def ask(member: Member) -> None:
        try:
            request = Busiest(member.id, most, by, [*only])
            found.streams += await _reported(services, member, request, StreamOnNode)
            if not only:
                found.tasks += await _reported(services, member, RunningTasks(member.id, most), TaskOnNode)
        except HoldfastError as error:
            found.troubles.append(f"{member.name} does not answer: {error}")

    await asyncio.gather(*(ask(member) for member in found.nodes if not member.foreign))
    found.streams = nlargest(most, found.streams, key=attrgetter(by))
    found.tasks = nlargest(most, found.tasks, key=attrgetter("runs_s"))
    found.troubles.sort()
    return found


async def _reported(
    services: Services, member: Member, request: Busiest | RunningTasks, kind: type[T]
) -> list[T]:
    """Ask a node for its activity; returns an empty list if it runs no such work."""
    reply = await nodes.call(services, member, request, ASK_TIMEOUT_S)
    found: list[T] = []
    with reading(f"the report of {member.name}"):
        if reply.ok:
            found = msgspec.json.decode(reply.text, type=list[kind])  # type: ignore[valid-type]
    for each in found:
        each.node = member.name
    return found
