"""Sharing an app's global maximum of concurrent tasks between its nodes, in one document that all may write.

Each node writes its own grant, and by compare-and-set only: what it takes is free in the very document that
it replaces. The rules:

- A grant counts until its member gives it up, or until whoever wants it has seen it unchanged for its lease.
  No two clocks are compared: the member counts its lease from before its write was sent, less ``DRIFT``, a
  witness from after it read, plus ``DRIFT``. So clocks may be wrong by any amount, and must only run at the
  same rate, give or take ``DRIFT`` (1 %). Time in which the witness could read nothing doesn't count: while
  the registry is away nobody is taken for dead.
- A member that can't renew doesn't know whether the others can. Where the maximum is strict, it ends what
  runs before its lease is over; where it isn't, that runs on, and the maximum holds for what begins.
- Members share by max-min fairness: who wants less than an equal share gets what it wants, the rest is shared
  equally by the others. Who has more than that while others want starts nothing new, and gives up what no
  task of its runs on any more. What nobody else wants may be had by one.
- Where there are more members than permits, who had one longest ago is the next.

A lower maximum takes from everybody in the same way: nothing new begins until fewer run.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

DRIFT = 0.01
"""How much faster than another a clock may run."""

LOOKS = 3
"""In a lease: who looks less often counts less time."""


class Grant(msgspec.Struct, frozen=True):
    """What a member may use of the maximum.

    ``count`` permits are its own, ``wants`` would be enough for it. ``beat`` changes with every renewal,
    never to one that it had; the grant then counts for ``lease_s``. ``turn`` orders members by when they got
    from none to some.
    """

    count: int
    wants: int
    beat: int
    lease_s: float
    turn: int = 0


class Permits(msgspec.Struct, frozen=True):
    """An app's limits, and who has what of them. ``maximum`` is of tasks that run at once, ``per_node`` of
    those on one node; 0 is no limit. ``strict``: what runs on a member whose grant may count no more is
    ended."""

    maximum: int = 0
    per_node: int = 0
    grants: dict[str, Grant] = {}
    strict: bool = True


class PermitShare(msgspec.Struct, frozen=True):
    """What a member gets: the document to write, and how many tasks may run once it is written. That is less
    than its grant while tasks run that it should not begin again."""

    permits: Permits
    granted: int


class _Seen(NamedTuple):
    """A grant, for how long it has been seen unchanged, and when last."""

    grant: Grant
    unchanged_s: float
    at: float


class Witness:
    """Sees which grants are renewed, by the clock of one process.

    Only time in which it looked counts: while nobody can reach the document, nobody can renew either."""

    def __init__(self) -> None:
        self._seen: dict[str, _Seen] = {}

    def see(self, permits: Permits, now: float) -> None:
        """The document as it was read before ``now`` (monotonic seconds). To be told of every reading."""
        before, self._seen = self._seen, {}
        for member, grant in permits.grants.items():
            seen = before.get(member)
            if seen is None or seen.grant.beat != grant.beat:
                self._seen[member] = _Seen(grant, 0.0, now)
            else:
                unseen_s = min(now - seen.at, grant.lease_s / LOOKS)
                self._seen[member] = _Seen(grant, seen.unchanged_s + unseen_s, now)

    def lapsed(self) -> set[str]:
        """Whose grants in the document seen last count no more."""
        return {
            member
            for member, seen in self._seen.items()
            if seen.unchanged_s > seen.grant.lease_s * (1.0 + DRIFT)
        }


def limit(
    permits: Permits, maximum: int | None = None, per_node: int | None = None, strict: bool | None = None
) -> Permits:
    """The document with other limits; None leaves one as it is."""
    changed = {"maximum": maximum, "per_node": per_node, "strict": strict}
    return replace(permits, **{name: value for name, value in changed.items() if value is not None})


def share(
    permits: Permits,
    member: str,
    wants: int,
    holds: int,
    *,
    lapsed: Collection[str],
    beat: int,
    lease_s: float,
) -> PermitShare:
    """Give ``member`` of a limited app as many permits as it may have of those it ``wants``.

    ``holds`` of its tasks run, which it can't give up before they end; ``lapsed`` grants are dropped.
    ``beat`` and ``lease_s`` are its grant's.
    """
    own = permits.grants.get(member)
    others = {name: grant for name, grant in permits.grants.items() if name != member and name not in lapsed}
    held = min(holds, own.count) if own else 0
    wants = _capped(wants, permits)
    if not wants and not held:
        return PermitShare(_with(permits, others), 0)
    turn = own.turn if own else 0
    fair = _fair(
        permits.maximum,
        {(turn, member): wants}
        | {(grant.turn, name): _capped(grant.wants, permits) for name, grant in others.items()},
    )
    free = permits.maximum - sum(grant.count for grant in others.values())
    granted = max(0, min(fair[turn, member], free))
    count = max(granted, held)
    if count and not (own and own.count):
        turn = 1 + max((grant.turn for grant in permits.grants.values()), default=0)
    grant = Grant(count, wants, beat, lease_s, turn)
    return PermitShare(_with(permits, others | {member: grant}), granted)


def leave(permits: Permits, member: str) -> Permits:
    """The document after a member has given up what it had."""
    return _with(permits, {name: grant for name, grant in permits.grants.items() if name != member})


def others_starve(permits: Permits, member: str) -> bool:
    """True if somebody else than ``member`` wants more than it has."""
    return any(grant.wants > grant.count for name, grant in permits.grants.items() if name != member)


def _capped(wants: int, permits: Permits) -> int:
    return min(wants, permits.maximum, permits.per_node or wants)


def _with(permits: Permits, grants: dict[str, Grant]) -> Permits:
    return replace(permits, grants=grants)


def _fair(maximum: int, wants: Mapping[tuple[int, str], int]) -> dict[tuple[int, str], int]:
    """Max-min fair shares in whole numbers ("progressive filling"); what can't be split goes to the first in
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
