"""How much may be sent: so many a second, by token buckets."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping


class Bucket:
    """Holds ``burst`` tokens at most, refilled at ``rate`` a second; ``rate`` 0 has no limit."""

    def __init__(self, rate: float, burst: float) -> None:
        self._rate = rate
        self._burst = max(burst, 1.0)
        self._tokens = self._burst
        self._at = -math.inf
        self._promised = -math.inf

    def available(self, now: float) -> float:
        """Tokens at hand."""
        if self._rate <= 0:
            return math.inf
        if now > self._at:
            added = (now - self._at) * self._rate if self._at > -math.inf else self._burst
            self._tokens = min(self._burst, self._tokens + added)
            self._at = now
        return self._tokens

    def take(self, now: float, count: int = 1) -> bool:
        """Take ``count`` tokens if they are at hand."""
        if self.available(now) < count:
            return False
        self._tokens -= count
        return True

    def empty(self, now: float) -> None:
        """Begin again with nothing at hand."""
        self.available(now)
        self._tokens = 0.0

    def promise(self, now: float) -> float:
        """When to come again for a token: every caller that finds none is told a later time."""
        wait_s = max(0.0, 1.0 - self.available(now)) / self._rate
        self._promised = max(self._promised + 1.0 / self._rate, now + wait_s)
        return self._promised


class Groups:
    """A bucket for each group of devices: ``rates`` a second by group, ``group`` tells a device's.

    A group without a rate has no limit."""

    def __init__(self, group: Callable[[str], str] | None, rates: Mapping[str, float]) -> None:
        self._group = group
        self._buckets = {name: Bucket(rate, max(1.0, rate)) for name, rate in rates.items()}

    def wait_until(self, device: str, now: float) -> float:
        """0 if a command may go to ``device`` now (which counts), else when to ask again."""
        if self._group is None:
            return 0.0
        bucket = self._buckets.get(self._group(device))
        if bucket is None or bucket.take(now):
            return 0.0
        return bucket.promise(now)
