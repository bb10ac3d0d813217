"""Rate limits by token buckets, one per key, each stored as a single number.

Source: the generic cell rate algorithm (ITU-T I.371, virtual scheduling). A bucket is stored as the time at
which it will be full again, and a full one is forgotten.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from holdfast.common.settings import Positive, check_settings

EDGE_S = 1e-9
"""Waits below this many seconds are rounding errors."""


class Rate(msgspec.Struct, frozen=True):
    """A rate of ``per_s`` units per second; after a pause, ``burst`` units may pass at once."""

    per_s: Positive
    burst: Positive

    def __post_init__(self) -> None:
        check_settings("rate", self)


class Limiter:
    """Limits each key to its rate. The units are the caller's (bytes, calls, messages); ``now`` is monotonic
    seconds.

    Args:
        default: the rate of keys without their own; None for no limit.
        rates: the rates of single keys.
    """

    def __init__(self, default: Rate | None, rates: Mapping[str, Rate] | None = None) -> None:
        self._default = default
        self._rates = dict(rates or {})
        self._full_at: dict[str, float] = {}

    def change(self, default: Rate | None, rates: Mapping[str, Rate] | None = None) -> None:
        """Change the rates from now on. Waits that have begun stay as long as they were."""
        self._default = default
        self._rates = dict(rates or {})

    def __len__(self) -> int:
        """The number of keys in memory."""
        return len(self._full_at)

    def take(self, key: str, units: float, now: float) -> float:
        """Take the units if there are enough, and return 0. Otherwise return the seconds until there are.
        More than ``burst`` units need a full bucket, and later calls wait for the rest."""
        rate = self._rate(key)
        if rate is None:
            return 0.0
        missing = min(units, rate.burst) - self._level(key, rate, now)
        if missing / rate.per_s > EDGE_S:
            return missing / rate.per_s
        self._spend(key, rate, units, now)
        return 0.0

    def spend(self, key: str, units: float, now: float) -> float:
        """Take the units in any case, and return the seconds until they may be used, in the order of
        calls."""
        rate = self._rate(key)
        if rate is None:
            return 0.0
        self._spend(key, rate, units, now)
        return max(0.0, -self._level(key, rate, now) / rate.per_s)

    def forget(self, now: float) -> None:
        """Forget full buckets, which are the same as new ones. Call this from time to time."""
        self._full_at = {key: full_at for key, full_at in self._full_at.items() if full_at > now}

    def _rate(self, key: str) -> Rate | None:
        return self._rates.get(key, self._default)

    def _level(self, key: str, rate: Rate, now: float) -> float:
        return rate.burst - max(0.0, self._full_at.get(key, now) - now) * rate.per_s

    def _spend(self, key: str, rate: Rate, units: float, now: float) -> None:
        self._full_at[key] = max(now, self._full_at.get(key, now)) + units / rate.per_s
