"""A pool of connections to customers' servers, with limits."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import NamedTuple

import msgspec

from holdfast.extend import Clock
from holdfast.extend.tools import Count, Delay, Limiter, Rate, check_settings
from holdfast.reports.ports.sink import Sink


class PoolLimits(msgspec.Struct, frozen=True):
    """The limits on the connections and the traffic of one process.

    ``per_destination``, ``per_customer``: connections at once. A customer has fewer than a destination, so
    that customers share a server fairly. ``idle_s``: seconds that an unused connection is kept; servers end
    them after about a minute. ``bytes_rate``: bytes a second to each customer, and the burst after a pause;
    None for no limit. ``opens_rate``: new connections a second to each destination.
    """

    per_destination: Count = 4
    per_customer: Count = 2
    idle_s: Delay = 20.0
    bytes_rate: Rate | None = None
    opens_rate: Rate | None = None

    def __post_init__(self) -> None:
        check_settings("PoolLimits", self)


class _Idle(NamedTuple):
    sink: Sink
    since: float


class _Semaphores:
    """A semaphore for each key. An unused one is dropped."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._rooms: dict[str, asyncio.Semaphore] = {}
        self._users = Counter[str]()

    def __len__(self) -> int:
        return len(self._rooms)

    @asynccontextmanager
    async def acquired(self, key: str) -> AsyncIterator[None]:
        self._users[key] += 1
        try:
            async with self._rooms.setdefault(key, asyncio.Semaphore(self._limit)):
                yield
        finally:
            self._users[key] -= 1
            if not self._users[key]:
                del self._users[key], self._rooms[key]


class SinkPool:
    """Connections of one process, in one event loop."""

    def __init__(self, clock: Clock, limits: PoolLimits | None = None) -> None:
        self._clock = clock
        self._limits = limits or PoolLimits()
        self._idle: dict[str, list[_Idle]] = defaultdict(list)
        self._destinations = _Semaphores(self._limits.per_destination)
        self._customers = _Semaphores(self._limits.per_customer)
        self._bytes = Limiter(self._limits.bytes_rate)
        self._opens = Limiter(self._limits.opens_rate)

    @asynccontextmanager
    async def sink(self, destination: str, customer: str, make: Callable[[], Sink]) -> AsyncIterator[Sink]:
        """Wait for room, and yield a connection for the caller alone.

        ``destination`` names server, folder and login: the connections of one are alike. A connection that
        was left with an error is not used again."""
        # The customer's room is waited for first: a caller that waits for a server blocks no other customer.
        async with self._customers.acquired(customer), self._destinations.acquired(destination):
            sink = await self._kept(destination)
            if sink is None:
                await self._clock.sleep(self._opens.spend(destination, 1, self._clock.monotonic()))
                sink = make()
            try:
                yield sink
            except BaseException:
                await sink.close()
                raise
            self._idle[destination].append(_Idle(sink, self._clock.monotonic()))

    def pace(self, customer: str) -> Callable[[int], float]:
        """Return a function that takes a number of bytes for a customer, and returns the seconds to wait
        before they are sent."""
        return lambda size: self._bytes.spend(customer, size, self._clock.monotonic())

    async def tidy(self) -> None:
        """Close connections that were idle for too long, and drop unused rates. Call it now and then."""
        now = self._clock.monotonic()
        for destination in list(self._idle):
            for idle in self._idle[destination]:
                if now - idle.since >= self._limits.idle_s:
                    await idle.sink.close()
            self._idle[destination] = [
                idle for idle in self._idle[destination] if now - idle.since < self._limits.idle_s
            ]
            if not self._idle[destination]:
                del self._idle[destination]
        self._bytes.forget(now)
        self._opens.forget(now)

    @property
    def kept(self) -> int:
        """The number of idle connections, and of servers and customers in memory."""
        rooms = len(self._destinations) + len(self._customers)
        return sum(map(len, self._idle.values())) + rooms + len(self._bytes) + len(self._opens)

    async def close(self) -> None:
        idle, self._idle = self._idle, defaultdict(list)
        for kept in idle.values():
            for each in kept:
                await each.sink.close()

    async def _kept(self, destination: str) -> Sink | None:
        """Return the idle connection that was used last, as it is the likeliest to live."""
        await self.tidy()
        kept = self._idle.get(destination)
        return kept.pop().sink if kept else None
