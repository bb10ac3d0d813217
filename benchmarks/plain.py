"""The rate of streams without effects, and the processor time of their nodes, of the checkout on the path.

Run as a file, ``python benchmarks/plain.py MESSAGES``, by ``benchmarks.effects``: the ``benchmarks`` of the
other checkout measure the rate. They know no processor time of a part of a run, so it is sampled beside them.
"""

from __future__ import annotations

import asyncio
import bisect
import json
import sys
import threading
import time
from collections.abc import Awaitable, Callable

import psutil

from benchmarks import streams
from benchmarks.cluster import Cluster

KEYS = 64
LEAD_S = 8.0
SAMPLE_S = 0.05


class Sampler(threading.Thread):
    """Samples of the processor time of all processes below this one."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.at: list[float] = []
        self.spent_s: list[float] = []

    def run(self) -> None:
        """Sample until this process ends."""
        while True:
            self.at.append(time.monotonic())
            self.spent_s.append(sum(map(_spent_s, psutil.Process().children(recursive=True))))
            time.sleep(SAMPLE_S)

    def between(self, begin_at: float, end_at: float) -> float:
        """Return the seconds spent between two monotonic times."""
        begin, end = bisect.bisect(self.at, begin_at) - 1, bisect.bisect(self.at, end_at)
        return self.spent_s[min(end, len(self.spent_s) - 1)] - self.spent_s[begin]


def _spent_s(process: psutil.Process) -> float:
    try:
        return sum(process.cpu_times()[:2])
    except psutil.NoSuchProcess:
        return 0.0


def main() -> None:
    """Measure, and print a line of JSON."""
    messages = int(sys.argv[1])
    sampler = Sampler()
    sampler.start()
    ended_at = 0.0

    def noting(wait: Callable[..., Awaitable[float]]) -> Callable[..., Awaitable[float]]:
        async def noted(*arguments: object) -> float:
            nonlocal ended_at
            result = await wait(*arguments)
            ended_at = time.monotonic()
            return result

        return noted

    # The one that waits for the end of the burst, of either name, is the last that is awaited.
    for name in {"empty", "drained"} & vars(Cluster).keys():
        setattr(Cluster, name, noting(getattr(Cluster, name)))
    rate = asyncio.run(streams.holdfast(messages, KEYS, 1, LEAD_S))
    spent_s = sampler.between(ended_at - messages / rate, ended_at)
    print(json.dumps({"messages_per_s": rate, "cpu_us": 1e6 * spent_s / messages}))


if __name__ == "__main__":
    main()
