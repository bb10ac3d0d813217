"""Measures Holdfast on the services of a config: how much it handles, how soon, and how soon after a kill."""

from __future__ import annotations

import asyncio
import contextlib
import os
import platform
import statistics
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, Protocol

import msgspec

import holdfast
from holdfast.errors import Unavailable
from holdfast.operate.bench_app import DEFAULT_STREAM, Numbered, app
from holdfast.registration.urls import shown
from holdfast.streams.message import StreamMessage
from holdfast.streams.producer import StreamProducer

if TYPE_CHECKING:
    from holdfast.ports.clock import Clock
    from holdfast.wiring.services import Services

KEYS = 100
BATCH = 200
AHEAD_MAX = 4_000
"""The most messages that wait for results while the rate is measured: enough that no node is idle."""

CALM_RATE = 50
"""Messages a second while latency and fail-over are measured: little enough that none waits for another."""

JOIN_S, END_S = 60.0, 90.0
"""For how long nodes may take to join, and the last results to come, in seconds."""


class BenchReport(msgspec.Struct, frozen=True):
    """The figures of one run, and what they were measured on."""

    messages_per_s: float
    latency_p50_ms: float
    latency_p99_ms: float
    calm_rate: int
    failover_ms: float
    messages: int
    lost: int
    doubled: int
    out_of_order: int
    nodes: int
    cores: int
    services: dict[str, str]
    durability: str
    holdfast: str
    python: str
    system: str

    @property
    def is_right(self) -> bool:
        """True if nothing was lost, doubled or out of order."""
        return not (self.lost or self.doubled or self.out_of_order)


class BenchNode(Protocol):
    """A node that can be killed."""

    def kill(self) -> None: ...


class Ledger:
    """The messages that were sent, and the results that came, by key and number, in monotonic seconds."""

    def __init__(self) -> None:
        self.sent: dict[tuple[str, int], float] = {}
        self.came: dict[tuple[str, int], float] = {}
        self.doubled = self.out_of_order = 0
        self._numbers: defaultdict[str, int] = defaultdict(int)
        self._last: dict[str, int] = {}
        self.changed = asyncio.Event()

    def next(self, index: int, now: float) -> Numbered:
        """Return the next message of a key, sent now."""
        key = f"key-{index % KEYS}"
        number = self._numbers[key]
        self._numbers[key] += 1
        self.sent[key, number] = now
        return Numbered(key, number)

    def result(self, key: str, number: int, now: float) -> None:
        """Note a result."""
        if (key, number) in self.came:
            self.doubled += 1
        elif number != self._last.get(key, -1) + 1:
            self.out_of_order += 1
        self.came[key, number] = now
        self._last[key] = number
        self.changed.set()

    @property
    def waiting(self) -> int:
        """The number of messages without a result."""
        return len(self.sent) - len(self.came)

    def latencies_ms(self, since: float) -> list[float]:
        """Return for how long the messages sent since then waited for their results, in milliseconds."""
        sent = [(place, at) for place, at in self.sent.items() if at >= since]
        return [1000 * (self.came[place] - at) for place, at in sent if place in self.came]


class Bench:
    """One run on ``stream``. ``start_node`` starts a node of that name, and ``say`` reports progress. Each of
    the three parts lasts ``part_s``, in seconds."""

    def __init__(
        self,
        services: Services,
        stream: str,
        start_node: Callable[[str], Awaitable[BenchNode]],
        say: Callable[[str], None],
        part_s: float,
    ) -> None:
        self._services = services
        self._clock: Clock = services.clock
        self._stream = stream
        spec = msgspec.structs.replace(app.streams[DEFAULT_STREAM], name=stream)
        self._producer = StreamProducer(stream, services.queue(stream), spec, services.values(app.name))
        self._start_node = start_node
        self._say = say
        self._part_s = part_s
        self._ledger = Ledger()
        self._index = 0

    async def run(self) -> BenchReport:
        """Start two nodes, measure, and return the report. Raises Unavailable if the nodes don't join, or if
        results don't come."""
        names = [f"{self._stream}-{number}" for number in (1, 2)]
        nodes = [await self._start_node(name) for name in names]
        self._say("waiting for two nodes to join")
        await self._joined(names)
        async with self._reading():
            await self._warm_up()
            self._say(f"measuring messages a second for {self._part_s:.0f} s")
            rate = await self._rate()
            self._say(f"measuring latency at {CALM_RATE} messages a second for {self._part_s:.0f} s")
            latencies = await self._calm(self._part_s)
            self._say("killing one of two nodes, and waiting for its keys to go on")
            failover_ms = await self._failover(nodes[0])
        return self._report(rate, latencies, failover_ms)

    async def _joined(self, names: list[str]) -> None:
        until = self._clock.monotonic() + JOIN_S
        while True:
            living = {member.name for member in await self._services.coordinator().members()}
            if living.issuperset(names):
                return
            if self._clock.monotonic() > until:
                raise Unavailable(
                    f"the nodes of the benchmark didn't join within {JOIN_S:.0f} s; holdfast doctor"
                    " checks the services"
                )
            await self._clock.sleep(0.1)

    @contextlib.asynccontextmanager
    async def _reading(self) -> AsyncIterator[None]:
        reading = asyncio.ensure_future(self._read())
        try:
            yield
        finally:
            reading.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await reading  # what ended it is why results are missing

    async def _read(self) -> None:
        after, state = 0, self._services.state()
        while True:
            page = await state.results(after, 500, 5.0, self._stream)
            now = self._clock.monotonic()
            for logged in page:
                after = logged.cursor
                key = logged.key.partition("/")[2]
                self._ledger.result(key, int(logged.result.body) - 1, now)

    async def _send(self, count: int) -> None:
        now = self._clock.monotonic()
        messages = [self._ledger.next(self._index + place, now) for place in range(count)]
        self._index += count
        await self._producer.send([StreamMessage(message) for message in messages])

    async def _all_came(self) -> None:
        until = self._clock.monotonic() + END_S
        while self._ledger.waiting:
            self._ledger.changed.clear()
            left_s = until - self._clock.monotonic()
            if left_s <= 0:
                return
            await self._clock.wait(self._ledger.changed, min(1.0, left_s))

    async def _warm_up(self) -> None:
        """Have all keys owned, and all code loaded."""
        await self._send(2 * KEYS)
        await self._all_came()
        if self._ledger.waiting:
            raise Unavailable(f"no results came within {END_S:.0f} s; holdfast logs shows what the nodes say")

    async def _rate(self) -> float:
        began, before = self._clock.monotonic(), len(self._ledger.came)
        while self._clock.monotonic() - began < self._part_s:
            if self._ledger.waiting < AHEAD_MAX:
                await self._send(BATCH)
            else:
                self._ledger.changed.clear()
                await self._clock.wait(self._ledger.changed, 1.0)
        rate = (len(self._ledger.came) - before) / (self._clock.monotonic() - began)
        await self._all_came()
        return rate

    async def _calm(self, seconds: float) -> list[float]:
        """Send few messages at an even pace; return their latencies in milliseconds."""
        began = self._clock.monotonic()
        for tick in range(round(seconds * CALM_RATE)):
            await self._clock.sleep(began + tick / CALM_RATE - self._clock.monotonic())
            await self._send(1)
        await self._all_came()
        return self._ledger.latencies_ms(began)

    async def _failover(self, node: BenchNode) -> float:
        """Kill a node while messages come; return the longest latency in milliseconds."""
        sending = asyncio.ensure_future(self._calm(self._part_s))
        await self._clock.sleep(self._part_s / 4)
        node.kill()
        return max(await sending, default=0.0)

    def _report(self, rate: float, latencies: list[float], failover_ms: float) -> BenchReport:
        config, ledger = self._services.config, self._ledger
        quantiles = statistics.quantiles(latencies, n=100) if len(latencies) > 1 else [0.0] * 99
        settings = ("queue_url", "coordinator_url", "state_url")
        return BenchReport(
            messages_per_s=round(rate, 1),
            latency_p50_ms=round(quantiles[49], 2),
            latency_p99_ms=round(quantiles[98], 2),
            calm_rate=CALM_RATE,
            failover_ms=round(failover_ms, 1),
            messages=len(ledger.sent),
            lost=ledger.waiting,
            doubled=ledger.doubled,
            out_of_order=ledger.out_of_order,
            nodes=2,
            cores=os.cpu_count() or 1,
            services={name: shown(getattr(config, name)) for name in settings},
            durability=config.durability,
            holdfast=holdfast.__version__,
            python=platform.python_version(),
            system=f"{platform.system()} {platform.machine()}",
        )
