"""Connections to customers' servers: kept while they may be wanted again, and no more of them than agreed."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import msgspec

from holdfast.extend import Clock
from holdfast.extend.tools import Count, Delay, Limiter, Rate, check_settings
from holdfast.reports.ports.sink import Sink


class PoolLimits(msgspec.Struct, frozen=True):
    """The limits on the connections and the traffic of one process.

    ``per_destination``, ``per_customer``: connections at once. A customer has fewer than a destination, so
    that those who share a server share it fairly. ``idle_s``: how long an unused connection is kept; servers
    end them after a minute or so. ``bytes_rate``: bytes a second to each customer, and how many at once after
    a pause; None for no limit. ``opens_rate``: new connections a second to each destination.
    """

    per_destination: Count = 4
    per_customer: Count = 2
    idle_s: Delay = 20.0
    bytes_rate: Rate | None = None
    opens_rate: Rate | None = None

    def __post_init__(self) -> None:
        check_settings("PoolLimits", self)


@dataclass(slots=True)
class _Idle:
    sink: Sink
    since: float


@dataclass(slots=True)
class _Gate:
    """So many at once; forgotten when nobody is at it."""

    room: asyncio.Semaphore
    users: int = 0


@dataclass(slots=True)
class _Gates:
    limit: int
    gates: dict[str, _Gate] = field(default_factory=dict)

    @asynccontextmanager
    async def through(self, key: str) -> AsyncIterator[None]:
        gate = self.gates.setdefault(key, _Gate(asyncio.Semaphore(self.limit)))
        gate.users += 1
        try:
            async with gate.room:
                yield
        finally:
            gate.users -= 1
            if not gate.users:
                del self.gates[key]


class SinkPool:
    """Connections of one process, in one event loop."""

    def __init__(self, clock: Clock, limits: PoolLimits | None = None) -> None:
        self._clock = clock
        self._limits = limits or PoolLimits()
        self._idle: dict[str, list[_Idle]] = defaultdict(list)
        self._destinations = _Gates(self._limits.per_destination)
        self._customers = _Gates(self._limits.per_customer)
        self._bytes = Limiter(self._limits.bytes_rate)
        self._opens = Limiter(self._limits.opens_rate)

    @asynccontextmanager
    async def sink(self, destination: str, customer: str, make: Callable[[], Sink]) -> AsyncIterator[Sink]:
        """A connection for the caller alone, once there is room for it.

        ``destination`` names server, folder and login: whoever gives the same may get the same connection.
        One that was left with an error is not used again."""
        # Everybody queues for the customer first: who waits for a server holds nothing that others wait for.
        async with self._customers.through(customer), self._destinations.through(destination):
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
        """Return a function that takes how many bytes are to go to a customer, and returns how many seconds
        to wait before they go."""
        return lambda size: self._bytes.spend(customer, size, self._clock.monotonic())

    async def tidy(self) -> None:
        """Close what was idle for too long, and forget who has been quiet. To be called now and then."""
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
        """The number of idle connections, and of servers and customers whose use is remembered."""
        gates = len(self._destinations.gates) + len(self._customers.gates)
        return sum(map(len, self._idle.values())) + gates + len(self._bytes) + len(self._opens)

    async def close(self) -> None:
        """Close all that is idle; what is in use is closed by who uses it."""
        idle, self._idle = self._idle, defaultdict(list)
        for kept in idle.values():
            for each in kept:
                await each.sink.close()

    async def _kept(self, destination: str) -> Sink | None:
        """The idle connection that was used last, as it is the likeliest to live."""
        await self.tidy()
        kept = self._idle.get(destination)
        return kept.pop().sink if kept else None
