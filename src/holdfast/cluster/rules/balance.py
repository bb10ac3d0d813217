"""Which load to bring from hot nodes to others, and which streams make it up: the least and cheapest moves.

Two steps, so that nobody needs to know every stream. From what nodes tell of themselves, :func:`plan` says
how much goes from where to where; each hot node then picks streams that add up to that, with :func:`pick`.
Source of the shape: the greedy rebalancing of sharding services (hottest first, what gains little is left
alone, a key that was moved rests).
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable

import msgspec

BAND = 0.10
"""A node is hot above the mean by more than this share of it."""

GAIN_MIN = 0.01
"""Shifts below this share of the mean are not worth a move."""

OVERSHOOT = 0.10
"""How much more than asked for a pick may add up to."""


STREAM_LOAD = 0.0005
"""What a stream weighs that has nothing to do, as a share of a slot: its memory."""


class NodeLoad(msgspec.Struct, frozen=True):
    """A node's load in units of work, such as busy slots, and what it could bear."""

    member: str
    load: float
    capacity: float = 1.0


class Shift(msgspec.Struct, frozen=True):
    """Bring so much load from one member to another."""

    source: str
    target: str
    amount: float


class StreamLoad(msgspec.Struct, frozen=True):
    """A stream's load in the same units, and what it costs to move: state to send, model to load."""

    key: str
    load: float
    cost: float = 1.0


def plan(nodes: Iterable[NodeLoad], most: int) -> list[Shift]:
    """Up to ``most`` shifts that bring hot nodes to the mean, hottest first, each to the coldest there is.
    Empty while every node is within the band."""
    known = [node for node in nodes if node.capacity > 0]
    total, capacity = sum(node.load for node in known), sum(node.capacity for node in known)
    if len(known) < 2 or total <= 0:
        return []
    mean = total / capacity
    excess = {node.member: node.load - mean * node.capacity for node in known}
    hot = [(-excess[n.member], n.member) for n in known if excess[n.member] > BAND * mean * n.capacity]
    cold = [(excess[n.member], n.member) for n in known if excess[n.member] < 0]
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
    """Up to ``most`` streams whose loads add up to about ``amount``, those that bring most for their cost
    first. A stream that is hotter than the whole amount stays: it would only make another node hot."""
    left = amount * (1 + OVERSHOOT)
    picked: list[StreamLoad] = []
    for stream in sorted(streams, key=lambda s: (-s.load / s.cost, s.key)):
        if len(picked) == most or left <= amount * OVERSHOOT:
            break
        if 0 < stream.load <= left:
            picked.append(stream)
            left -= stream.load
    return picked
