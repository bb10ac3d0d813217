"""Chooses nodes for streams: by load, with few moves, and with the same answer for the same facts.

A new key goes to the member with the fewest streams per slot that has memory left. A busy member counts as
having more streams, and so does a member that must first load the models of the key's stream. Streams that
were placed on a member since its last load report count too. Ties are broken by rendezvous hashing: routers
that decide at the same time mostly agree, and a key tends to return to the same node. Source of the
tie-break: highest random weight hashing (Thaler and Ravishankar, 1998).
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Collection, Iterable, Mapping

import msgspec

from holdfast.common.protocol_versions import OUR_VERSIONS, VERSIONS_OF_0_2, ProtocolVersions

COLD_STREAMS = 2
"""The number of streams that a member without the models counts in addition. It is small and not per slot:
otherwise, streams that begin together would all go to the first member with the models."""

BUSY_STREAMS = 2
"""The number of streams per slot that a member with busy processors or slots counts in addition. It is small
because load may soon change, and every node of a machine may be busy."""

CPU_MOST, MEMORY_MOST = 0.95, 0.92

STREAMS, TASKS = "streams", "tasks"
"""The kinds of work, as metrics name them."""


class WorkLoad(msgspec.Struct, frozen=True):
    """A node's report on one kind of work: its slots, the busy ones, the messages or tasks handled since the
    node's start, and the names of the queues."""

    kind: str
    slots: int
    busy: float
    handled: int
    queues: tuple[str, ...] = ()

    @property
    def share(self) -> float:
        """The busy share of the slots."""
        return self.busy / max(1, self.slots)


class Load(msgspec.Struct, frozen=True, rename={"offers": "outboxes"}):
    """A node's load, reported at each renewal. As JSON, ``offers`` has the name that older nodes know."""

    streams: int = 0
    slots: int = 1
    room: int = 1_000_000
    """The number of further streams that the node would take."""
    draining: bool = False
    handled: int = 0
    """Messages handled since the node's start."""
    calls: int = 0
    """Calls to metered services since the node's start."""
    busy: float = 0.0
    """The number of busy slots, smoothed."""
    cpu: float = 0.0
    """The busy share of its machine's processors, 0 to 1."""
    memory: float = 0.0
    """The used share of its machine's memory, 0 to 1."""
    serves: tuple[str, ...] = ()
    """Names of the streams that the node declares; empty: any."""
    offers: tuple[str, ...] = ()
    """Names of the work that products share out between nodes by themselves, such as outboxes."""
    warm: tuple[str, ...] = ()
    """Names of the streams with models whose models are all loaded."""
    models: tuple[str, ...] = ()
    """Names of the models that are loaded."""
    queues: tuple[str, ...] = ()
    """Names of its queues: of streams, tasks and outcome events."""
    lacks: tuple[str, ...] = ()
    """Names of the streams that it can't run now because a model doesn't load."""
    acting: tuple[str, ...] | None = None
    """Names of the streams that send effects or set timers, as far as the node knows; None for a node of an
    older version, which must own none of these streams."""
    reads: Mapping[str, int] | None = None
    """The newest version of state that its handlers read, by stream; None for a node of an older version,
    which doesn't report it."""
    version: str = ""
    """The version of Holdfast that the node runs; empty for one before 0.2.0."""
    speaks: ProtocolVersions = VERSIONS_OF_0_2
    """The versions of the protocol between nodes that it supports."""
    app: str = ""
    """The name of its app."""
    revision: str = ""
    """The revision of its app, such as the digest of an image; empty if it isn't set."""
    started_at: float = 0.0
    """The wall time of the node's start, in seconds."""
    metrics: str = ""
    """The URL of its metrics."""
    works: tuple[WorkLoad, ...] = ()
    """The kinds of work that have slots of their own."""
    troubles: tuple[str, ...] = ()
    """The problems that keep its work outside slots from going on, in words for people."""

    @property
    def slots_in_all(self) -> int:
        """The number of its slots for all kinds of work, to which ``busy`` refers."""
        return sum(work.slots for work in self.works) or self.slots

    @property
    def is_full(self) -> bool:
        """True if the node should get new streams only once all other nodes are full too."""
        return self.memory >= MEMORY_MOST

    @property
    def is_busy(self) -> bool:
        """True if all its processors or all its slots are busy."""
        return self.cpu >= CPU_MOST or self.busy >= max(1, self.slots)

    def takes(self, key: str, acting: Collection[str] = (), state_version: int = 0) -> bool:
        """Return whether the node can own the stream of a full key. ``acting`` names the streams that send
        effects or set timers; ``state_version`` is the version of the stream's state, 0 without a state."""
        stream = key.partition("/")[0]
        return self.takes_stream(stream, stream in acting, state_version)

    def takes_stream(self, stream: str, acts: bool, state_version: int) -> bool:
        """Return whether the node can own streams of that name, as :meth:`takes`. ``acts``: they send effects
        or set timers."""
        if self.draining or stream in self.lacks or (acts and self.acting is None):
            return False
        if OUR_VERSIONS.common(self.speaks) is None:
            return False
        if self.reads is not None and self.reads.get(stream, state_version) < state_version:
            return False
        return not self.serves or stream in self.serves

    def reads_version(self, stream: str, state_version: int) -> bool:
        """Return whether the node stays, and has reported that it reads this version of a stream's state."""
        return not self.draining and (self.reads or {}).get(stream, 0) >= state_version

    def is_warm(self, key: str) -> bool:
        """Return whether the node has loaded the models of the stream of a full key."""
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
    """Return the names of the streams that send effects or set timers, of all members."""
    return {stream for member in members for stream in member.load.acting or ()}


def can_be_read(members: Iterable[Member], stream: str, state_version: int) -> bool:
    """Return whether a member has reported that its handler reads this version of a stream's state."""
    return any(member.load.reads_version(stream, state_version) for member in members)


def newest_revision(members: Iterable[Member]) -> str:
    """Return the revision of the node that started last; "" if no node reports one."""
    known = [member.load for member in members if member.load.revision]
    return max(known, key=lambda load: load.started_at).revision if known else ""


def choose(
    key: str,
    members: Iterable[Member],
    pending: Mapping[str, int] | None = None,
    acting: Collection[str] = (),
    state_version: int = 0,
) -> Member | None:
    """Choose the member to own a new ``key``; None if no member has room.

    ``pending`` counts the streams placed on each member since its last load report. ``acting`` names streams
    that send effects or set timers, in addition to the members' own lists. ``state_version`` is the version
    of the key's state, 0 if it isn't known."""
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
    # Computing a weight takes longer than all of the above, so only the best members get one.
    return max(ranks[min(ranks)], key=lambda member: _weight(key, member.id)) if ranks else None


def readers(key: str, members: Iterable[Member], owner: str) -> list[Member]:
    """Return the members that can answer queries of a full key: its ``owner`` first, which has its models
    loaded, then the others in an order by key, so that queries spread."""
    stream = key.partition("/")[0]
    found = [member for member in members if stream in member.load.serves and not member.foreign]
    return sorted(found, key=lambda member: (member.id != owner, zlib.crc32(f"{member.id} {key}".encode())))


def able_members(
    stream: str, members: Iterable[Member], acting: Collection[str], *, but: str = ""
) -> list[Member]:
    """Return the members, without ``but``, that can own streams of that name."""
    return [
        member
        for member in members
        if member.id != but and not member.foreign and member.load.takes(f"{stream}/", acting)
    ]


def shortage(key: str, members: Iterable[Member]) -> str:
    """Return why no member was chosen for ``key``."""
    stream, known = key.partition("/")[0], list(members)
    lacking = [member for member in known if stream in member.load.lacks]
    if lacking:
        return f"a model of stream {stream!r} does not load on {_names(lacking)}, and no other node takes it"
    older = [member for member in known if member.load.acting is None and not member.foreign]
    if older and stream in acting_streams(known):
        return (
            f"stream {stream!r} sends effects or sets timers, and the version on {_names(older)} is too old"
            " for that; no other node takes it"
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
    """The number of streams that one router knows to be placed on each member, and that the member's load
    doesn't show yet."""

    def __init__(self) -> None:
        self._counts: dict[str, tuple[int, int]] = {}

    def place(self, key: str, members: Iterable[Member], acting: Collection[str] = ()) -> Member | None:
        """Choose the member for a new key, as :func:`choose`, and count the key at once: many keys are placed
        before the first answer comes."""
        known = list(members)
        target = choose(key, known, self.pending(known), acting)
        if target is not None:
            self.add(target)
        return target

    def not_taken(self, target: Member, owner: Member | None = None) -> None:
        """Note that ``target`` didn't get a key that was placed there; count the key for ``owner`` if
        given."""
        self.add(target, -1)
        if owner is not None:
            self.add(owner)

    def add(self, member: Member, streams: int = 1) -> None:
        """Count streams placed on ``member`` before its load shows them; a negative number subtracts them."""
        self._counts[member.id] = member.load.streams, max(0, self._pending_on(member) + streams)

    def pending(self, members: Iterable[Member]) -> dict[str, int]:
        """Return the counts for :func:`choose`, and forget all other members."""
        known = list(members)
        pending = {member.id: self._pending_on(member) for member in known}
        self._counts = {member.id: (member.load.streams, pending[member.id]) for member in known}
        return pending

    def _pending_on(self, member: Member) -> int:
        counted_at, count = self._counts.get(member.id, (0, 0))
        shown = member.load.streams - counted_at
        return max(0, count - shown) if shown >= 0 else 0


def spread(
    keys: Mapping[str, int], members: Iterable[Member], acting: Collection[str] = ()
) -> dict[str, Member]:
    """Choose a member for each of several keys that must leave their owner, one after the other. ``keys`` has
    the version of each key's state; for ``acting`` see :func:`choose`.

    Nodes of the newest revision come first: the others will be replaced soon, and the streams would have to
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
