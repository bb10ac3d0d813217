"""Decides how many nodes an app wants, from two looks at its nodes and queues.

The unit is the work of one node. While nodes have time to spare, the need is the part of their slots that is
busy. Once a kind of work is at its limit, busy slots say no more than that: then the need is what comes, by
what one node gets done, and what waits, so that it is done in :data:`CATCH_UP_S`. Messages that wait while
slots are free wait for something else, such as a limit or the one stream that they are of, and more nodes
would not help them.

Source of the two shares: control with a dead band. Between ``LOW`` and ``HIGH`` the number stays. It is told
beyond a tenth, as the autoscaler of Kubernetes ignores less, and never below what is needed. How fast to
follow is for whoever follows.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from holdfast.rules.cluster.placement import STREAMS, Load, Member, WorkLoad

LEAST = 1
"""The fewest nodes that are wanted. What is due without a message, such as timers, needs one too."""

LOW, HIGH = 0.70, 0.85
"""More nodes are wanted when a larger share than ``HIGH`` is in use, and then so many that it is ``LOW``.
Fewer are wanted only if the rest have at most ``LOW`` in use."""

TENTH = 0.1

CATCH_UP_S = 120.0
"""In what time that which waits should be done."""

LAG_S = 5.0
"""Processors that are busy are a limit only if so much work waits: others may use them too."""

STEP_S, SPAN_S, STALE_S = 15.0, 60.0, 180.0
"""Two looks are compared if they are at least ``STEP_S`` apart, best ``SPAN_S``, and at most ``STALE_S``."""

EPSILON = 1e-9


class Glance(NamedTuple):
    """A look at nodes and queues: its time in seconds of a monotonic clock, the living members, and how many
    messages are ready in each queue whose depth is known."""

    at: float
    members: Sequence[Member]
    ready: Mapping[str, int]


class NodeWish(msgspec.Struct, frozen=True):
    """The number of nodes that an app wants. ``nodes`` is how many it has, without those that drain;
    ``reason`` says in words what the number comes from."""

    app: str
    wanted: int
    nodes: int
    reason: str


class _Need(NamedTuple):
    """The amount of work, in units of what one node can do; ``known`` is False if it may be more."""

    nodes: float
    reason: str
    known: bool = True


class Looks:
    """The looks of the last minute."""

    def __init__(self) -> None:
        self._past: list[Glance] = []

    def add(self, look: Glance) -> Glance | None:
        """Take a look; returns an earlier one to compare it with, if there is one."""
        self._past = [past for past in self._past if 0.0 <= look.at - past.at <= STALE_S]
        while len(self._past) > 1 and look.at - self._past[1].at >= SPAN_S:
            self._past.pop(0)
        before = self._past[0] if self._past and look.at - self._past[0].at >= STEP_S else None
        if not self._past or look.at - self._past[-1].at >= STEP_S:
            self._past.append(look)
        return before


def apps_of(members: Iterable[Member]) -> list[str]:
    """Return the names of the apps that members run, sorted."""
    return sorted({member.load.app for member in members if member.load.app})


def wish(app: str, before: Glance, now: Glance) -> NodeWish:
    """Return how many nodes ``app`` wants. What isn't known changes nothing: the number of nodes stays."""
    ours = [member for member in now.members if member.load.app == app and not member.foreign]
    if not ours:
        return NodeWish(app, LEAST, 0, "no node lives")
    living = [member for member in ours if not member.load.draining]
    able = [member for member in living if not member.load.lacks]
    earlier = {member.id: member.load for member in before.members}
    kinds = sorted({work.kind for member in ours for work in member.load.works})
    needs = [_of_kind(kind, ours, earlier, before, now) for kind in kinds]
    unknown = [need.reason for need in needs if not need.known]
    if not kinds:
        unknown.append("its nodes don't tell how busy they are")
    if not able:
        unknown.append("no node can load all models")
    if unknown:
        return NodeWish(app, max(LEAST, len(living)), len(living), unknown[0])
    most = max(*needs, _of_room(ours))
    wanted = steady(len(able), most.nodes)
    if kinds == [STREAMS]:  # a stream is on one node
        wanted = min(wanted, max(LEAST, len(able), sum(member.load.streams for member in ours)))
    reason = most.reason
    if lacking := len(living) - len(able):
        # At most doubles the number, in case new nodes can't load it either.
        wanted += min(lacking, wanted)
        reason += f"; {lacking} nodes can't load a model"
    return NodeWish(app, wanted, len(living), reason)


def steady(nodes: int, need: float) -> int:
    """Return how many nodes are wanted where ``nodes`` are at work and ``need`` would be busy all the time:
    as many as there are, unless they are too few, or too many by more than a tenth."""
    easy = max(LEAST, math.ceil(need / LOW - EPSILON))
    if need > nodes * HIGH + EPSILON:
        return max(easy, math.floor(nodes * (1 + TENTH) + EPSILON) + 1)
    return easy if easy < nodes * (1 - TENTH) - EPSILON else max(LEAST, nodes)


def _of_kind(
    kind: str, ours: Sequence[Member], earlier: Mapping[str, Load], before: Glance, now: Glance
) -> _Need:
    """The need of one kind of work."""
    works = {member.id: work for member in ours for work in member.load.works if work.kind == kind}
    loads = {member.id: member.load for member in ours}
    slots = sum(work.slots for work in works.values())
    said = f"{kind}: {sum(work.busy for work in works.values()):.1f} of {slots} slots busy"
    need = sum(work.share for work in works.values())
    # A node that has just come is idle until streams are brought there, and one that drains is idle soon:
    # both say nothing of a limit.
    measured = {name: _done(kind, work, earlier.get(name)) for name, work in works.items()}
    steady_ones = [name for name, done in measured.items() if done is not None and not loads[name].draining]
    if not steady_ones:
        return _Need(need, f"{kind}: its nodes have just come, or go", known=False)
    queues = {queue for work in works.values() for queue in work.queues}
    if silent := sorted(queues - (now.ready.keys() & before.ready.keys())):
        return _Need(need, f"{kind}: queue {silent[0]!r} doesn't tell how much waits", known=False)
    waiting, grown = (
        sum(now.ready[name] for name in queues),
        sum(now.ready[name] - before.ready[name] for name in queues),
    )
    span_s = now.at - before.at
    # A node that has rejoined tells what its process has handled since it began, perhaps days ago: one that
    # wasn't seen before counts with no more than another got done.
    most = max(measured[name] or 0 for name in steady_ones)
    done = {
        name: min(most, works[name].handled) if known is None else known for name, known in measured.items()
    }
    done_by_them = max(1, sum(done[name] for name in steady_ones))
    total = max(1, sum(done.values()))  # long tasks end in none of many looks, and are at work
    lag_s = waiting * span_s / total
    share = sum(works[name].share for name in steady_ones) / len(steady_ones)
    cpu = sum(loads[name].cpu for name in steady_ones) / len(steady_ones)
    if share < HIGH and not (cpu >= HIGH and lag_s >= LAG_S):
        return _Need(need, said)
    in_use = share if share >= HIGH else cpu
    comes = max(0.0, total + grown + waiting * span_s / CATCH_UP_S)
    each = max(1.0, slots / len(works))
    need = min(
        comes * in_use * len(steady_ones) / done_by_them,
        len(works) + waiting / each,  # a message fills one slot
    )
    if kind == STREAMS and any(load.room for load in loads.values()):
        need = min(need, sum(load.streams for load in loads.values()) / each)  # and so does a stream
    return _Need(need, f"{said}; {waiting} messages wait, which take {lag_s:.0f} s")


def _done(kind: str, work: WorkLoad, before: Load | None) -> int | None:
    """Return how many messages a node has handled in this kind of work since it was seen before; None if it
    wasn't."""
    works = before.works if before is not None else ()
    past = next((past.handled for past in works if past.kind == kind), None)
    return None if past is None else max(0, work.handled - past)


def _of_room(ours: Iterable[Member]) -> _Need:
    """The need by how many streams a node holds at most."""
    loads = [member.load for member in ours]
    streams = sum(load.streams for load in loads)
    need = sum(load.streams / (load.streams + load.room) for load in loads if load.streams)
    return _Need(need, f"streams: {streams}, and nodes have room for {sum(load.room for load in loads)} more")
