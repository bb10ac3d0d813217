"""The simulated world: services in memory, nodes that run the real runtime, and what happens to them."""

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter
from collections.abc import Sequence
from typing import Any

from holdfast.adapters.memory.coordinator import MemoryCoordinator
from holdfast.adapters.memory.peer import MemoryNetwork, MemoryPeer
from holdfast.adapters.memory.queue import MemoryQueue, Stored
from holdfast.adapters.memory.slots import MemorySlot, MemorySlots
from holdfast.adapters.memory.state import MemoryState
from holdfast.core.ledger import Commit
from holdfast.core.message import Place
from holdfast.core.retry import Backoff
from holdfast.errors import Fenced, HoldfastError, SetAside
from holdfast.ports.coordinator import Claim
from holdfast.ports.peer import Handler
from holdfast.ports.queue import Outgoing
from holdfast.ports.slots import Ran, Slot, Work
from holdfast.protocol.peer import Poke, Reply, Request
from holdfast.runtime.limits import Limits
from holdfast.runtime.node import Host, Node
from holdfast.streams.spec import StreamSpec
from holdfast.streams.work import StreamWork
from holdfast.streams.worker import Worker
from holdfast.testing.simulator.faults import Faulty, Line, Weather
from holdfast.testing.simulator.handler import Chain, Number
from holdfast.testing.simulator.loop import SimClock
from holdfast.testing.simulator.scenario import (
    GAP_TIMEOUT_S,
    STREAM,
    TROUBLE_S,
    TTL_S,
    VISIBILITY_S,
    Fault,
    Planned,
    Scenario,
)

HEAL_LIMIT_S = 600.0
GAP_HEAL_LIMIT_S = 5000.0
"""Where a stream waits for its lowest seq, every node that a poisonous first message kills waits again."""
TIMEOUT_S = 3.0
MAX_STARTS = 10
TROUBLE_MARGIN_S = 1.0
ASK_S = 4.0
"""How long a client waits for one answer."""
FOREVER_S = 1e9

LIMITS = Limits(
    ttl_s=TTL_S,
    renew_s=1.5,
    visibility_s=VISIBILITY_S,
    receive_wait_s=5.0,
    custody_check_s=VISIBILITY_S / 4,
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

    def __init__(self, peer: MemoryPeer, line: Line) -> None:
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


class SimSlot:
    """A slot is a process of its own: it goes on while its node stands still."""

    def __init__(self, slot: MemorySlot, line: Line) -> None:
        self.slot = slot
        self.name = slot.name
        self._line = line

    @property
    def progress_at(self) -> float:
        return self.slot.progress_at

    @progress_at.setter
    def progress_at(self, at: float) -> None:
        self.slot.progress_at = at

    @property
    def models(self) -> Sequence[str]:
        return self.slot.models

    @property
    def loading(self) -> str:
        return self.slot.loading

    async def open(self, stream: str, key: str, state: bytes | None, version: int) -> None:
        try:
            await self.slot.open(stream, key, state, version)
        finally:
            await self._line.gate.enter()

    async def run(self, stream: str, key: str, work: Sequence[Work], limit: int, after_s: float) -> Ran:
        try:
            return await self.slot.run(stream, key, work, limit, after_s)
        finally:
            await self._line.gate.enter()

    async def close(self, stream: str, key: str) -> None:
        await self.slot.close(stream, key)

    async def kill(self, reason: str) -> str:
        return await self.slot.kill(reason)

    async def exited(self) -> str:
        why = await self.slot.exited()
        await self._line.gate.enter()
        return why


class SimSlots:
    """Makes such slots."""

    def __init__(self, slots: MemorySlots, line: Line) -> None:
        self.slots = slots
        self._line = line

    async def spawn(self) -> Slot:
        return SimSlot(await self.slots.spawn(), self._line)

    async def close(self) -> None:
        await self.slots.close()


class SimNode:
    """One life of one node."""

    def __init__(self, world: World, index: int, life: int) -> None:
        scenario = world.scenario
        self.world = world
        self.index = index
        self.name = f"n{index}.{life}"
        random = scenario.random(f"node:{self.name}")
        rate = 1.0 + scenario.drift * random.uniform(-1, 1)
        offset_s = random.uniform(0, 1000)
        self.clock = SimClock(random, self.name, rate=rate, offset_s=offset_s)
        slot_clock = SimClock(random, self.name + "s", rate=rate, offset_s=offset_s)
        weather = scenario.weather if not world.healed else Weather()
        self.line = Line(
            self.clock.gate,
            scenario.random(f"line:{self.name}"),
            weather,
            world.counts,
            lambda: world.trouble(self),
        )
        self.peer = MemoryPeer(world.network, f"sim://{self.name}")
        self.slots = MemorySlots(
            lambda host: Worker(world.specs, None, host),
            slot_clock,
            before=self._before,
            spawn_s=0.02,
            prefix=self.name,
        )
        self._slot_clock = slot_clock
        self.host = Host(
            Faulty(world.coordinator, "coordinator", self.line),
            SimPeer(self.peer, self.line),
            self.clock,
            LIMITS,
            Quiet(self.name, world.verbose),
            self.name,
        )
        self.work = StreamWork(
            self.host,
            world.specs,
            {STREAM: Faulty(world.queue, "queue", self.line)},
            Faulty(world.state, "state", self.line),
            SimSlots(self.slots, self.line),
        )
        self.node = Node(self.host, [self.work])
        self.host.crashed.add_done_callback(self._failed)
        self._starting = asyncio.ensure_future(self.node.start())
        self._starting.add_done_callback(self._started)
        self.stopped = False

    def _failed(self, future: asyncio.Future[BaseException]) -> None:
        if not future.cancelled() and not self.clock.gate.dead:
            self.world.failures.append((self.name, future.result()))

    def _started(self, task: asyncio.Future[None]) -> None:
        if not task.cancelled() and not self.clock.gate.dead and (error := task.exception()) is not None:
            self.world.failures.append((self.name, error))

    async def _before(self, slot: MemorySlot, stream: str, key: str, work: Work) -> None:
        """What this message does to its process."""
        planned = self.world.plan_by_body[work.body]
        if planned.kills and self.world.deaths[planned] != planned.kills and not self.clock.gate.dead:
            self.world.deaths[planned] += 1
            self.world.counts["poison"] += 1
            self.crash()
            self.world.restart_later(self.index, 0.3)
        if self.clock.gate.dead:
            await asyncio.Event().wait()
        if planned.hangs and work.attempt == 1:
            self.world.counts["hang"] += 1
            await asyncio.Event().wait()
        await self._slot_clock.sleep(planned.seconds)

    def crash(self) -> None:
        """The process is gone: ports first, then tasks, so that no ``finally`` has an effect."""
        self.world.trouble(self, FOREVER_S)
        self.clock.gate.kill()
        self.world.network.cut(self.peer.address)
        self._starting.cancel()
        self.node.abandon()
        self.slots.die()

    async def stop(self) -> None:
        """End gracefully."""
        self.world.trouble(self, FOREVER_S)
        self.stopped = True
        await self.node.stop()


class World:
    """Services, nodes, and the messages sent."""

    def __init__(self, scenario: Scenario, verbose: bool = False) -> None:
        self.scenario = scenario
        self.verbose = verbose
        self.healed = False
        self.counts: Counter[str] = Counter()
        self.deaths: Counter[Planned] = Counter()
        self.failures: list[tuple[str, BaseException]] = []
        self.log: list[Any] = []
        self.clock = SimClock(scenario.random("world"), "world")
        self.queue = MemoryQueue(
            self.clock,
            frees_on_evict=scenario.frees_on_evict,
            hold_max_s=scenario.hold_max_s,
            fifo=scenario.fifo,
            log=self.log,
            choose=self._choose_keys if scenario.fifo else self._choose,
        )
        self.queue.max_receives, self.queue.linger_s = scenario.receives, scenario.linger_s
        self.coordinator = CheckedCoordinator(self.clock, self.log)
        self.state = MemoryState(self.clock, history=self.log)
        self.network = MemoryNetwork(self.clock)
        self.specs = {STREAM: spec_of(scenario)}
        self.plan_by_body = {body_of(m): m for m in scenario.messages}
        self.nodes: dict[int, SimNode] = {}
        self.lives: Counter[int] = Counter()
        self.calls_made = 0
        self.seconds_after_healing = 0.0
        self._random = scenario.random("choose")
        self._background: dict[asyncio.Task[Any], None] = {}
        self._duplicate_until = 0.0
        self.doubled: dict[str, None] = {}
        self.troubles: list[tuple[str, float, float]] = []
        self.asking: dict[Planned, None] = {}
        self.answers: dict[Planned, bytes | None] = {}
        self._clients = scenario.random("clients")

    def trouble(self, node: SimNode, for_s: float = 0.0) -> None:
        """Note that something is done to a node, so that it answers for nothing meanwhile."""
        now = asyncio.get_running_loop().time()
        self.troubles.append((node.name, now - TROUBLE_MARGIN_S, now + for_s + TROUBLE_MARGIN_S))

    def was_troubled(self, node: str, begin: float, end: float) -> bool:
        """True if anything was done to the node in that while."""
        return any(name == node and start <= end and begin <= stop for name, start, stop in self.troubles)

    def _choose(self, visible: list[Stored]) -> list[Stored]:
        """Any order; now and then something in flight is delivered again."""
        chosen = list(visible)
        if len(chosen) > 1 and self._random.random() < 0.5:
            self._random.shuffle(chosen)
        if self.clock.monotonic() < self._duplicate_until:
            again = [m for m in self.queue.messages.values() if m.receipt and m not in chosen]
            if again and self._random.random() < 0.3:
                self.counts["duplicate delivery"] += 1
                twice = self._random.choice(again)
                self.doubled[f"{twice.number}.{twice.receives + 1}"] = None
                chosen.append(twice)
        return chosen

    def _choose_keys(self, visible: list[Stored]) -> list[Stored]:
        """Any order of keys, and each key's own."""
        keys = sorted({message.key for message in visible})
        self._random.shuffle(keys)
        return [message for key in keys for message in visible if message.key == key]

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

    async def produce(self) -> None:
        """Send the planned messages."""
        loop = asyncio.get_running_loop()
        for message in self.scenario.messages:
            await asyncio.sleep(max(0.0, message.at_s - loop.time()))
            if self._clients.random() < self.scenario.clients:
                self.asking[message] = None
                self.spawn(self._ask(message))
            else:
                await self.queue.send([Outgoing(body_of(message), {}, key=message.key)])

    async def _ask(self, message: Planned) -> None:
        """A client brings its message to any node, follows where it is sent, and asks again until it has an
        answer."""
        key = f"{STREAM}/{message.key}"
        place = Place(message.run, message.seq)
        if self.scenario.kind == "absent":
            place = Place(message.run, 0, f"client {message.seq}")
        while message in self.asking:
            node = self.nodes[self._clients.choice(sorted(self.nodes))]
            process = node.work.requests.process(STREAM, key, place, body_of(message), {}, ASK_S)
            asked = asyncio.ensure_future(process)
            await asyncio.wait({asked}, timeout=2 * ASK_S)
            if not asked.done():
                asked.cancel()
                self.counts["no answer"] += 1
            elif asked.cancelled():
                self.counts["no answer"] += 1
            elif (error := asked.exception()) is None:
                self.answers[message] = asked.result().result
                del self.asking[message]
            elif isinstance(error, SetAside):
                del self.asking[message]
            elif not isinstance(error, HoldfastError):
                self.failures.append((node.name, error))
                del self.asking[message]
            else:
                self.counts["asked again"] += 1
            await asyncio.sleep(self._clients.uniform(0.05, 1.0))

    async def strike(self, fault: Fault) -> None:
        """Let one fault happen."""
        await asyncio.sleep(fault.at_s)
        node = self.nodes[fault.node]
        self.counts[fault.kind] += 1
        if fault.kind == "forget":
            self.coordinator.forget()
        elif fault.kind == "duplicate":
            self._duplicate_until = self.clock.monotonic() + fault.for_s
        elif fault.kind == "operator":
            await self._pause_a_key(fault)
        elif node.clock.gate.dead or node.stopped:
            return
        elif fault.kind == "crash":
            node.crash()
            self.restart_later(fault.node, fault.for_s)
        elif fault.kind == "pause":
            node.clock.gate.close()
            self.trouble(node, fault.for_s)
            await asyncio.sleep(fault.for_s)
            node.clock.gate.open()
        elif fault.kind in ("cut", "isolate"):
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
        elif fault.kind == "slot":
            for slot in node.slots.slots[:1]:
                slot.die("was killed by the scenario")
        elif fault.kind == "move":
            await self._move(node)
        else:
            await node.stop()
            self.restart_later(fault.node, fault.for_s)

    async def _move(self, node: SimNode) -> None:
        others = [other for other in self.nodes.values() if other is not node and not other.clock.gate.dead]
        for entry in node.work.owners:
            if others:
                await node.work.move(entry.key, others[0].host.membership.id)

    async def _pause_a_key(self, fault: Fault) -> None:
        """An operator pauses a stream and resumes it later, at the store, whoever owns it."""
        keys = sorted({f"{STREAM}/{m.key}" for m in self.scenario.messages})
        key = keys[fault.node % len(keys)]
        await self.set_parked(key, "paused by an operator")
        await asyncio.sleep(fault.for_s)
        await self.set_parked(key, "")

    async def set_parked(self, key: str, reason: str) -> None:
        """Open the stream over its owner's head, change it, and tell the nodes to look."""
        for _ in range(100):
            standing = await self.state.peek(key)
            if standing is None:
                return
            try:
                opened = await self.state.open(key, standing.epoch, "operator")
                number = opened.number + 1
                await self.state.commit(
                    Commit(
                        key=key,
                        epoch=opened.epoch,
                        number=number,
                        id=f"operator.{opened.epoch}.{number}",
                        log=opened.log,
                        past=opened.past,
                        window=10_000,
                        parked=reason,
                    )
                )
            except Fenced:
                continue
            break
        for node in self.nodes.values():
            if not node.clock.gate.dead and node.host.membership.id:
                self.spawn(node.node._handle(Poke(node.host.membership.id, STREAM, key)))

    async def live(self) -> str:
        """The whole story; returns what did not come to an end, or nothing."""
        for index in range(self.scenario.nodes):
            self.start_node(index)
        self.spawn(self.produce())
        for fault in self.scenario.faults:
            self.spawn(self.strike(fault))
        await asyncio.sleep(TROUBLE_S)
        self._heal()
        healed_at = asyncio.get_running_loop().time()
        late = await self._finish()
        self.seconds_after_healing = asyncio.get_running_loop().time() - healed_at
        calls = sum(node.line.calls for node in self.nodes.values())
        self.calls_made = calls
        for node in list(self.nodes.values()):
            if not node.clock.gate.dead:
                await node.stop()
        return late

    def _heal(self) -> None:
        self.healed = True
        for index, node in list(self.nodes.items()):
            node.line.weather = Weather()
            node.line.cut.clear()
            node.line.calls = 0
            node.clock.gate.open()
            if node.clock.gate.dead or node.stopped:
                self.start_node(index)

    async def _finish(self) -> str:
        loop = asyncio.get_running_loop()
        waits = self.scenario.first == "lowest" or any(m.run for m in self.scenario.messages)
        limit_s = GAP_HEAL_LIMIT_S if waits else HEAL_LIMIT_S
        deadline = loop.time() + limit_s
        while loop.time() < deadline:
            await self._resume_parked()
            if not self.queue.messages and not self._waiting_letters() and not self.asking:
                return ""
            await asyncio.sleep(0.5)
        if self.asking:
            return f"{len(self.asking)} clients without an answer: {list(self.asking)[:4]}"
        left = [json.loads(m.body) for m in self.queue.messages.values()]
        return f"{len(left)} messages still there {limit_s:g} s after healing: {left[:4]}"

    def _waiting_letters(self) -> list[str]:
        return [letter.id for letter in self.queue.letters.values() if letter.reason.startswith("parked")]

    async def _resume_parked(self) -> None:
        for checkpoint in list(self.state.standing.values()):
            if checkpoint.parked.startswith("paused"):
                await self.set_parked(checkpoint.key, "")
        waiting = self._waiting_letters()
        for start in range(0, len(waiting), self.queue.max_batch):
            await self.queue.redrive(waiting[start : start + self.queue.max_batch])


def spec_of(scenario: Scenario) -> StreamSpec:
    """The simulated stream, as an app would declare it."""
    return StreamSpec(
        name=STREAM,
        handler=Chain,
        message=Number,
        key="key",
        seq=None if scenario.kind == "absent" else "queue" if scenario.fifo else "seq",
        run="run",
        seq_kind=scenario.kind,
        first_seq=scenario.first,
        gap_timeout_s=GAP_TIMEOUT_S,
        max_tries=4,
        backoff=Backoff(0.05, 1.0),
        timeout_s=TIMEOUT_S,
        max_starts=MAX_STARTS,
        inbox_limit=scenario.inbox_limit,
        identity_window=1000,
        checkpoint_every=scenario.checkpoint_every,
        idle_timeout_s=scenario.idle_timeout_s,
    )


def body_of(message: Planned) -> bytes:
    """The message as it is sent."""
    return json.dumps(
        {"key": message.key, "run": message.run, "seq": message.seq, "fails": message.fails}
    ).encode()
