"""Counts of how long things take on a node, by duration: the metrics page renders them as histograms.

Whatever is timed is noted on the node's event loop, in plain numbers: there is nothing to lock, and nothing
is computed but the bucket. Labels are names that an app declares, so their number is known before any
message comes.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence

SHORT_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""The bounds for what should take milliseconds, in seconds."""

LONG_S = (0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0, 14400.0)
"""Bounds for durations up to hours, in seconds."""

STALL_S = (0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0)
"""Bounds for stalls, in seconds: fine below 0.3 s, where a lost node's streams should go on elsewhere."""


class Histogram:
    """Counts of the durations between each two of ``bounds``, and the sum of all, in seconds."""

    __slots__ = ("_bounds", "counts", "sum_s")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum_s = 0.0

    def note(self, seconds: float, times: int = 1) -> None:
        """Add a duration, or several equal ones. A duration below 0, as after a change of the clock, counts
        as 0."""
        if seconds < 0.0:
            seconds = 0.0
        self.counts[bisect_left(self._bounds, seconds)] += times
        self.sum_s += seconds * times

    def buckets(self) -> list[tuple[str, float]]:
        """Return the number of durations up to each bound, in Prometheus' form."""
        found, below = [], 0
        for bound, count in zip((*self._bounds, math.inf), self.counts, strict=True):
            below += count
            found.append(("+Inf" if bound == math.inf else f"{bound:g}", float(below)))
        return found


class TimingsBy:
    """The histograms of one metric, by the value of its label."""

    def __init__(self, label: str, meaning: str, bounds: Sequence[float]) -> None:
        self.label = label
        self.meaning = meaning
        self._bounds = bounds
        self._by: dict[str, Histogram] = {}

    def of(self, value: str) -> Histogram:
        """Return the histogram of a declared name, which starts at 0 with the first call."""
        found = self._by.get(value)
        if found is None:
            found = self._by[value] = Histogram(self._bounds)
        return found

    def each(self, values: Iterable[str]) -> Mapping[str, Histogram]:
        """Return the histograms of several declared names."""
        return {value: self.of(value) for value in values}

    def total(self) -> Sequence[int]:
        """Return the sums of all histograms, by bucket."""
        return [sum(counts) for counts in zip(*(each.counts for each in self._by.values()), strict=True)]

    def items(self) -> Iterable[tuple[str, Histogram]]:
        """Return all histograms with the values of their label."""
        return sorted(self._by.items())


class Timings:
    """The durations that a node measures. Each attribute is a metric of that name."""

    def __init__(self) -> None:
        self.delivery_seconds = TimingsBy(
            "stream",
            "From the receipt of a message from its queue, by whichever node, to the answer of the commit"
            " that covers it.",
            SHORT_S,
        )
        self.handler_seconds = TimingsBy(
            "stream", "A handler's time for a message; the average, where it got several at once.", SHORT_S
        )
        self.commit_seconds = TimingsBy(
            "stream", "From a commit's sending to the state store's answer, repetitions included.", SHORT_S
        )
        self.stall_seconds = TimingsBy(
            "stream",
            "From the loss of a stream's owner, or from the move that its new owner was ready for, to the"
            " first commit at the new owner. Where nothing waited for that long, from the receipt of the"
            " first message.",
            STALL_S,
        )
        self.effect_seconds = TimingsBy(
            "target",
            "From the commit of an effect until its target has taken it. All targets that handlers name by"
            " URL count together.",
            SHORT_S,
        )
        self.task_wait_seconds = TimingsBy(
            "type",
            "From the sending of a task to its first attempt, by the task store's clock; delays that its"
            " sender asked for are included.",
            LONG_S,
        )
        self.task_run_seconds = TimingsBy("type", "How long an attempt ran, however it ended.", LONG_S)

    def __iter__(self) -> Iterator[tuple[str, TimingsBy]]:
        return iter(vars(self).items())
