"""Streams whose messages are archived: an object store that is away, slow or mute at times."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from holdfast.cluster.deliveries import Settlement
from holdfast.errors import InvalidMessage
from holdfast.ports.objects import Objects
from holdfast.services.memory.objects import MemoryObjects
from holdfast.services.memory.queue import QueueEvent
from holdfast.services.memory.state import CommitRecord
from holdfast.slots.thread import drive
from holdfast.streams.archive import read_line
from holdfast.streams.archive_reader import ArchiveReader, Hours
from holdfast.streams.archiver import Archiver
from simulator import invariants, scenario
from simulator.faults import Faulty
from simulator.scenario import EVERY_NODE, STREAM, TROUBLE_S, Fault, FaultKind, Scenario
from simulator.stage import LIMITS, SimNode
from simulator.world import World

ARCHIVE = "archive"
TROUBLES: tuple[FaultKind, ...] = ("cut", "mute", "slow")


class ArchiveEvent(NamedTuple):
    """An object was put into the archive, with messages of these identities."""

    name: str
    identities: tuple[str, ...]


class NotedArchive(MemoryObjects):
    """Notes what is put, in the order of all that happens."""

    def __init__(self, log: list[Any]) -> None:
        super().__init__()
        self._log = log

    async def put(self, name: str, data: bytes) -> str:
        messages = [read_line(line, name) for line in data.splitlines()]
        identities = tuple(f"{STREAM}/{message.key}:{message.place.name}" for message in messages)
        self._log.append(ArchiveEvent(name, identities))
        return await super().put(name, data)


def make(seed: int) -> Scenario:
    """The scenario of a seed: that of the streams without an archive, and troubles of the archive."""
    made = scenario.make(seed)
    random = made.random(ARCHIVE)
    troubles = [
        Fault(
            at_s=random.random() * TROUBLE_S * 0.7,
            kind=(kind := random.choice(TROUBLES)),
            node=random.randrange(made.nodes) if kind == "cut" else EVERY_NODE,
            for_s=random.choice((2.0, 7.0, 12.0)),
            detail=ARCHIVE,
        )
        for _ in range(random.randint(0, 3))
    ]
    faults = sorted([*made.faults, *troubles], key=lambda fault: (fault.at_s, fault.kind, fault.node))
    return msgspec.structs.replace(made, faults=tuple(faults))


class ArchivingWorld(World):
    """The world of streams, with an archive. In some seeds little may wait for it."""

    def __init__(self, made: Scenario, verbose: bool = False) -> None:
        super().__init__(made, verbose)
        self.archive = NotedArchive(self.log)
        most = made.random("archive limits").choice((20, 5000))
        self.limits = msgspec.structs.replace(LIMITS, max_held=most)

    def archives(self, node: SimNode) -> Mapping[str, Objects]:
        archive: Any = Faulty(self.archive, ARCHIVE, node.line)
        return {STREAM: archive}


def check(world: ArchivingWorld, unfinished: str) -> list[str]:
    """Every violation found: those of all streams, and those of the archive."""
    wrong = invariants.check(world, unfinished)
    archived: set[str] = set()
    copies: Counter[str] = Counter()
    repeats = invariants.seem_repeated(world)
    for event in world.log:
        if isinstance(event, ArchiveEvent):
            archived.update(event.identities)
        elif isinstance(event, QueueEvent) and event.kind in ("sent", "deleted"):
            identity = invariants.identity(world, event)
            copies[identity] += 1 if event.kind == "sent" else -1
            is_covered = identity in archived or event.body in repeats
            if event.kind == "deleted" and not is_covered and not copies[identity]:
                wrong.append(f"{identity} was deleted before it was in the archive")
    return wrong if unfinished else wrong + _order(world)


def _order(world: ArchivingWorld) -> list[str]:
    """What a replay reads is what was committed, each message once. Where messages have seqs, the order is
    the same."""
    wrong: list[str] = []
    read = drive(_read(world))
    for key, handled in _handled(world).items():
        names = [name for name in read.get(key, []) if name in handled]
        same = sorted(names) == sorted(handled) if world.scenario.kind == "absent" else names == handled
        if not same:
            wrong.append(f"{key}: a replay reads {names} of what was handled: {handled}")
    return wrong


def _handled(world: ArchivingWorld) -> dict[str, list[str]]:
    """The names of all messages that were ever committed as handled, by key, in order. What the store has
    forgotten was archived too, unless the stream passed its place before it came again."""
    handled: dict[str, list[str]] = {}
    for event in world.log:
        if isinstance(event, CommitRecord) and event.after is not None and not event.repeated:
            names = handled.setdefault(event.commit.key, [])
            names += [result.name for result in event.commit.results if result.name not in names]
            if world.rewound:
                late = {aside.name for aside in event.commit.aside}
                names[:] = [name for name in names if name not in late]
    return {key: sorted(names) if world.rewound else names for key, names in handled.items()}


async def _read(world: ArchivingWorld) -> dict[str, list[str]]:
    def fail(error: InvalidMessage) -> None:
        raise error

    ordered = world.scenario.kind != "absent"
    reader = ArchiveReader(world.archive, STREAM, Hours(), ordered=ordered, on_broken=fail)
    found: dict[str, list[str]] = {}
    for urls in (await reader.objects(None)).values():
        async for message in reader.messages(urls):
            found.setdefault(f"{STREAM}/{message.key}", []).append(message.place.name)
    return {key: sorted(names) if world.rewound else names for key, names in found.items()}


# --- protections, each to be switched off

_write = Archiver.write


_writing: set[asyncio.Task[None]] = set()


async def settle_first(self: Archiver, settlements: Sequence[Settlement]) -> None:
    """Messages are deleted while they are being archived."""
    writing = asyncio.ensure_future(_write(self, settlements))
    _writing.add(writing)
    writing.add_done_callback(_writing.discard)


async def write_none_again(self: Archiver, settlements: Sequence[Settlement]) -> None:
    """A message that comes again is taken for archived."""
    again = [item for item in settlements if not any(held.covered_as for held in item.messages)]
    for item in again:
        self.waiting -= len(item.messages)
        item.archived()
    await _write(self, [item for item in settlements if item not in again])
