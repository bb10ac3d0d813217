"""The rates of groups of devices, such as those behind one radio link, and of rollouts."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from holdfast.extend.tools import Limiter, Rate

Pair = tuple[str, int]

ROLLOUTS_MAX = 1_000
"""Rollouts whose rates are remembered. The rate of an older one starts again."""

BURST_S = 0.05
"""Seconds whose share of a rate may be sent at once."""

LATE_S = 0.25
"""Seconds added to ``BURST_S`` after a time without sending."""

ROUNDING_S = 0.001
"""Waits in seconds that count as zero, because wall times are rounded."""


class GroupRate:
    """The limits of commands a second to each group, of which a node has a share.

    A head that has to wait gets a time of its own, so that it is judged once and not whenever a command goes
    to its group. Times that pass while nothing can be sent don't raise the rate: their heads get new times.
    ``wait_until`` is for one thread at a time; ``take_share`` may be called from another.

    Args:
        group: returns the group of a device; None for no group and no limit.
        rates: commands a second by group. A group without a rate has no limit.
        share: the node's share of the rates, from 0 to 1.
    """

    def __init__(
        self, group: Callable[[str], str | None], rates: Mapping[str, float], share: float = 1.0
    ) -> None:
        self._group = group
        self._rates = rates
        self._moments, self._again, self._sent = Limiter(None), Limiter(None), Limiter(None)
        """The limiters of first times, of new times, and of sent commands."""
        self._limited_to: float | None = None
        """The share that the limiters have. ``wait_until`` applies a new one."""
        self._given: dict[Pair, float] = {}
        self._share = share

    def take_share(self, share: float) -> None:
        """Note a new share, which the next ``wait_until`` applies."""
        self._share = share

    def wait_until(self, pair: Pair, now: float) -> float:
        """Return 0 and count the command if it may go to this lane now; else return when to ask again."""
        self._apply(self._share)
        given = self._given.get(pair)
        if given is not None and given > now:
            return given
        self._given.pop(pair, None)
        group = self._group(pair[0])
        wait_s = 0.0 if group is None else self._wait_s(group, now, is_new=given is None)
        if not wait_s:
            return 0.0
        given = self._given[pair] = now + wait_s
        return given

    def _wait_s(self, group: str, now: float, *, is_new: bool) -> float:
        wait_s = self._moments.spend(group, 1.0, now) if is_new else 0.0
        if wait_s > ROUNDING_S:
            return wait_s
        wait_s = self._sent.take(group, 1.0, now + ROUNDING_S)
        return wait_s + self._again.spend(group, 1.0, now) if wait_s else 0.0

    def _apply(self, share: float) -> None:
        if share == self._limited_to:
            return
        self._limited_to = share
        shared = {name: rate * share for name, rate in self._rates.items() if share > 0}
        # Not what a second allows: with what that second brings it would be twice the rate.
        rates = {name: Rate(rate, max(1.0, rate * BURST_S)) for name, rate in shared.items()}
        self._moments.change(None, rates)
        self._again.change(None, rates)
        late_s = BURST_S + LATE_S
        self._sent.change(None, {name: Rate(rate, max(1.0, rate * late_s)) for name, rate in shared.items()})


class RolloutRates:
    """The limits of devices a second to each rollout, of which a node has a ``share``.

    Commands of a rollout have their times from the start. These limits hold when the times have passed,
    because the broker or all nodes were away: a rollout that stops at failures must not go out all at once.
    ``wait_until`` is for one thread at a time.
    """

    def __init__(self, share: float) -> None:
        self._share = share
        self._rates: dict[int, GroupRate] = {}

    def take_share(self, share: float) -> None:
        """Note a new share, which the next ``wait_until`` applies."""
        self._share = share

    def wait_until(self, rollout: int, rate: float, pair: Pair, now: float) -> float:
        """Return 0 and count the command if ``rollout`` may go to this lane now; else return when to ask
        again."""
        known = self._rates.pop(rollout, None) or GroupRate(lambda _: "", {"": rate}, self._share)
        known.take_share(self._share)
        self._rates[rollout] = known
        if len(self._rates) > ROLLOUTS_MAX:
            del self._rates[next(iter(self._rates))]
        return known.wait_until(pair, now)
