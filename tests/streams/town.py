"""Services in memory and whole nodes on them, without faults but those that a test makes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable
from random import Random
from typing import Any

from holdfast import App
from holdfast.cluster.deliverer import Targets
from holdfast.cluster.host import Host
from holdfast.cluster.limits import Limits
from holdfast.cluster.node import Node
from holdfast.errors import ConfigError
from holdfast.ports.queue import DeadLetter, Outgoing
from holdfast.ports.slots import MessageWork
from holdfast.ports.target import Target
from holdfast.services.memory.coordinator import MemoryCoordinator
from holdfast.services.memory.objects import MemoryObjects
from holdfast.services.memory.peer import MemoryNetwork, MemoryPeer
from holdfast.services.memory.queue import MemoryQueue, QueueEvent
from holdfast.services.memory.slots import MemorySlot, MemorySlots
from holdfast.services.memory.state import MemoryState
from holdfast.streams.storage import StreamStorage
from holdfast.streams.work import StreamWork
from holdfast.streams.worker import StreamWorker
from holdfast.system.values import Values
from simulator.limits import limits_with
from simulator.loop import SimClock
from tests.cluster.fakes import Log

PATIENCE_S = 300.0
LOOK_S = 0.01
LIMITS = limits_with(
    receive_wait_s=5.0,
    ttl_s=5.0,
    renew_s=1.5,
    visibility_s=30.0,
    slots=2,
    drain_timeout_s=20.0,
    peer_timeout_s=1.0,
)


class Service:
    """A service as one node reaches it: ``instead`` maps names of calls to what happens in their place."""

    def __init__(self, standing: Any) -> None:
        self._standing = standing
        self.instead: dict[str, Callable[..., Awaitable[Any]]] = {}
        self.calls: list[tuple[str, tuple[Any, ...]]] = []

    def __getattr__(self, name: str) -> Any:
        member = getattr(self._standing, name)
        if not asyncio.iscoroutinefunction(member):
            return member

        async def call(*args: Any) -> Any:
            self.calls.append((name, args))
            return await self.instead.get(name, member)(*args)

        return call

    def called(self, name: str) -> list[tuple[Any, ...]]:
        """The arguments of every call of that name."""
        return [args for known, args in self.calls if known == name]


class TownNode:
    """One node, and all that it is made of. It is ``called`` by its name unless told."""

    def __init__(self, town: Town, name: str, app: App, limits: Limits, called: str = "") -> None:
        self.name = name
        self.clock = SimClock(Random(name), name)
        self.coordinator = Service(town.coordinator)
        self.state = Service(town.state)
        self.queues = {stream: Service(town.queue(stream)) for stream in app.streams}
        self.peer = MemoryPeer(town.network, f"sim://{name}")
        self.slots = MemorySlots(
            lambda host: StreamWorker(app.streams, town.objects, host, models=app.models),
            self.clock,
            before=town.before,
            prefix=name,
        )
        self.log = Log()
        self.host = Host(self.coordinator, self.peer, self.clock, limits, self.log, called or name)
        self.archive = Service(town.archive)
        self.work = StreamWork(
            self.host,
            app.streams,
            StreamStorage(
                self.queues,
                self.state,
                {stream: self.archive for stream, spec in app.streams.items() if spec.archive},
                Values("", self.clock),
            ),
            self.slots,
            models=app.models,
            targets=Targets({}, town.open_url),
        )
        self.node = Node(self.host, [self.work])

    @property
    def id(self) -> str:
        """The membership."""
        return self.host.membership.id

    def owns(self, key: str) -> bool:
        """True if it owns the full key, or thinks so."""
        return self.work.owners.get(key) is not None


class Town:
    """All services, and the nodes on them."""

    def __init__(self, clock: SimClock) -> None:
        self.clock = clock
        self.coordinator = MemoryCoordinator(clock)
        self.state = MemoryState(clock)
        self.network = MemoryNetwork(clock)
        self.objects = MemoryObjects()
        self.archive = MemoryObjects()
        self.nodes: list[TownNode] = []
        self.deeds: dict[bytes, Callable[[MemorySlot], Awaitable[None]]] = {}
        self.hooks: dict[str, Target] = {}
        """What takes effects at URLs."""
        self._queues: dict[str, MemoryQueue] = {}

    def open_url(self, url: str) -> Target:
        """The target at a URL."""
        if url not in self.hooks:
            raise ConfigError("it is not set up for webhooks")
        return self.hooks[url]

    def queue(self, stream: str = "s") -> MemoryQueue:
        """The queue of a stream."""
        return self._queues.setdefault(stream, MemoryQueue(self.clock, max_bytes=10_000))

    def add_fifo_queue(self, stream: str = "s") -> MemoryQueue:
        """The queue of a stream, which keeps the order of each key."""
        queue = self._queues[stream] = MemoryQueue(self.clock, max_bytes=10_000, fifo=True, by_key=False)
        return queue

    async def before(self, slot: MemorySlot, stream: str, key: str, work: MessageWork) -> None:
        """What the test lets happen as this message begins to be handled."""
        if work.body in self.deeds:
            await self.deeds[work.body](slot)

    async def start(self, app: App, name: str = "a", limits: Limits = LIMITS) -> TownNode:
        """A new node that runs."""
        node = TownNode(self, name, app, limits)
        self.nodes.append(node)
        await node.node.start()
        return node

    async def close(self) -> None:
        """Stop every node; none may have crashed."""
        for node in self.nodes:
            await node.node.stop()
            assert not node.host.crashed.done(), node.host.crashed.result()

    async def crash(self, node: TownNode) -> None:
        """The process is gone."""
        self.nodes.remove(node)
        self.network.cut(node.peer.address)
        node.node.abandon()
        node.slots.die()

    # --- messages

    async def send(self, *messages: dict[str, Any] | bytes, stream: str = "s") -> None:
        """Send objects, or bodies as they are."""
        bodies = [m if isinstance(m, bytes) else json.dumps(m).encode() for m in messages]
        for body in bodies:
            await self.queue(stream).send([Outgoing(body)])

    async def until(self, holds: Callable[[], Any], limit_s: float = PATIENCE_S) -> None:
        """Let virtual time pass until it is so."""
        end_at = self.clock.monotonic() + limit_s
        while not holds():
            assert self.clock.monotonic() < end_at, self._story()
            await self.clock.sleep(LOOK_S)

    async def until_over(self, stream: str = "s") -> None:
        """Until no message is left in the queue."""
        await self.until(lambda: not self.queue(stream).messages)

    def results(self, key: str, stream: str = "s") -> list[Any]:
        """What the handler returned, in the order of commits."""
        return [
            json.loads(logged.result.body) for logged in self.state.logged if logged.key == f"{stream}/{key}"
        ]

    def letters(self, stream: str = "s") -> list[DeadLetter]:
        """The dead letters."""
        return list(self.queue(stream).letters.values())

    def events(self, kind: str, stream: str = "s") -> list[QueueEvent]:
        """What happened to messages."""
        return [event for event in self.queue(stream).log if event.kind == kind]

    def _story(self) -> str:
        logs: Iterable[Any] = [entry for node in self.nodes for entry in node.log.entries[-20:]]
        return "\n".join(map(str, [*self._queues["s"].messages.values(), *self.letters(), *logs]))
