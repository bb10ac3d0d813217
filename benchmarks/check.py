"""Whether streams, tasks and reports cost what they did: by processor time, so on two busy cores too.

Each of their benchmarks runs twice, small and larger. What the larger run takes more, in all its processes,
for what it has more to do, is the price of one; what starting takes cancels out. Prices are told in
yardsticks, the processor time of a fixed piece of Python on the same machine at the same time. Exit code 1
says that one is above its ceiling, which leaves room for a busy machine: it finds what multiplies a price.

Run as ``python -m benchmarks.check``.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from typing import NamedTuple

from benchmarks.cluster import ROOT
from benchmarks.report import Report

YARDSTICK = {
    "key": "camera-1",
    "run": 3,
    "n": 12345,
    "boxes": [[n, n + 1, n + 2.5, n + 3.5] for n in range(20)],
}
YARDSTICKS = 5_000


class Price(NamedTuple):
    """A benchmark, its option that says how much there is to do, two such numbers, what else it is given, how
    many times it does all of that, and how many yardsticks one may cost."""

    name: str
    option: str
    small: int
    large: int
    arguments: tuple[str, ...]
    times: int
    ceiling: float


STREAMS = ("--only", "holdfast", "--rounds", "1", "--lead-s", "10")
TASKS = ("--ones", "1", "--rounds", "1", "--peers")
PRICES = {
    "stream_message": Price("streams", "--messages", 2_000, 10_000, STREAMS, 1, 10),
    "task": Price("tasks", "--tasks", 200, 4_200, TASKS, 2, 25),
    "report": Price("publish_night", "--orders", 8, 48, (), 1, 5_000),
}


def yardstick_s() -> float:
    """The processor time of one piece of Python."""
    began_s = time.process_time()
    for _ in range(YARDSTICKS):
        json.loads(json.dumps(YARDSTICK))
    return (time.process_time() - began_s) / YARDSTICKS


def cpu_s(price: Price, count: int) -> float:
    """The processor time of all processes of one run."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-m", f"benchmarks.{price.name}", price.option, str(count), *price.arguments]
    subprocess.run(command, cwd=ROOT, stdout=subprocess.DEVNULL, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> int:
    """Measure and report."""
    parser = argparse.ArgumentParser(prog="benchmarks.check", description=__doc__)
    parser.add_argument("--full", action="store_true", help="five rounds, of which the cheapest counts")
    parser.add_argument("--only", nargs="*", choices=PRICES, help="these alone")
    asked = parser.parse_args()
    report = Report("check")
    report.say("check: processor time for one, in yardsticks")
    above = []
    for name in asked.only or PRICES:
        price = PRICES[name]
        found = []
        for _ in range(5 if asked.full else 1):
            small_s, unit_s, large_s = cpu_s(price, price.small), yardstick_s(), cpu_s(price, price.large)
            more = price.times * (price.large - price.small)
            found.append((large_s - small_s) / more / unit_s)
            report.detail.setdefault("cpu_s", []).append((name, small_s, large_s, unit_s))
        report.figure(name, min(found), f"≤ {price.ceiling:,.0f}")
        if min(found) > price.ceiling:
            above.append(name)
    report.end(durability="each benchmark's own", above=above)
    return 1 if above else 0


if __name__ == "__main__":
    sys.exit(main())
