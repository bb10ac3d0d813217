"""A node's part in the rates of its app: it takes permits from the registry while tasks wait for them."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping

from holdfast.cluster.host import Host
from holdfast.common.retry import Backoff
from holdfast.errors import HoldfastError
from holdfast.ports.registry import Registry
from holdfast.rules.tasks.fair_queue import Permits
from holdfast.rules.tasks.rates import RateBuckets, Reservation, reserve
from holdfast.tasks.documents import change

PREFIX = "rates/"
"""The prefix of the names of documents with the buckets of an app's rates."""

LOOK_S = 0.25
"""The shortest pause between two reservations of a node, on average. A rate of many permits per second is
taken in few writes."""

LOOK_AGAIN_S = 5.0
"""The longest pause while tasks wait: the rate may be changed meanwhile."""

CLOCK_S = 60.0
"""Seconds for which the measured difference between the task store's clock and this node's is used."""

ANSWER_S = 0.1
"""The longest seconds of a call that measures it. The result of a slower call is used once."""


class RateKeeper:
    """Takes permits for the tasks of one app that wait on this node. A registry that isn't asked costs
    nothing: that is so while no task of a type with a rate waits.

    Args:
        per_s: returns the rate of a type per second, as it is now.
        now: returns the wall time of the clock that all nodes use.
        lacking: returns how many permits are lacking of each type, for tasks that could begin.
        got: called when permits were added.
    """

    def __init__(
        self,
        registry: Registry,
        app: str,
        host: Host,
        permits: Permits,
        *,
        per_s: Callable[[str], float],
        now: Callable[[], Awaitable[float]],
        lacking: Callable[[], Mapping[str, int]],
        got: Callable[[], None],
    ) -> None:
        self._registry = registry
        self._name = f"{PREFIX}{app}"
        self._clock, self._log = host.clock, host.log
        self._permits = permits
        self._per_s = per_s
        self._now = now
        self._lacking = lacking
        self._got = got
        self._woken = asyncio.Event()
        self._ahead_s, self._ahead_until = 0.0, -math.inf
        self._backoff = Backoff(LOOK_S, 5.0)

    def wake(self) -> None:
        """Take soon what is lacking."""
        self._woken.set()

    async def run(self) -> None:
        """Take what is lacking, for ever."""
        failures = 0
        while True:
            await self._clock.wait(self._woken, None)
            self._woken.clear()
            while wanted := self._lacking():
                try:
                    pause_s = await self._take(wanted)
                    failures = 0
                except HoldfastError as error:
                    failures += 1
                    pause_s = self._backoff.delay_s(failures, self._clock.random())
                    self._log.warning("cannot take permits", error=str(error))
                await self._clock.sleep(pause_s + LOOK_S * (0.5 + self._clock.random()))

    async def _take(self, wanted: Mapping[str, int]) -> float:
        """Take permits, and return after how many seconds to look again."""
        per_s = {name: self._per_s(name) for name in wanted}
        wall = await self.wall()
        taken = Reservation(RateBuckets(), {}, 0.0)

        def take(buckets: RateBuckets) -> RateBuckets:
            nonlocal taken
            taken = reserve(buckets, wanted, per_s, wall)
            return taken.buckets

        await change(self._registry, self._clock, self._name, RateBuckets, take)
        if taken.permits:
            self._permits.add(taken.permits, self._clock.monotonic())
            self._got()
        return 0.0 if taken.permits else min(taken.wait_s, LOOK_AGAIN_S)

    async def wall(self) -> float:
        """Return what the store's clock shows."""
        now = self._clock.monotonic()
        if now >= self._ahead_until:
            wall = await self._now()
            asked_at, now = now, self._clock.monotonic()
            self._ahead_s = wall - (asked_at + now) / 2
            if now <= asked_at + ANSWER_S:
                self._ahead_until = now + CLOCK_S
        return now + self._ahead_s
