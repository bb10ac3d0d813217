"""``holdfast move``, ``drain`` and ``why``: where streams are, and bringing them elsewhere."""

from __future__ import annotations

from typing import Annotated

import msgspec
from cyclopts import Parameter

from holdfast.cli import output
from holdfast.cli.options import DEFAULTS, Json, Options
from holdfast.core.balance import BAND
from holdfast.errors import OperationRefused
from holdfast.ports.coordinator import Member
from holdfast.protocol.peer import Done, Drain, Explain, Move, Request
from holdfast.runtime.balancer import node_load
from holdfast.wiring import Services

Key = Annotated[str, Parameter(help="The full key: STREAM/KEY.", show_default=False)]
LOOK_S = 0.2


async def move(key: Key, /, *, to: str, options: Options = DEFAULTS) -> None:
    """Bring a stream to another node. It warms up there first; nothing waits meanwhile.

    ```
    holdfast move frames/cam-1 --to node-2
    ```

    Args:
        to: Name of the node, or its membership.
    """
    async with Services(options.load(), reads_only=True) as services:
        members = await services.coordinator().members()
        target, owner = _named(members, to), await _owner(services, members, key)
        if target.id == owner.id:
            output.say(f"{key} is on {target.name} already")
            return
        request = Move(owner.id, key.partition("/")[0], key, target.id)
        timeout_s = services.config.move_timeout_s * 2 + services.config.model_timeout_s
        await _ask(services, owner, request, timeout_s)
        output.say(f"{key} moves from {owner.name} to {target.name}")


async def drain(
    node: Annotated[str, Parameter(show_default=False)], /, *, options: Options = DEFAULTS
) -> None:
    """Have a node bring all its streams to the others and end, and wait for it.

    ```
    holdfast drain node-2
    ```

    Args:
        node: Name of the node, or its membership.
    """
    async with Services(options.load(), reads_only=True) as services:
        member = _named(await services.coordinator().members(), node)
        await _ask(services, member, Drain(member.id), services.config.peer_timeout_s)
        output.say(f"{member.name} drains")
        while any(other.id == member.id for other in await services.coordinator().members()):
            await services.clock.sleep(LOOK_S)
        output.say(f"{member.name} has left")


class Why(msgspec.Struct):
    """Where a stream is, and what speaks for its staying there. Loads are in busy slots."""

    key: str
    node: str
    epoch: int
    here_s: float
    busy: float
    node_load: float
    mean_load: float
    reasons: list[str]


async def why(key: Key, /, *, json: Json = False, options: Options = DEFAULTS) -> None:
    """Tell why a stream is where it is, and why it isn't moving.

    ```
    holdfast why frames/cam-1
    ```

    Args:
        json: Print one JSON object.
    """
    async with Services(options.load(), reads_only=True) as services:
        members = await services.coordinator().members()
        owner = await _owner(services, members, key)
        request = Explain(owner.id, key.partition("/")[0], key)
        told = msgspec.json.decode(await _ask(services, owner, request, services.config.peer_timeout_s))
        checkpoint = await services.state().peek(key)
        known = [node_load(member) for member in members if not member.load.draining]
        capacity = sum(node.capacity for node in known) or 1.0
        here = node_load(owner)
        found = Why(
            key=key,
            node=owner.name,
            epoch=checkpoint.epoch if checkpoint else 0,
            here_s=told["here_s"],
            busy=told["busy"],
            node_load=here.load,
            mean_load=sum(node.load for node in known) / capacity * here.capacity,
            reasons=[],
        )
        found.reasons = reasons(found, told["rests_s"], told["parked"], len(known))
        if json:
            output.json_line(found)
            return
        output.say(f"{key} is on {found.node} since {found.here_s:.0f} s, epoch {found.epoch}")
        output.say(
            f"it keeps {found.busy:.3f} slots busy; its node {found.node_load:.2f},"
            f" the mean for a node of that size {found.mean_load:.2f}"
        )
        for reason in found.reasons:
            output.say(f"- {reason}")


def reasons(found: Why, rests_s: float, parked: str, nodes: int) -> list[str]:
    """Why the stream isn't moving."""
    said = []
    excess = found.node_load - found.mean_load
    if nodes < 2:
        said.append("there is no other node")
    if parked:
        said.append(f"it is parked: {parked}")
    if rests_s > 0:
        said.append(f"it came lately and rests for another {rests_s:.0f} s (rest_s)")
    if excess <= BAND * found.mean_load:
        said.append(f"its node is not hot: no more than {BAND:.0%} over the mean")
    elif found.busy > excess:
        said.append("it is hotter than all that its node has over the mean: moving it would heat another")
    if not said:
        said.append("it may be moved at the next round of the balancer, if it is the cheapest for its load")
    return said


def _named(members: list[Member], name: str) -> Member:
    for member in members:
        if name in (member.name, member.id):
            return member
    known = ", ".join(sorted(member.name for member in members)) or "none"
    raise OperationRefused(f"no node is called {name!r}; there are: {known}")


async def _owner(services: Services, members: list[Member], key: str) -> Member:
    claim = await services.coordinator().lookup(key)
    for member in members:
        if claim is not None and member.id == claim.member:
            return member
    raise OperationRefused(f"{key} is owned by no node at present; the next message will place it")


async def _ask(services: Services, member: Member, request: Request, timeout_s: float) -> str:
    """Ask a node; returns the text of its reply."""
    reply = await services.peer().call(member.address, request, timeout_s)
    if not isinstance(reply, Done):
        raise OperationRefused(f"{member.name} has just joined anew; ask again")
    if not reply.ok:
        raise OperationRefused(f"{member.name}: {reply.text}")
    return reply.text
