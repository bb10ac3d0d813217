"""Decides how many nodes an app needs, from two samples of its nodes and queues.

The unit is the work of one node. While nodes have free slots, the need is the busy share of their slots. When
a kind of work is at its limit, busy slots say nothing about the need. The need is then the arrival rate
divided by the throughput of one node, plus the nodes that work off the backlog in :data:`CATCH_UP_S`.
Messages that wait while slots are free wait for something else, such as a limit or the one stream that they
belong to, and more nodes wouldn't help them.

The dead band between ``LOW`` and ``HIGH`` keeps the number stable. A change below a tenth is ignored, as the
autoscaler of Kubernetes does, unless more nodes are needed. How fast the number is followed is not decided
here.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from holdfast.rules.cluster.placement import STREAMS, Load, Member, WorkLoad

LEAST = 1
"""The fewest nodes of an app. Work that is due without a message, such as timers, needs one too."""

LOW, HIGH = 0.70, 0.85
"""Busy shares. Above ``HIGH`` the app needs enough nodes to come down to ``LOW``. It needs fewer nodes only
if the rest stay at ``LOW`` or below."""

TENTH = 0.1

CATCH_UP_S = 120.0
"""Seconds in which the backlog should be worked off."""

LAG_S = 5.0
"""Seconds of backlog from which busy processors count as a limit. Other programs may use the processors
too."""

STEP_S, SPAN_S, STALE_S = 15.0, 60.0, 180.0
"""Seconds between two compared samples: at least ``STEP_S``, at best ``SPAN_S``, at most ``STALE_S``."""

EPSILON = 1e-9


class ClusterSample(NamedTuple):
    """A sample of nodes and queues: its time in monotonic seconds, the living members, and the number of
    ready messages in each queue whose depth is known."""

    at: float
    members: Sequence[Member]
    ready: Mapping[str, int]


class ScalingAdvice(msgspec.Struct, frozen=True):
    """The number of nodes that an app needs. ``nodes`` is the number that it has, without draining ones;
    ``reason`` explains the number to people."""

    app: str
    wanted: int
    nodes: int
    reason: str


class _Need(NamedTuple):
    """The amount of work, in units of one node; ``known`` is False if it may be more."""

    nodes: float
    reason: str
    known: bool = True


class SampleHistory:
    """The samples of the last minute."""

    def __init__(self) -> None:
        self._past: list[ClusterSample] = []

    def add(self, sample: ClusterSample) -> ClusterSample | None:
        """Add a sample; return an earlier one to compare it with, if there is one."""
        self._past = [past for past in self._past if 0.0 <= sample.at - past.at <= STALE_S]
        while len(self._past) > 1 and sample.at - self._past[1].at >= SPAN_S:
            self._past.pop(0)
        before = self._past[0] if self._past and sample.at - self._past[0].at >= STEP_S else None
        if not self._past or sample.at - self._past[-1].at >= STEP_S:
            self._past.append(sample)
        return before


def apps_of(members: Iterable[Member]) -> list[str]:
    """Return the names of the apps that members run, sorted."""
    return sorted({member.load.app for member in members if member.load.app})


def advise(app: str, before: ClusterSample, now: ClusterSample) -> ScalingAdvice:
    """Return how many nodes ``app`` needs. While something is unknown, the number of nodes stays."""
    ours = [member for member in now.members if member.load.app == app and not member.foreign]
    if not ours:
        return ScalingAdvice(app, LEAST, 0, "no node runs")
    living = [member for member in ours if not member.load.draining]
    able = [member for member in living if not member.load.lacks]
    earlier = {member.id: member.load for member in before.members}
    kinds = sorted({work.kind for member in ours for work in member.load.works})
    needs = [_of_kind(kind, ours, earlier, before, now) for kind in kinds]
    unknown = [need.reason for need in needs if not need.known]
    if not kinds:
        unknown.append("its nodes don't report their busy slots")
    if not able:
        unknown.append("no node can load all models")
    if unknown:
        return ScalingAdvice(app, max(LEAST, len(living)), len(living), unknown[0])
    most = max(*needs, _of_room(ours))
    wanted = steady(len(able), most.nodes)
    if kinds == [STREAMS]:  # a stream is on one node
        wanted = min(wanted, max(LEAST, len(able), sum(member.load.streams for member in ours)))
    reason = most.reason
    if lacking := len(living) - len(able):
        # At most doubles the number, in case new nodes can't load the model either.
        wanted += min(lacking, wanted)
        reason += f"; {lacking} nodes can't load a model"
    return ScalingAdvice(app, wanted, len(living), reason)


def steady(nodes: int, need: float) -> int:
    """Return how many nodes an app needs that has ``nodes``, of which ``need`` would be busy all the time.
    The number stays unless the nodes are too few, or too many by more than a tenth."""
    easy = max(LEAST, math.ceil(need / LOW - EPSILON))
    if need > nodes * HIGH + EPSILON:
        return max(easy, math.floor(nodes * (1 + TENTH) + EPSILON) + 1)
    return easy if easy < nodes * (1 - TENTH) - EPSILON else max(LEAST, nodes)


def _of_kind(
    kind: str,
    ours: Sequence[Member],
    earlier: Mapping[str, Load],
    before: ClusterSample,
    now: ClusterSample,
) -> _Need:
    """Return how many nodes one kind of work needs."""
    works = {member.id: work for member in ours for work in member.load.works if work.kind == kind}
    loads = {member.id: member.load for member in ours}
    slots = sum(work.slots for work in works.values())
    reason = f"{kind}: {sum(work.busy for work in works.values()):.1f} of {slots} slots busy"
    need = sum(work.share for work in works.values())
    # New nodes are idle until they get streams, and draining nodes become idle: neither is at its limit.
    measured = {name: _done(kind, work, earlier.get(name)) for name, work in works.items()}
    steady_ones = [name for name, done in measured.items() if done is not None and not loads[name].draining]
    if not steady_ones:
        return _Need(need, f"{kind}: all its nodes are new or draining", known=False)
    queues = {queue for work in works.values() for queue in work.queues}
    if unknown := sorted(queues - (now.ready.keys() & before.ready.keys())):
        return _Need(need, f"{kind}: the depth of queue {unknown[0]!r} is unknown", known=False)
    waiting = sum(now.ready[name] for name in queues)
    grown = waiting - sum(before.ready[name] for name in queues)
    span_s = now.at - before.at
    # A node that has rejoined reports all that its process has ever handled. A node that wasn't in the
    # earlier sample counts with at most the throughput of the best other node.
    most = max(measured[name] or 0 for name in steady_ones)
    done = {
        name: min(most, works[name].handled) if known is None else known for name, known in measured.items()
    }
    done_by_them = max(1, sum(done[name] for name in steady_ones))
    total = max(1, sum(done.values()))  # long tasks end in few samples, and are at work
    lag_s = waiting * span_s / total
    share = sum(works[name].share for name in steady_ones) / len(steady_ones)
    cpu = sum(loads[name].cpu for name in steady_ones) / len(steady_ones)
    if share < HIGH and not (cpu >= HIGH and lag_s >= LAG_S):
        return _Need(need, reason)
    in_use = share if share >= HIGH else cpu
    arrives = max(0.0, total + grown + waiting * span_s / CATCH_UP_S)
    each = max(1.0, slots / len(works))
    need = min(
        arrives * in_use * len(steady_ones) / done_by_them,
        len(works) + waiting / each,  # a message fills one slot
    )
    if kind == STREAMS and any(load.room for load in loads.values()):
        need = min(need, sum(load.streams for load in loads.values()) / each)  # and so does a stream
    return _Need(need, f"{reason}; {waiting} messages wait, which take {lag_s:.0f} s")


def _done(kind: str, work: WorkLoad, before: Load | None) -> int | None:
    """Return how many messages a node has handled since the earlier sample; None if it wasn't in that."""
    works = before.works if before is not None else ()
    past = next((past.handled for past in works if past.kind == kind), None)
    return None if past is None else max(0, work.handled - past)


def _of_room(ours: Iterable[Member]) -> _Need:
    """Return the need that follows from the limit on the streams of a node."""
    loads = [member.load for member in ours]
    streams = sum(load.streams for load in loads)
    need = sum(load.streams / (load.streams + load.room) for load in loads if load.streams)
    return _Need(need, f"streams: {streams}, and nodes have room for {sum(load.room for load in loads)} more")
