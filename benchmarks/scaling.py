"""A day of cameras on nodes that come and go as the rule of nodes wanted says, faster than the day: how soon
nodes follow the traffic, whether they flap, and what they cost against a fixed number for the peak.

Cameras send fewer frames at night, and five times as many for half an hour of the evening. The rule sees
what it sees of a real cluster: the slots that are busy, what was handled, and what waits in the queue. An
autoscaler follows it as the one of the Helm chart does: up at once, to twice the nodes in 15 s at most; down
by one node in two minutes, to the highest number that was wanted in ten; what differs by a tenth is ignored.
A node that was asked for handles frames 45 s later.

Run as ``python -m benchmarks.scaling``.
"""

from __future__ import annotations

import argparse
import math
from collections import deque
from collections.abc import Callable, Iterator
from itertools import pairwise
from random import Random
from typing import NamedTuple

from benchmarks.report import Report
from holdfast.rules.cluster.placement import STREAMS, Load, Member, WorkLoad
from holdfast.rules.cluster.scaling import LOW, Glance, Looks, wish

DAY_S = 86_400.0
STEP_S = 5.0
LOOK_S = 15.0
"""How often the autoscaler reads the metric."""

SLOTS = 4
SECONDS_A_FRAME = 0.02
START_S = 45.0
"""From the wish for a node until it handles frames: image, process, model, streams."""

DOWN_EVERY_S, DOWN_WINDOW_S = 120.0, 600.0
TOLERANCE = 0.1
"""Kubernetes ignores a wish that differs by no more than this share of the nodes."""

FRAMES_A_CAMERA = 1.0
NIGHT, BURST = 0.2, 5.0
BURST_AT_S, BURST_FOR_S = 19 * 3600.0, 1800.0
NOISE = 0.05
FLAP_S = 900.0
"""Nodes that go and are asked for again within this time went for nothing."""

QUEUE = "frames"
TARGETS = {
    "follow_s": "<= 300",
    "below_need_s": "<= 300",
    "flaps": "<= 0",
    "vs_fixed": "<= 0.5",
}


class Moment(NamedTuple):
    """The cluster at one moment: nodes that handle frames, those that were asked for, frames a second that
    come, and frames that wait."""

    at: float
    ready: int
    asked: int
    comes: float
    waiting: float


def traffic(at: float) -> float:
    """Return how many frames a camera sends a second: little at night, most at noon, and a burst."""
    day = 0.5 - 0.5 * math.cos(2 * math.pi * at / DAY_S)
    usual = FRAMES_A_CAMERA * (NIGHT + (1 - NIGHT) * day)
    return usual * (BURST if BURST_AT_S <= at < BURST_AT_S + BURST_FOR_S else 1.0)


class Node:
    """A node that handles frames from ``ready_at`` on."""

    def __init__(self, name: str, ready_at: float) -> None:
        self.name = name
        self.ready_at = ready_at
        self.busy = 0.0
        self.handled = 0.0

    def member(self, streams: int) -> Member:
        """What the node reports of itself."""
        work = WorkLoad(STREAMS, SLOTS, self.busy, int(self.handled), (QUEUE,))
        load = Load(streams=streams, slots=SLOTS, cpu=self.busy / SLOTS, app="cameras", works=(work,))
        return Member(self.name, self.name, "", load)


class Autoscaler:
    """Follows the wish as Kubernetes' does with the settings of the chart."""

    def __init__(self) -> None:
        self._wishes: deque[tuple[float, int]] = deque()
        self._down_at = -math.inf

    def follow(self, nodes: int, wanted: int, now: float) -> int:
        """Return how many nodes there are to be."""
        if abs(wanted - nodes) <= TOLERANCE * nodes:
            wanted = nodes
        self._wishes.append((now, wanted))
        while self._wishes[0][0] < now - DOWN_WINDOW_S:
            self._wishes.popleft()
        if wanted > nodes:
            return min(wanted, max(2 * nodes, nodes + 4))
        highest = max(number for _, number in self._wishes)
        if highest < nodes and now - self._down_at >= DOWN_EVERY_S:
            self._down_at = now
            return nodes - 1
        return nodes


def day(cameras: int, arrivals: Callable[[float], float], hours: float, seed: int) -> Iterator[Moment]:
    """Live through a day; the first nodes are those that the first hour needs."""
    random, autoscaler, looks = Random(seed), Autoscaler(), Looks()
    each_s = SLOTS / SECONDS_A_FRAME
    number = math.ceil(cameras * arrivals(0.0) / each_s / LOW)
    nodes = [Node(f"n{index}", 0.0) for index in range(number)]
    made, waiting, at, looked_at = number, 0.0, 0.0, -math.inf
    while at < hours * 3600:
        comes = cameras * arrivals(at) * random.uniform(1 - NOISE, 1 + NOISE)
        ready = [node for node in nodes if node.ready_at <= at]
        done = min(waiting + comes * STEP_S, len(ready) * each_s * STEP_S)
        waiting += comes * STEP_S - done
        for node in ready:
            node.busy = SLOTS * done / (len(ready) * each_s * STEP_S)
            node.handled += done / len(ready)
        if at - looked_at >= LOOK_S:
            looked_at = at
            members = [node.member(cameras // len(ready)) for node in ready]
            now = Glance(at, members, {QUEUE: int(waiting)})
            if (before := looks.add(now)) is not None:
                wanted = wish("cameras", before, now).wanted
                target = autoscaler.follow(len(nodes), wanted, at)
                for _ in range(target - len(nodes)):
                    nodes.append(Node(f"n{made}", at + START_S))
                    made += 1
                del nodes[target:]
        yield Moment(at, len(ready), len(nodes), comes, waiting)
        at += STEP_S


def longest_s(moments: list[Moment], holds: Callable[[Moment], bool]) -> float:
    """Return the longest time without a break in which it holds."""
    longest = run = 0
    for moment in moments:
        run = run + 1 if holds(moment) else 0
        longest = max(longest, run)
    return longest * STEP_S


def flaps(moments: list[Moment]) -> int:
    """Return how often a node went and one was asked for again soon after."""
    count, went_at = 0, -math.inf
    for before, after in pairwise(moments):
        if after.asked < before.asked:
            went_at = after.at
        elif after.asked > before.asked and after.at - went_at < FLAP_S:
            if not BURST_AT_S <= after.at < BURST_AT_S + FLAP_S:  # nobody can know of it before
                count += 1
            went_at = -math.inf
    return count


def main() -> None:
    """Simulate and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cameras", type=int, default=10_000)
    parser.add_argument("--hours", type=float, default=24.0, help="how much of the day")
    parser.add_argument("--full", action="store_true", help="three days of other noise; the worst counts")
    given = parser.parse_args()
    each_s = SLOTS / SECONDS_A_FRAME
    report = Report("scaling")
    report.say(f"a day of {given.cameras:,} cameras; a node handles {each_s:g} frames a second")
    days = [list(day(given.cameras, traffic, given.hours, seed)) for seed in range(3 if given.full else 1)]
    figures = dict.fromkeys((*TARGETS, "vs_ideal", "waits_max_s"), 0.0)
    for moments in days:
        burst = [moment for moment in moments if BURST_AT_S <= moment.at < BURST_AT_S + BURST_FOR_S]
        short = [moment.at for moment in burst if moment.ready * each_s < moment.comes]
        hours = sum(moment.asked for moment in moments) * STEP_S / 3600
        peak = max(math.ceil(moment.comes / each_s / LOW) for moment in moments)
        ideal = sum(moment.comes / each_s / LOW for moment in moments) * STEP_S / 3600
        found = {
            "follow_s": max(short, default=BURST_AT_S) - BURST_AT_S,
            "below_need_s": longest_s(moments, lambda moment: moment.ready * each_s < moment.comes),
            "flaps": flaps(moments),
            "vs_fixed": hours / (peak * len(moments) * STEP_S / 3600),
            "vs_ideal": hours / ideal,
            "waits_max_s": max(moment.waiting / (moment.ready * each_s) for moment in moments),
        }
        figures = {name: max(figures[name], value) for name, value in found.items()}
    for name, value in figures.items():
        report.figure(name, value, TARGETS.get(name, ""))
    asked = [moment.asked for moment in days[0]]
    report.end(
        durability="nothing is stored: the rule alone, on a model of nodes",
        nodes_least=min(asked),
        nodes_most=max(asked),
        slots=SLOTS,
        start_s=START_S,
    )


if __name__ == "__main__":
    main()
