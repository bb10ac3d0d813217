"""Decides how much load to move from hot nodes to others, and which streams to move for it: few and cheap
moves.

There are two steps, so that no node needs to know every stream. From the loads that nodes report,
:func:`plan` says how much moves from which node to which. Each hot node then chooses streams that add up to
that, with :func:`pick`. Source of the shape: the greedy rebalancing of sharding services (hottest first, what
gains little is left alone, a key that was moved rests).
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable

import msgspec

BAND = 0.10
"""A node is hot if its load exceeds the mean by more than this share of the mean."""

GAIN_MIN = 0.01
"""Less load than this share of the mean isn't moved."""

OVERSHOOT = 0.10
"""By what share the chosen streams may exceed the load that was asked for."""


STREAM_LOAD = 0.0005
"""The load of a stream that has nothing to do, as a share of a slot. It stands for the stream's memory."""


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
    """A stream's load in the same units, and the cost of moving it: state to send, models to load."""

    key: str
    load: float
    cost: float = 1.0


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
    """Return up to ``most`` streams whose loads add up to about ``amount``, those with the most load for
    their cost first. A stream with more load than ``amount`` stays, because it would only make another node
    hot."""
    left = amount * (1 + OVERSHOOT)
    picked: list[StreamLoad] = []
    for stream in sorted(streams, key=lambda s: (-s.load / s.cost, s.key)):
        if len(picked) == most or left <= amount * OVERSHOOT:
            break
        if 0 < stream.load <= left:
            picked.append(stream)
            left -= stream.load
    return picked
