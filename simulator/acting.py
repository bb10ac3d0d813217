"""Streams that act: handlers that send effects, in chains and to targets that are away, and set timers."""

from __future__ import annotations

import asyncio
import copy
import json
from collections import defaultdict
from collections.abc import Sequence
from random import Random
from typing import Any
from unittest import mock

import msgspec

from holdfast.cluster.effect_dead_letters import EFFECT
from holdfast.common.acts import Effect
from holdfast.errors import HoldfastError, InvalidMessage, Unavailable
from holdfast.ports.slots import MessageWork
from holdfast.ports.target import OutgoingEffect, Target
from holdfast.rules.streams.ledger import Checkpoint
from holdfast.rules.streams.timers import place_of
from holdfast.services.memory.queue import MemoryQueue, QueueEvent
from holdfast.services.memory.state import CommitRecord, LossRecord, OpenRecord, StartRecord
from holdfast.streams import due
from holdfast.streams.handler import Context, StreamHandler
from holdfast.streams.queries import CommittedAnswer
from holdfast.streams.spec import StreamSpec
from holdfast.streams.target import StreamTarget
from simulator import invariants, scenario
from simulator.faults import Faulty
from simulator.handler import START, Chain, Number
from simulator.scenario import STREAM, TROUBLE_S, Scenario
from simulator.stage import SimNode
from simulator.world import MAX_STARTS, TIMEOUT_S, World, spec_of

SINK = "sink"
LOOSE = "loose"
PICKY = "picky"
PINGS = "pings"
PONGS = "pongs"
KILLED = "k0"
"""The key that has a timer which ends nodes."""

HOPS_LIMIT = 3
"""How often a ping comes back."""

STUMBLES = 0.1
"""How often a target takes only some of a call."""

HEAL_LIMIT_S = 900.0
CLOCK_STEPS_S = (-60.0, -5.0, 5.0, 60.0)
CLOCKS_DIFFER_S = 1.0
EARLY_S = 0.01
BEGINS_IN_S = 10.0
"""So long it may take to begin a timer that is due. Its node's clock may be set back meanwhile."""
QUERY_TIMEOUT_S = 5.0
OPERATOR = "operator"
LEFT = "left"
"""The membership of a node that has left."""

LEAVES = 0.02
"""How often a stream is moved to it, a call of a target."""

ASKED_SEEDS = 0.25
"""The share of seeds in which queries are asked. They take time in slots, so the other seeds go on meaning
what they meant."""


class Away(msgspec.Struct, frozen=True):
    """A while in which the sink takes nothing."""

    begin_s: float
    end_s: float


class SinkEvent(msgspec.Struct, frozen=True):
    """An effect arrived at a target."""

    at: float
    target: str
    effect: OutgoingEffect


class QueryEvent(msgspec.Struct, frozen=True):
    """A query was answered. ``least`` is how many commits its stream had when it was asked."""

    at: float
    key: str
    answered: CommittedAnswer
    least: int


def acts_of(key: str, run: int, seq: int) -> list[tuple[str, str]]:
    """What a message sends: targets and their keys, in order."""
    random = Random(f"{key}:{run}:{seq}")  # noqa: S311 - to be repeated, not to be secret
    number = random.choice((0, 1, 1, 3))
    sends = [(random.choice((SINK, SINK, LOOSE)), random.choice(("a", "b"))) for _ in range(number)]
    if random.random() < 0.1:
        sends.append((PICKY, ""))
    if random.random() < 0.2:
        sends.append((PINGS, random.choice(("p", "q"))))
    return sends


class Actor(Chain):
    """The chain, whose every message sends and sets timers by what it is."""

    def process(self, message: Number, context: Context) -> Any:
        seq = message.seq
        cause = f"{message.key}:{message.run}:{seq}"
        for number, (target, key) in enumerate(acts_of(message.key, message.run, seq)):
            body = {"key": key, "cause": cause, "number": number, "try": 0, "ttl": HOPS_LIMIT}
            delay_s = 3.0 if target == SINK and number == 2 else 0.0
            context.send(target, body, key=key, delay_s=delay_s)
        if seq % 2:
            body = {
                "cause": cause,
                "left": seq % 3,
                "fails": seq % 7 == 1,
                "kills": seq == 7 and message.key == KILLED,
            }
            context.wake(f"t{seq % 3}", after_s=(0.5, 5.0, 40.0)[seq % 3], body=body)
        if seq % 5 == 4:
            context.unwake("t0")
        return super().process(message, context)

    def wake(self, name: str, body: Any, context: Context) -> Any:
        context.send(SINK, {"woke": name, **body}, key="timers")
        if body["fails"] and context.attempt == 1:
            raise ValueError("this timer fails")
        if body["left"]:
            context.wake(name, after_s=2.0, body={**body, "left": body["left"] - 1})

    def query(self, request: Any, context: Context) -> str:
        return self.chain


class Ping(msgspec.Struct):
    """A message that handlers send to one another."""

    key: str
    cause: str
    number: int
    ttl: int


class Player(StreamHandler[Ping]):
    """Sends each ping back as a pong, and each pong as a ping, as long as its time to live lasts."""

    other = PONGS

    def process(self, message: Ping, context: Context) -> Any:
        context.send(SINK, msgspec.to_builtins(message), key=self.other)
        if message.ttl:
            back = msgspec.structs.replace(message, ttl=message.ttl - 1)
            context.send(self.other, msgspec.to_builtins(back), key=message.key)


class Opponent(Player):
    """The other side."""

    other = PINGS


class Sink:
    """A target with moods: it is away at times, fails at times after it took some of a call, and refuses what
    is meant for ``PICKY``. ``LOOSE`` takes any of a call, the others the first. It doesn't fail twice at an
    effect so: after the pauses that have grown while it was away, two more would outlast the world."""

    def __init__(self, world: ActingWorld, name: str) -> None:
        self.max_batch = 4
        self.ordered = name != LOOSE
        self._world = world
        self._name = name
        self._random = world.scenario.random(f"moods:{name}")
        self._failed = world.failed[name]

    async def take(self, effects: Sequence[OutgoingEffect]) -> None:
        now = asyncio.get_running_loop().time()
        self._world.move_in_vain(effects[0].sender)
        if self._name == PICKY:
            raise InvalidMessage("it takes nothing, ever")
        if any(away.begin_s <= now < away.end_s for away in self._world.away):
            self._world.counts["target away"] += 1
            raise Unavailable("the target is away")
        taken = list(effects)
        stumbles = len(effects) > 1 and self._random.random() < STUMBLES
        if fails := stumbles and self._failed.isdisjoint(effect.id for effect in effects):
            self._failed.update(effect.id for effect in effects)
            some = self._random.randrange(len(effects))
            taken = taken[:some] if self.ordered else self._random.sample(taken, some)
        self._world.log += [SinkEvent(now, self._name, effect) for effect in taken]
        if fails:
            self._world.counts["target took some"] += 1
            raise Unavailable("the target took some and failed")


def make(seed: int) -> Scenario:
    """The scenario of a seed, without numbers that start anew."""
    made = scenario.make(seed)
    messages = tuple(message for message in made.messages if not message.run) or made.messages[:1]
    if not made.restarts:
        messages = made.messages
    return msgspec.structs.replace(made, restarts=False, faults_again=(), messages=messages)


class ActingWorld(World):
    """The world of streams, whose handlers act."""

    clock_steps_s = CLOCK_STEPS_S
    acts = True
    older = ""
    """What the names of nodes begin with that are of a version without effects and timers, if any are."""

    def __init__(self, scenario: Scenario, verbose: bool = False) -> None:
        super().__init__(scenario, verbose)
        random = scenario.random("acting")
        self.specs = {
            STREAM: msgspec.structs.replace(spec_of(scenario), handler=Actor),
            PINGS: _played(scenario, PINGS, Player),
            PONGS: _played(scenario, PONGS, Opponent),
        }
        bounds = scenario.random("bounds")
        most = bounds.choice((4, 1000))
        self.specs = {
            name: msgspec.structs.replace(spec, max_pending_effects=most) for name, spec in self.specs.items()
        }
        self._keys_a_call = bounds.choice((2, 100))
        self.queues |= {name: self._queue() for name in (PINGS, PONGS)}
        self.target_names = (SINK, LOOSE, PICKY, PINGS, PONGS)
        self.away = [
            Away(begin_s, begin_s + random.choice((1.0, 10.0, 200.0)))
            for begin_s in sorted(random.uniform(0.0, TROUBLE_S) for _ in range(random.choice((0, 1, 2))))
        ]
        self.failed: dict[str, set[str]] = defaultdict(set)
        """By target: the effects of calls that it failed after it had taken some."""
        self.early: list[str] = []
        self._leavers = scenario.random("leavers")
        self._questions = scenario.random("queries")
        self._has_asker = self._questions.random() > 1.0 - ASKED_SEEDS
        self.timers_kill = not any(
            message.kills or (message.hangs and message.key == KILLED) for message in scenario.messages
        )
        """Of one poison only it is sure that it doesn't pull others with it. A message of the same key that
        hangs at its first try would do so in each opening that the timer ends."""

    def _queue(self) -> MemoryQueue:
        queue = MemoryQueue(self.clock, frees_on_evict=self.scenario.frees_on_evict)
        queue.choose = lambda visible: self.choose(queue, visible)
        return queue

    def make_works(self, node: SimNode) -> Any:
        difference_s = self.scenario.random(f"wall:{node.name}").uniform(-CLOCKS_DIFFER_S, CLOCKS_DIFFER_S)
        node.clock.set_by_s = node.slot_clock.set_by_s = difference_s - node.clock.offset_s
        return super().make_works(node)

    def targets(self, node: SimNode) -> dict[str, Target]:
        sinks = {name: Faulty(Sink(self, name), "target", node.line) for name in (SINK, LOOSE, PICKY)}
        streams = {
            name: StreamTarget(self.specs[name], Faulty(self.queues[name], "queue", node.line))
            for name in (PINGS, PONGS)
        }
        return {**sinks, **streams}

    async def _before(self, node: SimNode, work: MessageWork) -> None:
        if work.wake:
            self.counts["woken"] += 1
            self._check_time(node, work)
            self._check_mark(node, work)
            if json.loads(work.body)["kills"] and self.timers_kill and not node.clock.gate.dead:
                self.counts["poisonous timer"] += 1
                node.crash()
                self.restart_later(node.index, 0.3)
        await super()._before(node, work)

    def _check_time(self, node: SimNode, work: MessageWork) -> None:
        """A timer that stands with this body isn't run before its time."""
        settings = [
            timer for c in self.state.standing.values() for timer in c.timers if timer.name == work.wake
        ]
        at = [timer.at for timer in settings if timer.body == work.body]
        wall = node.clock.wall()
        stepped_at, step_s = self.stepped.get(node.name, (0.0, 0.0))
        if asyncio.get_running_loop().time() - stepped_at < BEGINS_IN_S:
            wall -= min(0.0, step_s)
        if at and min(at) > wall + EARLY_S:
            self.early.append(f"{node.name} ran {work.wake} {min(at) - wall:.1f} s before its time")

    def _check_mark(self, node: SimNode, work: MessageWork) -> None:
        """A timer isn't run before the store has counted that it begins, for it may end the node."""
        key = f"{STREAM}/{json.loads(work.body)['cause'].split(':')[0]}"
        standing = self.state.standing.get(key)
        settings = standing.timers if standing is not None else ()
        heads = [
            place_of(timer).name for timer in settings if (timer.name, timer.body) == (work.wake, work.body)
        ]
        if heads and not any(_begins(event, key, heads) for event in reversed(self.log)):
            self.early.append(f"{node.name} ran {work.wake} of {key} uncounted")

    async def live(self) -> str:
        if self._has_asker:
            self.spawn(self._query())
        with mock.patch.object(due, "KEYS_A_CALL", self._keys_a_call):
            return await super().live()

    async def _query(self) -> None:
        """A program asks streams at any nodes, one question after the other."""
        loop, random = asyncio.get_running_loop(), self._questions
        keys = sorted({f"{STREAM}/{message.key}" for message in self.scenario.messages})
        while loop.time() < TROUBLE_S:
            await asyncio.sleep(random.uniform(0.01, 0.5))
            node, key = self.nodes[random.choice(sorted(self.nodes))], random.choice(keys)
            standing = self.state.standing.get(key)
            least = standing.number if standing is not None else 0
            asked = asyncio.ensure_future(
                self.works[node].queries.answer(STREAM, key, b"null", QUERY_TIMEOUT_S)
            )
            await asyncio.wait({asked}, timeout=2 * QUERY_TIMEOUT_S)
            if not asked.done():
                asked.cancel()
            elif asked.cancelled():
                pass
            elif (error := asked.exception()) is None:
                self.log.append(QueryEvent(loop.time(), key, asked.result(), least))
                self.counts["query answered"] += 1
            elif not isinstance(error, HoldfastError):
                self.failures.append((node.name, error))

    def move_in_vain(self, key: str) -> None:
        """At times a stream is moved while its effects are under way, to a node that leaves before it has
        the claim. So the stream stays."""
        if self._leavers.random() < LEAVES:
            for node, work in self.works.items():
                if not node.clock.gate.dead:
                    self.counts["moved in vain"] += work.owners.move(key, LEFT)

    def _heal(self) -> None:
        super()._heal()
        for node in self.nodes.values():
            node.clock.set_by_s = node.slot_clock.set_by_s = -node.clock.offset_s

    @property
    def away_until_s(self) -> float:
        return max((away.end_s for away in self.away), default=0.0)

    async def finish(self) -> str:
        if late := await super().finish():
            return late
        loop = asyncio.get_running_loop()
        deadline = max(loop.time(), self.away_until_s) + HEAL_LIMIT_S
        while loop.time() < deadline:
            await self._resume_parked()
            if not self._left():
                return ""
            await asyncio.sleep(0.5)
        return f"{HEAL_LIMIT_S:g} s after healing there is still: {self._left()[:4]}"

    def _left(self) -> list[str]:
        """What is still to be done."""
        left = [f"{name} holds messages" for name, queue in self.queues.items() if queue.messages]
        for checkpoint in self.state.standing.values():
            if checkpoint.effects:
                left.append(f"{checkpoint.key} has {len(checkpoint.effects)} pending effects")
            if checkpoint.timers:
                left.append(f"{checkpoint.key} has the timers {[t.name for t in checkpoint.timers]}")
            if checkpoint.due:
                left.append(f"{checkpoint.key} is due at {checkpoint.due}")
        return left


def _played(scenario: Scenario, name: str, handler: type[Player]) -> StreamSpec:
    return StreamSpec(
        name=name,
        handler=handler,
        message=Ping,
        timeout_s=TIMEOUT_S,
        max_starts=MAX_STARTS,
        max_tries=scenario.max_tries,
        inbox_limit=scenario.inbox_limit,
        checkpoint_every=scenario.checkpoint_every,
        idle_timeout_s=scenario.idle_timeout_s,
    )


# --- what must hold


class Acted:
    """What the history says of effects and timers."""

    def __init__(self, older: str = "") -> None:
        self.older = older
        self.effects: dict[str, tuple[str, Effect]] = {}
        """By id: the full key and the effect, of every commit that was ever accepted."""
        self.standing: list[str] = []
        """The ids of effects whose commit the store has not forgotten, in order."""
        self.applied: list[CommitRecord] = []
        self.chains: dict[str, dict[int, set[str]]] = defaultdict(lambda: defaultdict(set))
        """By key and number of commit: what a query could answer after it."""
        self.asked: dict[str, tuple[int, int]] = defaultdict(lambda: (0, 0))
        """By key: the epoch and number of the last answer."""
        self.arrived: dict[str, int] = {}
        self.marked: dict[str, int] = {}
        """Refused effects, and when a commit said so, as a place in the history."""
        self.settings: set[tuple[str, str]] = set()
        """The full keys and settings of all timers that ever stood, by what the store remembers."""


def check(world: ActingWorld, unfinished: str) -> list[str]:
    """Every violation found, in words."""
    numbers = copy.copy(world)
    numbers.log = [event for event in world.log if _is_of_numbers(event)]
    wrong = [*invariants.check(numbers, unfinished), *world.early]
    acted, amiss = judge(world.log, older=world.older, rewound=world.rewound)
    wrong += amiss
    if not unfinished:
        wrong += _delivered(world, acted)
    wrong += _in_order(world, acted)
    return wrong


def judge(log: Sequence[Any], *, older: str = "", rewound: bool = False) -> tuple[Acted, list[str]]:
    """What a history says of effects and timers, and what is wrong in it. ``older`` is as in the world."""
    acted, wrong = Acted(older), list[str]()
    for place, event in enumerate(log):
        if isinstance(event, CommitRecord) and event.after is not None and not event.repeated:
            wrong += _committed(event, acted, place)
        elif isinstance(event, LossRecord):
            _forgot(event, acted)
        elif isinstance(event, QueryEvent):
            wrong += _answered(event, acted, rewound)
        elif isinstance(event, SinkEvent):
            wrong += _arrived(event, acted, place)
        elif isinstance(event, QueueEvent) and event.kind == "buried" and event.letter is not None:
            wrong += _buried(event.letter.attributes.get(EFFECT, ""), acted)
    return acted, wrong


def _answered(event: QueryEvent, acted: Acted, rewound: bool) -> list[str]:
    """The answer is of a commit that was accepted, as its number says, and not of an older one than the asker
    could know of."""
    answered = event.answered
    chain = json.loads(answered.body or b"null")
    known = acted.chains[event.key].get(answered.number, set() if answered.number else {START})
    wrong = []
    if chain not in known:
        wrong.append(
            f"{event.key}: the answer {chain} of commit {answered.number} is not what it left: {known}"
        )
    if not rewound:
        stands = answered.epoch, answered.number
        if answered.number < event.least or stands < acted.asked[event.key]:
            wrong.append(f"{event.key}: the answer is of {stands}, older than {acted.asked[event.key]}")
        acted.asked[event.key] = stands
    return wrong


def _begins(event: Any, key: str, heads: list[str]) -> bool:
    """Whether the store has counted with this that one of these heads begins."""
    if isinstance(event, StartRecord):
        return event.after is not None and event.key == key and event.head in heads
    if isinstance(event, CommitRecord):
        return event.after is not None and event.commit.key == key and event.commit.starting in heads
    return False


def _is_of_numbers(event: Any) -> bool:
    if isinstance(event, SinkEvent | QueryEvent):
        return False
    if isinstance(event, QueueEvent):
        return event.letter is None or EFFECT not in event.letter.attributes
    key = event.commit.key if isinstance(event, CommitRecord) else getattr(event, "key", STREAM + "/")
    return not isinstance(event, OpenRecord | CommitRecord | StartRecord) or key.startswith(f"{STREAM}/")


def _committed(event: CommitRecord, acted: Acted, place: int) -> list[str]:
    commit, after, wrong = event.commit, event.after, list[str]()
    assert after is not None
    acted.applied.append(event)
    if commit.key.startswith(f"{STREAM}/"):
        chain = START if after.state is None else json.loads(after.state)["chain"]
        acted.chains[commit.key][commit.number].add(chain)
    wrong += _superseded(event, acted)
    by_cause: dict[str, list[Effect]] = defaultdict(list)
    for effect in commit.effects:
        if acted.effects.get(effect.id, (commit.key, effect)) != (commit.key, effect):
            wrong.append(f"{commit.key}: the id of effect {effect.id} was used twice")
        acted.effects[effect.id] = (commit.key, effect)  # again the same: a forgotten commit came late
        acted.standing.append(effect.id)
        by_cause[effect.cause].append(effect)
    for refused in commit.refused:
        acted.marked.setdefault(refused.id, place)
    for effect in commit.effects:
        if effect.refused:
            acted.marked.setdefault(effect.id, place)
    for id_ in commit.dropped:
        _, dropped = acted.effects.get(id_, ("", None))
        if dropped and dropped.target in (SINK, LOOSE) and not dropped.refused and id_ not in acted.arrived:
            wrong.append(f"{commit.key}: effect {id_} was dropped before it arrived")
    wrong += _due_though_parked(event, acted)
    if event.before is not None and event.before.parked and (commit.results or commit.effects):
        wrong.append(f"{commit.key} ran while it was parked: {event.before.parked}")
    if commit.key.startswith(f"{STREAM}/"):
        for result in commit.results:
            told = json.loads(result.body)
            wanted = acts_of(commit.key.partition("/")[2], told["run"], told["seq"])
            sent = [(e.target, e.key) for e in by_cause.get(result.name, ())]
            if sent != wanted and not (acted.older and after.member.startswith(acted.older)):
                wrong.append(f"{commit.key}:{result.name} sent {sent}, not {wanted}")
    return wrong


def _due_though_parked(event: CommitRecord, acted: Acted) -> list[str]:
    """The timers of a parked stream wait, so that it is due for its effects alone. Operators and nodes of an
    older version leave that as it is: the next owner writes when the stream is due."""
    after = event.after
    if after is None or not after.parked or after.member == OPERATOR:
        return []
    if acted.older and after.member.startswith(acted.older):
        return []
    is_due = after.due and not after.effects
    return [f"{after.key} is parked and due at {after.due}, though nothing is to be sent"] if is_due else []


def _superseded(event: CommitRecord, acted: Acted) -> list[str]:
    """A timer fires in the setting that stands, or in one that was made in the same commit."""
    key = event.commit.key
    before, after = _settings(event.before), _settings(event.after)
    fired = {
        effect.cause
        for effect in event.commit.effects
        if effect.cause.startswith("wake:") and effect.id not in acted.effects  # else of a forgotten commit
    }
    gone = {cause for cause in fired - before if (key, cause) in acted.settings}
    acted.settings |= {(key, setting) for setting in after}
    return [f"{key}: {cause} fired, which stands no more" for cause in sorted(gone)]


def _settings(standing: Checkpoint | None) -> set[str]:
    """The timers of a checkpoint, as their firings are named."""
    return {f"wake:{timer.name}:{timer.setting}" for timer in standing.timers} if standing else set()


def _forgot(event: LossRecord, acted: Acted) -> None:
    """Effects of commits that the store has forgotten don't stand. Neither does a setting that was made then:
    its owner commits again what set the timer, and may do so in one commit with its firing."""
    while acted.applied and acted.applied[-1].at >= event.since:
        for effect in acted.applied.pop().commit.effects:
            acted.standing.remove(effect.id)
    acted.settings = {
        (known.commit.key, setting) for known in acted.applied for setting in _settings(known.after)
    }


def _arrived(event: SinkEvent, acted: Acted, place: int) -> list[str]:
    effect = event.effect
    known = acted.effects.get(effect.id)
    if known is None:
        return [f"{effect.id} of {effect.sender} arrived before a commit with it was accepted"]
    acted.arrived.setdefault(effect.id, place)
    key, committed = known
    same = (effect.body, effect.key, effect.sender) == (committed.body, committed.key, key)
    return [] if same else [f"{effect.id} arrived otherwise than it was committed"]


def _buried(effect_id: str, acted: Acted) -> list[str]:
    if effect_id in acted.effects and effect_id not in acted.marked:
        return [f"effect {effect_id} was dead-lettered before a commit said so"]
    return []


def _delivered(world: ActingWorld, acted: Acted) -> list[str]:
    """Every effect that an accepted commit holds is at its target, or with the dead letters."""
    wrong = []
    messages = {
        event.attributes.get("id", "")
        for name in (PINGS, PONGS)
        for event in world.queues[name].log
        if isinstance(event, QueueEvent) and event.kind == "sent"
    }
    buried = [letter for queue in world.queues.values() for letter in queue.letters.values()]
    letters = {letter.attributes.get(EFFECT, "") for letter in buried}
    for id_ in acted.standing:
        key, effect = acted.effects[id_]
        there = id_ in acted.arrived or id_ in messages
        if effect.target == PICKY:
            there = id_ in letters and id_ in acted.marked
        if not there and not (effect.refused and id_ in letters):
            wrong.append(f"effect {id_} of {key} to {effect.target} is lost")
    return wrong


def _in_order(world: ActingWorld, acted: Acted) -> list[str]:
    """First arrivals of each sender, target and key are in the order of their commits."""
    wrong, last = [], dict[tuple[str, str, str], int]()
    for id_ in acted.standing:
        key, effect = acted.effects[id_]
        if id_ not in acted.arrived or effect.not_before or world.rewound:
            continue
        lane = key, effect.target, effect.key
        if acted.arrived[id_] < last.get(lane, -1):
            wrong.append(
                f"effect {id_} of {key} to {effect.target}/{effect.key} arrived before an earlier one"
            )
        last[lane] = acted.arrived[id_]
    return wrong
