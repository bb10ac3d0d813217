"""The rates of groups of devices, such as those behind one radio link, and of rollouts."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from holdfast.extend.tools import Limiter, Rate

Pair = tuple[str, int]

ROLLOUTS_MAX = 1_000
"""Rollouts whose rates are remembered; one that was asked about longer ago begins anew."""

BURST_S = 0.05
"""With a limited rate, what may go at once is what this time allows."""

MISSED_S = 0.25
"""A moment that passed so long ago, while nothing could be sent, is void: else all would go at once."""


ROUNDING_S = 0.001
"""A shorter wait is none: wall times are rounded, and a moment that is over before the next turn looks for it
would be void, each time."""


class GroupRate:
    """At most so many commands a second to each group, of which this has a share.

    A head that has to wait is given its own moment, so that it is looked at once more and not each time that
    anything is sent to its group. ``wait_until`` is for one thread at a time, which may be another one than
    that of ``take_share``.

    Args:
        group: the group of a device; None for no group, and so no limit.
        rates: commands a second by group; a group that isn't named has no limit.
        share: from 0 to 1; whoever serves other devices lets the rest go.
    """

    def __init__(
        self, group: Callable[[str], str | None], rates: Mapping[str, float], share: float = 1.0
    ) -> None:
        self._group = group
        self._rates = rates
        self._limiter = Limiter(None)
        self._limited_to: float | None = None
        """The share that the limiter has; another one is applied by whoever asks next."""
        self._given: dict[Pair, float] = {}
        self._share = share

    def take_share(self, share: float) -> None:
        """Have another share from now on. It is noted only: a turn in another thread may use the rates."""
        self._share = share

    def wait_until(self, pair: Pair, now: float) -> float:
        """0 if a command may go to this lane of a device now, which counts; else when to ask again."""
        self._apply(self._share)
        given = self._given.get(pair)
        if given is not None and given > now:
            return given
        if given is not None:
            del self._given[pair]
            if now - given <= MISSED_S:
                return 0.0
        group = self._group(pair[0])
        wait_s = 0.0 if group is None else self._limiter.spend(group, 1.0, now)
        if wait_s <= ROUNDING_S:
            return 0.0
        given = self._given[pair] = now + wait_s
        return given

    def _apply(self, share: float) -> None:
        if share == self._limited_to:
            return
        self._limited_to = share
        shared = {name: rate * share for name, rate in self._rates.items() if share > 0}
        # Not what a second allows: with what that second brings it would be twice the rate.
        rates = {name: Rate(rate, max(1.0, rate * BURST_S)) for name, rate in shared.items()}
        self._limiter.change(None, rates)


class RolloutRates:
    """At most so many devices a second to each rollout, of which this has a ``share`` as a group's.

    Commands of a rollout have their times from the start. This is for when those have passed, because the
    broker or all nodes were away: a rollout that is to stop at failures must not go out all at once.
    ``wait_until`` is for one thread at a time, as a group's is.
    """

    def __init__(self, share: float) -> None:
        self._share = share
        self._rates: dict[int, GroupRate] = {}

    def take_share(self, share: float) -> None:
        """Have another share from now on. It is noted only: a turn in another thread may use the rates."""
        self._share = share

    def wait_until(self, rollout: int, rate: float, pair: Pair, now: float) -> float:
        """0 if the command of ``rollout``, which has this rate, may go to this lane of a device now, which
        counts; else when to ask again."""
        known = self._rates.pop(rollout, None) or GroupRate(lambda _: "", {"": rate}, self._share)
        known.take_share(self._share)
        self._rates[rollout] = known
        if len(self._rates) > ROLLOUTS_MAX:
            del self._rates[next(iter(self._rates))]
        return known.wait_until(pair, now)
