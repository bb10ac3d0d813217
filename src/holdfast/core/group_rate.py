"""The rates of groups of devices, such as those behind one radio link."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from holdfast.core.rate import Limiter, Rate

Pair = tuple[str, int]


class GroupRate:
    """At most so many commands a second to each group.

    A head that has to wait is given its own moment, so that it is looked at once more and not each time that
    anything is sent to its group.

    Args:
        group: the group of a device.
        rates: commands a second by group; a group that isn't named has no limit.
    """

    def __init__(self, group: Callable[[str], str], rates: Mapping[str, float]) -> None:
        self._group = group
        self._limiter = Limiter(None, {name: Rate(rate, max(1.0, rate)) for name, rate in rates.items()})
        self._given: dict[Pair, float] = {}

    def wait_until(self, pair: Pair, now: float) -> float:
        """0 if a command may go to this lane of a device now, which counts; else when to ask again."""
        given = self._given.get(pair)
        if given is None:
            wait_s = self._limiter.spend(self._group(pair[0]), 1.0, now)
            if wait_s <= 0:
                return 0.0
            given = self._given[pair] = now + wait_s
        if given > now:
            return given
        del self._given[pair]
        return 0.0
