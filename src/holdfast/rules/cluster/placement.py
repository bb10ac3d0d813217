"""Chooses nodes for streams: by load, with few moves, and with the same answer for the same facts.

A new key goes to the member with the fewest streams per slot, of those with memory left. A busy member counts
as having more streams, and so does one that must first load the models of the key's stream. Streams that were
placed on a member since it last reported its load count too. Ties are broken by rendezvous hashing, so that
routers which decide at the same time mostly agree, and a key tends to return to the same node. Source of the
tie-break: highest random weight hashing (Thaler and Ravishankar, 1998).
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Collection, Iterable, Mapping

import msgspec

from holdfast.common.protocol_versions import OUR_VERSIONS, VERSIONS_OF_0_2, ProtocolVersions

COLD_STREAMS = 2
"""How many more streams a member may have than others and still be chosen for its loaded models. The number
is small and not per slot: otherwise, streams that begin together would all go to the member that loaded
first."""

BUSY_STREAMS = 2
"""How many more streams per slot a member counts as having if all its processors or slots are busy. The
number is small because that may soon change, and may be true of every node on a machine."""

CPU_MOST, MEMORY_MOST = 0.95, 0.92

STREAMS, TASKS = "streams", "tasks"
"""The kinds of work, as metrics name them."""


class WorkLoad(msgspec.Struct, frozen=True):
    """A node's report on one kind of work: how many slots it has, how many of them are busy, how many
    messages or tasks it has handled since the node's start, and the queues that they come from."""

    kind: str
    slots: int
    busy: float
    handled: int
    queues: tuple[str, ...] = ()

    @property
    def share(self) -> float:
        """The share of the slots that is busy."""
        return self.busy / max(1, self.slots)


class Load(msgspec.Struct, frozen=True, rename={"offers": "outboxes"}):
    """A node's report on itself with each renewal. As JSON, ``offers`` has the name that older nodes know it
    by."""

    streams: int = 0
    slots: int = 1
    room: int = 1_000_000
    """How many more streams the node would take."""
    draining: bool = False
    handled: int = 0
    """Messages handled since the node's start."""
    calls: int = 0
    """Calls to metered services since the node's start."""
    busy: float = 0.0
    """The number of busy slots, smoothed."""
    cpu: float = 0.0
    """The share of its machine's processors in use, 0 to 1."""
    memory: float = 0.0
    """The share of its machine's memory in use, 0 to 1."""
    serves: tuple[str, ...] = ()
    """Names of the streams that the node declares; empty: any."""
    offers: tuple[str, ...] = ()
    """Names of what products run here and share out between nodes by themselves, such as outboxes."""
    warm: tuple[str, ...] = ()
    """Names of the streams with models whose models are all loaded."""
    models: tuple[str, ...] = ()
    """Names of the models that are loaded."""
    queues: tuple[str, ...] = ()
    """Names of the queues that it uses: of its streams, tasks and briefs."""
    lacks: tuple[str, ...] = ()
    """Names of the streams that it can't run now because one of their models doesn't load there."""
    acting: tuple[str, ...] | None = None
    """Names of the streams that send effects or set timers, as far as the node knows; None for a node of a
    version that knows neither, and must own none of these streams."""
    reads: Mapping[str, int] | None = None
    """The newest version of state that its handler of each stream reads; None for a node of a version that
    doesn't tell."""
    version: str = ""
    """The version of Holdfast that the node runs; empty for one before 0.2.0."""
    speaks: ProtocolVersions = VERSIONS_OF_0_2
    """The versions of the protocol between nodes that it speaks."""
    app: str = ""
    """The name of its app."""
    revision: str = ""
    """What runs there, such as the digest of an image; empty if nobody has said it."""
    started_at: float = 0.0
    """When the node started: a wall time in seconds."""
    metrics: str = ""
    """The URL at which it tells its metrics."""
    works: tuple[WorkLoad, ...] = ()
    """The kinds of work that have slots of their own."""
    troubles: tuple[str, ...] = ()
    """What keeps its work from going on that no slot does, in words for people."""

    @property
    def slots_in_all(self) -> int:
        """The number of its slots, for all kinds of work together: ``busy`` is of so many."""
        return sum(work.slots for work in self.works) or self.slots

    @property
    def is_full(self) -> bool:
        """Return True if the node should get a new stream only if all other nodes are full too."""
        return self.memory >= MEMORY_MOST

    @property
    def is_busy(self) -> bool:
        """Return True if all its processors or all its slots are busy."""
        return self.cpu >= CPU_MOST or self.busy >= max(1, self.slots)

    def takes(self, key: str, acting: Collection[str] = (), state_version: int = 0) -> bool:
        """Return True if the node can own the stream of a full key, as far as is known. ``acting`` names the
        streams that send effects or set timers; ``state_version`` is that of the stream's state, 0 for
        none."""
        stream = key.partition("/")[0]
        return self.takes_stream(stream, stream in acting, state_version)

    def takes_stream(self, stream: str, acts: bool, state_version: int) -> bool:
        """Return True if the node can own streams of that name, as :meth:`takes`. ``acts``: they send effects
        or set timers."""
        if self.draining or stream in self.lacks or (acts and self.acting is None):
            return False
        if OUR_VERSIONS.common(self.speaks) is None:
            return False
        if self.reads is not None and self.reads.get(stream, state_version) < state_version:
            return False
        return not self.serves or stream in self.serves

    def tells_it_reads(self, stream: str, state_version: int) -> bool:
        """Return True if the node stays, and has told that it reads this version of a stream's state."""
        return not self.draining and (self.reads or {}).get(stream, 0) >= state_version

    def is_warm(self, key: str) -> bool:
        """Return True if the node has loaded the models that the stream of a full key uses."""
        return key.partition("/")[0] in self.warm


class Member(msgspec.Struct, frozen=True):
    """A membership: a node's proof of life. ``id`` is new at every join; ``name`` is for people. A
    ``foreign`` member belongs to another program: its claims are respected, and it is never called."""

    id: str
    name: str
    address: str
    load: Load = Load()
    foreign: bool = False


def acting_streams(members: Iterable[Member]) -> set[str]:
    """Return the names of the streams that send effects or set timers, as far as any member knows."""
    return {stream for member in members for stream in member.load.acting or ()}


def can_be_read(members: Iterable[Member], stream: str, state_version: int) -> bool:
    """Return True if a member has said that its handler reads this version of a stream's state."""
    return any(member.load.tells_it_reads(stream, state_version) for member in members)


def newest_revision(members: Iterable[Member]) -> str:
    """Return the revision of the node that started last; "" if no node tells one."""
    told = [member.load for member in members if member.load.revision]
    return max(told, key=lambda load: load.started_at).revision if told else ""


def choose(
    key: str,
    members: Iterable[Member],
    pending: Mapping[str, int] | None = None,
    acting: Collection[str] = (),
    state_version: int = 0,
) -> Member | None:
    """Choose the member to own a new ``key``; None if no member has room.

    ``pending`` counts the streams placed on each member since it last reported its load. ``acting`` names
    streams that send effects or set timers, besides those that members name. ``state_version`` is that of the
    key's state, 0 if it isn't known."""
    extra, known, stream = pending or {}, list(members), key.partition("/")[0]
    acts = stream in acting or any(stream in (member.load.acting or ()) for member in known)
    able = [
        (member, member.load.streams + extra.get(member.id, 0), stream in member.load.warm)
        for member in known
        if member.load.takes_stream(stream, acts, state_version)
        and member.load.room > extra.get(member.id, 0)
    ]
    some_are_warm = any(is_warm for *_, is_warm in able)
    ranks: dict[tuple[bool, float], list[Member]] = {}
    for member, streams, is_warm in able:
        load = member.load
        cold = COLD_STREAMS if some_are_warm and not is_warm else 0
        share = (streams + cold) / max(1, load.slots) + (BUSY_STREAMS if load.is_busy else 0)
        ranks.setdefault((load.is_full, share), []).append(member)
    # A weight takes longer than all of the above, so only the best are weighed.
    return max(ranks[min(ranks)], key=lambda member: _weight(key, member.id)) if ranks else None


def readers(key: str, members: Iterable[Member], owner: str) -> list[Member]:
    """Return the members that can answer queries of a full key: its ``owner`` first, which has its models
    loaded, then the others in an order by key, so that queries spread."""
    stream = key.partition("/")[0]
    found = [member for member in members if stream in member.load.serves and not member.foreign]
    return sorted(found, key=lambda member: (member.id != owner, zlib.crc32(f"{member.id} {key}".encode())))


def shortage(key: str, members: Iterable[Member]) -> str:
    """Say why no member was chosen for ``key``."""
    stream, known = key.partition("/")[0], list(members)
    lacking = sorted(member.name for member in known if stream in member.load.lacks)
    if lacking:
        return (
            f"a model of stream {stream!r} does not load on {', '.join(lacking)}, and no other node takes it"
        )
    older = sorted(member.name for member in known if member.load.acting is None and not member.foreign)
    if older and stream in acting_streams(known):
        return (
            f"stream {stream!r} sends effects or sets timers, which {', '.join(older)} can't, being"
            " of an older version; and no other node takes it"
        )
    serving = [member for member in known if not (member.foreign or stream in member.load.lacks)]
    serving = [member for member in serving if not member.load.serves or stream in member.load.serves]
    if not serving:
        return f"no living node runs stream {stream!r}"
    if all(member.load.draining for member in serving):
        return f"all nodes that run stream {stream!r} are draining: {_names(serving)}"
    able = [member for member in serving if member.load.takes_stream(stream, False, 0)]
    if able and all(member.load.room < 1 for member in able):
        return f"no node has room for a new stream: full are {_names(able)} (streams_per_slot_max)"
    return "no node has room for a new stream"


def _names(members: Iterable[Member]) -> str:
    return ", ".join(sorted(member.name for member in members))


class Placed:
    """Counts the streams that were placed on each member, as one router knows, and that the member's load
    doesn't show yet."""

    def __init__(self) -> None:
        self._counts: dict[str, tuple[int, int]] = {}

    def place(self, key: str, members: Iterable[Member], acting: Collection[str] = ()) -> Member | None:
        """Choose the member to own a new key, as :func:`choose`, and count it there at once: many keys are
        placed before the first answer comes."""
        known = list(members)
        target = choose(key, known, self.pending(known), acting)
        if target is not None:
            self.add(target)
        return target

    def not_taken(self, target: Member, owner: Member | None = None) -> None:
        """Note that a key which was placed on ``target`` didn't go there: ``owner`` has it, if that is to be
        counted."""
        self.add(target, -1)
        if owner is not None:
            self.add(owner)

    def add(self, member: Member, streams: int = 1) -> None:
        """Count streams placed on ``member`` before its load shows them. A negative number takes them
        back."""
        standing = self._standing(member)
        self._counts[member.id] = member.load.streams, max(0, standing + streams)

    def pending(self, members: Iterable[Member]) -> dict[str, int]:
        """Return the counts for :func:`choose`, and forget members that aren't given."""
        known = list(members)
        pending = {member.id: self._standing(member) for member in known}
        self._counts = {member.id: (member.load.streams, pending[member.id]) for member in known}
        return pending

    def _standing(self, member: Member) -> int:
        told, count = self._counts.get(member.id, (0, 0))
        shown = member.load.streams - told
        return max(0, count - shown) if shown >= 0 else 0


def spread(
    keys: Mapping[str, int], members: Iterable[Member], acting: Collection[str] = ()
) -> dict[str, Member]:
    """Choose a member for each of several keys that must leave their owner, one after the other. ``keys``
    gives the version of each one's state, ``acting`` is that of :func:`choose`.

    Nodes of the newest revision come first: others are about to be replaced, and the streams would have to
    move again."""
    choices = list(members)
    acts = acting_streams(choices).union(acting)
    newest = newest_revision(choices)
    lasting = [member for member in choices if member.load.revision == newest and not member.load.is_full]
    pending: dict[str, int] = {}
    placed: dict[str, Member] = {}
    for key, version in sorted(keys.items()):
        member = choose(key, lasting, pending, acts, version)
        if member is None:
            member = choose(key, choices, pending, acts, version)
        if member is not None:
            placed[key] = member
            pending[member.id] = pending.get(member.id, 0) + 1
    return placed


def _weight(key: str, member: str) -> int:
    return int.from_bytes(hashlib.blake2b(f"{key}\0{member}".encode(), digest_size=8).digest())
