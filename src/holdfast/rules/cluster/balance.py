"""Decides how much load to move from hot nodes to others, and which streams to move for it: few and cheap
moves.

There are two steps, so that no node needs to know every stream. From the loads that nodes report,
:func:`plan` says how much load moves from which node to which. Each hot node then chooses streams with that
load, with :func:`streams_to_move`. Source: the greedy rebalancing of sharding services (hottest first, small
gains are ignored, a moved key rests).
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable

import msgspec

from holdfast.rules.cluster.placement import Member

BAND = 0.10
"""A node is hot if its load exceeds the mean by more than this share of the mean."""

GAIN_MIN = 0.01
"""The smallest load that is moved, as a share of the mean."""

OVERSHOOT = 0.10
"""The share by which the chosen streams may exceed the requested load."""

STREAM_LOAD = 0.0005
"""The load of an idle stream, as a share of a slot. It stands for the stream's memory."""

MOVES_MAX = 32
"""The most streams that a node moves away for one request."""

LOAD_COST = 8.0
"""The added cost of a move after which the new owner must load models."""

STATE_BYTES_A_COST = 1 << 20
"""Bytes of state that cost as much to send as the move itself."""


class NodeLoad(msgspec.Struct, frozen=True):
    """A node's load and its capacity, in units of work such as busy slots. ``takes``: it may get more."""

    member: str
    load: float
    capacity: float = 1.0
    takes: bool = True


class Shift(msgspec.Struct, frozen=True):
    """An amount of load to move from one member to another."""

    source: str
    target: str
    amount: float


class StreamLoad(msgspec.Struct, frozen=True):
    """A stream's load in the same units, and the cost of moving it."""

    key: str
    load: float
    cost: float = 1.0


class Movable(msgspec.Struct, frozen=True):
    """An owned stream that may be moved. ``since``: the monotonic time from which it is owned here.
    ``stays``: it is already leaving, or waits for a missing message."""

    key: str
    load: float
    since: float
    stays: bool = False
    has_models: bool = False
    state_bytes: int = 0
    state_version: int = 0


def plan(nodes: Iterable[NodeLoad], most: int) -> list[Shift]:
    """Return up to ``most`` shifts that bring hot nodes to the mean: hottest node first, each to the coldest.
    Empty while no node is hot."""
    known = [node for node in nodes if node.capacity > 0]
    total, capacity = sum(node.load for node in known), sum(node.capacity for node in known)
    if len(known) < 2 or total <= 0:
        return []
    mean = total / capacity
    excess = {node.member: node.load - mean * node.capacity for node in known}
    hot = [(-excess[n.member], n.member) for n in known if excess[n.member] > BAND * mean * n.capacity]
    cold = [(excess[n.member], n.member) for n in known if n.takes and excess[n.member] < 0]
    heapq.heapify(hot)
    heapq.heapify(cold)
    shifts: list[Shift] = []
    least = GAIN_MIN * total / len(known)
    while hot and cold and len(shifts) < most:
        over, source = heapq.heappop(hot)
        under, target = heapq.heappop(cold)
        amount = min(-over, -under)
        if amount < least:
            break
        shifts.append(Shift(source, target, amount))
        if -over - amount >= least:
            heapq.heappush(hot, (over + amount, source))
        if -under - amount >= least:
            heapq.heappush(cold, (under + amount, target))
    return shifts


def pick(streams: Iterable[StreamLoad], amount: float, most: int) -> list[StreamLoad]:
    """Return up to ``most`` streams whose loads add up to about ``amount``, the most load for its cost first.
    A stream with more load than ``amount`` stays, because it would only make another node hot."""
    left = amount * (1 + OVERSHOOT)
    picked: list[StreamLoad] = []
    for stream in sorted(streams, key=lambda s: (-s.load / s.cost, s.key)):
        if len(picked) == most or left <= amount * OVERSHOOT:
            break
        if 0 < stream.load <= left:
            picked.append(stream)
            left -= stream.load
    return picked


def streams_to_move(
    streams: Iterable[Movable],
    amount: float,
    target: Member | None,
    acting: Collection[str],
    rested: float,
) -> list[str]:
    """Return the keys of streams whose loads add up to about ``amount``, among streams that the target may
    own. Streams that moved here after ``rested`` stay. ``acting`` names the streams that send effects or set
    timers."""
    loads = [
        StreamLoad(stream.key, stream.load, cost(stream, target))
        for stream in streams
        if stream.since <= rested
        and not stream.stays
        and (target is None or target.load.takes(stream.key, acting, stream.state_version))
    ]
    return [stream.key for stream in pick(loads, amount, MOVES_MAX)]


def cost(stream: Movable, target: Member | None) -> float:
    """Return the cost of moving a stream: its handler opens again, models may have to be loaded, and its
    state is sent."""
    is_cold = stream.has_models and target is not None and not target.load.is_warm(stream.key)
    return 1.0 + (LOAD_COST if is_cold else 0.0) + stream.state_bytes / STATE_BYTES_A_COST
