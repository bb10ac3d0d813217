"""What every simulated world has: a coordinator, nodes that live several lives, and what happens to them."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import Sequence
from typing import Any, Protocol

from holdfast.cluster.host import Host
from holdfast.cluster.node import Node, Work
from holdfast.common.protocol import Reply, Request
from holdfast.errors import Unavailable
from holdfast.ports.coordinator import Claim
from holdfast.ports.peer import Handler
from holdfast.services.memory.coordinator import MemoryCoordinator
from holdfast.services.memory.peer import MemoryNetwork, MemoryPeer
from holdfast.services.memory.queue import MemoryQueue, StoredMessage
from simulator.faults import Faulty, ServiceLine, Weather
from simulator.limits import limits_with
from simulator.loop import SimClock
from simulator.scenario import EVERY_NODE, TROUBLE_S, TTL_S, VISIBILITY_S, Fault, WorldSetting

TROUBLE_MARGIN_S = 1.0
FOREVER_S = 1e9
SLOW_S = 3.0

WORLDLY = frozenset({"rewind"})
"""Faults that hit no node."""

LIMITS = limits_with(
    ttl_s=TTL_S,
    renew_s=1.5,
    visibility_s=VISIBILITY_S,
    receive_wait_s=5.0,
    custody_check_s=VISIBILITY_S / 4,
    streams_per_slot_max=50_000,
    slots=2,
    spare_slots=1,
    peer_timeout_s=1.0,
    move_timeout_s=5.0,
    balance_s=7.0,
    rest_s=3.0,
    drain_timeout_s=10.0,
)


class Quiet:
    """A log that nobody reads, or that is printed with the virtual time."""

    def __init__(self, name: str, verbose: bool) -> None:
        self._name = name
        self._verbose = verbose

    def _say(self, text: str, **fields: Any) -> None:
        if self._verbose:
            now = asyncio.get_running_loop().time()
            shown = " ".join(f"{name}={value}" for name, value in fields.items())
            sys.stdout.write(f"{now:9.3f} {self._name}: {text} {shown}\n")

    debug = info = warning = error = _say


class CheckedCoordinator(MemoryCoordinator):
    """Notes every stale release or transfer that changed a newer claim."""

    def __init__(self, clock: SimClock, log: list[Any]) -> None:
        super().__init__(clock, log=log)
        self.violations: list[str] = []

    async def transfer(self, claim: Claim, to: str) -> Claim:
        standing = self._standing(claim.key)
        moved = await super().transfer(claim, to)
        if standing != claim:
            self.violations.append(f"a stale transfer of {claim} changed {standing}")
        return moved

    async def release(self, claim: Claim) -> bool:
        standing = self._standing(claim.key)
        released = await super().release(claim)
        if released and standing not in (None, claim):
            self.violations.append(f"a stale release of {claim} freed {standing}")
        return released


class SimPeer:
    """A node's peers: calls go over its line, and a node that stands still does not answer."""

    def __init__(self, peer: MemoryPeer, line: ServiceLine) -> None:
        self._peer = peer
        self._line = line

    async def serve(self, handler: Handler) -> str:
        async def gated(request: Request) -> Reply:
            await self._line.gate.enter()
            await self._line.uncut("peers")
            reply = await handler(request)
            await self._line.gate.enter()
            return reply

        return await self._peer.serve(gated)

    async def call(self, address: str, request: Request, timeout_s: float) -> Reply:
        if address == self._peer.address:
            return await self._peer.call(address, request, timeout_s)
        answer: Reply = await self._line.carry(
            "peers", "call", lambda: self._peer.call(address, request, timeout_s)
        )
        return answer

    async def gone(self, address: str, member: str) -> None:
        await self._peer.gone(address, member)
        await self._line.gate.enter()

    async def close(self) -> None:
        await self._peer.close()


class Dying(Protocol):
    """What ends with its node's process."""

    def die(self) -> None: ...


class SimNode:
    """One life of one node. What it works at is given by ``Stage.make_works``."""

    def __init__(self, stage: Stage, index: int, life: int) -> None:
        setting = stage.setting
        self.stage = stage
        self.index = index
        self.name = f"n{index}.{life}"
        random = setting.random(f"node:{self.name}")
        rate = 1.0 + setting.drift * random.uniform(-1, 1)
        offset_s = random.uniform(0, 1000)
        self.clock = SimClock(random, self.name, rate=rate, offset_s=offset_s)
        self.slot_clock = SimClock(random, self.name + "s", rate=rate, offset_s=offset_s)
        weather = setting.weather if not stage.healed else Weather()
        self.line = ServiceLine(
            self.clock.gate,
            setting.random(f"line:{self.name}"),
            weather,
            stage.counts,
            lambda: stage.trouble(self),
        )
        for fault in stage.everywhere:
            hinder(self.line, fault)
        self.peer = MemoryPeer(stage.network, f"sim://{self.name}")
        self.host = Host(
            Faulty(stage.coordinator, "coordinator", self.line),
            SimPeer(self.peer, self.line),
            self.clock,
            stage.limits,
            Quiet(self.name, stage.verbose),
            self.name,
        )
        works, self._children = stage.make_works(self)
        self.node = Node(self.host, works)
        stage.make_older(self)
        self.host.crashed.add_done_callback(self._failed)
        self._starting = asyncio.ensure_future(self.node.start())
        self._starting.add_done_callback(self._started)
        self.stopped = False

    def _failed(self, future: asyncio.Future[BaseException]) -> None:
        if not future.cancelled() and not self.clock.gate.dead:
            self.stage.failures.append((self.name, future.result()))

    def _started(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and not self.clock.gate.dead and (error := task.exception()) is not None:
            self.stage.failures.append((self.name, error))

    def crash(self) -> None:
        """The process is gone: ports first, then tasks, so that no ``finally`` has an effect."""
        self.stage.trouble(self, FOREVER_S)
        self.clock.gate.kill()
        self.stage.network.cut(self.peer.address)
        self._starting.cancel()
        self.node.abandon()
        for child in self._children:
            child.die()

    async def stop(self) -> None:
        """End gracefully."""
        self.stage.trouble(self, FOREVER_S)
        self.stopped = True
        await self.node.stop()


def hinder(line: ServiceLine, fault: Fault) -> None:
    """Let a service be mute or slow for a node."""
    if fault.kind == "mute":
        line.mute[fault.detail] = None
    else:
        line.slow[fault.detail] = SLOW_S


def _index(address: str) -> int:
    """The number of the node that has an address."""
    return int(address.removeprefix("sim://n").partition(".")[0])


class Stage:
    """The nodes and what they share. A world adds its services, its work, and what is asked of it."""

    limits = LIMITS

    def __init__(self, setting: WorldSetting, verbose: bool = False) -> None:
        self.setting = setting
        self.verbose = verbose
        self.healed = False
        self.counts: Counter[str] = Counter()
        self.failures: list[tuple[str, BaseException]] = []
        self.log: list[Any] = []
        self.clock = SimClock(setting.random("world"), "world")
        self.coordinator = CheckedCoordinator(self.clock, self.log)
        self.network = MemoryNetwork(self.clock)
        self.network.fault = self._meet
        self.apart: dict[frozenset[int], None] = {}
        """Pairs of nodes that can't reach each other, though both reach all others."""
        self.everywhere: list[Fault] = []
        """What hinders every node at present."""
        self.nodes: dict[int, SimNode] = {}
        self.lives: Counter[int] = Counter()
        self.calls_made = 0
        self.seconds_after_healing = 0.0
        self.doubled: dict[str, None] = {}
        self.troubles: list[tuple[str, float, float]] = []
        self._random = setting.random("choose")
        self._background: dict[asyncio.Task[Any], None] = {}
        self._duplicate_until = 0.0

    # --- what a world adds

    def make_older(self, node: SimNode) -> None:
        """Make a node that is to be of an older version one."""

    def make_works(self, node: SimNode) -> tuple[Sequence[Work], Sequence[Dying]]:
        """The works of a node, and the processes that end with its own."""
        raise NotImplementedError

    async def produce(self) -> None:
        """Send what is planned."""
        raise NotImplementedError

    async def finish(self) -> str:
        """Wait until all is done; returns what did not come to an end, or nothing."""
        raise NotImplementedError

    async def strike_else(self, fault: Fault, node: SimNode) -> None:
        """Let a fault happen of a kind that only this world knows."""
        raise NotImplementedError

    # --- what happens

    def trouble(self, node: SimNode, for_s: float = 0.0) -> None:
        """Note that something is done to a node, so that it answers for nothing meanwhile."""
        now = asyncio.get_running_loop().time()
        self.troubles.append((node.name, now - TROUBLE_MARGIN_S, now + for_s + TROUBLE_MARGIN_S))

    def was_troubled(self, node: str, begin: float, end: float) -> bool:
        """True if anything was done to the node in that while."""
        return any(name == node and start <= end and begin <= stop for name, start, stop in self.troubles)

    def choose(self, queue: MemoryQueue, visible: list[StoredMessage]) -> list[StoredMessage]:
        """Any order; now and then something in flight is delivered again."""
        chosen = list(visible)
        if len(chosen) > 1 and self._random.random() < 0.5:
            self._random.shuffle(chosen)
        if self.clock.monotonic() < self._duplicate_until:
            again = [m for m in queue.messages.values() if m.receipt and m not in chosen]
            if again and self._random.random() < 0.3:
                self.counts["duplicate delivery"] += 1
                twice = self._random.choice(again)
                self.doubled[f"{twice.number}.{twice.receives + 1}"] = None
                chosen.append(twice)
        return chosen

    def spawn(self, work: Any) -> None:
        """Run something in the background of the world."""
        task = asyncio.ensure_future(work)
        self._background[task] = None
        task.add_done_callback(self._background.pop)

    def start_node(self, index: int) -> None:
        """Begin a new life of a node."""
        self.lives[index] += 1
        self.nodes[index] = SimNode(self, index, self.lives[index])

    def restart_later(self, index: int, after_s: float) -> None:
        """Begin a new life later."""

        async def restart() -> None:
            await asyncio.sleep(after_s)
            if self.nodes[index].clock.gate.dead or self.nodes[index].stopped:
                self.start_node(index)

        self.spawn(restart())

    async def strike(self, fault: Fault) -> None:
        """Let one fault happen."""
        await asyncio.sleep(fault.at_s)
        node = self.nodes[max(fault.node, 0)]
        self.counts[fault.kind] += 1
        if fault.kind == "forget":
            self.coordinator.forget()
        elif fault.kind == "duplicate":
            self._duplicate_until = self.clock.monotonic() + fault.for_s
        elif fault.kind in ("mute", "slow"):
            await self._hinder(fault)
        elif fault.kind == "apart":
            await self._part(fault)
        elif fault.kind in WORLDLY:
            await self.strike_else(fault, node)
        elif node.clock.gate.dead or node.stopped:
            if fault.kind == "operator":
                await self.strike_else(fault, node)
        elif fault.kind == "crash":
            node.crash()
            self.restart_later(fault.node, fault.for_s)
        elif fault.kind == "pause":
            node.clock.gate.close()
            self.trouble(node, fault.for_s)
            await asyncio.sleep(fault.for_s)
            node.clock.gate.open()
        elif fault.kind in ("cut", "isolate"):
            await self._cut(fault, node)
        elif fault.kind == "stop":
            await node.stop()
            self.restart_later(fault.node, fault.for_s)
        else:
            await self.strike_else(fault, node)

    async def _hinder(self, fault: Fault) -> None:
        """A service's answers are lost, or it is slow, for one node or for all."""
        nodes = list(self.nodes.values()) if fault.node == EVERY_NODE else [self.nodes[fault.node]]
        if fault.node == EVERY_NODE:
            self.everywhere.append(fault)
        for node in nodes:
            hinder(node.line, fault)
            if fault.detail != "state":  # whatever becomes of commits, deliveries are kept alive
                self.trouble(node, fault.for_s)
        await asyncio.sleep(fault.for_s)
        if fault in self.everywhere:
            self.everywhere.remove(fault)
        for node in (*nodes, *self.nodes.values()):
            node.line.mute.pop(fault.detail, None)
            node.line.slow.pop(fault.detail, None)

    async def _part(self, fault: Fault) -> None:
        """Two nodes can't reach each other."""
        first = max(fault.node, 0)
        pair = frozenset((first, (first + 1) % self.setting.nodes))
        if len(pair) < 2:
            return
        self.apart[pair] = None
        await asyncio.sleep(fault.for_s)
        self.apart.pop(pair, None)

    async def _meet(self, source: str, destination: str, _request: Request) -> None:
        if frozenset(_index(address) for address in (source, destination)) in self.apart:
            raise Unavailable(f"{destination} can't be reached from {source}")

    async def _cut(self, fault: Fault, node: SimNode) -> None:
        services = (fault.detail,) if fault.kind == "cut" else ("coordinator", "state", "queue", "peers")
        for service in services:
            node.line.cut[service] = None
        self.trouble(node, fault.for_s)
        if "queue" in services:  # whatever it owns, for whomever, can't be kept alive
            for other in self.nodes.values():
                self.trouble(other, fault.for_s)
        await asyncio.sleep(fault.for_s)
        for service in services:
            node.line.cut.pop(service, None)

    async def live(self) -> str:
        """The whole story; returns what did not come to an end, or nothing."""
        for index in range(self.setting.nodes):
            self.start_node(index)
        self.spawn(self.produce())
        for fault in self.setting.faults:
            self.spawn(self.strike(fault))
        await asyncio.sleep(TROUBLE_S)
        self._heal()
        healed_at = asyncio.get_running_loop().time()
        late = await self.finish()
        self.seconds_after_healing = asyncio.get_running_loop().time() - healed_at
        calls = sum(node.line.calls for node in self.nodes.values())
        self.calls_made = calls
        for node in list(self.nodes.values()):
            if not node.clock.gate.dead:
                await node.stop()
        return late

    def _heal(self) -> None:
        self.healed = True
        self.apart.clear()
        self.everywhere.clear()
        for index, node in list(self.nodes.items()):
            node.line.weather = Weather()
            node.line.cut.clear()
            node.line.mute.clear()
            node.line.slow.clear()
            node.line.calls = 0
            node.clock.gate.open()
            if node.clock.gate.dead or node.stopped:
                self.start_node(index)
