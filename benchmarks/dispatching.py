"""An outbox at work, for benchmarks: its dispatcher in this process, devices and their broker elsewhere."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import cast

import msgspec
import structlog

from holdfast.cluster.host import Host
from holdfast.cluster.limits import Limits
from holdfast.cluster.membership import Membership
from holdfast.config.settings import Config
from holdfast.devices.dispatcher import Dispatcher
from holdfast.devices.outbox import Outbox
from holdfast.devices.ports.outbox import OnResult
from holdfast.devices.rules.device_turn import TurnRequest, TurnResult
from holdfast.devices.services.mqtt.address import parse
from holdfast.devices.services.mqtt.device import MqttDevices
from holdfast.devices.services.sqlalchemy.outbox import SqlOutbox
from holdfast.services.memory.coordinator import MemoryCoordinator
from holdfast.services.memory.peer import MemoryNetwork, MemoryPeer
from holdfast.system.clock import SystemClock
from simulator.servers.server import until

COMMAND = {"operator": "EditPerson", "info": {"personId": "951", "name": "A. Person"}}
DURABILITY = "what devices have answered is on disk before it counts"
ADD_MAX = 5_000
TIMEOUT_S = 120.0


class WatchedOutbox(SqlOutbox):
    """Records when commands were closed, immediately after the commit."""

    def __init__(self, url: str, clock: SystemClock) -> None:
        super().__init__(url, clock)
        self.closed_at_s = 0.0
        self.closed = asyncio.Event()

    async def take_turn(self, request: TurnRequest, on_result: OnResult | None = None) -> TurnResult:
        result = await super().take_turn(request, on_result)
        if result.closed:
            self.closed_at_s = time.perf_counter()
            self.closed.set()
        return result


@dataclass(frozen=True)
class Dispatching:
    """The running parts, and access to their numbers."""

    outbox: Outbox
    store: WatchedOutbox
    dispatcher: Dispatcher
    clock: SystemClock

    async def rate(self, seconds: float) -> float:
        """Commands closed a second, from now on."""
        begun_at, before = self.clock.monotonic(), self.dispatcher.counts.closed
        await asyncio.sleep(seconds)
        return (self.dispatcher.counts.closed - before) / (self.clock.monotonic() - begun_at)

    async def closed(self, count: int) -> None:
        """Return once so many commands have been closed."""

        async def done() -> bool:
            return self.dispatcher.counts.closed >= count

        await until(done, f"{count:,} commands are closed", TIMEOUT_S)


async def fill(store: SqlOutbox, outbox: Outbox, devices: Sequence[str], each: int) -> None:
    """Let ``each`` commands wait for every device; those of one device lie far apart in the table."""
    body = msgspec.json.encode(COMMAND)
    for _ in range(each):
        for first in range(0, len(devices), ADD_MAX):
            part = devices[first : first + ADD_MAX]
            await store.add(outbox.new({"device": device, "command": body} for device in part))


def _tell_crash(crashed: asyncio.Future[BaseException]) -> None:
    if not crashed.cancelled():
        structlog.get_logger().error("crashed", error=repr(crashed.result()))


@contextlib.asynccontextmanager
async def dispatching(
    store_url: str, broker_url: str, outbox: Outbox, devices: Sequence[str], each: int
) -> AsyncIterator[Dispatching]:
    """A dispatcher that owns all shards, with ``each`` commands waiting for every device."""
    clock = SystemClock()
    store = WatchedOutbox(store_url, clock)
    name, shards = outbox.spec.name, outbox.spec.shards
    await store.prepare(name, shards)
    await fill(store, outbox, devices, each)
    address = replace(parse(broker_url), hears="own" if shards > 1 else "all")
    peer = MemoryPeer(MemoryNetwork(clock), "benchmark")
    host = Host(
        MemoryCoordinator(clock), peer, clock, Limits.of(Config()), structlog.get_logger(), "benchmark"
    )
    host.membership = cast("Membership", SimpleNamespace(alive=True))
    host.crashed.add_done_callback(_tell_crash)
    dispatcher = Dispatcher(
        outbox,
        store,
        lambda identity, still_ours: MqttDevices(
            address, identity, clock, topics=outbox.spec.topics, still_ours=still_ours
        ),
        host,
        on_lost=lambda number: structlog.get_logger().error("lost", shard=number),
    )
    try:
        for number in range(shards):
            await dispatcher.served.own(number, await store.open(name, number, 0, "benchmark"))
        host.tasks.spawn(dispatcher.run())
        yield Dispatching(outbox, store, dispatcher, clock)
    finally:
        for number in range(shards):
            await dispatcher.served.disown(number)
        await host.tasks.close()
        await store.close()
