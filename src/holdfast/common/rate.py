"""How fast: token buckets, one a key, each a single number.

Source: the generic cell rate algorithm (ITU-T I.371, virtual scheduling). In place of a level that has to be
topped up, a bucket is the time at which it will be full again; one that is full is forgotten.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from holdfast.common.settings import Positive, check_settings

EDGE_S = 1e-9
"""Waits shorter than this are rounding."""


class Rate(msgspec.Struct, frozen=True):
    """``per_s`` units a second, of which ``burst`` may go at once after a pause."""

    per_s: Positive
    burst: Positive

    def __post_init__(self) -> None:
        check_settings("rate", self)


class Limiter:
    """Holds each key to its rate. Units are the caller's (bytes, calls, messages); ``now`` is monotonic, in
    seconds.

    Args:
        default: the rate of keys that have none of their own; None for no limit.
        rates: rates of single keys.
    """

    def __init__(self, default: Rate | None, rates: Mapping[str, Rate] | None = None) -> None:
        self._default = default
        self._rates = dict(rates or {})
        self._full_at: dict[str, float] = {}

    def change(self, default: Rate | None, rates: Mapping[str, Rate] | None = None) -> None:
        """Hold keys to other rates from now on. Those that owe wait for as long as they would have."""
        self._default = default
        self._rates = dict(rates or {})

    def __len__(self) -> int:
        """Keys that are remembered."""
        return len(self._full_at)

    def take(self, key: str, units: float, now: float) -> float:
        """Take the units if they are there: 0, or else, with nothing taken, seconds until they will be. Of
        more than ``burst`` at once, a full bucket will do; the rest is owed."""
        rate = self._rate(key)
        if rate is None:
            return 0.0
        missing = min(units, rate.burst) - self._level(key, rate, now)
        if missing / rate.per_s > EDGE_S:
            return missing / rate.per_s
        self._spend(key, rate, units, now)
        return 0.0

    def spend(self, key: str, units: float, now: float) -> float:
        """Take the units in any case; returns seconds to wait before they may be used, in the order of the
        calls."""
        rate = self._rate(key)
        if rate is None:
            return 0.0
        self._spend(key, rate, units, now)
        return max(0.0, -self._level(key, rate, now) / rate.per_s)

    def refund(self, key: str, units: float) -> None:
        """Give back units that were not used after all."""
        rate = self._rate(key)
        if rate is not None and key in self._full_at:
            self._full_at[key] -= units / rate.per_s

    def forget(self, now: float) -> None:
        """Drop the buckets that are full, which are as good as new. To be called now and then."""
        self._full_at = {key: full_at for key, full_at in self._full_at.items() if full_at > now}

    def _rate(self, key: str) -> Rate | None:
        return self._rates.get(key, self._default)

    def _level(self, key: str, rate: Rate, now: float) -> float:
        return rate.burst - max(0.0, self._full_at.get(key, now) - now) * rate.per_s

    def _spend(self, key: str, rate: Rate, units: float, now: float) -> None:
        self._full_at[key] = max(now, self._full_at.get(key, now)) + units / rate.per_s
