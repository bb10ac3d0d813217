"""The reports of a node on its busiest streams, the streams behind, and the streams that wait for targets."""

from __future__ import annotations

from collections.abc import Iterable
from heapq import nlargest
from operator import attrgetter

import msgspec

from holdfast.common.effects import PendingReport
from holdfast.common.held import Held
from holdfast.common.redaction import redact

BEHIND_S = 1.0
"""Seconds after which a stream counts as behind, by the oldest message that its node holds."""


class StreamActivity(msgspec.Struct):
    """The activity of a stream: how many slots its handler keeps busy, how many messages it handles a second,
    how long it takes for each, how many wait, and how long its node has had the oldest."""

    key: str
    load: float
    rate: float
    time_s: float
    waiting: int
    lag_s: float


FIGURES = ("load", "rate", "time_s", "waiting", "lag_s")
"""The fields by which streams are compared."""


class Lag(msgspec.Struct, frozen=True):
    """The age of the oldest message that a node holds for a stream, and the number of these messages."""

    key: str
    lag_s: float
    messages: int


class Unsent(msgspec.Struct, frozen=True):
    """The effects of a stream that no target has taken yet."""

    key: str
    count: int
    oldest_s: float
    target: str
    failures: int
    error: str


def oldest_s(messages: Iterable[Held], now: float) -> float:
    """Return for how long this node has had the oldest of some messages; 0 if there are none."""
    return max((now - receipt.received_at for held in messages for receipt in held.receipts[:1]), default=0.0)


def busiest(streams: Iterable[StreamActivity], by: str, most: int) -> list[StreamActivity]:
    """Return the streams that have most of a figure, the first one most."""
    return nlargest(most, streams, key=attrgetter(by))


def activity(
    key: str, slots_busy: float, messages_per_s: float, waiting: int, lag_s: float
) -> StreamActivity:
    """Return the activity of a stream whose load was measured."""
    time_s = slots_busy / messages_per_s if messages_per_s else 0.0
    return StreamActivity(key, slots_busy, messages_per_s, time_s, waiting, lag_s)


def behind(lags: Iterable[Lag], most: int) -> list[Lag]:
    """Return the streams that are behind, the one that is furthest first."""
    return nlargest(most, (lag for lag in lags if lag.lag_s >= BEHIND_S), key=attrgetter("lag_s"))


def unsent(pending: Iterable[tuple[str, PendingReport]], wall: float, most: int) -> list[Unsent]:
    """Return the streams that have pending effects, those with the oldest first. ``wall`` is the wall time
    now."""
    oldest_first = sorted(pending, key=lambda each: each[1].oldest_at)
    return [
        Unsent(
            key,
            report.count,
            max(0.0, wall - report.oldest_at),
            redact(report.target),
            report.failures,
            report.error,
        )
        for key, report in oldest_first[:most]
    ]
