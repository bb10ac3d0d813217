"""What a seed means: the size of the world, its messages, its weather, and what goes wrong when."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from random import Random
from typing import Any, Literal

import msgspec

from holdfast.common.message import SeqKind
from simulator.faults import Weather, draw_weather

STREAM = "numbers"
TROUBLE_S = 40.0
"""Faults happen in this first while; then the world heals."""

TTL_S = 5.0
VISIBILITY_S = 30.0
GAP_TIMEOUT_S, MAX_TRIES = 45.0, 3
LONG_GAP_TIMEOUT_S, MORE_TRIES = 300.0, 4
"""In half the seeds: nothing that is on its way is given up."""
RESTART_S = 400.0
"""Where numbers start anew: the quiet after which they may."""

FAR = 10**12
"""A seq that can only be a mistake, for streams that allow jumps of ``MAX_JUMP``."""

MAX_JUMP = 1000
HOLD_MAX_S = 200.0
"""Longer than four visibilities, and short enough that a gap outlasts it."""

RESULTS_MAX = 1000
"""Bytes of results that the state store takes in one commit: more is refused as too large."""

FILLS = (600, 1500)
"""One that fits, but no second one with it; and one that never does."""

DEEP_SHARE = 0.15
"""The share of seeds in which one key has a deep backlog."""

EVERY_NODE = -1

FORGETS_S = 1.0
"""How much a store forgets, as by a fail-over."""

FaultKind = Literal[
    "crash",
    "pause",
    "cut",
    "forget",
    "slot",
    "move",
    "operator",
    "stop",
    "duplicate",
    "isolate",
    "clock",
    "mute",
    "slow",
    "apart",
    "rewind",
    "model",
    "unclaim",
]


class PlannedMessage(msgspec.Struct, frozen=True):
    """A message to be sent at ``at_s``. ``fails``: how many tries raise (-1: all of them)."""

    at_s: float
    key: str
    run: int
    seq: int
    fails: int = 0
    kills: int = 0
    """How many nodes die of it (-1: every one)."""
    hangs: bool = False
    seconds: float = 0.01
    fill: int = 0
    """Bytes that make its result larger. The state store takes ``RESULTS_MAX`` in one commit."""

    @property
    def healthy(self) -> bool:
        """True if it can be handled in the end."""
        return self.fails >= 0 and self.kills >= 0 and self.fill < RESULTS_MAX and self.seq < FAR


class Fault(msgspec.Struct, frozen=True):
    """One thing that goes wrong at ``at_s``, to node number ``node`` (or every one), for ``for_s``."""

    at_s: float
    kind: FaultKind
    node: int
    for_s: float = 0.0
    detail: str = ""


class WorldSetting(msgspec.Struct, frozen=True, kw_only=True):
    """What a seed decides in advance of every world."""

    seed: int
    nodes: int
    weather: Weather
    drift: float
    faults: tuple[Fault, ...]

    def random(self, name: str) -> Random:
        """The seed's own stream of random numbers for ``name``."""
        return Random(f"{self.seed}:{name}")  # noqa: S311 - to be repeated, not to be secret


class Scenario(WorldSetting, frozen=True, kw_only=True):
    """Everything that a seed decides in advance of a world of streams."""

    kind: SeqKind
    first: int | Literal["first", "lowest"]
    inbox_limit: int
    checkpoint_every: int
    idle_timeout_s: float
    gap_timeout_s: float = GAP_TIMEOUT_S
    max_tries: int = MAX_TRIES
    frees_on_evict: bool
    fifo: bool
    """The queue keeps each key's order, and its numbers are the seqs."""
    by_key: bool = False
    """The queue knows keys."""
    in_order: bool = False
    """The queue delivers messages in the order in which they were sent, to one node."""
    hold_max_s: float
    receives: int
    """How many receives a node may have under way."""
    linger_s: float
    clients: float
    """The share of messages that clients bring themselves."""
    together: bool = False
    """Clients without an answer ask again all at the same moment."""
    patience_s: float = 4.0
    """How long a client waits before it asks again, though the first request may still be under way."""
    messages: tuple[PlannedMessage, ...]
    restarts: bool = False
    """Messages carry no run: those of run 1 follow once all of run 0 is over, and the stream was quiet."""
    uses_models: bool = False
    faults_again: tuple[Fault, ...] = ()
    """What goes wrong while numbers start anew, from then on."""


def make(seed: int) -> Scenario:
    """The scenario of a seed."""
    random = Random(f"{seed}:scenario")  # noqa: S311
    calm = random.random() < 0.2
    nodes = random.choice((2, 2, 3, 3, 4))
    kind: SeqKind = random.choice(("dense", "dense", "dense", "increasing", "absent"))
    weather = draw_weather(random)
    faults = () if calm else _faults(random, nodes)
    fifo = kind == "increasing" and random.random() < 0.7
    scenario = Scenario(
        seed=seed,
        nodes=nodes,
        kind=kind,
        first=0 if kind == "dense" and random.random() < 0.85 else random.choice(("first", "lowest")),
        inbox_limit=random.choice((2, 4, 64, 64)),
        checkpoint_every=random.choice((1, 1, 3)),
        idle_timeout_s=random.choice((0.3, 1.0, 20.0)),
        frees_on_evict=random.random() < 0.5,
        fifo=fifo,
        hold_max_s=math.inf if fifo else random.choice((math.inf, HOLD_MAX_S)),
        receives=random.choice((1, 4)),
        linger_s=random.choice((0.0, 0.05)),
        clients=0.0 if fifo else random.choice((0.0, 0.0, 0.5, 1.0)),
        weather=weather,
        drift=random.choice((0.0, 0.0, 0.004)),
        messages=_messages(random, kind),
        faults=faults,
    )
    scenario = _with_more(scenario, Random(f"{seed}:more"), calm)  # noqa: S311
    return _deeper(_with_patience(scenario if calm else _harder(scenario)))


def _deeper(scenario: Scenario) -> Scenario:
    """In some seeds one key has many more messages than its inbox takes, all waiting when nodes begin. In
    some of these, one node receives them in order and nothing ends it, so that they must be handled in the
    order in which they were sent, though they have no seqs."""
    random = scenario.random("deep")
    if random.random() > DEEP_SHARE or scenario.fifo or scenario.restarts:
        return scenario
    count = random.choice((20, 50))
    seqs = [place if scenario.kind == "dense" else place * 3 + 1 for place in range(count)]
    if scenario.kind != "absent" and random.random() < 0.5:
        random.shuffle(seqs)
    deep = [
        PlannedMessage(at_s=place / 1000, key="deep", run=0, seq=seq, seconds=0.01)
        for place, seq in enumerate(seqs)
    ]
    others = list(scenario.messages)
    changes: dict[str, Any] = {}
    if scenario.kind == "absent" and random.random() < 0.7:
        kinds = ("slot", "operator", "model", "slow")
        changes = {
            "by_key": True,
            "in_order": True,
            "hold_max_s": math.inf,  # no queue that knows keys has such a limit
            "nodes": 1,
            "clients": 0.0,
            "weather": msgspec.structs.replace(scenario.weather, lost=0.0, answer_lost=0.0, late=0.0),
            "faults": tuple(
                msgspec.structs.replace(fault, node=0) for fault in scenario.faults if fault.kind in kinds
            ),
        }
        others = []
    changes["inbox_limit"] = random.choice((2, 4))
    changes["messages"] = _in_order([*others, *deep])
    return msgspec.structs.replace(scenario, **changes)


def _with_patience(scenario: Scenario) -> Scenario:
    """Streams of half the seeds wait and try for longer than by default."""
    choices = (GAP_TIMEOUT_S, MAX_TRIES), (LONG_GAP_TIMEOUT_S, MORE_TRIES)
    gap_timeout_s, max_tries = scenario.random("gap").choice(choices)
    by_key = not scenario.fifo and scenario.random("keys").random() < 0.7
    return msgspec.structs.replace(scenario, gap_timeout_s=gap_timeout_s, max_tries=max_tries, by_key=by_key)


def _harder(scenario: Scenario) -> Scenario:
    """What was added later is drawn apart, so that seeds go on meaning what they meant."""
    random = scenario.random("harder")
    faults, messages = scenario.faults, scenario.messages
    if random.random() < 0.6:
        faults = _by_time([*faults, *_more_faults(random, scenario.nodes)])
        messages = _filled(random, messages)
    clients = scenario.clients
    if random.random() < 0.15:
        messages, clients = _poisoned(random, messages), 0.0 if scenario.fifo else 1.0
    return msgspec.structs.replace(
        scenario,
        clients=clients,
        together=random.random() < 0.3,
        patience_s=random.choice((4.0, 4.0, 0.4)),
        messages=messages,
        faults=faults,
    )


def _with_more(scenario: Scenario, random: Random, calm: bool) -> Scenario:
    """What some seeds have besides: a seq far ahead, numbers that start anew, models that don't load."""
    kinds, changes = scenario.kind, dict[str, Any]()
    chance, uses_models = random.random(), random.random() < 0.2
    one_run = not any(message.run for message in scenario.messages)
    messages = list(scenario.messages)
    if chance < 0.1 and kinds == "dense" and scenario.first == 0:
        far = random.choice(messages)
        at_s = random.random() * 10.0
        messages.append(PlannedMessage(at_s=at_s, key=far.key, run=0, seq=FAR + random.randint(0, 9)))
    elif chance < 0.2 and kinds != "absent" and not scenario.fifo and scenario.first == 0 and one_run:
        last = {message.key: message.seq for message in sorted(messages, key=lambda one: one.seq)}
        messages += [  # all of them have fallen, as they come in any order
            PlannedMessage(at_s=random.random() * 3.0, key=key, run=1, seq=seq)
            for key, most in sorted(last.items())
            for seq in range(random.randint(1, most))
        ]
        # The commits of this operator don't say for how long no message has come.
        again = [fault for fault in _faults(random, scenario.nodes) if fault.kind != "operator"]
        changes |= {"restarts": True, "faults_again": () if calm else tuple(again)}
    if uses_models:
        breaks = [
            Fault(at_s=random.choice((0.0, 5.0)), kind="model", node=node, for_s=random.choice((3.0, 20.0)))
            for node in range(scenario.nodes)
            if random.random() < 0.5
        ]
        changes |= {"uses_models": True, "faults": (*breaks, *scenario.faults)}
    changes["messages"] = _in_order(messages)
    return msgspec.structs.replace(scenario, **changes)


def _in_order(messages: Iterable[PlannedMessage]) -> tuple[PlannedMessage, ...]:
    return tuple(sorted(messages, key=lambda one: (one.run > 0, one.at_s, one.key, one.run, one.seq)))


def _messages(random: Random, kind: SeqKind) -> tuple[PlannedMessage, ...]:
    planned: list[PlannedMessage] = []
    odd = random.random() < 0.3
    runs = [(number, 0) for number in range(random.randint(1, 4))]
    if kind == "dense" and random.random() < 0.15:
        runs.append((0, 1))  # a camera that starts its numbers again
    for number, run in runs:
        key = f"k{number}"
        count = random.randint(2, 16)
        span_s = random.choice((0.5, 5.0, 25.0))
        for seq in range(count):
            at_s = span_s * (run + seq / count) + random.random() * random.choice((0.05, 2.0))
            trouble = random.random() if odd else 1.0
            planned.append(
                PlannedMessage(
                    at_s=at_s,
                    key=key,
                    run=run,
                    seq=seq if kind == "dense" else seq * 3 + 1,
                    fails=random.choice((1, 2, -1)) if trouble < 0.08 else 0,
                    kills=random.choice((1, -1)) if 0.08 < trouble < 0.11 else 0,
                    hangs=0.11 < trouble < 0.14,
                    seconds=random.choice((0.001, 0.02, 0.3)),
                )
            )
    return tuple(sorted(planned, key=lambda message: (message.at_s, message.key, message.run, message.seq)))


KINDS: tuple[FaultKind, ...] = (
    "crash",
    "crash",
    "pause",
    "pause",
    "cut",
    "cut",
    "isolate",
    "forget",
    "slot",
    "move",
    "move",
    "move",
    "move",
    "operator",
    "stop",
    "duplicate",
    "unclaim",
)


def _faults(random: Random, nodes: int) -> tuple[Fault, ...]:
    count = random.randint(1, 10)
    faults = [
        Fault(
            at_s=random.random() * TROUBLE_S * 0.7,
            kind=random.choice(KINDS),
            node=random.randrange(nodes),
            for_s=random.choice((0.3, 2.0, 7.0, 12.0)),
            detail=random.choice(("coordinator", "state", "queue", "peers")),
        )
        for _ in range(count)
    ]
    return _by_time(faults)


MORE_KINDS: tuple[FaultKind, ...] = ("mute", "mute", "mute", "slow", "slow", "apart", "rewind", "clock")


def _more_faults(random: Random, nodes: int) -> list[Fault]:
    return [
        Fault(
            at_s=random.random() * TROUBLE_S * 0.7,
            kind=random.choice(MORE_KINDS),
            node=random.choice((EVERY_NODE, random.randrange(nodes))),
            for_s=random.choice((0.5, 2.0, 7.0, 12.0)),
            detail=random.choice(("coordinator", "state", "state", "queue", "peers")),
        )
        for _ in range(random.randint(1, 4))
    ]


def _by_time(faults: Sequence[Fault]) -> tuple[Fault, ...]:
    return tuple(sorted(faults, key=lambda fault: (fault.at_s, fault.kind, fault.node)))


def _filled(random: Random, messages: tuple[PlannedMessage, ...]) -> tuple[PlannedMessage, ...]:
    """Some have large results, in a third of the seeds."""
    if random.random() < 0.7:
        return messages
    return tuple(
        msgspec.structs.replace(message, fill=random.choice(FILLS)) if random.random() < 0.2 else message
        for message in messages
    )


def _poisoned(random: Random, messages: tuple[PlannedMessage, ...]) -> tuple[PlannedMessage, ...]:
    """One of them ends every node that runs it."""
    poison = random.randrange(len(messages))
    return tuple(
        msgspec.structs.replace(message, kills=-1) if place == poison else message
        for place, message in enumerate(messages)
    )
