"""A dispatcher in virtual time, over a store, a broker and devices in memory."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from random import Random
from typing import Any, Unpack

import pytest

from holdfast import App
from holdfast.cluster.lifecycle import Tasks
from holdfast.devices.dispatcher import Dispatcher
from holdfast.devices.outbox import Outbox
from holdfast.devices.ports.outbox import OnResult
from holdfast.devices.rules.device_queue import CommandState, StoredCommand
from holdfast.devices.rules.device_turn import TurnRequest, TurnResult
from holdfast.devices.services.memory.device import MemoryBroker, MemoryDevices, MemoryFleet
from holdfast.devices.services.memory.outbox import MemoryOutbox
from holdfast.devices.services.memory.terminal import Behaviour
from holdfast.devices.spec import CommandOptions
from simulator.loop import SimClock, VirtualLoop
from tests.cluster.fakes import Log, StandingMembership, make_host


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"virtual": VirtualLoop}


TakeTurn = Callable[[], Awaitable[TurnResult]]


class Site:
    """One dispatcher that owns all shards, and what it stands on."""

    def __init__(self) -> None:
        self.clock = SimClock(Random(0), "site")
        self.store = MemoryOutbox(self.clock)
        self.broker = MemoryBroker(self.clock, delay_s=0.001)
        self.log = Log()
        self.crashes: list[BaseException] = []
        self.tasks = Tasks(self.crashes.append)
        self.lost: list[int] = []
        self.membership = StandingMembership()
        self.host = make_host(self.clock, self.tasks, log=self.log, name="node", membership=self.membership)
        self.outbox: Outbox
        self.dispatcher: Dispatcher

    async def start(self, devices: int = 0, behaviour: Behaviour | None = None, **settings: Any) -> None:
        """Serve an outbox with these settings, and devices ``d0``, ``d1`` and so on."""
        self.outbox = App("office").outbox("doors", **settings)
        self.outbox.wall = self.clock.wall
        await self.store.prepare("doors", self.outbox.spec.shards)
        self.dispatcher = Dispatcher(
            self.outbox,
            self.store,
            lambda identity, still_ours: MemoryDevices(self.broker, identity, still_ours=still_ours),
            self.host,
            on_lost=self.lost.append,
        )
        fleet = MemoryFleet(self.broker, [f"d{n}" for n in range(devices)], behaviour or Behaviour(), "seed")
        fleet.start()
        for shard in range(self.outbox.spec.shards):
            await self.dispatcher.served.own(shard, await self.store.open("doors", shard, 0, "site"))
        self.tasks.spawn(self.dispatcher.run())

    async def take_from(self, number: int = 0, member: str = "another") -> int:
        """Open a shard as another owner; return the epoch."""
        return await self.store.open("doors", number, (await self.store.epochs("doors"))[number], member)

    async def own(self, number: int = 0) -> None:
        """Have the dispatcher serve a shard."""
        await self.dispatcher.served.own(number, await self.take_from(number, "me"))

    async def wait(self, condition: Callable[[], bool], within_s: float = 60.0, step_s: float = 0.01) -> None:
        """Wait until a condition holds."""
        async with asyncio.timeout(within_s):
            while not condition():
                await self.clock.sleep(step_s)

    async def add(self, device: str, command: Any = None, **options: Unpack[CommandOptions]) -> int:
        """Add a command."""
        new = self.outbox.new([{"device": device, "command": command or {}, **options}])
        return (await self.store.add(new))[0]

    async def until(self, command: int, state: CommandState, within_s: float = 600.0) -> StoredCommand:
        """Wait until a command is in this state."""
        async with asyncio.timeout(within_s):
            while (entry := await self.store.command(command)) is None or entry.state is not state:
                await self.clock.sleep(0.01)
        return entry

    async def done(self, commands: Iterable[int], within_s: float = 600.0) -> None:
        """Wait until these commands are acknowledged, one after the other."""
        for command in commands:
            await self.until(command, CommandState.ACKNOWLEDGED, within_s)

    async def run(
        self, device: str, within_s: float = 600.0, **options: Unpack[CommandOptions]
    ) -> StoredCommand:
        """Add a command, and wait until it is acknowledged."""
        return await self.until(await self.add(device, **options), CommandState.ACKNOWLEDGED, within_s)

    async def command(self, command: int) -> StoredCommand:
        """Return a stored command."""
        entry = await self.store.command(command)
        assert entry is not None
        return entry

    def answer_all(self, device: str) -> None:
        """Have a device answer each command at once."""
        self.broker.listen(device, lambda id_, payload: self.broker.answer(device, id_, b"{}"))

    def silence(self, device: str) -> None:
        """Have a device receive commands and answer none."""
        self.broker.listen(device, lambda id_, payload: None)

    def around_turns(self, around: Callable[[TurnRequest, TakeTurn], Awaitable[TurnResult]]) -> None:
        """Have each later turn taken by ``around``, which is given its request, and the call that
        takes it."""
        take_turn = self.store.take_turn

        async def take(request: TurnRequest, on_result: OnResult | None = None) -> TurnResult:
            return await around(request, lambda: take_turn(request, on_result))

        self.store.take_turn = take  # type: ignore[method-assign]

    async def stop(self) -> None:
        """End it all."""
        await self.tasks.close()
        await self.store.close()
        assert self.crashes == []


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    site = Site()
    yield site
    await site.stop()
