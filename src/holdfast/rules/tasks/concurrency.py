"""Shares an app's global limit of concurrent tasks between its nodes, in one document that all nodes may
write.

Each node writes only its own grant, by compare-and-set: what it takes is free in the document that it
replaces. The rules:

- A grant is valid until its member gives it up, or until another member has seen it unchanged for its lease.
  No two clocks are compared: the member counts its lease from before its write was sent, less ``DRIFT``, a
  witness from after it read, plus ``DRIFT``. So clocks may be wrong by any amount, and must only run at the
  same rate, give or take ``DRIFT`` (1 %). Time in which the witness could read nothing doesn't count: while
  the registry doesn't answer, no member counts as dead.
- A member that can't renew doesn't know whether the others can. If the limit is strict, it ends its running
  tasks before its lease is over. If it isn't, they go on, and the limit holds only for tasks that begin.
- Members share by max-min fairness: a member that wants less than an equal share gets what it wants, and the
  others share the rest equally. A member with more than its share, while others want more, begins nothing
  new, and gives back each part of its grant whose task has ended. One member may have all that others leave.
- If there are more members than the limit, the one whose last grant was longest ago is next.

A lower limit applies to all in the same way: nothing new begins until fewer tasks run.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

DRIFT = 0.01
"""The largest difference between the rates of two clocks."""

LOOKS = 3
"""Reads in one lease. A member that reads less often counts less time."""


class Grant(msgspec.Struct, frozen=True):
    """A member's share of the limit.

    It may run ``count`` tasks, and wants to run ``wants``. ``beat`` changes with every renewal, and never has
    the same value twice; the grant is then valid for ``lease_s``. ``turn`` orders members by when their grant
    last became more than 0.
    """

    count: int
    wants: int
    beat: int
    lease_s: float
    turn: int = 0


class ConcurrencyLimits(msgspec.Struct, frozen=True):
    """An app's limits, and the grants of its members. ``maximum`` is how many tasks run at once, ``per_node``
    how many of them on one node; 0: any number. ``strict``: tasks on a member whose grant may have ended are
    ended. ``rates`` are the rates that an operator has set for types, per second."""

    maximum: int = 0
    per_node: int = 0
    grants: dict[str, Grant] = {}
    strict: bool = True
    rates: dict[str, float] = {}


class LimitShare(msgspec.Struct, frozen=True):
    """The document to write, and how many tasks its member may run after that. The number is less than the
    grant while more tasks run than the fair share."""

    limits: ConcurrencyLimits
    granted: int


class _Seen(NamedTuple):
    """A grant, for how long it was seen unchanged, and when it was last seen."""

    grant: Grant
    unchanged_s: float
    at: float


class Witness:
    """Watches which grants are renewed, by the clock of one process. Only time in which it could read the
    document counts: no grant can be renewed while the document is away."""

    def __init__(self) -> None:
        self._seen: dict[str, _Seen] = {}

    def see(self, limits: ConcurrencyLimits, now: float) -> None:
        """Take the document, as it was read before ``now`` (monotonic seconds). Call this after every
        read."""
        before, self._seen = self._seen, {}
        for member, grant in limits.grants.items():
            seen = before.get(member)
            if seen is None or seen.grant.beat != grant.beat:
                self._seen[member] = _Seen(grant, 0.0, now)
            else:
                unseen_s = min(now - seen.at, grant.lease_s / LOOKS)
                self._seen[member] = _Seen(grant, seen.unchanged_s + unseen_s, now)

    def lapsed(self) -> set[str]:
        """Return the members whose grants in the last document have ended."""
        return {
            member
            for member, seen in self._seen.items()
            if seen.unchanged_s > seen.grant.lease_s * (1.0 + DRIFT)
        }


def limit(
    limits: ConcurrencyLimits,
    maximum: int | None = None,
    per_node: int | None = None,
    strict: bool | None = None,
    rates: Mapping[str, float | None] | None = None,
) -> ConcurrencyLimits:
    """Return the document with new limits; None leaves a limit unchanged. A rate that is None is as declared
    again."""
    changed = {"maximum": maximum, "per_node": per_node, "strict": strict}
    limits = replace(limits, **{name: value for name, value in changed.items() if value is not None})
    known = {**limits.rates, **(rates or {})}
    return replace(limits, rates={name: rate for name, rate in known.items() if rate is not None})


def share(
    limits: ConcurrencyLimits,
    member: str,
    wants: int,
    holds: int,
    *,
    lapsed: Collection[str],
    beat: int,
    lease_s: float,
) -> LimitShare:
    """Grant ``member`` of a limited app as many as it may have of the tasks that it ``wants`` to run.

    ``holds`` of its tasks run already, and count until they end. ``lapsed`` grants are removed. ``beat`` and
    ``lease_s`` are for its grant.
    """
    own = limits.grants.get(member)
    others = {name: grant for name, grant in limits.grants.items() if name != member and name not in lapsed}
    held = min(holds, own.count) if own else 0
    wants = _capped(wants, limits)
    if not wants and not held:
        return LimitShare(_with(limits, others), 0)
    turn = own.turn if own else 0
    fair = _fair(
        limits.maximum,
        {(turn, member): wants}
        | {(grant.turn, name): _capped(grant.wants, limits) for name, grant in others.items()},
    )
    free = limits.maximum - sum(grant.count for grant in others.values())
    granted = max(0, min(fair[turn, member], free))
    count = max(granted, held)
    if count and not (own and own.count):
        turn = 1 + max((grant.turn for grant in limits.grants.values()), default=0)
    grant = Grant(count, wants, beat, lease_s, turn)
    return LimitShare(_with(limits, others | {member: grant}), granted)


def leave(limits: ConcurrencyLimits, member: str) -> ConcurrencyLimits:
    """Return the document after a member has given up its grant."""
    return _with(limits, {name: grant for name, grant in limits.grants.items() if name != member})


def others_starve(limits: ConcurrencyLimits, member: str) -> bool:
    """Return True if another member than ``member`` wants more than it has."""
    return any(grant.wants > grant.count for name, grant in limits.grants.items() if name != member)


def _capped(wants: int, limits: ConcurrencyLimits) -> int:
    return min(wants, limits.maximum, limits.per_node or wants)


def _with(limits: ConcurrencyLimits, grants: dict[str, Grant]) -> ConcurrencyLimits:
    return replace(limits, grants=grants)


def _fair(maximum: int, wants: Mapping[tuple[int, str], int]) -> dict[tuple[int, str], int]:
    """Return max-min fair shares in whole numbers ("progressive filling"). The remainder goes to the first in
    order."""
    shares, left = dict.fromkeys(wants, 0), maximum
    hungry = sorted(who for who, wanted in wants.items() if wanted)
    while hungry and left:
        each = max(1, left // len(hungry))
        for who in hungry[:left]:
            given = min(each, wants[who] - shares[who])
            shares[who] += given
            left -= given
        hungry = [who for who in hungry if shares[who] < wants[who]]
    return shares
