"""Tasks on the simulator's stage: what a seed means for them, their world, and what must hold."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict, deque
from collections.abc import Awaitable, Callable, Mapping, Sequence, Set
from functools import partial
from random import Random
from typing import Any, NamedTuple

import msgspec

from holdfast.cluster.deliverer import Targets
from holdfast.cluster.effect_dead_letters import is_of_effect
from holdfast.cluster.node import Work
from holdfast.common.retry import Backoff
from holdfast.errors import InvalidMessage, Unavailable
from holdfast.ports.queue import Queue
from holdfast.ports.slots import Attempt, Listener, Progress, TaskSlot
from holdfast.ports.target import OutgoingEffect
from holdfast.rules.tasks.concurrency import ConcurrencyLimits
from holdfast.rules.tasks.task import State, Task
from holdfast.services.memory.queue import MemoryQueue, QueueEvent, StoredMessage
from holdfast.services.memory.registry import MemoryRegistry
from holdfast.services.memory.task_slots import MemoryTaskSlot, MemoryTaskSlots
from holdfast.services.memory.tasks import Changed, MemoryTasks
from holdfast.tasks.concurrency import ConcurrencyLimiter, document_name
from holdfast.tasks.follow_ups import DueFollowUp
from holdfast.tasks.handler import Job, Retry
from holdfast.tasks.names import event_queue, follow_up_id, task_queue
from holdfast.tasks.order import Order
from holdfast.tasks.outcome import Outcome
from holdfast.tasks.producer import Producer
from holdfast.tasks.spec import TaskSpec
from holdfast.tasks.storage import TaskStorage
from holdfast.tasks.values import TaskValues
from holdfast.tasks.wire import Envelope, Unreadable, decode_task
from holdfast.tasks.work import TaskWork
from holdfast.tasks.worker import TaskExecutor
from simulator.faults import Faulty, ServiceLine, draw_weather
from simulator.scenario import EVERY_NODE, FORGETS_S, TROUBLE_S, Fault, FaultKind, WorldSetting
from simulator.stage import LIMITS, Dying, Quiet, SimNode, Stage

APP = "sim"
QUICK, LONG = "quick", "long"
TRIES = 3
TIMEOUT_S = 4.0
LEASE_S = 6.0
SLOTS = 3
GRANT_S = 12.0
AWAY_S = 30.0
"""Far longer than grants last."""

HEAL_LIMIT_S = 900.0
HOLD_MAX_S = 60.0
CALLS_A_TASK_MAX = 400
CALLS_A_NODE_SECOND_MAX = 40


BATCH = "together"
SINK, PICKY = "sink", "picky"
"""Targets of effects. ``PICKY`` refuses all."""


class PlannedTask(msgspec.Struct, frozen=True):
    """A task to be sent at ``at_s``. ``fails``: how many attempts raise (-1: all). ``hangs``, ``kills``:
    how many hang, or end their node; ``asks``: how many ask for a pause of ``pause_s``.
    ``tries`` and ``timeout_s`` are what its sender gives it; ``follows``: tasks follow upon its success, and
    upon its failure. ``sends``: how many effects each attempt sends, the second to a target that refuses it
    and the third after a delay. ``delay_s``: it may begin so much later.
    ``here``: a node is given it directly; ``again_s``: by a client that asks for
    the same so much later, not knowing what became of it."""

    at_s: float
    name: str
    type: str
    seconds: float
    fails: int = 0
    hangs: int = 0
    kills: int = 0
    twice: bool = False
    cancel_s: float | None = None
    here: bool = False
    again_s: float | None = None
    asks: int = 0
    pause_s: float = 0.0
    tries: int = TRIES
    timeout_s: float | None = None
    follows: bool = False
    sends: int = 0
    delay_s: float = 0.0


FOLLOW_UP = PlannedTask(at_s=0.0, name="", type="quick", seconds=0.05)
"""What each follow-up does."""


class Away(NamedTuple):
    """A time in which a target takes nothing."""

    begin_s: float
    end_s: float


class TaskScenario(WorldSetting, frozen=True, kw_only=True):
    """Everything that a seed decides in advance of a world of tasks.

    ``maximum`` is how many may run at once over all nodes (0: any number). ``stumbles``: the hand-over of
    follow-ups, counted from 1, that waits a second, after which its node dies (0: none). ``batch``: tasks
    that are sent together, with one that follows them. ``away``: when the target of effects takes nothing.
    ``delay_max_s`` is the longest delay of a message. ``one_database``: outcomes are stored with their
    briefs.
    """

    frees_on_evict: bool
    hold_max_s: float
    maximum: int
    stumbles: int = 0
    batch: tuple[PlannedTask, ...] = ()
    away: tuple[Away, ...] = ()
    delay_max_s: float = float("inf")
    one_database: bool = False
    tasks: tuple[PlannedTask, ...]


def make(seed: int) -> TaskScenario:
    """The scenario of a seed."""
    random = Random(f"{seed}:tasks")  # noqa: S311 - to be repeated, not to be secret
    nodes = random.choice((1, 2, 2, 3, 4))
    weather = draw_weather(random)
    drift = random.choice((0.0, 0.0, 0.004))
    faults = () if random.random() < 0.2 else _faults(random, nodes)
    frees_on_evict = random.random() < 0.5
    hold_max_s = random.choice((float("inf"), HOLD_MAX_S))
    maximum = random.choice((0, 0, 2, 5))
    away, more = _away(seed, nodes, maximum)
    stumbles = Random(f"{seed}:stumbles").choice((0, 0, 1, 2, 4)) if faults else 0  # noqa: S311
    faults += away + (_more_faults(seed, nodes) if faults else ())
    return TaskScenario(
        seed=seed,
        nodes=nodes,
        weather=weather,
        drift=drift,
        faults=faults,
        frees_on_evict=frees_on_evict,
        hold_max_s=hold_max_s,
        maximum=maximum,
        stumbles=stumbles,
        batch=_batch(seed),
        away=_target_away(seed),
        delay_max_s=_delay_max_s(seed, faults),
        one_database=Random(f"{seed}:one_database").random() < 0.5,  # noqa: S311
        tasks=_with_effects(
            seed,
            more + _with_wishes(seed, _asked_again(seed, _tasks(random, Random(f"{seed}:here")))),  # noqa: S311
        ),
    )


KINDS: tuple[FaultKind, ...] = (
    "crash", "crash", "pause", "pause", "cut", "cut", "isolate", "forget", "slot", "stop", "duplicate",
    "clock",
)  # fmt: skip


def _faults(random: Random, nodes: int) -> tuple[Fault, ...]:
    faults = [
        Fault(
            at_s=random.random() * TROUBLE_S * 0.7,
            kind=random.choice(KINDS),
            node=random.randrange(nodes),
            for_s=random.choice((0.3, 2.0, 7.0, 12.0)),
            detail=random.choice(("coordinator", "state", "queue", "peers", "registry")),
        )
        for _ in range(random.randint(1, 10))
    ]
    return tuple(sorted(faults, key=lambda fault: (fault.at_s, fault.kind, fault.node)))


MORE_KINDS: tuple[FaultKind, ...] = ("mute", "mute", "mute", "slow", "slow", "apart", "rewind", "clock")


def _more_faults(seed: int, nodes: int) -> tuple[Fault, ...]:
    """What else goes wrong in more than half of the seeds."""
    random = Random(f"{seed}:harder")  # noqa: S311
    if random.random() < 0.4:
        return ()
    return tuple(
        Fault(
            at_s=random.random() * TROUBLE_S * 0.7,
            kind=random.choice(MORE_KINDS),
            node=random.choice((EVERY_NODE, random.randrange(nodes))),
            for_s=random.choice((0.5, 2.0, 7.0, 12.0)),
            detail=random.choice(("coordinator", "state", "state", "queue", "peers", "registry")),
        )
        for _ in range(random.randint(1, 4))
    )


def _away(seed: int, nodes: int, maximum: int) -> tuple[tuple[Fault, ...], tuple[PlannedTask, ...]]:
    """A node is cut off from the registry, or stands still, for so long that others may have its grant; and
    there is work enough that they take them."""
    random = Random(f"{seed}:away")  # noqa: S311
    if not maximum or nodes < 2 or random.random() < 0.5:
        return (), ()
    kind: FaultKind = random.choice(("cut", "cut", "pause"))
    node = random.randrange(nodes)
    fault = Fault(at_s=random.uniform(1.0, 3.0), kind=kind, node=node, for_s=AWAY_S, detail="registry")
    more = [PlannedTask(at_s=0.0, name=f"away{n}", type=LONG, seconds=40.0) for n in range(2 * maximum)]
    return (fault,), tuple(more)


def _tasks(random: Random, given: Random) -> tuple[PlannedTask, ...]:
    odd = random.random() < 0.4
    planned = []
    for number in range(random.randint(2, 40)):
        trouble = random.random() if odd else 1.0
        kind = random.choice((QUICK, QUICK, LONG))
        lengths_s = (0.001, 0.05, 1.0) if kind == QUICK else (0.5, 9.0, 90.0)
        planned.append(
            PlannedTask(
                at_s=random.random() * random.choice((1.0, 25.0)),
                name=f"t{number}",
                type=kind,
                seconds=random.choice(lengths_s),
                fails=random.choice((1, 2, -1)) if trouble < 0.15 else 0,
                hangs=random.choice((1, -1)) if 0.15 < trouble < 0.25 else 0,
                kills=random.choice((1, -1)) if 0.25 < trouble < 0.3 else 0,
                twice=random.random() < 0.05,
                cancel_s=random.random() * 20 if random.random() < 0.05 else None,
                here=given.random() < 0.1,
            )
        )
    return tuple(sorted(planned, key=lambda task: (task.at_s, task.name)))


def _asked_again(seed: int, tasks: tuple[PlannedTask, ...]) -> tuple[PlannedTask, ...]:
    """The same tasks, some of them asked for again that will most likely succeed."""
    random = Random(f"{seed}:again")  # noqa: S311
    return tuple(
        msgspec.structs.replace(task, again_s=random.choice((0.0, 0.3, 5.0, 60.0)))
        if random.random() < 0.1 and not (task.fails or task.hangs or task.kills or task.cancel_s)
        else task
        for task in tasks
    )


def _with_wishes(seed: int, tasks: tuple[PlannedTask, ...]) -> tuple[PlannedTask, ...]:
    """The same tasks, some of which ask for pauses, have another number of tries, or others that follow."""
    random = Random(f"{seed}:wishes")  # noqa: S311
    return tuple(
        msgspec.structs.replace(
            task,
            asks=(asks := random.choice((1, 2, 5)) if random.random() < 0.1 else 0),
            pause_s=random.choice((0.5, 3.0, 40.0)) if asks else 0.0,
            tries=random.choice((1, 5)) if random.random() < 0.1 else TRIES,
            follows=random.random() < 0.2,
        )
        for task in tasks
    )


def _with_effects(seed: int, tasks: tuple[PlannedTask, ...]) -> tuple[PlannedTask, ...]:
    """The same tasks, some of which send effects, or are delayed."""
    random = Random(f"{seed}:effects")  # noqa: S311
    return tuple(
        msgspec.structs.replace(
            task,
            sends=random.choice((1, 4)) if random.random() < 0.3 else 0,
            delay_s=random.choice((1.0, 8.0, 60.0)) if random.random() < 0.15 and not task.here else 0.0,
        )
        for task in tasks
    )


def _delay_max_s(seed: int, faults: Sequence[Fault]) -> float:
    """The longest delay of the queues. A store that forgets may forget a task that waits in it, so there all
    wait in their queues."""
    delay_max_s = Random(f"{seed}:delays").choice((0.0, 2.0, float("inf")))  # noqa: S311
    return float("inf") if any(fault.kind == "rewind" for fault in faults) else delay_max_s


def _target_away(seed: int) -> tuple[Away, ...]:
    random = Random(f"{seed}:target")  # noqa: S311
    begins_s = [random.uniform(0.0, TROUBLE_S) for _ in range(random.choice((0, 1, 2)))]
    return tuple(Away(begin_s, begin_s + random.choice((1.0, 10.0, 100.0))) for begin_s in sorted(begins_s))


def _batch(seed: int) -> tuple[PlannedTask, ...]:
    """The tasks of a batch, in about half of the seeds."""
    random = Random(f"{seed}:batch")  # noqa: S311
    at_s = random.random() * 10.0
    return tuple(
        PlannedTask(
            at_s=at_s,
            name=f"{BATCH}-{place}",
            type=random.choice((QUICK, LONG)),
            seconds=random.choice((0.001, 0.5, 2.0)),
            fails=random.choice((0, 0, 0, 0, 1, -1)),
            kills=random.choice((0, 0, 0, 0, 0, 0, 0, 1)),
        )
        for place in range(random.choice((0, 0, 1, 3, 8)))
    )


def _resumed(body: Any, job: Job) -> Any:
    """Send effects, before the attempt fails, if it does."""
    for n in range(body.get("sends", 0)):
        effect = {"trace": job.task_id, "epoch": job.epoch, "n": n}
        job.send(PICKY if n == 1 else SINK, effect, key="k", delay_s=0.5 if n == 2 else 0.0)
    if body.get("fails", 0) < 0 or job.attempt <= body.get("fails", 0):
        raise ValueError("told to fail")
    return {"by": job.attempt}


SPECS: Mapping[str, TaskSpec] = {
    QUICK: TaskSpec(
        name=QUICK,
        handler=_resumed,
        timeout_s=TIMEOUT_S,
        tries=TRIES,
        backoff=Backoff(0.05, 1.0),
        margin_s=2.0,
    ),
    LONG: TaskSpec(
        name=LONG,
        handler=_resumed,
        timeout_s=200.0,
        tries=TRIES,
        backoff=Backoff(0.05, 1.0),
        hold="lease",
        lease_s=LEASE_S,
        stall_s=3.0,
        resumable=True,
    ),
}


FOLLOWING = Order(task_type=QUICK, body={})


class RanAttempt(msgspec.Struct, frozen=True):
    """An attempt that began in a slot (``end`` False), or was over."""

    at: float
    task_id: str
    epoch: int
    end: bool = False


class TakenEffect(msgspec.Struct, frozen=True):
    """An effect that the target has taken."""

    at: float
    effect: OutgoingEffect


class Sink:
    """A target that is away at times, or refuses all."""

    max_batch = 4
    ordered = True

    def __init__(self, world: TaskWorld, *, picky: bool) -> None:
        self._world = world
        self._picky = picky

    async def take(self, effects: Sequence[OutgoingEffect]) -> None:
        now = self._world.clock.monotonic()
        if self._picky:
            raise InvalidMessage("it takes nothing, ever")
        if any(away.begin_s <= now < away.end_s for away in self._world.scenario.away):
            self._world.counts["target away"] += 1
            raise Unavailable("the target is away")
        self._world.log += [TakenEffect(now, effect) for effect in effects]


class Patient:
    """A slot is a process of its own: what it says reaches its node's listener once that goes on."""

    def __init__(self, listener: Listener, line: ServiceLine) -> None:
        self._listener = listener
        self._line = line
        self._words: deque[Callable[[], None]] = deque()
        self._telling: asyncio.Task[None] | None = None

    def __getattr__(self, name: str) -> Any:
        member = getattr(self._listener, name)

        def say(*args: Any) -> None:
            self._words.append(partial(member, *args))
            if self._telling is None:
                self._telling = asyncio.ensure_future(self._tell())

        return say

    async def _tell(self) -> None:
        while self._words:
            await self._line.gate.enter()
            self._words.popleft()()
        self._telling = None


class SimTaskSlots:
    """Makes slots whose words wait while the node stands still."""

    def __init__(self, slots: MemoryTaskSlots, line: ServiceLine) -> None:
        self._slots = slots
        self._line = line

    async def spawn(self, listener: Listener) -> TaskSlot:
        slot: TaskSlot = await self._slots.spawn(Patient(listener, self._line))
        return slot

    async def close(self) -> None:
        await self._slots.close()


class Stumbling(Producer):
    """A node's producer, which may ``stumble`` when it is to send follow-ups."""

    def __init__(self, *services: Any, stumble: Callable[[], Awaitable[None]]) -> None:
        super().__init__(*services)
        self._stumble = stumble

    async def hand_over(self, follow_ups: Sequence[DueFollowUp]) -> None:
        await self._stumble()
        await super().hand_over(follow_ups)


class TaskWorld(Stage):
    """A producer, nodes that run its tasks, and what they share."""

    # Nodes full of tasks look for room all the time: a simulation would do little else.
    limits = msgspec.structs.replace(LIMITS, room_check_s=0.1, task_slots=SLOTS)

    def __init__(self, scenario: TaskScenario, verbose: bool = False) -> None:
        super().__init__(scenario, verbose)
        self.scenario = scenario
        self.queues: dict[str, MemoryQueue] = {}
        self.store = MemoryTasks(self.clock, history=self.log, queues=self.queues)
        self.registry = MemoryRegistry(self.clock)
        for name in (*(task_queue(APP, kind) for kind in SPECS), event_queue(APP)):
            self.queues[name] = MemoryQueue(
                self.clock,
                frees_on_evict=scenario.frees_on_evict,
                hold_max_s=scenario.hold_max_s if name != event_queue(APP) else float("inf"),
                log=self.log,
                delay_max_s=scenario.delay_max_s,
                choose=partial(self._choose, name) if name != event_queue(APP) else None,
            )
        self.planned = {planned.name: planned for planned in (*scenario.tasks, *scenario.batch)}
        self.slots: dict[SimNode, MemoryTaskSlots] = {}
        self.works: dict[SimNode, TaskWork] = {}
        self.deaths: Counter[str] = Counter()
        self.tried: Counter[str] = Counter()
        self.paused: Counter[str] = Counter()
        self.done_s: dict[str, float] = defaultdict(float)
        self.outcomes: dict[str, list[Outcome]] = defaultdict(list)
        self.rewound = False
        self.hand_overs = 0
        self.producer = Producer(
            APP, self.queues.__getitem__, self.store, self.clock, Quiet("producer", verbose)
        )

    def make_works(self, node: SimNode) -> tuple[Sequence[Work], Sequence[Dying]]:
        async def before(slot: MemoryTaskSlot, attempt: Attempt) -> None:
            self.log.append(RanAttempt(self.clock.monotonic(), attempt.task_id, attempt.epoch))
            try:
                await self._before(node, slot, attempt)
            finally:
                self.log.append(RanAttempt(self.clock.monotonic(), attempt.task_id, attempt.epoch, end=True))

        slots = self.slots[node] = MemoryTaskSlots(
            lambda host: TaskExecutor(APP, SPECS, host, (SINK, PICKY)),
            node.slot_clock,
            before=before,
            spawn_s=0.02,
            prefix=node.name,
        )

        def queue(name: str) -> Queue:
            faulty: Queue = Faulty(self.queues[name], "queue", node.line)
            return faulty

        host = node.host
        store: Any = Faulty(self.store, "state", node.line)
        registry: Any = Faulty(self.registry, "registry", node.line)
        storage = TaskStorage(
            APP,
            {kind: queue(task_queue(APP, kind)) for kind in SPECS},
            queue(event_queue(APP)),
            store,
            registry,
            TaskValues(APP, node.clock),
            store if self.scenario.one_database else None,
        )
        limiter = ConcurrencyLimiter(
            registry,
            APP,
            host,
            member=host.clock.new_id,
            lease_s=GRANT_S,
        )
        work = self.works[node] = TaskWork(
            host,
            SPECS,
            storage,
            SimTaskSlots(slots, node.line),
            limiter,
            Stumbling(
                APP,
                queue,
                store,
                node.clock,
                host.log,
                stumble=partial(self._stumble, node),
            ),
            targets=Targets(
                {name: Faulty(Sink(self, picky=name == PICKY), "target", node.line) for name in (SINK, PICKY)}
            ),
        )
        return [work], [slots]

    async def _before(self, node: SimNode, slot: MemoryTaskSlot, attempt: Attempt) -> None:
        """What an attempt does to its process."""
        planned = self.planned.get(attempt.task_id, FOLLOW_UP)
        if planned.kills and self.deaths[attempt.task_id] != planned.kills and not node.clock.gate.dead:
            self.deaths[attempt.task_id] += 1
            self.counts["poison"] += 1
            node.crash()
            self.restart_later(node.index, 0.3)
        if node.clock.gate.dead:
            await asyncio.Event().wait()
        if self.paused[attempt.task_id] < planned.asks:
            self.paused[attempt.task_id] += 1
            self.counts["pause"] += 1
            raise Retry(planned.pause_s, "not yet")
        self.tried[attempt.task_id] += 1
        tried = self.tried[attempt.task_id]
        if planned.hangs < 0 or tried <= planned.hangs:
            self.counts["hang"] += 1
            slot.deafen()
            await asyncio.Event().wait()
        left_s = planned.seconds - self.done_s[attempt.task_id]
        while left_s > 0:
            step_s = min(1.0, left_s)
            await node.slot_clock.sleep(step_s)
            left_s -= step_s
            if SPECS[planned.type].resumable:
                self.done_s[attempt.task_id] = planned.seconds - left_s
            slot.progress(slot.number, Progress(1 - left_s / planned.seconds))
        if not planned.sends and (planned.fails < 0 or tried <= planned.fails):
            raise ValueError("told to fail")

    async def _stumble(self, node: SimNode) -> None:
        self.hand_overs += 1
        if self.hand_overs == self.scenario.stumbles:
            self.counts["stumble"] += 1
            await node.clock.sleep(1.0)
            if not node.clock.gate.dead:
                node.crash()
                self.restart_later(node.index, 0.3)

    def _choose(self, name: str, visible: list[StoredMessage]) -> list[StoredMessage]:
        return self.choose(self.queues[name], visible)

    async def produce(self) -> None:
        loop = asyncio.get_running_loop()
        if self.scenario.maximum:
            limits = ConcurrencyLimits(maximum=self.scenario.maximum)
            await self.registry.put(document_name(APP), msgspec.json.encode(limits), 0)
        self.spawn(self._listen())
        if self.scenario.batch:
            self.spawn(self._send_batch())
        for planned in self.scenario.tasks:
            await asyncio.sleep(max(0.0, planned.at_s - loop.time()))
            tries = planned.tries if planned.tries != TRIES else None
            order = Order(
                task_type=planned.type,
                body={"sends": planned.sends, "fails": planned.fails} if planned.sends else {},
                task_id=planned.name,
                delay_s=planned.delay_s,
                tries=tries,
                timeout_s=planned.timeout_s,
                then=[FOLLOWING] * planned.follows,
                on_failure=[FOLLOWING] * planned.follows,
            )
            if planned.here:
                await self._give(order)
            for _ in range(1 + planned.twice - planned.here):
                await self.producer.send([order])
            if planned.cancel_s is not None:
                self.spawn(self._cancel(planned))
            if planned.again_s is not None:
                self.spawn(self._give_again(order, planned.again_s))

    async def _send_batch(self) -> None:
        batch = self.scenario.batch
        await asyncio.sleep(batch[0].at_s)
        orders = [Order(task_type=planned.type, body={}) for planned in batch]
        await self.producer.send_batch(orders, then=FOLLOWING, on_failure=FOLLOWING, task_id=BATCH)

    async def _give_again(self, order: Order, again_s: float) -> None:
        """What a node does for a client that doesn't know whether it was heard: nothing for what runs, or
        has failed meanwhile."""
        await asyncio.sleep(again_s)
        known = await self.producer.status(order.task_id)
        if known is None or known.state in (State.QUEUED, State.SUCCEEDED):
            self.counts["again"] += 1
            await self._give(msgspec.structs.replace(order, delay_s=0.0))

    async def _give(self, order: Order) -> None:
        """As a node's API does."""
        delay_s = self.producer.delay_s(order)
        message = await self.producer.send_stand_in(order, delay_s)
        if message is None or delay_s:
            return
        node = self._random.choice(self.nodes)
        if not node.clock.gate.dead:
            self.counts["here"] += 1
            self.works[node].run_here(order.task_type, message)

    async def _cancel(self, planned: PlannedTask) -> None:
        assert planned.cancel_s is not None
        await asyncio.sleep(planned.cancel_s)
        self.counts["cancel"] += 1
        await self.producer.cancel(planned.name, "not wanted")

    async def _listen(self) -> None:
        async for brief in self.producer.briefs():
            self.outcomes[brief.outcome.task_id].append(brief.outcome)
            brief.ack()

    async def strike_else(self, fault: Fault, node: SimNode) -> None:
        if fault.kind == "clock":  # that of the stores, and of a node
            self.clock.set_by_s += self._random.choice((-30.0, 3600.0))
            node.clock.set_by_s += self._random.choice((-3600.0, 3600.0))
        elif fault.kind == "slot":
            for slot in self.slots[node].slots[:1]:
                slot.die("was killed by the scenario")
        elif fault.kind == "rewind":
            self.store.rewind(FORGETS_S)
            self.rewound = True

    async def finish(self) -> str:
        deadline, waiting = self.clock.monotonic() + HEAL_LIMIT_S, dict[str, int]()
        while self.clock.monotonic() < deadline:
            waiting = {name: len(queue.messages) for name, queue in self.queues.items() if queue.messages}
            if not waiting and self.outcomes.keys() >= self.planned.keys():
                return ""
            await asyncio.sleep(0.5)
        silent = sorted(self.planned.keys() - self.outcomes.keys())
        return f"{HEAL_LIMIT_S:g} s after healing {waiting} wait, and {silent} have no outcome"


def check(world: TaskWorld, unfinished: str) -> list[str]:
    """Every violation found, in words."""
    wrong = [f"{name} failed: {error!r}" for name, error in world.failures]
    wrong += world.coordinator.violations
    if unfinished:
        return [*wrong, unfinished]
    wrong += _ends(world)
    wrong += _history(world)
    wrong += _at_once(world)
    wrong += _followed(world)
    wrong += _sent(world)
    most = CALLS_A_TASK_MAX * len(world.planned) + CALLS_A_NODE_SECOND_MAX * (
        world.seconds_after_healing * len(world.nodes)
    )
    if world.calls_made > most:
        seconds = world.seconds_after_healing
        wrong.append(f"{world.calls_made} calls in {seconds:.0f} s after healing: a hot loop")
    return wrong


def _ends(world: TaskWorld) -> list[str]:
    """Each task has one outcome, its producer read just that, and what failed lies with the dead letters."""
    wrong = []
    letters = [letter for queue in world.queues.values() for letter in queue.letters.values()]
    dead = {letter.key for letter in letters if not is_of_effect(letter)}
    for name, planned in world.planned.items():
        told = {(o.state, o.epoch, o.detail) for o in world.outcomes[name] if o.state is not State.DUPLICATED}
        if world.rewound:
            wrong += _told_though_forgotten(world, name, told)
            continue
        task = world.store.standing[name]
        if told != {(task.state, task.epoch, task.detail)}:
            wrong.append(f"{name} is {task.state.value} of epoch {task.epoch}, and its producer heard {told}")
        failed = task.state is not State.SUCCEEDED and not task.cancelled
        if failed != (name in dead):
            where = "lies" if name in dead else "does not lie"
            wrong.append(f"{name} is {task.state.value}, and {where} with the dead letters")
        healthy = planned.fails >= 0 and planned.hangs >= 0 and planned.kills >= 0
        spent = planned.fails + planned.hangs + planned.kills >= planned.tries
        calm = not (world.scenario.faults or world.counts["poison"] or spent)
        again = any(outcome.state is State.DUPLICATED for outcome in world.outcomes[name])
        if (
            planned.here
            and again
            and calm
            and not (planned.twice or planned.cancel_s or planned.again_s is not None)
        ):
            wrong.append(f"{name} was given to a node once, and called a duplicate")
        if failed and healthy and calm:
            wrong.append(f"{name} was healthy and {task.state.value}: {task.detail}")
    return wrong


def _told_though_forgotten(world: TaskWorld, name: str, told: Set[tuple[State, int, str]]) -> list[str]:
    """Where the store forgets, a task that had ended may run again, and have an outcome each time, or be left
    as it stood before its end. But it has been told an outcome, and only those that were stored."""
    stored = {
        (event.after.state, event.after.epoch, event.after.detail)
        for event in world.log
        if isinstance(event, Changed)
        and event.task_id == name
        and event.after is not None
        and event.after.ended
    }
    if not told or not told <= stored:
        return [f"{name} was stored as {stored}, and its producer heard {told}"]
    return []


def _history(world: TaskWorld) -> list[str]:
    """No attempt after an end or in a pause, no more attempts than tries, no epoch issued twice, and no
    message deleted before its task's outcome is stored."""
    wrong = []
    standing: dict[str, Task] = {}
    issued: Counter[str] = Counter()
    given: dict[tuple[str, int], Changed] = {}
    for event in world.log:
        if isinstance(event, Changed) and event.after is not None:
            before = event.before
            after = standing[event.task_id] = event.after
            if after.epoch > (before.epoch if before else 0):
                given[event.task_id, after.epoch] = event
                if after.epoch <= issued[event.task_id]:
                    wrong.append(
                        f"{event.task_id} was given epoch {after.epoch} after {issued[event.task_id]}"
                    )
                issued[event.task_id] = after.epoch
            if before is None:
                continue
            if event.call == "start" and before.state is State.QUEUED and not after.ended:
                early_s = before.until - after.started_at
                if after.state is State.RUNNING and early_s > 0:
                    wrong.append(f"{event.task_id} began {early_s:.1f} s before its pause was over")
            if before.ended and (after.state, after.epoch) != (before.state, before.epoch):
                wrong.append(f"{event.task_id} went on after its end: {before.state} to {after.state}")
            if after.epoch < before.epoch:
                wrong.append(f"{event.task_id} went back to epoch {after.epoch} from {before.epoch}")
            planned = world.planned.get(event.task_id)
            if after.attempts > (planned.tries if planned else TRIES):
                wrong.append(f"{event.task_id} had {after.attempts} attempts")
        elif isinstance(event, RanAttempt) and not event.end:
            task = standing.get(event.task_id)
            if task is None or issued[event.task_id] < event.epoch:
                wrong.append(f"{event.task_id} ran at epoch {event.epoch}, which was never given")
            elif (
                task.ended
                and task.epoch >= event.epoch
                and task.state is State.SUCCEEDED
                and not (
                    task.epoch > event.epoch and _stood_still(world, given[event.task_id, event.epoch], event)
                )
            ):
                wrong.append(f"{event.task_id} ran after its success")
    return wrong + _deleted(world)


def _stood_still(world: TaskWorld, given: Changed, began: RanAttempt) -> bool:
    """True if the node of an attempt was hindered until its slot began. It can't learn then that another node
    took its task over."""
    assert given.after is not None
    return world.was_troubled(given.after.member.rpartition(".")[0], given.at, began.at)


def _deleted(world: TaskWorld) -> list[str]:
    wrong = []
    ended: set[str] = set()
    copies: Counter[str] = Counter()
    for event in world.log:
        if isinstance(event, Changed) and event.after is not None and event.after.ended:
            ended.add(event.task_id)
        if not isinstance(event, QueueEvent) or event.kind not in ("sent", "deleted"):
            continue
        name = _trace_of(event)
        if name is None:  # a brief
            continue
        if event.kind == "sent":
            copies[name] += 1
        else:
            copies[name] -= 1
            if name not in ended and not copies[name]:
                wrong.append(f"{name} was deleted before its outcome was stored")
    return wrong


def _trace_of(event: QueueEvent) -> str | None:
    try:
        return decode_task(event.body, Envelope(app=APP, task_id="-", task_type="-")).envelope.task_id
    except Unreadable:
        return None


def _followed(world: TaskWorld) -> list[str]:
    """Just what is to follow upon an outcome that was stored is sent, not before that, and runs."""
    wrong = []
    due: dict[str, str] = {}
    ended = set[str]()
    for event in world.log:
        if isinstance(event, Changed) and event.after is not None and event.after.ended:
            planned = world.planned.get(event.task_id)
            ended.add(event.task_id)
            if event.task_id == BATCH or (planned is not None and planned.follows):
                due[_follow_up(event.after)] = event.task_id
            if event.task_id == BATCH and (early := {each.name for each in world.scenario.batch} - ended):
                wrong.append(f"the batch ended before {sorted(early)}")
        elif isinstance(event, QueueEvent) and event.kind == "sent":
            name = _trace_of(event)
            if name is not None and name not in world.planned and name not in due and _is_follow_up(name):
                wrong.append(f"{name} was sent, and follows upon nothing")
    if world.rewound:
        return wrong
    named = [name for name, planned in world.planned.items() if planned.follows]
    for name in named + [BATCH] * bool(world.scenario.batch):
        task = world.store.standing[name]
        following = world.store.standing.get(_follow_up(task))
        if following is not None and following.attempts == TRIES and "without an outcome" in following.detail:
            continue  # each of its attempts was beside one that ended the node
        if following is None or following.state is not State.SUCCEEDED:
            wrong.append(f"{name} is {task.state.value}, and what follows is {following}")
    if world.scenario.batch:
        batch = world.store.standing[BATCH]
        well = all(world.store.standing[each.name].state is State.SUCCEEDED for each in world.scenario.batch)
        if (batch.state is State.SUCCEEDED) != well:
            wrong.append(f"the batch is {batch.state.value}, with {batch.members}")
    return wrong


def _sent(world: TaskWorld) -> list[str]:
    """The effects of an attempt are handed over once its success is stored, and only then; in the end all of
    them are, those of one key in order, or lie with the dead letters; each has one id."""
    wrong = []
    succeeded = set[tuple[str, int]]()
    ids: dict[tuple[str, int, int], str] = {}
    for event in world.log:
        if isinstance(event, Changed) and event.after is not None and event.after.state is State.SUCCEEDED:
            succeeded.add((event.task_id, event.after.epoch))
        elif isinstance(event, TakenEffect):
            body = msgspec.json.decode(event.effect.body)
            task_id, epoch, n = body["trace"], body["epoch"], body["n"]
            if (task_id, epoch) not in succeeded:
                wrong.append(f"effect {n} of {task_id} at epoch {epoch} was sent, which has not succeeded")
            if n == 3 and (task_id, epoch, 0) not in ids:
                wrong.append(f"effect {n} of {task_id} overtook another one")
            if ids.setdefault((task_id, epoch, n), event.effect.id) != event.effect.id:
                wrong.append(f"effect {n} of {task_id} has several ids")
    if len(set(ids.values())) < len(ids):
        wrong.append("several effects have one id")
    if world.rewound:
        return wrong
    buried = {
        letter.id: letter.seq
        for queue in world.queues.values()
        for letter in queue.letters.values()
        if is_of_effect(letter)
    }
    for name, planned in world.planned.items():
        task = world.store.standing[name]
        if task.effects:
            wrong.append(f"{name} has pending effects")
        if not planned.sends or task.state is not State.SUCCEEDED:
            continue
        arrived = {n for task_id, epoch, n in ids if (task_id, epoch) == (name, task.epoch)}
        if arrived != {n for n in range(planned.sends) if n != 1}:
            wrong.append(f"{name} sent {planned.sends} effects, and its target has {sorted(arrived)}")
        if list(buried.values()).count(name) != (planned.sends > 1):
            wrong.append(f"the effect of {name} that was refused is not with the dead letters")
    return wrong


def _follow_up(task: Task) -> str:
    """The trace of what follows upon an outcome: it has two follow-ups, the second upon a failure."""
    return follow_up_id(QUICK, task.task_id, task.epoch, int(task.state is not State.SUCCEEDED))


def _is_follow_up(name: str) -> bool:
    return name.startswith(f"{QUICK}-")


def _at_once(world: TaskWorld) -> list[str]:
    """Never more attempts at once, in whatever slot, than the app's maximum; and of one task's epoch one."""
    wrong = []
    running: dict[tuple[str, int], float] = {}
    for event in world.log:
        if not isinstance(event, RanAttempt):
            continue
        if event.end:
            running.pop((event.task_id, event.epoch), None)
            continue
        running[event.task_id, event.epoch] = event.at
        if world.scenario.maximum and len(running) > world.scenario.maximum:
            wrong.append(f"{len(running)} attempts ran at once at {event.at:.1f}: {sorted(running)}")
    return wrong
