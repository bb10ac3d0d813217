"""The rates of groups of devices, such as those behind one radio link, and of rollouts."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from holdfast.extend.tools import Limiter, Rate

Pair = tuple[str, int]

ROLLOUTS_MAX = 1_000
"""Rollouts whose rates are remembered; one that was asked about longer ago begins anew."""

BURST_S = 0.05
"""With a limited rate, what may go at once is what this time allows."""

LATE_S = 0.25
"""What may go at once after nothing could be sent for a while, is what this time allows too."""


ROUNDING_S = 0.001
"""A shorter wait is none: wall times are rounded."""


class GroupRate:
    """At most so many commands a second to each group, of which this has a share.

    A head that has to wait is given its own moment, so that it is looked at once more and not each time that
    anything is sent to its group. Heads whose moments have passed while nothing could be sent still go no
    faster than the rate: those that would are given new moments. ``wait_until`` is for one thread at a time,
    which may be another one than that of ``take_share``.

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
        self._moments, self._again, self._sent = Limiter(None), Limiter(None), Limiter(None)
        """For the first moments of heads, for their new ones, and for what goes."""
        self._limited_to: float | None = None
        """The share that the limiters have; another one is applied by whoever asks next."""
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
