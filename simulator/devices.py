"""A simulated world of devices: a business that adds commands, an outbox, a broker, terminals, and trouble.

What must hold: no device has two commands unanswered within a retry interval; each does its commands in
order; every command ends, and each end is applied exactly once; nothing that was committed is lost. What
has expired, is replaced or was cancelled isn't sent, a paused device left alone, an absent one only probed,
and no limit of a node exceeded. What a device has done and answered never fails for want of an answer.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from random import Random
from typing import Any

import msgspec

from holdfast.app.app import App
from holdfast.cluster.node import Work
from holdfast.devices.ports.device import Accepted, Command, DeviceAnswer, Devices, Event, Seen
from holdfast.devices.ports.outbox import OnResult
from holdfast.devices.rules import device_queue as queue
from holdfast.devices.rules.device_queue import (
    CLOSED,
    Cause,
    CommandState,
    Correlation,
    HeadPhase,
    Patience,
    StoredCommand,
    shard_of,
)
from holdfast.devices.rules.device_turn import TurnRequest, TurnResult
from holdfast.devices.rules.group_rate import BURST_S, LATE_S
from holdfast.devices.rules.presence import PresenceRules
from holdfast.devices.services.memory.device import MemoryBroker, MemoryDevices, MemoryFleet
from holdfast.devices.services.memory.outbox import MemoryOutbox, Tables
from holdfast.devices.services.memory.terminal import Behaviour
from holdfast.devices.work import DeviceWork
from holdfast.errors import OutcomeUnknown, Unavailable
from holdfast.ports.clock import Clock
from holdfast.services.memory.queue import StoredMessage
from simulator.faults import Faulty, ServiceLine, Weather
from simulator.loop import SimClock
from simulator.scenario import EVERY_NODE, TROUBLE_S, Fault, FaultKind, WorldSetting
from simulator.stage import Dying, SimNode, Stage

OUTBOX = "doors"
PATIENCE = Patience(retry_s=2.0, retry_max_s=8.0, max_tries=4, probe_s=3.0)
HEAL_LIMIT_S = 1800.0
"""Enough for 60 commands, one at a time, to devices that are silent."""

KEEPALIVE_S = 3.0
"""A connection whose line has stood still for so long is given up."""

EARLIER_S = 0.4
"""How much sooner the line to the broker fails a node than all others do."""

UNWRITTEN_S = 0.6
"""The seconds of marks as published that a crash of the database may undo."""

SLOW_S = 12.0
"""What a slow terminal takes for an answer: longer than it is waited for."""

CLOCK_STEPS_S = (-3600.0, -5.0, 5.0, 3600.0)
EXPIRES_S = 5.0
START_S = 1_700_000_000.0
"""What all clocks say when a simulation begins."""

ROUNDING_S = 1e-6
DRIFT = 1.01
"""How much faster a node's clock may go, and a little."""

DELIVERY_S = 0.2
"""How much sooner than it was sent after the one before a command may arrive."""

KINDS = (
    "crash", "crash", "pause", "pause", "cut", "cut", "isolate", "forget", "stop",
    "broker", "broker", "broker cut", "stall", "stall", "database", "database",
)  # fmt: skip


class PlannedCommand(msgspec.Struct, frozen=True):
    """What the business does at ``at_s``: add a command, in a transaction that may fail."""

    at_s: float
    device: str
    number: int
    supersede: bool
    expires: bool
    rolls_back: bool


class OperatorRequest(msgspec.Struct, frozen=True):
    """What an operator does at ``at_s``: ``retry`` something that failed or expired, take back (``cancel``)
    what waits for a device, or ``pause`` it for ``for_s``; all devices if that is empty."""

    at_s: float
    kind: str
    device: str = ""
    for_s: float = 0.0


class DevicesScenario(WorldSetting, frozen=True, kw_only=True):
    """Everything that a seed decides in advance."""

    shards: int
    behaviour: Behaviour
    in_flight_max: int
    rate: float | None
    group_rate: float | None
    """Commands a second, of a node: to all devices, and to the one group that they all belong to."""
    planned: tuple[PlannedCommand, ...]
    absent: tuple[str, ...]
    """Devices that were never there."""
    heartbeats: bool
    callback_fails: float
    requests: tuple[OperatorRequest, ...]


def make(seed: int) -> DevicesScenario:
    """The scenario of a seed."""
    random = Random(f"{seed}:devices")  # noqa: S311 - to be repeated, not to be secret
    calm = random.random() < 0.2
    nodes = random.choice((1, 2, 3))
    trouble = random.choice((0.0, 0.02, 0.1))
    odd = random.choice((0.0, 0.05, 0.2))
    heartbeats = random.random() < 0.5
    behaviour = Behaviour(
        latency_s=random.choice((0.01, 0.2, 1.0, SLOW_S)),
        spread=random.choice((0.0, 0.5)),
        loss=random.random() * odd,
        answer_loss=random.random() * odd,
        duplicate=random.random() * odd,
        late=random.random() * odd,
        late_s=random.choice((3.0, 6.0)),
        garbage=random.random() * odd,
        foreign=random.random() * odd,
        silent=random.choice((0.0, 0.3)),
        crash=random.random() * odd,
        crash_s=5.0,
        heartbeat_s=1.0 if heartbeats else 0.0,
    )
    jumps = random.random() < 0.1
    kinds: tuple[str, ...] = ("jump", "broker cut") if jumps else KINDS
    if jumps:  # other commands in doubt may then be sent too soon
        trouble = 0.0
    faults = [
        Fault(
            at_s=random.random() * TROUBLE_S * 0.7,
            kind=random.choice(kinds),  # type: ignore[arg-type]  # more kinds than other worlds have
            node=random.randrange(nodes),
            for_s=random.choice((0.3, 2.0, 5.0, 7.0, 12.0)),
            detail=random.choice(("coordinator", "state", "peers")),
        )
        for _ in range(0 if calm else random.randint(1, 8))
    ]
    if jumps:
        faults = _apart_in_time(seed, faults)
    elif not calm:
        faults += _more_faults(seed, nodes)
    devices = [f"d{n}" for n in range(random.randint(1, 8))]
    absent = random.choice(((), (), ("d99",)))
    planned = [
        PlannedCommand(
            at_s=random.random() * random.choice((1.0, 25.0)),
            device=random.choice((*devices, *absent)),
            number=number,
            supersede=random.random() < 0.3,
            expires=random.random() < 0.1,
            rolls_back=random.random() < 0.1,
        )
        for number in range(random.randint(5, 60 if behaviour.latency_s < SLOW_S else 15))
    ]
    return DevicesScenario(
        seed=seed,
        nodes=nodes,
        weather=Weather(
            delay_s=random.choice((0.002, 0.01, 0.05)),
            lost=random.random() * trouble,
            answer_lost=random.random() * trouble,
            late=random.random() * trouble,
        ),
        drift=random.choice((0.0, 0.0, 0.004)),
        faults=tuple(sorted(faults, key=lambda fault: (fault.at_s, fault.kind, fault.node))),
        shards=random.choice((1, 2, 4)),
        behaviour=behaviour,
        in_flight_max=random.choice((1, 3, 100)),
        rate=random.choice((None, None, 3.0)),
        group_rate=random.choice((None, None, 2.0, 6.0)),
        planned=tuple(sorted(planned, key=lambda each: (each.at_s, each.number))),
        absent=absent,
        heartbeats=heartbeats,
        callback_fails=random.choice((0.0, 0.0, 0.3)),
        requests=_requests(random, [*devices, ""]) if random.random() < 0.5 else (),
    )


MORE_KINDS: tuple[FaultKind, ...] = ("mute", "mute", "slow", "apart")


def _more_faults(seed: int, nodes: int) -> list[Fault]:
    """What else goes wrong in half of the seeds."""
    random = Random(f"{seed}:harder")  # noqa: S311
    if random.random() < 0.5:
        return []
    return [
        Fault(
            at_s=random.random() * TROUBLE_S * 0.7,
            kind=random.choice(MORE_KINDS),
            node=random.choice((EVERY_NODE, random.randrange(nodes))),
            for_s=random.choice((0.5, 2.0, 7.0, 12.0)),
            detail=random.choice(("coordinator", "state", "state", "peers")),
        )
        for _ in range(random.randint(1, 4))
    ]


def _apart_in_time(seed: int, faults: list[Fault]) -> list[Fault]:
    """In half of the seeds whose clocks are set, it is those of single nodes, and shards change hands."""
    random = Random(f"{seed}:clocks")  # noqa: S311
    if random.random() < 0.5:
        return faults
    kinds: tuple[FaultKind, ...] = ("clock", "clock", "stop", "crash")
    return [msgspec.structs.replace(fault, kind=random.choice(kinds)) for fault in faults]


def _requests(random: Random, devices: Sequence[str]) -> tuple[OperatorRequest, ...]:
    requests = [
        OperatorRequest(
            at_s=random.random() * TROUBLE_S,
            kind=random.choice(("retry", "retry", "retry", "cancel", "pause")),
            device=random.choice(devices),
            for_s=random.choice((1.0, 8.0)),
        )
        for _ in range(random.randint(1, 12))
    ]
    return tuple(sorted(requests, key=lambda request: (request.at_s, request.kind, request.device)))


class Arrived(msgspec.Struct, frozen=True):
    """A command reached its device."""

    at: float
    device: str
    correlation: Correlation
    number: int


class CheckedOutbox(MemoryOutbox):
    """Notes every turn that did something to a shard without naming its current epoch. A crash of it undoes
    turns that only sent, as one of PostgreSQL does: nobody waited for these to be written."""

    def __init__(self, clock: Clock, in_flight_max: int) -> None:
        super().__init__(clock)
        self.violations: list[str] = []
        self._in_flight_max = in_flight_max
        self.crashes = 0
        self._unwritten: Tables | None = None
        self._unwritten_at = 0.0
        self._last = self.tables

    def crash(self) -> bool:
        """End, and come back at once; True if something was lost."""
        self.crashes += 1
        self._note()
        lost = self._unwritten
        if lost is None or self._clock.monotonic() - self._unwritten_at > UNWRITTEN_S:
            return False
        self.tables = self._last = lost
        self._unwritten = None
        return True

    def _note(self) -> None:
        """What was written since the last turn was waited for, and all before it with it."""
        if self.tables is not self._last:
            self._unwritten = None

    async def open(self, outbox: str, shard: int, expect: int, member: str) -> int:
        self._unwritten = None
        return await super().open(outbox, shard, expect, member)

    async def take_turn(self, request: TurnRequest, on_result: OnResult | None = None) -> TurnResult:
        current = await self.epochs(request.outbox)
        self._note()
        before, now = self.tables, self._clock.monotonic()
        result = await super().take_turn(request, on_result)
        self.violations += self._unfit(request, result, before)
        self._last = self.tables
        if result.closed or request.sweep:
            self._unwritten = None
        elif self._unwritten is None or now - self._unwritten_at > UNWRITTEN_S:
            self._unwritten, self._unwritten_at = before, now
        touched = {sending.shard for sending in result.sendings} | {entry.shard for entry in result.closed}
        for shard in touched:
            if request.grants[shard] != current[shard]:
                self.violations.append(
                    f"shard {shard} was changed by epoch {request.grants[shard]}: {current}"
                )
        return result

    def _unfit(self, request: TurnRequest, result: TurnResult, before: Tables) -> list[str]:
        """What this turn should not have sent, as things stood before it."""
        wrong = []
        known = [entry for _, entry in before.commands.values()]
        for sending in result.sendings:
            _, entry = self.tables.commands[sending.correlation.command]
            if entry.expires_at is not None and entry.expires_at <= request.now:
                wrong.append(f"{entry} was sent after it had expired")
            _, was = before.commands[entry.id]
            if was.state is CommandState.SCHEDULED and any(_replaces(newer, entry) for newer in known):
                wrong.append(f"{entry} was sent although a newer one had replaced it")
            if {(request.outbox, ""), (request.outbox, entry.device)} & before.paused.keys():
                wrong.append(f"{entry} was sent although its device was paused")
            head = before.heads.get((request.outbox, entry.pair))
            if entry.device in request.away and (head is None or head.phase is not HeadPhase.HELD):
                wrong.append(f"{entry} was sent to a device that was away")
        mine = request.grants.keys() - set(result.lost)
        out = [
            head for head in self.tables.heads.values() if head.phase is HeadPhase.OUT and head.shard in mine
        ]
        if len(result.sendings) > result.repeats and len(out) > self._in_flight_max:
            wrong.append(f"{len(out)} devices are waited for at once")
        return wrong


def _replaces(newer: StoredCommand, entry: StoredCommand) -> bool:
    """As ``device_queue.replaces``, which may be what is broken."""
    same = newer.device == entry.device and newer.supersede_key == entry.supersede_key is not None
    return same and newer.id > entry.id


class DeviceWorld(Stage):
    """Devices on the stage."""

    def __init__(self, scenario: DevicesScenario, verbose: bool = False) -> None:
        super().__init__(scenario, verbose)
        self.scenario = scenario
        self.store = CheckedOutbox(HostClock(self, self.clock), scenario.in_flight_max)
        self.broker = SimBroker(self.clock, delay_s=0.005)
        devices = sorted({planned.device for planned in scenario.planned} - set(scenario.absent))
        self.fleet = MemoryFleet(self.broker, devices, scenario.behaviour, f"{scenario.seed}", self._work)
        self.committed: dict[int, PlannedCommand] = {}
        self.arrived: list[Arrived] = []
        self.answered: dict[str, float] = {}
        """When an answer to a try first came, by its id."""
        self.ended: Counter[int] = Counter()
        """How often a command was retried after its end."""
        self.retried_at: dict[int, float] = {}
        self.taken_back: list[tuple[StoredCommand, int]] = []
        """The commands that were to be cancelled, as they were, and how often each had been retried."""
        self.works: dict[SimNode, DeviceWork] = {}
        self.uplinks: dict[SimNode, BrokerConnections] = {}
        self.crashed_at: list[float] = []
        """When the database crashed."""
        self.jump_s = 0.0
        self.jumped = False
        """Whether any clock was set."""
        self.broker.lose = self._reached
        self._business = scenario.random("business")
        self.outbox = App("office").outbox(
            OUTBOX,
            shards=scenario.shards,
            patience=PATIENCE,
            in_flight_max=scenario.in_flight_max,
            rate=scenario.rate,
            group=lambda device: "all",
            group_rates={"all": scenario.group_rate} if scenario.group_rate else {},
            presence=PresenceRules(heartbeats=scenario.heartbeats, offline_after_s=4.0, silent_tries=3),
            expires_in_s=None,
        )
        skew_s = scenario.random("skew").choice((0.0, -900.0, 900.0))  # of the business's own host
        self.outbox.wall = lambda: self.wall() + skew_s
        self.outbox.on_result(self._on_result)

    def make_works(self, node: SimNode) -> tuple[Sequence[Work], Sequence[Dying]]:
        connections = BrokerConnections(self, node)
        node.host.clock = HostClock(self, node.clock)
        work = DeviceWork(node.host, self.outbox, SimStore(self.store, "state", node.line), connections.open)
        self.works[node], self.uplinks[node] = work, connections
        return [work], [connections]

    @property
    def calm(self) -> bool:
        """Nothing is done to it, and hardly a call is lost."""
        weather = self.scenario.weather
        lost = weather.lost + weather.answer_lost + weather.late
        return not self.scenario.faults and lost < 0.01 and self.scenario.heartbeats

    def wall(self) -> float:
        """What the clocks of all hosts say."""
        return self.clock.wall() + self.jump_s

    def in_flight(self) -> Sequence[StoredMessage]:
        return []

    # --- the business

    async def produce(self) -> None:
        await self.store.prepare(OUTBOX, self.scenario.shards)
        self.fleet.start()
        for device in self.scenario.absent:
            self.broker.listen(device, lambda command, payload: None)
        for request in self.scenario.requests:
            self.spawn(self._operate(request))
        for planned in self.scenario.planned:
            await asyncio.sleep(max(0.0, planned.at_s - asyncio.get_running_loop().time()))
            self._add(planned)

    def _add(self, planned: PlannedCommand) -> None:
        """One change of the business, and its command, both or none."""
        try:
            with self.store.transaction() as db:
                command = self.outbox.add(
                    db,
                    device=planned.device,
                    command={"number": planned.number},
                    supersede_key="person" if planned.supersede else None,
                    expires_in_s=EXPIRES_S if planned.expires else None,
                )
                if planned.rolls_back:
                    raise ZeroDivisionError
        except ZeroDivisionError:
            return
        self.committed[command] = planned

    async def _operate(self, request: OperatorRequest) -> None:
        """What an operator wants."""
        await asyncio.sleep(request.at_s)
        if request.kind == "retry":
            ended = (CommandState.FAILED, CommandState.EXPIRED)
            for entry in await self.store.commands(OUTBOX, limit=10_000, device=request.device):
                if entry.state in ended and await self.store.retry(entry.id):
                    self.ended[entry.id] += 1
                    self.retried_at[entry.id] = self.clock.monotonic()
                    self.counts["retried"] += 1
        elif request.kind == "cancel":
            device = request.device or "d0"
            waiting = await self.store.commands(
                OUTBOX, limit=10_000, device=device, state=CommandState.SCHEDULED
            )
            with self.store.transaction() as db:
                self.counts["taken back"] += self.outbox.cancel(db, device=device)
            self.taken_back += [(entry, self.ended[entry.id]) for entry in waiting]
        else:
            self.counts["paused"] += 1
            await self.store.pause(OUTBOX, request.device)
            await asyncio.sleep(request.for_s)
            await self.store.resume(OUTBOX, request.device)

    def _on_result(self, db: Any, entry: StoredCommand) -> None:
        """What the business notes lives and dies with the transaction."""
        db.values[f"result {entry.id}"] = db.values.get(f"result {entry.id}", 0) + 1
        if self._business.random() < self.scenario.callback_fails:
            self.counts["callback failed"] += 1
            raise RuntimeError("the business failed")

    def _work(self, device: str, command: str, payload: bytes) -> bytes:
        return msgspec.json.encode({"messageId": command})

    def _reached(self, command: Command) -> bool:
        """The broker gives a command to its device."""
        number = msgspec.json.decode(command.payload)["number"]
        correlation = Correlation.parse(command.id)
        self.arrived.append(Arrived(self.clock.monotonic(), command.device, correlation, number))
        self.log.append(("arrived", self.clock.monotonic(), command.device, str(correlation)))
        return False

    # --- faults

    async def strike(self, fault: Fault) -> None:
        if fault.kind == "isolate":  # from the broker too, and a moment before
            self.spawn(self._stall_at(fault))
        await super().strike(fault)

    async def _stall_at(self, fault: Fault) -> None:
        await asyncio.sleep(max(0.0, fault.at_s - EARLIER_S))
        await self.uplinks[self.nodes[fault.node]].stall(EARLIER_S + fault.for_s)

    async def strike_else(self, fault: Fault, node: SimNode) -> None:
        kind: str = fault.kind
        if kind == "broker":
            self.broker.stop()
            await asyncio.sleep(fault.for_s)
            self.broker.resume()
        elif kind == "broker cut":
            for shard in range(self.scenario.shards):
                self.broker.cut(self.outbox.spec.identity(shard))
        elif kind == "stall":
            self.spawn(self.uplinks[node].stall(fault.for_s))
        elif kind == "database":
            self.crashed_at.append(self.clock.monotonic())
            self.counts["marks lost"] += self.store.crash()
        elif kind == "jump":
            self.jump_s += self._random.choice(CLOCK_STEPS_S)
            self.jumped = True
        elif kind == "clock":
            node.clock.set_by_s += self._random.choice(CLOCK_STEPS_S)
            self.jumped = True

    async def finish(self) -> str:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + HEAL_LIMIT_S
        left: list[StoredCommand] = []
        while loop.time() < deadline:
            left = [
                entry for entry in await self.store.commands(OUTBOX, limit=10_000) if not self._is_over(entry)
            ]
            if not left and not self.store.tables.untold:
                return ""
            await asyncio.sleep(0.5)
        return f"{len(left)} commands without an end: {left[:3]}; untold {self.store.tables.untold}"

    def _is_over(self, entry: StoredCommand) -> bool:
        """Closed, or for a device that is away for good, to which a try is sent now and then for ever."""
        if entry.state in CLOSED:
            return True
        head = self.store.tables.heads.get((OUTBOX, entry.pair))
        if entry.device in self.scenario.absent:
            gone = True
        else:
            gone = self.fleet.terminals[entry.device].silent and not self.scenario.heartbeats
        return gone and head is not None and self._gave_up(head.phase)

    def _gave_up(self, phase: HeadPhase) -> bool:
        return phase in (HeadPhase.HELD, HeadPhase.OUT) and asyncio.get_running_loop().time() > 3 * TROUBLE_S


class HostClock:
    """A node's clock, whose wall time is that of all hosts, unless somebody has set it."""

    def __init__(self, world: DeviceWorld, clock: SimClock) -> None:
        self._clock = clock
        self.monotonic, self.random, self.new_id = clock.monotonic, clock.random, clock.new_id
        self.sleep, self.wait = clock.sleep, clock.wait
        self._world = world

    def wall(self) -> float:
        return self._world.wall() + self._clock.set_by_s


class SimStore(Faulty):
    """The outbox as one node sees it: a crash ends its connection, which it notices with the next turn."""

    def __init__(self, store: CheckedOutbox, name: str, line: ServiceLine) -> None:
        super().__init__(store, name, line)
        self._store = store
        self._crashes = store.crashes

    async def take_turn(self, request: TurnRequest, on_result: OnResult | None = None) -> TurnResult:
        """Take a turn."""
        if self._crashes != self._store.crashes:
            self._crashes = self._store.crashes
            raise Unavailable("the connection is gone")
        crashes = self._crashes
        result: TurnResult = await self._line.carry(
            "state", "turn", lambda: self._store.take_turn(request, on_result)
        )
        if crashes != self._store.crashes:
            raise OutcomeUnknown("the connection was lost")
        return result


class SimBroker(MemoryBroker):
    """A broker whose lines to nodes may stand still."""

    def take(self, devices: MemoryDevices, command: Command, payload: bytes) -> None:
        assert isinstance(devices, SimDevices)
        devices.uplink.carry(partial(super().take, devices, command, payload))

    async def connect(self, devices: MemoryDevices) -> None:
        assert isinstance(devices, SimDevices)
        await devices.uplink.flowing.wait()
        before = self._connected.get(devices.identity)
        if isinstance(before, SimDevices) and before.gave_up:
            self.disconnect(before)
        await super().connect(devices)


class SimDevices(MemoryDevices):
    """A node's connection: it stalls with its node, and with its line."""

    def __init__(
        self, world: DeviceWorld, node: SimNode, uplink: BrokerConnections, identity: str, still_ours: Any
    ) -> None:
        super().__init__(world.broker, identity, still_ours=still_ours)
        self.uplink = uplink
        self._world = world
        self._node = node
        self._ends = 0

    def publish(self, command: Command) -> None:
        super().publish(command)
        self._world.counts["published"] += 1
        self.uplink.sent_at.append(self._world.clock.monotonic())

    async def events(self) -> list[Event]:
        events = await super().events()
        await self._node.clock.gate.enter()
        return events

    def receive(self, event: Event) -> None:
        if isinstance(event, DeviceAnswer | Seen | Accepted):
            self.uplink.carry(partial(self._hear_in, self._ends, event))
        else:
            super().receive(event)

    def _hear_in(self, ends: int, event: Event) -> None:
        if ends == self._ends:
            if isinstance(event, DeviceAnswer) and self._is_for(event.device):
                self._world.answered.setdefault(event.id, self._world.clock.monotonic())
            super().receive(event)

    def _is_for(self, device: str) -> bool:
        """Every node receives all messages, but only the owner of a device's shard takes its answers."""
        spec = self._world.outbox.spec
        return self.identity == spec.identity(shard_of(device, spec.shards))

    def cut_off(self, reason: str, *, taken_over: bool) -> None:
        self._ends += 1
        super().cut_off(reason, taken_over=taken_over)

    @property
    def gave_up(self) -> bool:
        """Only the broker takes it for connected."""
        return not self._up

    def give_up(self) -> None:
        """Nothing has come for too long."""
        if self._up:
            self.cut_off("the broker doesn't answer", taken_over=False)


class BrokerConnections:
    """All that a node has at the broker; they end with its process."""

    def __init__(self, world: DeviceWorld, node: SimNode) -> None:
        self.flowing = asyncio.Event()
        self.flowing.set()
        self.sent_at: list[float] = []
        self._world = world
        self._node = node
        self._opened: list[SimDevices] = []
        self._held: list[Callable[[], None]] = []

    def open(self, identity: str, still_ours: Any) -> Devices:
        """For one shard."""
        devices = SimDevices(self._world, self._node, self, identity, still_ours)
        self._opened.append(devices)
        return devices

    def carry(self, packet: Callable[[], None]) -> None:
        """Now, or once the line flows again."""
        if self.flowing.is_set():
            packet()
        else:
            self._held.append(packet)

    async def stall(self, for_s: float) -> None:
        """The line stalls. Messages that were sent arrive in the end, unless another has taken over by then;
        only then can anybody connect anew."""
        if not self.flowing.is_set():
            return
        self.flowing.clear()
        await asyncio.sleep(min(for_s, KEEPALIVE_S))
        if for_s > KEEPALIVE_S:
            for devices in self._opened:
                devices.give_up()
            await asyncio.sleep(for_s - KEEPALIVE_S)
        while self._held:
            held, self._held = self._held, []
            for packet in held:
                packet()
            await asyncio.sleep(2 * self._world.broker.delay_s)
        self.flowing.set()

    def die(self) -> None:
        """The process is gone. The broker notices, unless the line stalls."""
        for devices in self._opened:
            if self.flowing.is_set():
                self._world.broker.disconnect(devices)
            devices.cut_off("its process is gone", taken_over=True)


def check(world: DeviceWorld, unfinished: str) -> list[str]:
    """Everything that does not hold."""
    wrong = [f"{name}: {error!r}" for name, error in world.failures]
    wrong += world.coordinator.violations
    wrong += world.store.violations
    if unfinished:
        wrong.append(unfinished)
    entries = {entry.id: entry for name, entry in world.store.tables.commands.values()}
    wrong += [f"command {number} is lost" for number in world.committed if number not in entries]
    wrong += [f"command {number} comes from nowhere" for number in entries if number not in world.committed]
    for number, entry in entries.items():
        times = world.store.tables.values.get(f"result {number}", 0)
        if times != world.ended[number] + (entry.state in CLOSED):
            wrong.append(f"the result of {entry} was applied {times} times")
        if entry.state is CommandState.ACKNOWLEDGED and not _answered(entry):
            wrong.append(f"{entry} was closed by an answer to something else")
        unheard = entry.state is CommandState.FAILED and entry.reason == queue.REASONS[Cause.GIVE_UP]
        if unheard and not world.scenario.faults and (heard := _heard(world, entry)):
            wrong.append(f"{entry} has failed although its device had answered {heard}")
        planned = world.committed.get(number)
        if planned and planned.expires and not world.jumped:
            lasts_s = (entry.expires_at or math.inf) - START_S - planned.at_s
            if not world.ended[number] and not -0.01 < lasts_s - EXPIRES_S < 1.0:
                wrong.append(f"{entry} was to expire {lasts_s} s after it was added")
        if entry.spent > PATIENCE.max_tries:
            wrong.append(f"{entry} has used up {entry.spent} tries")
        if entry.device in world.scenario.absent and world.calm and entry.spent == PATIENCE.max_tries:
            wrong.append(f"{entry} has used up its tries although its device was never there")
    for was, ended in world.taken_back:
        entry = entries[was.id]
        if entry.tries > was.tries and world.ended[entry.id] == ended:
            wrong.append(f"{entry} was sent although it had been cancelled")
    wrong += _check_order(world, entries)
    for node, uplink in world.uplinks.items():
        for rate in (world.scenario.rate, world.scenario.group_rate):
            if rate is not None and not world.jumped and (times := _flood(uplink.sent_at, rate)):
                wrong.append(f"{node.name} sent too much at once: {times} at {rate}/s")
    return wrong


def _flood(times: Sequence[float], rate: float) -> Sequence[float]:
    """The first of ``times`` that are more than a small bucket allows, and the late ones."""
    full = rate * (BURST_S + LATE_S + PATIENCE.late_s) + 1.0
    tokens, before = full, 0.0
    for number, at in enumerate(times):
        tokens = min(full, tokens + (at - before) * rate * DRIFT) - 1.0
        if tokens < -ROUNDING_S:
            return times[max(0, number - round(rate)) : number + 1]
        before = at
    return ()


def _answered(entry: StoredCommand) -> bool:
    answered = msgspec.json.decode(entry.answer or b"{}").get("messageId")
    return answered in _tries(entry)


def _tries(entry: StoredCommand) -> list[str]:
    """The ids of the tries of a command that an answer may name."""
    return [str(Correlation(entry.epoch, entry.id, tries)) for tries in range(1, entry.tries + 1)]


def _heard(world: DeviceWorld, entry: StoredCommand) -> list[str]:
    """Which of its tries were answered while it was out: since it was first sent after the last time that an
    operator retried it, and before it was closed."""
    closed_at = (entry.closed_at or 0.0) - world.wall() + world.clock.monotonic()
    retried_at = world.retried_at.get(entry.id, 0.0)
    arrivals = [arrived.at for arrived in world.arrived if arrived.correlation.command == entry.id]
    out_at = min((at for at in arrivals if at > retried_at), default=math.inf)
    return [name for name in _tries(entry) if out_at < world.answered.get(name, math.inf) < closed_at]


def _check_order(world: DeviceWorld, entries: dict[int, StoredCommand]) -> list[str]:
    wrong = []
    by_device: dict[str, list[Arrived]] = {}
    for arrived in world.arrived:
        by_device.setdefault(arrived.device, []).append(arrived)
    for device, arrivals in by_device.items():
        newest = 0
        for arrived in arrivals:
            number = arrived.correlation.command
            if number < newest and not world.ended[number]:
                wrong.append(f"{device}: command {number} arrived after {newest}")
            newest = max(newest, number)
            if number not in world.committed:
                wrong.append(f"{device}: command {number} was never committed")
            is_superseded = entries[number].state is CommandState.SUPERSEDED and not world.ended[number]
            if is_superseded and not _may_be_forgotten(world, arrived):
                wrong.append(f"{device}: command {number} was sent although it was superseded")
        for before, after in pairwise(arrivals):
            too_soon = after.at - before.at < PATIENCE.retry_s - DELIVERY_S
            if too_soon and not _ended(world, before, after):
                wrong.append(f"{device}: {after} came too soon after {before}, which was not answered")
    return wrong


def _may_be_forgotten(world: DeviceWorld, arrived: Arrived) -> bool:
    """Whether the database crashed soon after a try was sent: its next owner may know nothing of it."""
    return any(0.0 <= crash - arrived.at <= UNWRITTEN_S + DELIVERY_S for crash in world.crashed_at)


def _ended(world: DeviceWorld, before: Arrived, after: Arrived) -> bool:
    """Whether the try was over: it had been answered, and another command came next."""
    answered_at = world.answered.get(str(before.correlation), math.inf)
    return answered_at <= after.at and after.correlation.command != before.correlation.command
