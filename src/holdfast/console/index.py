"""All streams of a cluster, in memory: the console searches, sorts and pages here.

Stores list streams by key only, and only nodes know what a stream waits for. So the index reads all claims
once and then follows their changes. It reads checkpoints page by page, again and again, at a pace that
takes a small share of a processor. Nodes report what waits there. Data of a stream is as old as the last
round (``age_s``).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Literal, NamedTuple, get_args

import msgspec

from holdfast.common.text import counted
from holdfast.console.attention import Attention
from holdfast.console.life import SeenOpening, StreamEvents, on
from holdfast.errors import HoldfastError
from holdfast.operate.survey import NodeReport, PendingEffects, StreamLag, of_streams
from holdfast.ports.clock import Clock
from holdfast.ports.coordinator import Claim, Coordinator, Member
from holdfast.ports.state import StateStore
from holdfast.rules.streams.ledger import Checkpoint
from holdfast.streams.slots import SlotWork
from holdfast.streams.waiting_streams import LOG_AFTER_S, StreamWait

PAGE = 500
SHARE_WATCHED, SHARE_IDLE = 0.05, 0.003
"""Share of the time for reading checkpoints: while the console is watched, and else."""

ROUND_WATCHED_S, ROUND_IDLE_S = 1.0, 60.0
"""Shortest pause between two rounds, in seconds: while the console is watched, and else."""

CLAIMS_S = 300.0
"""Seconds after which all claims are read again, because a change may have been missed."""

ORDERS_MAX = 16
"""Sorted lists that are kept, of the latest questions."""

ORDER_S = 5.0
"""Seconds for which a sorted list is used after the index has changed."""

Sort = Literal["key", "owner", "done", "skipped", "quiet", "lag", "waits"]
Standing = Literal["all", "parked", "waiting", "effects", "unowned"]
SORTS: tuple[Sort, ...] = get_args(Sort)
STANDINGS: tuple[Standing, ...] = get_args(Standing)


class IndexedStream(msgspec.Struct, gc=False):
    """A stream in the index. ``key`` is the full key, ``member`` the membership that has claimed it, ``at``
    the wall time of its last commit, and ``timer_at`` that of its next timer. ``opener`` is the name of the
    node that has opened it, if known; that opening was seen at the wall times ``since`` and ``until``.
    ``number`` counts its commits, as read at the wall time ``read_at``."""

    key: str
    member: str = ""
    epoch: int = 0
    number: int = 0
    read_at: float = 0.0
    run: int | None = None
    seq: int | None = None
    done: int = 0
    skipped: int = 0
    parked: str = ""
    at: float = 0.0
    timers: int = 0
    timer_at: float = 0.0
    opener: str = ""
    since: float = 0.0
    until: float = 0.0
    round: int = 0


class FoundStreams(NamedTuple):
    """A page of streams from ``offset`` on, and the number of all that match."""

    total: int
    offset: int
    streams: Sequence[IndexedStream]


class Question(NamedTuple):
    """A search for streams, and the order of the result. ``text`` is a part of the full key."""

    text: str = ""
    stream: str = ""
    standing: Standing = "all"
    sort: Sort = "key"
    down: bool = False


class _Order(NamedTuple):
    revision: int
    made_at: float
    streams: list[IndexedStream]


class StreamIndex:
    """The index. ``members`` returns the living members by id.

    Attributes:
        waits: the waits of streams by full key, as their owners report them.
        runs: messages that handlers have been working on for a while, by full key.
        effects: effects that no target has taken, by full key.
        lags: the lags of streams that are behind, by full key.
        others: claims of products, by full key.
        parked: the full keys of parked streams.
        life: the events of streams.
        read_at: the monotonic time at which the last whole round ended; None before the first.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        state: StateStore,
        clock: Clock,
        attention: Attention,
        life: StreamEvents,
        members: Callable[[], Mapping[str, Member]],
    ) -> None:
        self._coordinator = coordinator
        self._state = state
        self._clock = clock
        self._attention = attention
        self.life = life
        self._members = members
        self._streams: dict[str, IndexedStream] = {}
        self._reports: dict[str, NodeReport] = {}
        self._by_key: list[IndexedStream] | None = None
        """All streams in order of key; None after some were added or forgotten."""
        self._orders: OrderedDict[Question, _Order] = OrderedDict()
        self._claims_at: float | None = None
        self._changed: set[str] | None = None
        """The keys of claims that have changed during the present read of all claims; else None."""
        self._round = 0
        self.revision = 0
        self.waits: dict[str, StreamWait] = {}
        self.runs: dict[str, SlotWork] = {}
        self.effects: dict[str, PendingEffects] = {}
        self.lags: dict[str, StreamLag] = {}
        self.others: dict[str, Claim] = {}
        self.parked: dict[str, None] = {}
        self.names: dict[str, int] = {}
        """The number of streams of each name."""
        self.read_at: float | None = None

    def __len__(self) -> int:
        return len(self._streams)

    def get(self, key: str) -> IndexedStream | None:
        """Return a stream, if it is known."""
        return self._streams.get(key)

    def owner(self, stream: IndexedStream) -> Member | None:
        """Return the living member that owns a stream."""
        return self._members().get(stream.member)

    def owned(self, member: str) -> list[str]:
        """Return the full keys of the streams that a membership has claimed."""
        return [key for key, stream in self._streams.items() if stream.member == member]

    def claimer(self, key: str) -> str:
        """Return the membership that has claimed a stream; "" for none."""
        stream = self._streams.get(key)
        return stream.member if stream is not None else ""

    def messages(self, key: str) -> int:
        """Return the messages that a node holds for a stream that waits or is behind; else 0."""
        report = self.lags.get(key) or self.waits.get(key)
        return report.messages if report is not None else 0

    @property
    def age_s(self) -> float | None:
        """The seconds since the last round of reading all checkpoints ended; None before the first."""
        return None if self.read_at is None else self._clock.monotonic() - self.read_at

    # --- searched

    def find(self, question: Question, offset: int, limit: int) -> FoundStreams:
        """Return a page of the streams that match."""
        found = self._ordered(question)
        offset = max(0, min(offset, (len(found) - 1) // limit * limit))
        return FoundStreams(len(found), offset, found[offset : offset + limit])

    def _ordered(self, question: Question) -> list[IndexedStream]:
        known, now = self._orders.get(question), self._clock.monotonic()
        if known is not None and (known.revision == self.revision or now - known.made_at < ORDER_S):
            self._orders.move_to_end(question)
            return known.streams
        found = self._sorted(self._chosen(question), question)
        self._orders[question] = _Order(self.revision, now, found)
        self._orders.move_to_end(question)
        while len(self._orders) > ORDERS_MAX:
            self._orders.popitem(last=False)
        return found

    def _chosen(self, question: Question) -> Iterable[IndexedStream]:
        """Return the streams that match, in order of key. The few parked or waiting ones are found without
        a scan of all."""
        some: Iterable[IndexedStream] = self._all()
        few: dict[str, Iterable[str]]
        few = {"parked": self.parked, "waiting": self.waits, "effects": self.effects}
        if question.standing in few:
            keys = few[question.standing]
            some = [stream for key in sorted(keys) if (stream := self._streams.get(key)) is not None]
        elif question.standing == "unowned":
            members = self._members()
            some = [stream for stream in some if stream.member not in members]
        if question.stream:
            start = f"{question.stream}/"
            some = [stream for stream in some if stream.key.startswith(start)]
        if question.text:
            text = question.text.lower()
            some = [stream for stream in some if text in stream.key.lower()]
        return some

    def _all(self) -> list[IndexedStream]:
        if self._by_key is None:
            self._by_key = sorted(self._streams.values(), key=attrgetter("key"))
        return self._by_key

    def _sorted(self, some: Iterable[IndexedStream], question: Question) -> list[IndexedStream]:
        found = list(some)
        match question.sort:
            case "key":
                found = found[::-1] if question.down else found
            case "owner":
                names = {member.id: member.name for member in self._members().values()}
                found.sort(key=lambda stream: names.get(stream.member, ""), reverse=question.down)
            case "done":
                found.sort(key=attrgetter("done"), reverse=question.down)
            case "skipped":
                found.sort(key=attrgetter("skipped"), reverse=question.down)
            case "quiet":  # the longest quiet has the oldest commit
                found.sort(key=attrgetter("at"), reverse=not question.down)
            case "lag":
                behind_s = {key: lag.lag_s for key, lag in self.lags.items()}
                found.sort(key=lambda stream: behind_s.get(stream.key, 0.0), reverse=question.down)
            case "waits":
                since = {key: waits.since_s for key, waits in self.waits.items()}
                found.sort(key=lambda stream: since.get(stream.key, -1.0), reverse=question.down)
        return found

    # --- events

    def claimed(self, claim: Claim) -> None:
        """Take a claim that has changed."""
        if self._changed is not None:
            self._changed.add(claim.key)
        if not of_streams([claim]):
            if claim.member:
                self.others[claim.key] = claim
            else:
                self.others.pop(claim.key, None)
            return
        stream = self._streams.get(claim.key)
        if stream is None:
            if not claim.member:
                return
            stream = self._add(claim.key)
        if claim.member != stream.member:
            text = self._claim_text(stream.member, claim.member)
            self.life.add(claim.key, self._clock.wall(), text, self._known(claim.member or stream.member))
        stream.member = claim.member
        self.revision += 1

    def _claim_text(self, before: str, after: str) -> str:
        old, new = self._name(before), self._name(after)
        if not after:
            return f"released by {old}"
        return f"moved from {old} to {new}" if before else f"claimed by {new}"

    def _name(self, member: str) -> str:
        return self._known(member) or f"member {member}"

    def _known(self, member: str) -> str:
        """Return the name of a membership, or "" if it is no living node's."""
        known = self._members().get(member)
        return known.name if known is not None else ""

    def missed(self) -> None:
        """Have all claims read again in the next round: some changes may have been missed."""
        self._claims_at = None

    def left(self, member: str) -> None:
        """Take the end of a membership."""
        if self._reports.pop(member, None) is not None:
            self._merge()
        self.revision += 1

    def reported(self, reports: Mapping[str, NodeReport]) -> None:
        """Take new reports by membership. The reports of other nodes stay."""
        for member, report in reports.items():
            for waits in report.waits:
                self._note_wait(member, waits)
        members = self._members()  # some may have left since they were asked
        known = self._reports | dict(reports)
        self._reports = {member: report for member, report in known.items() if member in members}
        self._merge()
        self.revision += 1

    def _note_wait(self, member: str, waits: StreamWait) -> None:
        """Add an event for a stream that has waited so long that its node logs it too."""
        before = self.waits.get(waits.key)
        known_s = before.since_s if before is not None and before.kind == waits.kind else 0.0
        if waits.since_s < known_s:
            known_s = 0.0  # it is another wait
        if known_s < LOG_AFTER_S <= waits.since_s and waits.kind != "parked":
            at = self._clock.wall() - waits.since_s
            text = f"waits for {waits.text}, on {self._name(member)}"
            self.life.add(waits.key, at, text, self._known(member))

    def _merge(self) -> None:
        reports = self._reports.values()
        self.waits = {waits.key: waits for report in reports for waits in report.waits}
        self.runs = {work.of: work for report in reports for work in report.works if work.message}
        for waits in self.waits.values():
            if waits.kind == "room" and waits.key not in self._streams:
                self._add(waits.key)  # it has neither a claim nor a checkpoint
        self.effects = {pending.key: pending for report in reports for pending in report.effects}
        self.lags = {lag.key: lag for report in reports for lag in report.lags}

    # --- read

    async def fill(self) -> None:
        """Read everything, again and again, until cancelled."""
        while True:
            await self.read_once()
            await self._attention.pause(ROUND_WATCHED_S, ROUND_IDLE_S)

    async def read_once(self) -> None:
        """Read one round: claims, if that is due, and all checkpoints."""
        now = self._clock.monotonic()
        if self._claims_at is None or now - self._claims_at >= CLAIMS_S:
            self._claims_at = now
            changed = self._changed = set[str]()
            try:
                claims = await self._coordinator.claims()
            except HoldfastError:
                self._claims_at = None  # the next round tries again
                raise
            finally:
                self._changed = None
            self._take_claims(claims, changed)
        await self._read_checkpoints()
        self.read_at = self._clock.monotonic()

    def _take_claims(self, claims: Iterable[Claim], changed: Collection[str]) -> None:
        """Take all claims as they were read. Claims of ``changed`` keys are newer in the index."""
        read = [claim for claim in claims if claim.key not in changed]
        known = {claim.key: claim.member for claim in of_streams(read)}
        newer = {key: claim for key, claim in self.others.items() if key in changed}
        self.others = {claim.key: claim for claim in read if claim.key not in known} | newer
        for key, member in known.items():
            (self._streams.get(key) or self._add(key)).member = member
        for stream in self._streams.values():
            if stream.member and stream.key not in known and stream.key not in changed:
                stream.member = ""
        self.revision += 1

    async def _read_checkpoints(self) -> None:
        """Read one round of checkpoints, and forget streams that no longer exist."""
        self._round += 1
        after = ""
        while True:
            began_at, asked_at = self._clock.monotonic(), self._clock.wall()
            page = await self._state.checkpoints(after, PAGE)
            after = page[-1].key if page else after
            for point in page:
                self.take(point, asked_at)
            if len(page) < PAGE:
                break
            took_s = self._clock.monotonic() - began_at
            watched_s = took_s * (1 / SHARE_WATCHED - 1)
            idle_s = took_s * (1 / SHARE_IDLE - 1) if self.read_at is not None else watched_s
            await self._attention.pause(watched_s, idle_s)
        gone = [
            key
            for key, stream in self._streams.items()
            if stream.round < self._round and not stream.member and key not in self.waits
        ]
        for key in gone:
            self._forget(key)
        if gone:
            self.revision += 1

    def take(self, point: Checkpoint, asked_at: float) -> None:
        """Take a checkpoint that was asked for at a wall time. One behind the known checkpoint is ignored,
        unless it was asked for later: then the store has lost commits."""
        stream = self._streams.get(point.key) or self._add(point.key)
        stream.round = self._round
        if (point.epoch, point.number) < (stream.epoch, stream.number) and asked_at < stream.read_at:
            return
        stream.number, stream.read_at = point.number, self._clock.wall()
        self._take_opening(stream, point, asked_at)
        if stream.epoch == point.epoch and stream.at == point.at and stream.parked == point.parked:
            return
        if stream.round and stream.epoch:
            self._note(stream, point)
        stream.epoch, stream.at, stream.parked = point.epoch, point.at, point.parked
        stream.run = point.log.run if point.log else None
        stream.seq = point.log.last if point.log else None
        stream.done, stream.skipped = point.done, point.skipped
        stream.timers = len(point.timers)
        stream.timer_at = min((timer.at for timer in point.timers), default=0.0)
        if point.parked:
            self.parked[point.key] = None
        else:
            self.parked.pop(point.key, None)
        self.revision += 1

    def _take_opening(self, stream: IndexedStream, point: Checkpoint, asked_at: float) -> None:
        """Note the times at which an opening was seen: since an answer, and until a question."""
        if point.epoch != stream.epoch:
            for ended in _seen(stream):
                self.life.stood(ended)
            stream.opener, stream.since = "", self._clock.wall()
        stream.opener = stream.opener or self._known(point.member)
        stream.until = asked_at

    def openings(self, key: str) -> list[SeenOpening]:
        """Return the openings of a stream that were seen, newest first."""
        stream = self._streams.get(key)
        now = [] if stream is None else _seen(stream)
        return [*now, *self.life.openings(key)]

    def _note(self, stream: IndexedStream, point: Checkpoint) -> None:
        """Add events for the changes since the last read. If the stream was opened meanwhile, they may have
        happened before that, on another node."""
        texts = []
        node = stream.opener if point.epoch == stream.epoch else ""
        at = point.at if point.at > stream.at else self._clock.wall()  # without a commit, no time is stored
        if point.epoch > stream.epoch:
            opened = f"opened{on(stream.opener)}, epoch {point.epoch}"
            self.life.add(point.key, at, opened, stream.opener)
        if point.skipped > stream.skipped:
            skipped = counted(point.skipped - stream.skipped, "message")
            texts.append(f"{skipped} skipped or set aside{on(node)}")
        if point.parked != stream.parked:
            texts.append(f"parked{on(node)}: {point.parked}" if point.parked else "resumed")
        run = point.log.run if point.log else None
        if stream.run is not None and run != stream.run:
            texts.append(f"run {run} began{on(node)}")
        for text in texts:
            self.life.add(point.key, at, text, node)

    def _add(self, key: str) -> IndexedStream:
        stream = self._streams[key] = IndexedStream(key)
        self._by_key = None
        name = key.partition("/")[0]
        self.names[name] = self.names.get(name, 0) + 1
        return stream

    def _forget(self, key: str) -> None:
        del self._streams[key]
        self._by_key = None
        self.parked.pop(key, None)
        name = key.partition("/")[0]
        self.names[name] -= 1
        if not self.names[name]:
            del self.names[name]


def _seen(stream: IndexedStream) -> list[SeenOpening]:
    """Return the last opening of a stream, if its node and its time are known."""
    if not stream.opener or stream.until < stream.since:
        return []
    return [SeenOpening(stream.key, stream.opener, stream.since, stream.until)]
