"""Nodes: found, asked and drained."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.common.protocol import Done, Drain, Request
from holdfast.errors import NotKnown, OperationRefused
from holdfast.ports.coordinator import Member
from holdfast.ports.dead_letters import Reads, at_once
from holdfast.wiring.services import Services

LOOK_S = 0.2


def named(members: Sequence[Member], name: str) -> Member:
    """Return the member with this name or membership. Raises NotKnown."""
    for member in members:
        if name in (member.name, member.id):
            return member
    known = ", ".join(sorted(member.name for member in members)) or "none"
    raise NotKnown(f"no node is called {name!r}; there are: {known}")


async def owner_of(services: Services, members: Sequence[Member], key: str) -> Member:
    """Return the member that owns a stream. Raises OperationRefused without one."""
    claim = await services.coordinator().lookup(key)
    for member in members:
        if claim is not None and member.id == claim.member:
            return member
    raise OperationRefused(f"{key} has no owner at present; the next message places it")


async def call(services: Services, member: Member, request: Request, timeout_s: float) -> Done:
    """Call a node. Raises OperationRefused, Unavailable, OutcomeUnknown."""
    if member.foreign:
        where = f", at {member.address}" if member.address else ""
        raise OperationRefused(f"{member.name}{where} belongs to another program, and is not called")
    reply = await services.caller().call(member.address, request, timeout_s)
    if not isinstance(reply, Done):
        raise OperationRefused(f"{member.name} has just joined again; repeat the command")
    return reply


async def ask(services: Services, member: Member, request: Request, timeout_s: float) -> str:
    """Call a node; returns the text of its reply. Raises as ``call`` does, and OperationRefused if the node
    refuses."""
    reply = await call(services, member, request, timeout_s)
    if not reply.ok:
        raise OperationRefused(f"{member.name}: {reply.text}")
    return reply.text


async def drain(services: Services, name: str) -> Member:
    """Start to drain a node: it moves its streams to the others, and ends. Returns the node."""
    member = named(await services.coordinator().members(), name)
    await ask(services, member, Drain(member.id), services.config.peer_timeout_s)
    return member


async def wait_until_left(services: Services, member: Member, *, read: Reads = at_once) -> None:
    """Wait until a member has left. ``read`` makes each call."""
    while any(other.id == member.id for other in await read(services.coordinator().members)):
        await services.clock.sleep(LOOK_S)
