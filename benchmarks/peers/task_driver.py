"""Measures the workers of one task queue, which run already: how fast they empty it, and how long one task
takes from sending to its result.

Arguments: the module of the queue's app, how many tasks, how many of them one by one. Prints a JSON object
with ``per_s``, ``latencies_ms`` and ``cpu_us``, the processor time for a task of all processes that were
started beside this one.

A module's ``Driver`` has ``park(count)``, which enqueues aside; ``show()``, which brings all of that before
the workers at one instant; ``is_done()``, true once all of them have their results and are acknowledged;
and ``once(n)``, which sends a task and waits for its result as the queue's own client does.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from typing import Protocol

from benchmarks.cluster import Spent

TIMEOUT_S = 120.0
CHECK_S = 0.005
WARM_UP = 400


class Driver(Protocol):
    """What each module has."""

    def park(self, count: int) -> None: ...
    def show(self) -> None: ...
    def is_done(self) -> bool: ...
    def once(self, n: int) -> None: ...


def rate(driver: Driver, count: int) -> tuple[float, float]:
    """Tasks a second, and microseconds of processor time for one."""
    driver.park(count)
    spent = Spent(os.getppid())
    spent.begin()
    begin_at = time.monotonic()
    driver.show()
    while not driver.is_done():
        if time.monotonic() > begin_at + TIMEOUT_S:
            raise RuntimeError(f"{count} tasks are not done after {TIMEOUT_S:g} s")
        time.sleep(CHECK_S)
    per_s = count / (time.monotonic() - begin_at)
    spent.end()
    return per_s, 1e6 * spent.seconds / count


def latency_ms(driver: Driver, n: int) -> float:
    """Of one task, while nothing else is to do."""
    begin_at = time.monotonic()
    driver.once(n)
    return 1000 * (time.monotonic() - begin_at)


def main() -> None:
    """Measure."""
    module, count, ones = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    driver: Driver = importlib.import_module(f"benchmarks.peers.{module}").Driver()
    rate(driver, WARM_UP)
    per_s, cpu_us = rate(driver, count)
    latencies_ms = [latency_ms(driver, n) for n in range(ones)]
    print(json.dumps({"per_s": per_s, "latencies_ms": latencies_ms, "cpu_us": cpu_us}), flush=True)


if __name__ == "__main__":
    main()
