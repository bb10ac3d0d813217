"""The simulated world: services in memory, nodes that run the real runtime, and what happens to them."""

from __future__ import annotations

import asyncio
import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.cluster.deliverer import Targets
from holdfast.cluster.node import Work as RunningWork
from holdfast.common.message import NO_RUN, Place
from holdfast.common.protocol import StreamChanged
from holdfast.common.retry import Backoff
from holdfast.errors import Fenced, HoldfastError, SetAside, TooLarge
from holdfast.ports.coordinator import Load, Member
from holdfast.ports.objects import Objects
from holdfast.ports.queue import Outgoing
from holdfast.ports.slots import Exit, MessageWork, StreamSlot
from holdfast.ports.target import Target
from holdfast.rules.streams import ledger
from holdfast.rules.streams.ledger import Commit
from holdfast.rules.streams.phases import OwnerPhase
from holdfast.services.memory.queue import MemoryQueue, StoredMessage
from holdfast.services.memory.slots import MemorySlot, MemorySlots
from holdfast.services.memory.state import CommitRecord, MemoryState
from holdfast.streams.models import ModelSpec
from holdfast.streams.owned import OwnedStream
from holdfast.streams.spec import StreamSpec
from holdfast.streams.storage import StreamStorage
from holdfast.streams.work import StreamWork
from holdfast.streams.worker import StreamWorker
from holdfast.system.values import Values
from simulator.faults import Faulty, ServiceLine
from simulator.handler import Chain, Number
from simulator.scenario import (
    FORGETS_S,
    MAX_JUMP,
    RESTART_S,
    RESULTS_MAX,
    STREAM,
    TROUBLE_S,
    Fault,
    PlannedMessage,
    Scenario,
)
from simulator.stage import Dying, SimNode, Stage

HEAL_LIMIT_S = 600.0
GAP_HEAL_LIMIT_S = 5000.0
"""Where a stream waits for its lowest seq, every node that a poisonous first message kills waits again."""
TIMEOUT_S = 3.0
MODEL = "weights"
MAX_STARTS = 5
TROUBLE_MARGIN_S = 1.0
FOREVER_S = 1e9
CLOCK_STEPS_S = (-86_400.0, -3600.0, -5.0, 5.0, 3600.0, 86_400.0)
NOTHING_PLANNED = PlannedMessage(0.0, "", 0, 0)
"""Stands for a timer, and for a message that a handler sent."""

AGREE_S = 2.0
"""How long an owner may go on that has no claim any more, where nothing is done to its node."""


HEARD = ("load", "open", "run")
"""Calls into a slot whose end the node hears of once it goes on."""


class SimSlot:
    """A slot is a process of its own: it goes on while its node stands still."""

    def __init__(self, slot: MemorySlot, line: ServiceLine) -> None:
        self.slot = slot
        self._line = line

    def __getattr__(self, name: str) -> Any:
        member = getattr(self.slot, name)
        if name not in HEARD:
            return member

        async def call(*args: Any, **options: Any) -> Any:
            try:
                return await member(*args, **options)
            finally:
                await self._line.gate.enter()

        return call

    async def exited(self) -> Exit:
        gone = await self.slot.exited()
        await self._line.gate.enter()
        return gone


class SimSlots:
    """Makes such slots."""

    def __init__(self, slots: MemorySlots, line: ServiceLine) -> None:
        self.slots = slots
        self._line = line

    async def spawn(self) -> StreamSlot:
        slot: Any = SimSlot(await self.slots.spawn(), self._line)
        made: StreamSlot = slot
        return made

    async def close(self) -> None:
        await self.slots.close()


class TightState(MemoryState):
    """A state store that takes only small commits."""

    async def commit(self, commit: Commit) -> None:
        size = sum(len(result.body) for result in commit.results)
        if size > RESULTS_MAX:
            raise TooLarge(f"{commit.key}: results of {size} bytes are over {RESULTS_MAX}")
        await super().commit(commit)


class World(Stage):
    """Streams on the stage."""

    clock_steps_s: Sequence[float] = CLOCK_STEPS_S
    acts = False
    """Whether streams have effects or timers. Else no node asks which are due: seeds go on meaning what they
    meant."""

    def __init__(self, scenario: Scenario, verbose: bool = False) -> None:
        super().__init__(scenario, verbose)
        self.scenario = scenario
        self.deaths: Counter[PlannedMessage] = Counter()
        self.queue = MemoryQueue(
            self.clock,
            frees_on_evict=scenario.frees_on_evict,
            hold_max_s=scenario.hold_max_s,
            fifo=scenario.fifo,
            by_key=scenario.by_key,
            log=self.log,
            choose=self._choose_keys
            if scenario.fifo
            else None
            if scenario.in_order
            else lambda visible: self.choose(self.queue, visible),
        )
        self.queue.max_receives, self.queue.linger_s = scenario.receives, scenario.linger_s
        self.state = TightState(self.clock, history=self.log)
        self.specs = {STREAM: spec_of(scenario)}
        self.queues = {STREAM: self.queue}
        self.target_names: Sequence[str] = ()
        self.plan_by_body = {body_of(m): m for m in scenario.messages}
        self.works: dict[SimNode, StreamWork] = {}
        self.slots: dict[SimNode, MemorySlots] = {}
        self.rewound = False
        self.stepped: dict[str, tuple[float, float]] = {}
        """By node: when its clock was last set by hand, and by how much."""
        self.asking: dict[PlannedMessage, None] = {}
        self.answers: dict[PlannedMessage, bytes | None] = {}
        self.broken: dict[int, float] = {}
        """Until when models don't load, by node."""
        self.produced = False
        self._clients = scenario.random("clients")

    def make_works(self, node: SimNode) -> tuple[Sequence[RunningWork], Sequence[Dying]]:
        async def before(slot: MemorySlot, stream: str, key: str, work: MessageWork) -> None:
            await self._before(node, work)

        def load_model() -> str:
            if asyncio.get_running_loop().time() < self.broken.get(node.index, 0.0):
                self.counts["model not loaded"] += 1
                raise FileNotFoundError("the model's file is not there")
            return "weights"

        models = {MODEL: ModelSpec(name=MODEL, load=load_model)}
        queues = {name: Faulty(queue, "queue", node.line) for name, queue in self.queues.items()}
        slots = self.slots[node] = MemorySlots(
            lambda host: StreamWorker(
                self.specs_of(node), None, host, models=models, targets=self.target_names
            ),
            node.slot_clock,
            before=before,
            spawn_s=0.02,
            prefix=node.name,
        )
        work = self.works[node] = StreamWork(
            node.host,
            self.specs_of(node),
            StreamStorage(
                queues,
                Faulty(self.state_of(node), "state", node.line),
                self.archives(node),
                Values("", node.clock),
            ),
            SimSlots(slots, node.line),
            models=models,
            targets=Targets(self.targets(node)),
        )
        if not self.acts:
            setattr(work.due, "run", _rest)  # noqa: B010 - an attribute of this one object
        return [work], [slots]

    def specs_of(self, node: SimNode) -> Mapping[str, StreamSpec]:
        """The streams as the app of a node declares them."""
        return self.specs

    def state_of(self, node: SimNode) -> Any:
        """The state store as a node reaches it."""
        return self.state

    def targets(self, node: SimNode) -> dict[str, Target]:
        """What takes effects besides the streams, as a node reaches it."""
        return {}

    def archives(self, node: SimNode) -> Mapping[str, Objects]:
        """The object stores of the streams that are archived, as a node reaches them."""
        return {}

    async def _before(self, node: SimNode, work: MessageWork) -> None:
        """What this message does to its process."""
        planned = self.plan_by_body.get(work.body, NOTHING_PLANNED)
        if planned.kills and self.deaths[planned] != planned.kills and not node.clock.gate.dead:
            self.deaths[planned] += 1
            self.counts["poison"] += 1
            node.crash()
            self.restart_later(node.index, 0.3)
        if node.clock.gate.dead:
            await asyncio.Event().wait()
        if planned.hangs and work.attempt == 1:
            self.counts["hang"] += 1
            await asyncio.Event().wait()
        await node.slot_clock.sleep(planned.seconds)

    def _choose_keys(self, visible: list[StoredMessage]) -> list[StoredMessage]:
        """Any order of keys, and each key's own."""
        keys = sorted({message.key for message in visible})
        self._random.shuffle(keys)
        return [message for key in keys for message in visible if message.key == key]

    async def produce(self) -> None:
        """Send the planned messages."""
        first = [
            message for message in self.scenario.messages if not (self.scenario.restarts and message.run)
        ]
        await self._produce(first, 0.0)
        if self.scenario.restarts:
            while self.queue.messages or self.asking or self._waiting_letters():  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(0.5)
            over_s = max(0.0, TROUBLE_S - asyncio.get_running_loop().time())  # an operator's commits too
            await asyncio.sleep(over_s + RESTART_S * 1.05)
            while self.rewound and (early_s := self._early_s()) > 0:  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(early_s)
            self.counts["restart"] += 1
            for fault in self.scenario.faults_again:
                self.spawn(self.strike(fault))
            again = [message for message in self.scenario.messages if message.run]
            await self._produce(again, asyncio.get_running_loop().time())
        self.produced = True

    def _early_s(self) -> float:
        """How long producers must still be silent for a restart to show: a stream whose store lost messages
        passes over the gap long after the last one came."""
        commits = [event.at for event in self.log if isinstance(event, CommitRecord)]
        return max(commits, default=0.0) + RESTART_S * 1.05 - asyncio.get_running_loop().time()

    async def _produce(self, messages: Sequence[PlannedMessage], from_s: float) -> None:
        loop = asyncio.get_running_loop()
        for message in messages:
            await asyncio.sleep(max(0.0, from_s + message.at_s - loop.time()))
            if self._clients.random() < self.scenario.clients:
                self.asking[message] = None
                self.spawn(self._ask(message))
            else:
                await self.queue.send([Outgoing(body_of(message), {}, key=message.key)])

    async def _ask(self, message: PlannedMessage) -> None:
        """A client brings its message to any node, follows where it is sent, and asks again until it has an
        answer."""
        key = f"{STREAM}/{message.key}"
        place = Place(NO_RUN if self.scenario.restarts else message.run, message.seq)
        if self.scenario.kind == "absent":
            place = Place(message.run, 0, f"client {message.seq}")
        while message in self.asking:
            node = self.nodes[self._clients.choice(sorted(self.nodes))]
            patience_s = self.scenario.patience_s
            process = self.works[node].requests.process(STREAM, key, place, body_of(message), {}, patience_s)
            asked = asyncio.ensure_future(process)
            await asyncio.wait({asked}, timeout=2 * patience_s)
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
            await asyncio.sleep(self._pause_s())

    def _pause_s(self) -> float:
        """How long a client waits before it asks again: all until the same moment, or each as it likes."""
        if self.scenario.together:
            now = asyncio.get_running_loop().time()
            return 1.0 + math.floor(now + 0.01) - now
        return self._clients.uniform(0.05, 1.0)

    async def strike_else(self, fault: Fault, node: SimNode) -> None:
        if fault.kind == "operator":
            await self._pause_a_key(fault)
        elif fault.kind == "slot":
            for slot in self.slots[node].slots[:1]:
                slot.die("was killed by the scenario")
        elif fault.kind == "model":
            self.broken[fault.node] = asyncio.get_running_loop().time() + fault.for_s
        elif fault.kind == "move":
            await self._move(node)
        elif fault.kind == "clock":
            step_s = self._clients.choice(self.clock_steps_s)
            node.clock.set_by_s += step_s
            node.slot_clock.set_by_s += step_s
            self.stepped[node.name] = asyncio.get_running_loop().time(), step_s
        elif fault.kind == "rewind":
            self.state.rewind(FORGETS_S)
            self.rewound = True
        elif fault.kind == "unclaim":
            await self._unclaim(fault, node)

    async def _move(self, node: SimNode) -> None:
        others = [other for other in self.nodes.values() if other is not node and not other.clock.gate.dead]
        for entry in self.works[node].owners:
            if others:
                await self.works[node].moves.move(entry.key, others[0].host.membership.id)

    async def _unclaim(self, fault: Fault, node: SimNode) -> None:
        """Somebody else ends the claims of a node: deletes them, or takes them and releases them later. Soon
        owner and claim agree again."""
        begun, stranger = asyncio.get_running_loop().time(), f"stranger {fault.at_s}"
        takes = fault.detail in ("queue", "peers")
        if takes:
            member = Member(stranger, stranger, "", Load(room=0), foreign=True)
            await self.coordinator.join(member, fault.for_s + AGREE_S)
        for claim in await self.coordinator.claims(node.host.membership.id):
            if takes:
                await self.coordinator.transfer(claim, stranger)
            else:
                await self.coordinator.release(claim)
        await asyncio.sleep(AGREE_S)
        wrong = await self._without_claim(node)
        await asyncio.sleep(AGREE_S)
        still = wrong & await self._without_claim(node)
        if still and not self.was_troubled(node.name, begun, asyncio.get_running_loop().time()):
            self.failures += [
                (node.name, AssertionError(f"owns {entry.key} without a claim"))
                for entry in sorted(still, key=lambda entry: entry.key)
            ]

    async def _without_claim(self, node: SimNode) -> set[OwnedStream]:
        """What a node owns for all that it knows, and has no claim on."""
        mine = {claim.key for claim in await self.coordinator.claims(node.host.membership.id)}
        return {
            entry
            for entry in self.works[node].owners
            if entry.key not in mine and entry.owner.phase is OwnerPhase.OWNER and not entry.owner.suspended
        }

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
                        due=opened.due if reason else ledger.due_when_resumed(opened),
                    )
                )
            except Fenced:
                continue
            break
        for node in self.nodes.values():
            if not node.clock.gate.dead and node.host.membership.id:
                self.spawn(node.node.handle(StreamChanged(node.host.membership.id, STREAM, key)))

    @property
    def away_until_s(self) -> float:
        """Until when something outside is away: what waits for it can't be over before."""
        return 0.0

    async def finish(self) -> str:
        loop = asyncio.get_running_loop()
        waits = self.scenario.first == "lowest" or any(m.run for m in self.scenario.messages) or self.rewound
        limit_s = GAP_HEAL_LIMIT_S if waits else HEAL_LIMIT_S
        deadline = max(loop.time(), self.away_until_s) + limit_s
        while loop.time() < deadline:
            await self._resume_parked()
            waiting = self.queue.messages or self._waiting_letters() or self.asking
            if self.produced and not waiting:
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


async def _rest() -> None:
    await asyncio.Event().wait()


def spec_of(scenario: Scenario) -> StreamSpec:
    """The simulated stream, as an app would declare it."""
    return StreamSpec(
        name=STREAM,
        handler=Chain,
        message=Number,
        key="key",
        seq=None if scenario.kind == "absent" else "queue" if scenario.fifo else "seq",
        run=None if scenario.restarts else "run",
        seq_kind=scenario.kind,
        first_seq=scenario.first,
        gap_timeout_s=scenario.gap_timeout_s,
        max_tries=scenario.max_tries,
        backoff=Backoff(0.05, 1.0),
        timeout_s=TIMEOUT_S,
        max_starts=MAX_STARTS,
        inbox_limit=scenario.inbox_limit,
        checkpoint_every=scenario.checkpoint_every,
        idle_timeout_s=scenario.idle_timeout_s,
        max_jump=MAX_JUMP if scenario.kind == "dense" else None,
        restart_after_s=RESTART_S if scenario.restarts else None,
        models=(MODEL,) if scenario.uses_models else (),
    )


def body_of(message: PlannedMessage) -> bytes:
    """The message as it is sent."""
    return json.dumps(
        {
            "key": message.key,
            "run": message.run,
            "seq": message.seq,
            "fails": message.fails,
            "fill": message.fill,
        }
    ).encode()
