"""Chooses which streams leave a node that is asked to shed load, and which must leave because it can't run
them."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import msgspec

from holdfast.rules.cluster.balance import StreamLoad, pick
from holdfast.rules.cluster.placement import Member

MOVES_MAX = 32
"""The most streams that a node moves away for one request to shed load."""

LOAD_COST = 8.0
"""The added cost of a move after which the new owner must load models."""

STATE_BYTES_A_COST = 1 << 20
"""How many bytes of state cost as much to send as the move itself."""


class Movable(msgspec.Struct, frozen=True):
    """An owned stream that may be moved. ``since`` is since when it is owned here, in monotonic seconds.
    ``stays``: it is about to leave already, or waits for a missing message."""

    key: str
    load: float
    since: float
    stays: bool = False
    has_models: bool = False
    state_bytes: int = 0
    state_version: int = 0


def to_shed(
    streams: Iterable[Movable],
    amount: float,
    target: Member | None,
    acting: Collection[str],
    rested: float,
) -> list[str]:
    """Return the keys of streams that make up a load, as far as the target may take them. Streams that moved
    here after ``rested`` stay. ``acting`` names the streams that send effects or set timers."""
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


def takers(stream: str, members: Iterable[Member], acting: Collection[str], *, but: str = "") -> list[Member]:
    """Return the members, without ``but``, that can own streams of that name."""
    return [
        member
        for member in members
        if member.id != but and not member.foreign and member.load.takes(f"{stream}/", acting)
    ]
