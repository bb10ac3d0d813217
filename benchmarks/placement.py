"""The placement code alone, on simulated nodes: how even many streams of very different load end up, after
how many moves, and how long a decision takes.

Run as ``python -m benchmarks.placement``.
"""

from __future__ import annotations

import argparse
import heapq
import time
from array import array
from collections.abc import Iterable
from random import Random

from benchmarks.report import Report, percentile
from holdfast.rules.cluster.balance import NodeLoad, StreamLoad, pick, plan
from holdfast.rules.cluster.placement import Load, Member, choose

SEED = 1
SHIFTS_A_ROUND = 200
KEYS_A_SHIFT = 50
ROUNDS_MAX = 60
DECISIONS = 200
CHURN = 0.1
"""The share of nodes that leave, and then of new ones that join."""


class Town:
    """Nodes and the streams on them. Loads follow a Pareto law: a few streams are a thousand times hotter
    than most, the hottest a fifth of what a node bears."""

    def __init__(self, nodes: int, streams: int) -> None:
        random = Random(SEED)
        most = streams / nodes
        self.load = array("d", (min(random.paretovariate(1.16), most) for _ in range(streams)))
        self.streams: dict[str, set[int]] = {f"node-{n:05}": set() for n in range(nodes)}
        self.moves = 0
        self.place(range(streams))

    def place(self, streams: Iterable[int]) -> None:
        """New streams go where the fewest are, which is what :func:`choose` does."""
        heap = [(len(held), name) for name, held in self.streams.items()]
        heapq.heapify(heap)
        for stream in streams:
            count, name = heapq.heappop(heap)
            self.streams[name].add(stream)
            heapq.heappush(heap, (count + 1, name))

    def loads(self) -> dict[str, float]:
        """Each node's load."""
        return {name: sum(map(self.load.__getitem__, held)) for name, held in self.streams.items()}

    def imbalance_p90(self) -> float:
        """By how much of the mean the node at the 90th percentile is above it."""
        loads = list(self.loads().values())
        return percentile(loads, 90) / (sum(loads) / len(loads)) - 1

    def round(self) -> int:
        """One round of the balancer; returns how many streams moved."""
        before = self.moves
        for shift in plan([NodeLoad(name, load) for name, load in self.loads().items()], SHIFTS_A_ROUND):
            held = self.streams[shift.source]
            offered = (StreamLoad(str(stream), self.load[stream]) for stream in held)
            for picked in pick(offered, shift.amount, KEYS_A_SHIFT):
                held.remove(int(picked.key))
                self.streams[shift.target].add(int(picked.key))
                self.moves += 1
        return self.moves - before

    def settle(self) -> tuple[int, int]:
        """Rounds until nothing is worth a move; returns how many, and the most moves in one."""
        most = 0
        for rounds in range(ROUNDS_MAX):
            moved = self.round()
            if not moved:
                return rounds, most
            most = max(most, moved)
        return ROUNDS_MAX, most

    def leave(self, count: int) -> None:
        """Nodes die; their streams are placed anew."""
        for name in list(self.streams)[:count]:
            self.place(self.streams.pop(name))

    def join(self, count: int) -> None:
        """New nodes come, with nothing."""
        for n in range(count):
            self.streams[f"new-{n:05}"] = set()


def decision_us(nodes: int) -> float:
    """The time of one choice among so many nodes, in microseconds."""
    members = [Member(f"m{n}", f"n{n}", "", Load(streams=n % 7, slots=4)) for n in range(nodes)]
    begun_at = time.perf_counter()
    for n in range(DECISIONS):
        choose(f"frames/cam-{n}", members)
    return (time.perf_counter() - begun_at) / DECISIONS * 1e6


def measure(report: Report, nodes: int, streams: int) -> None:
    """All figures."""
    town = Town(nodes, streams)
    report.detail["imbalance_p90_by_count"] = round(town.imbalance_p90(), 4)
    begun_at = time.perf_counter()
    rounds, most = town.settle()
    round_s = (time.perf_counter() - begun_at) / max(1, rounds + 1)
    report.figure("imbalance_p90", town.imbalance_p90(), "≤ 0.10")
    report.figure("moves_a_round", most, f"≤ {SHIFTS_A_ROUND * KEYS_A_SHIFT}")
    report.figure("decision_us", decision_us(nodes))
    report.detail |= {"nodes": nodes, "streams": streams, "rounds": rounds, "moves": town.moves}
    report.detail["round_s"] = round(round_s, 2)
    for name, change in (("leave", town.leave), ("join", town.join)):
        before = town.moves
        change(int(nodes * CHURN))
        rounds, _ = town.settle()
        report.figure(f"imbalance_p90_{name}", town.imbalance_p90(), "≤ 0.10")
        report.detail[f"{name}_rounds"] = rounds
        report.detail[f"{name}_moves"] = town.moves - before


def main() -> None:
    """Measure, and print the report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--full", action="store_true", help="the same: the long form is the default here")
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--streams", type=int, default=1_000_000)
    given = parser.parse_args()
    report = Report("placement")
    report.say(f"placement: {given.streams} streams of skewed load on {given.nodes} nodes")
    measure(report, given.nodes, given.streams)
    report.end()


if __name__ == "__main__":
    main()
