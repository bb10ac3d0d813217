"""Streams that act, beside which other things go on: operators reset streams, what is idle expires, a node is
of an older version or runs an earlier one of the app, a stream that sends nothing shares the nodes with
streams whose target is away, and a queue gives out nothing for longer than a gap is waited for."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Callable, Collection, Mapping
from typing import Any

import msgspec

from holdfast.common.protocol import Done, WakeUp
from holdfast.errors import OperationRefused, OutcomeUnknown, Unavailable
from holdfast.ports.coordinator import Claim, Load
from holdfast.ports.queue import Delivery, Outgoing
from holdfast.rules.cluster.placement import acting_streams
from holdfast.rules.streams import ledger
from holdfast.rules.streams.ledger import Checkpoint, Commit
from holdfast.services.memory.queue import MemoryQueue
from holdfast.services.memory.state import CommitRecord, MemoryState
from holdfast.streams import operations
from holdfast.streams.handler import Context, StreamHandler
from holdfast.streams.spec import StreamSpec
from simulator import acting
from simulator.acting import PINGS, PONGS, ActingWorld, Away
from simulator.handler import Chain
from simulator.scenario import STREAM, TROUBLE_S, Scenario
from simulator.stage import LIMITS, SimNode
from simulator.world import TIMEOUT_S

NOTES = "notes"
NOTE_EVERY_S = 1.0
NOTE_LIMIT_S = 50.0
"""How long after the end of all troubles a note may be handled. Targets are away for longer."""

TALLIES = "tallies"
EARLIER = "n1."
"""The nodes that run an earlier version of the app, in seeds where any does."""

AWAY_S = 200.0
FULL = 4
"""With so many pending effects messages wait, in seeds whose target is away for long."""

HELD_MAX = 5
"""How many messages a node holds at most in those seeds."""

SILENT_SHARE, SILENT_GAPS = 0.3, 1.2
"""In which share of those seeds a queue falls silent, and for how many of the stream's ``gap_timeout_s``."""

GHOST = "ghost"
GHOSTS = 3
"""How many keys are due for ever of a stream that no node declares."""

PAUSE_S = 30.0
EXPIRES_AFTER_S = 2.0
EXPIRE_EVERY_S = 3.0
LOOK_EVERY_S = 5.0
REST_LIMIT_S = 80.0
"""How long a stream with nothing but pending effects, and a target that is away, may keep its owner."""


def make(seed: int) -> Scenario:
    """The scenario of a seed, without clients: they would ask again and again while a target is away. In half
    of the seeds one is away for long, and one node or two, to which nothing else happens, hold all that waits
    for it; nothing there waits for the start of its run, which may take as long."""
    made = msgspec.structs.replace(acting.make(seed), clients=0.0)
    if not _is_long_away(made):
        return made
    first = 0 if made.kind == "dense" else made.first
    # The strict order of arrival is promised for messages that one node receives.
    nodes = 1 if made.in_order else made.random("few").choice((1, 2))
    return msgspec.structs.replace(made, nodes=nodes, faults=(), first=first)


def _is_long_away(made: Scenario) -> bool:
    return made.random("away").random() < 0.5


class Note(msgspec.Struct):
    """A message that sends nothing."""

    key: str
    number: int


class Notes(StreamHandler[Note]):
    """Acts on nothing."""

    def process(self, message: Note, context: Context) -> int:
        return message.number


class Tally(StreamHandler[Note]):
    """Counts."""

    version = 2

    def open(self, context: Context, state: bytes | None) -> None:
        self.count: int = 0 if state is None else json.loads(state)["count"]

    def process(self, message: Note, context: Context) -> Any:
        self.count += 1
        return {"count": self.count}

    def snapshot(self) -> bytes:
        return json.dumps({"count": self.count}).encode()

    @classmethod
    def migrate(cls, state: bytes, version: int) -> bytes:
        return json.dumps({"count": int(state)}).encode()


class EarlierTally(Tally):
    """As it was before its state was an object."""

    version = 1

    def open(self, context: Context, state: bytes | None) -> None:
        self.count = int(state or b"0")

    def snapshot(self) -> bytes:
        return str(self.count).encode()


class Idle(StreamHandler[Any]):
    """What an older version of the app does with a ping."""

    def process(self, message: Any, context: Context) -> None:
        pass


class OlderState:
    """The state store as a version reaches it that knows no effects and no timers: it reads none of them, and
    leaves them as they are."""

    def __init__(self, state: MemoryState) -> None:
        self._state = state

    def __getattr__(self, name: str) -> Any:
        return getattr(self._state, name)

    async def peek(self, key: str) -> Checkpoint | None:
        found = await self._state.peek(key)
        return None if found is None else _without_acts(found)

    async def open(self, key: str, expect: int, member: str) -> Checkpoint:
        return _without_acts(await self._state.open(key, expect, member))

    async def commit(self, commit: Commit) -> None:
        standing = self._state.standing.get(commit.key)
        due = standing.due if standing is not None else 0.0
        await self._state.commit(msgspec.structs.replace(commit, timers=None, due=due))


class ParkedNoted:
    """A node's log, which tells ``note`` of the streams that the node parks for their state."""

    def __init__(self, log: Any, note: Callable[[str], None]) -> None:
        self._log = log
        self._note = note

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)

    def error(self, text: str, **fields: Any) -> None:
        if text.startswith("state does not load"):
            self._note(fields["key"])
        self._log.error(text, **fields)


class UpkeepWorld(ActingWorld):
    """The world of acting streams, and what goes on beside them."""

    def __init__(self, made: Scenario, verbose: bool = False) -> None:
        super().__init__(made, verbose)
        self._chance = made.random("upkeep")
        self.older = "n0." if made.nodes > 1 and self._chance.random() < 0.5 else ""
        if _is_long_away(made):
            self.older = ""
        self.queues[NOTES] = self._queue()
        self.specs[NOTES] = StreamSpec(name=NOTES, handler=Notes, message=Note, timeout_s=TIMEOUT_S)
        if _is_long_away(made):
            self.away = [Away(0.0, AWAY_S)]
            self.specs = {
                name: msgspec.structs.replace(spec, max_pending_effects=FULL)
                for name, spec in self.specs.items()
            }
            self.limits = msgspec.structs.replace(LIMITS, max_held=HELD_MAX)
            silence = made.random("silence")
            if silence.random() < SILENT_SHARE:
                self._fall_silent(self.queues[STREAM], silence.uniform(2.0, 25.0))
        self.has_earlier = made.nodes > 1 and not self.older and made.random("versions").random() < 0.5
        if self.has_earlier:
            self.queues[TALLIES] = self._queue()
            self.specs[TALLIES] = StreamSpec(name=TALLIES, handler=Tally, message=Note, timeout_s=TIMEOUT_S)
        self.parked_early: list[str] = []
        for number in range(GHOSTS):
            ghost = Checkpoint(f"{GHOST}/{number}", epoch=1, due=1.0)
            self.state.standing[ghost.key] = ghost
        self.notes = 0
        self.pinned: list[str] = []
        self.given_twice: list[str] = []
        self.given_older: list[str] = []
        self._given_at: dict[str, float] = {}
        if all(fault.kind != "clock" for fault in made.faults):  # a lease is by the clock of who asks
            setattr(self.state, "due", self._note_due(self.state.due))  # noqa: B010 - of this one object
        self._resting: dict[str, tuple[str, float]] = {}

    def _fall_silent(self, queue: MemoryQueue, begin_s: float) -> None:
        """Have a queue give out nothing for a while. What it then holds, some owners may wait for."""
        receive, end_s = queue.receive, begin_s + SILENT_GAPS * self.scenario.gap_timeout_s

        async def give_out(*args: Any) -> list[Delivery]:
            if begin_s <= asyncio.get_running_loop().time() < end_s:
                self.counts["queue silent"] += 1
                raise Unavailable("the queue gives out nothing")
            return await receive(*args)

        setattr(queue, "receive", give_out)  # noqa: B010 - of this one object

    def _note_due(self, ask: Any) -> Any:
        """Note when keys that nobody serves are handed out: each once a lease."""

        async def due(before: float, limit: int, lease_s: float) -> list[str]:
            keys: list[str] = await ask(before, limit, lease_s)
            now = asyncio.get_running_loop().time()
            for key in keys:
                if key.startswith(f"{GHOST}/"):
                    if now - self._given_at.get(key, -math.inf) < lease_s / 2:
                        self.given_twice.append(f"{key} was handed out twice within {lease_s:g} s")
                    self._given_at[key] = now
            return [] if self.given_twice else keys  # whoever asks on would ask without end

        return due

    # -- an older node -----------------------------------------------------------------------------------

    def specs_of(self, node: SimNode) -> Mapping[str, StreamSpec]:
        if self.has_earlier and node.name.startswith(EARLIER):
            earlier = msgspec.structs.replace(self.specs[TALLIES], handler=EarlierTally)
            return {**self.specs, TALLIES: earlier}
        if not self._is_older(node):
            return self.specs
        handlers: dict[str, Any] = {STREAM: Chain, PINGS: Idle, PONGS: Idle, NOTES: Notes}
        return {
            name: msgspec.structs.replace(spec, handler=handlers[name]) for name, spec in self.specs.items()
        }

    def state_of(self, node: SimNode) -> Any:
        return OlderState(self.state) if self._is_older(node) else self.state

    def make_works(self, node: SimNode) -> Any:
        self._note_parked(node)
        return super().make_works(node)

    def make_older(self, node: SimNode) -> None:
        if not self._is_older(node):
            self._note_given(node)
            return

        def load() -> Load:
            return msgspec.structs.replace(node.node.load(), acting=None, reads=None)

        node.host.membership.load = load
        node.host.inquiries.add(WakeUp, _refuse)
        setattr(self.works[node].due, "ask", _ask_nothing)  # noqa: B010 - of this one object

    def _note_given(self, node: SimNode) -> None:
        """Note when a node gives an older one the claim on a stream of which it knows that it acts."""
        placing = self.works[node].router.placing
        ask = placing.claim

        async def claim(stream: str, key: str, acting: Collection[str] = ()) -> Claim | None:
            acts = stream in {*acting, *acting_streams(node.host.membership.view.values())}
            before = placing.given.get(key)
            found = await ask(stream, key, acting)
            given = placing.given.get(key)
            member = node.host.membership.view.get(given.member) if given is not None else None
            if acts and given is not before and member is not None and member.load.acting is None:
                self.given_older.append(f"{node.name} gave {key} to {member.name}, which is older")
            return found

        setattr(placing, "claim", claim)  # noqa: B010 - of this one object

    def _note_parked(self, node: SimNode) -> None:
        """Note when a node parks a stream although it knows of one that reads its state."""
        if not (self.has_earlier and node.name.startswith(EARLIER)):
            return

        def note(key: str) -> None:
            self.counts["state not read"] += 1
            others = [m for m in node.host.membership.view.values() if not m.name.startswith(EARLIER)]
            readers = [m.name for m in others if m.load.reads is not None and not m.load.draining]
            if readers:
                self.parked_early.append(f"{node.name} parked {key}, whose state {readers} read")

        node.host.log = ParkedNoted(node.host.log, note)

    def _is_older(self, node: SimNode) -> bool:
        return bool(self.older) and node.name.startswith(self.older)

    # -- what goes on ------------------------------------------------------------------------------------

    async def live(self) -> str:
        self.spawn(self._write_notes())
        self.spawn(self._reset_streams())
        self.spawn(self._pause_long())
        self.spawn(self._expire())
        self.spawn(self._watch_rest())
        return await super().live()

    async def _write_notes(self) -> None:
        loop = asyncio.get_running_loop()
        while loop.time() < TROUBLE_S:
            body = msgspec.json.encode(Note(f"m{self.notes % 3}", self.notes))
            self.notes += 1
            await self.queues[NOTES].send([Outgoing(body, {})])
            if self.has_earlier:
                await self.queues[TALLIES].send([Outgoing(body, {})])
            await asyncio.sleep(NOTE_EVERY_S)

    async def _reset_streams(self) -> None:
        """An operator resets streams that keep no state: what they are to send stays."""
        loop = asyncio.get_running_loop()
        while loop.time() < TROUBLE_S:
            await asyncio.sleep(self._chance.uniform(3.0, 15.0))
            keys = sorted(key for key in self.state.standing if key.startswith((PINGS, PONGS)))
            if not keys:
                continue
            key = self._chance.choice(keys)
            try:
                await operations.reset(self.state, key, keep_place=True)
            except (OperationRefused, OutcomeUnknown):
                continue
            self.counts["reset"] += 1

    async def _pause_long(self) -> None:
        """An operator pauses a stream until its timers would have been due."""
        await asyncio.sleep(self._chance.uniform(2.0, 30.0))
        key = self._chance.choice(sorted({f"{STREAM}/{each.key}" for each in self.scenario.messages}))
        await self.set_parked(key, "paused by an operator")
        await asyncio.sleep(PAUSE_S)
        await self.set_parked(key, "")

    async def _resume_parked(self) -> None:
        """An operator resumes what was parked for its state: there is a node now that reads it."""
        for checkpoint in list(self.state.standing.values()):
            if checkpoint.key.startswith(f"{TALLIES}/") and checkpoint.parked.startswith("state of"):
                await self.set_parked(checkpoint.key, "")
        await super()._resume_parked()

    def _left(self) -> list[str]:
        return [left for left in super()._left() if not left.startswith(f"{GHOST}/")]

    async def _expire(self) -> None:
        """Checkpoints of streams that keep no state expire soon."""
        while True:
            await asyncio.sleep(EXPIRE_EVERY_S)
            idle_before = self.clock.wall() - EXPIRES_AFTER_S
            for key, checkpoint in self.state.standing.items():
                keeps_state = key.startswith((f"{STREAM}/", f"{TALLIES}/"))
                if not keeps_state and ledger.may_expire(checkpoint, idle_before):
                    self.state.standing[key] = ledger.expire(checkpoint)
                    self.counts["expired"] += 1

    async def _watch_rest(self) -> None:
        """An owner with nothing but pending effects gives the stream up: its slot is for others."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            resting = dict[str, tuple[str, float]]()
            for node in self.nodes.values():
                for entry in self.works[node].owners:
                    effects = entry.owner.commits.effects.report()
                    if node.clock.gate.dead or len(entry.owner.inbox) or effects is None:
                        continue
                    place = f"{node.name} {entry.key} {entry.owner.epoch}"
                    number, since = self._resting.get(place, ("", loop.time()))
                    if number != str(entry.committed_at):
                        since = loop.time()
                    resting[place] = str(entry.committed_at), since
                    if loop.time() - since > REST_LIMIT_S and place not in self.pinned:
                        self.pinned.append(place)
            self._resting = resting


async def _ask_nothing() -> int:
    return 0


async def _refuse(request: WakeUp) -> Done:
    return Done(ok=False, text="this node answers no such request")


def _without_acts(checkpoint: Checkpoint) -> Checkpoint:
    return msgspec.structs.replace(checkpoint, effects=(), timers=(), due=0.0)


def check(world: UpkeepWorld, unfinished: str) -> list[str]:
    """Every violation found, in words."""
    wrong = acting.check(world, unfinished)
    wrong += world.given_twice[:3]
    wrong += world.given_older[:3]
    wrong += world.parked_early[:3]
    wrong += _check_tallies(world)
    wrong += [f"{place} kept its owner for its effects alone" for place in world.pinned]
    handled = dict[int, float]()
    for event in world.log:
        if isinstance(event, CommitRecord) and event.commit.key.startswith(f"{NOTES}/"):
            for result in event.commit.results if event.after is not None else ():
                handled.setdefault(json.loads(result.body), event.at)
    for number in range(world.notes):
        at = handled.get(number)
        if at is None and not unfinished:
            wrong.append(f"note {number} was not handled")
        elif at is not None and at > TROUBLE_S + NOTE_LIMIT_S and not world.rewound:
            wrong.append(f"note {number} waited until {at:.0f} s, perhaps behind a target that is away")
    return wrong


def _check_tallies(world: UpkeepWorld) -> list[str]:
    """Each state follows upon the one before, whichever version wrote it."""
    counts = dict[str, int]()
    if world.rewound:
        return []
    for event in world.log:
        if not isinstance(event, CommitRecord) or event.after is None or event.repeated:
            continue
        key = event.commit.key
        for result in event.commit.results if key.startswith(f"{TALLIES}/") else ():
            count = json.loads(result.body)["count"]
            if count != counts.get(key, 0) + 1:
                return [f"{key}: {count} was counted after {counts.get(key, 0)}"]
            counts[key] = count
    return []
