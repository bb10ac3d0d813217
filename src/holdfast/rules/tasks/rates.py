"""The rates of tasks: how many of a type may begin per second, on all nodes of an app together.

One token bucket for each type is kept in a document that all nodes may write. A node takes *permits* from it,
several in one write, and each lets one attempt begin. The rules:

- A bucket is one number: the wall time at which it will be full again, by the clock of the task store. A full
  one holds the permits of ``WINDOW_S``, and at least one.
- A node takes only permits that are there by now, at most as many as it has tasks that could begin.
- Permits that it hasn't used within ``WINDOW_S`` lapse. So a node can't gather them, and a node that dies
  costs the others only the permits that it took.
- All nodes use what one has written, though their clocks differ a little. A clock that is set back by more
  than ``CLOCKS_DIFFER_S`` leaves no bucket empty for longer than it takes to fill.

So in any T seconds at most rate * (T + 2 * ``WINDOW_S``) + 1 attempts begin.

Source: the generic cell rate algorithm (ITU-T I.371, virtual scheduling)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from holdfast.common.rate import EDGE_S

WINDOW_S = 1.0

CLOCKS_DIFFER_S = 5.0
"""By how much the clocks of two nodes may seem to differ. A bucket that is full only later than that was
written before a clock was set back, or at a slower rate."""


class RateBuckets(msgspec.Struct, frozen=True):
    """The buckets of an app: for each type when its bucket will be full. A full bucket may be missing."""

    full_at: dict[str, float] = {}


class Reservation(NamedTuple):
    """The permits that a node got, by type, with the buckets after that, and after how many seconds there
    will be a permit of a type of which there was none; infinite if there were some of each."""

    buckets: RateBuckets
    permits: dict[str, int]
    wait_s: float


def reserve(
    buckets: RateBuckets, wanted: Mapping[str, int], per_s: Mapping[str, float], now: float
) -> Reservation:
    """Take permits of several types at the wall time ``now``: as many as are wanted and there."""
    permits, wait_s = dict[str, int](), math.inf
    after = {name: full_at for name, full_at in buckets.full_at.items() if full_at > now}
    for name, number in wanted.items():
        rate = per_s[name]
        burst = max(1.0, rate * WINDOW_S)
        full_at = max(after.get(name, now), now)
        if full_at > now + burst / rate + CLOCKS_DIFFER_S:
            full_at = now + burst / rate
        level = burst - (full_at - now) * rate
        taken = max(0, min(number, math.floor(level + EDGE_S * rate)))
        after[name] = full_at + taken / rate
        if taken:
            permits[name] = taken
        else:
            wait_s = min(wait_s, (1.0 - level) / rate)
    return Reservation(RateBuckets(after), permits, wait_s)
