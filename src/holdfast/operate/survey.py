"""Nodes, queues and streams, as coordinator, stores and nodes tell."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import msgspec

from holdfast.assembly.products import operator_parts, products
from holdfast.common.protocol import Done, Waiting
from holdfast.common.record import reading
from holdfast.common.text import counted, duration
from holdfast.errors import HoldfastError
from holdfast.operate.products import StatusPart, StatusTable
from holdfast.operate.records import split_key
from holdfast.ports.coordinator import Claim, Load, Member
from holdfast.ports.peer import Peer
from holdfast.ports.state import StateStore
from holdfast.rules.cluster.placement import STREAMS, choose, shortage
from holdfast.rules.streams.ledger import Checkpoint
from holdfast.streams.slots import SlotWork
from holdfast.streams.waiting_streams import StreamWait
from holdfast.wiring.services import Services

PAGE = 1000
STILL_S = 30.0
"""After how long without progress in any of its slots a node is told of as one that stands still."""

ASK_TIMEOUT_S = 2.0
"""How long a node may take to tell what waits there."""


class QueueStatus(msgspec.Struct):
    """A queue, by the name of its stream: messages in it by what they wait for, and the age of the oldest,
    where the queue tells it. ``error`` says why it could not be asked."""

    stream: str
    ready: int = 0
    in_flight: int = 0
    delayed: int = 0
    dead: int = 0
    lag_s: float | None = None
    error: str = ""


class StreamStatus(msgspec.Struct):
    """One stream. ``owner`` is a node's name, or empty; ``quiet_s`` the time since its last commit; ``waits``
    what it waits for, ``runs`` what its handler has worked at for a while, and ``effects`` what it has sent
    and no target has taken, as its owner tells. The next
    of its ``timers`` is due in ``next_timer_s``. ``due_s`` is in how long a node looks after it, though
    no message comes."""

    stream: str
    key: str
    owner: str
    epoch: int
    run: int | None
    seq: int | None
    done: int
    skipped: int
    parked: str
    quiet_s: float | None
    waits: str = ""
    timers: int = 0
    next_timer_s: float | None = None
    due_s: float | None = None
    effects: PendingEffects | None = None
    runs: str = ""

    @property
    def to_do(self) -> str:
        """The work that it has in hand, or has though no message comes, in words."""
        said = [self.runs] if self.runs else []
        if self.effects is not None:
            said.append(self.effects.sentence)
        elif self.due_s is not None and self.next_timer_s is None:
            said.append(f"effects, again in {duration(self.due_s)}")
        if self.next_timer_s is not None:
            said.append(f"timer in {duration(self.next_timer_s)}")
        return "; ".join(said)


class Survey(msgspec.Struct):
    """Everything at one moment. ``calls_per_message``: calls to metered services for each message that the
    living nodes have handled, or None before the first. ``troubles``: what keeps streams from running on a
    node, nodes that don't answer, and queues that none declares. ``tables`` are those of products."""

    nodes: list[Member]
    queues: list[QueueStatus]
    streams: list[StreamStatus]
    calls_per_message: float | None
    troubles: list[str] = []
    tables: list[StatusTable] = []

    def plain(self) -> dict[str, Any]:
        """The same as one JSON object: products have keys of their own there."""
        own = {name: getattr(self, name) for name in self.__struct_fields__ if name != "tables"}
        return own | {table.name: table.records for table in self.tables}


class PendingEffects(msgspec.Struct):
    """The effects of a stream that no target has taken yet. ``target`` is the one that has failed most often,
    ``failures`` times in a row, the last time for ``error``."""

    key: str
    count: int
    oldest_s: float
    target: str
    failures: int = 0
    error: str = ""

    @property
    def sentence(self) -> str:
        """That in words."""
        said = f": {self.error}" if self.error else ""
        age = duration(self.oldest_s)
        return f"{counted(self.count, 'effect')} pending, the oldest for {age}: {self.target}{said}"


class StreamLag(msgspec.Struct):
    """A stream that is behind: how long its node has had its oldest message, and how many it holds."""

    key: str
    lag_s: float
    messages: int


class NodeReport(msgspec.Struct):
    """The report of a node: what its slots work at, the archives that take nothing, and the streams that wait
    there, that have pending effects, or that are behind. ``took`` is how many messages have taken how long
    from the queue to their commit, by the bounds of :data:`holdfast.cluster.timings.SHORT_S`. ``targets`` has
    the last error of each target that takes nothing from it at present, by the name or URL that operators
    see."""

    lacks: dict[str, str] = {}
    works: list[SlotWork] = []
    archives: dict[str, str] = {}
    waits: list[StreamWait] = []
    effects: list[PendingEffects] = []
    targets: dict[str, str] = {}
    lags: list[StreamLag] = []
    took: list[int] = []


async def survey(services: Services, only: tuple[str, ...] = (), declared: tuple[str, ...] = ()) -> Survey:
    """Ask coordinator, state store, queues and nodes. ``declared`` are names of further queues."""
    members = await services.coordinator().members()
    claimed = await services.coordinator().claims()
    claims = {claim.key: claim for claim in of_streams(claimed)}
    checkpoints = {point.key: point for point in await all_checkpoints(services.state())}
    keys = sorted({*claims, *checkpoints})
    names = {member.id: member.name for member in members}
    now = services.clock.wall()
    streams = [_stream(key, claims.get(key), checkpoints.get(key), names, now) for key in keys]
    told = {name for member in members for name in member.load.queues}
    filled = await _filled(services)
    known = sorted({*only} or {*declared, *told, *filled, *(entry.stream for entry in streams)})
    queues = list(await asyncio.gather(*(_queue(services, name) for name in known)))
    shown = [entry for entry in streams if entry.stream in known]
    troubles = await _ask_what_waits(services, members, shown)
    troubles += [*nobody_s((filled & {*known}) - {*declared}, told), *untaken(queues, members)]
    calls = calls_per_message(member.load for member in members)
    tables = await _of_products(services, members, claimed)
    return Survey(members, queues, shown, calls, troubles, tables)


async def _filled(services: Services) -> set[str]:
    try:
        return {*await services.filled_queues()}
    except HoldfastError:
        return set()  # each queue that is asked tells why


def nobody_s(filled: Collection[str], told: Collection[str]) -> list[str]:
    """Return a sentence for each queue that holds messages though no living node declares it; none where no
    node declares any."""
    return [
        f"no node runs {name!r}, whose queue holds messages: start one whose app declares it, or find out who"
        f" sends there. They run {', '.join(sorted(told))}"
        for name in sorted({*filled} - {*told})
        if told
    ]


def untaken(queues: Iterable[QueueStatus], members: Sequence[Member]) -> list[str]:
    """Return a sentence for each stream whose queue holds messages, and of which no node takes new keys,
    though some node runs it."""
    served = {name for member in members for name in member.load.serves}
    return [
        f"no node takes new keys of {queue.stream!r}, whose queue holds messages: {shortage(key, members)}"
        for queue in queues
        if queue.stream in served and queue.ready + queue.delayed > 0
        if choose(key := f"{queue.stream}/", members) is None
    ]


async def _queue(services: Services, name: str) -> QueueStatus:
    """One queue that can't be asked hides no other."""
    try:
        queue = services.queue(name)
        depth = await queue.depth()
    except HoldfastError as error:
        return QueueStatus(name, error=str(error))
    lag_s = depth.lag_s if queue.tells_lag else None
    return QueueStatus(name, depth.ready, depth.in_flight, depth.delayed, depth.dead, lag_s)


async def _ask_what_waits(
    services: Services, members: list[Member], streams: list[StreamStatus]
) -> list[str]:
    """Fill in what streams wait for, as nodes tell, and add those that no node takes; returns what is wrong
    with nodes."""
    by_key = {f"{entry.stream}/{entry.key}": entry for entry in streams}
    ours = [member for member in members if not member.foreign]
    troubles: list[str] = []
    if not ours:
        return troubles
    peer = services.caller()
    answers = await asyncio.gather(*(what_waits(peer, member) for member in ours))
    for member, told in zip(ours, answers, strict=True):
        troubles += troubles_of(member, told)
        if isinstance(told, str):
            continue
        for waits in told.waits:
            if waits.key not in by_key and waits.kind == "room":
                by_key[waits.key] = _stream(waits.key, None, None, {}, 0.0)
                streams.append(by_key[waits.key])
            if waits.key in by_key:
                by_key[waits.key].waits = waits.sentence
        for work in told.works:
            if work.message and work.of in by_key:
                by_key[work.of].runs = work.sentence
        for effects in told.effects:
            if effects.key in by_key:
                by_key[effects.key].effects = effects
    return troubles


def troubles_of(member: Member, told: NodeReport | str) -> list[str]:
    """Return what is wrong with a node, by its report or by why it gave none."""
    own = [f"{member.name}: {trouble}" for trouble in member.load.troubles]
    if isinstance(told, str):
        return [f"{member.name} does not answer: {told}", *own]
    lacks = [f"{member.name} can't run {name}: {reason}" for name, reason in told.lacks.items()]
    return [*lacks, *archives_away(member, told), *standing_still(member, told), *own]


def archives_away(member: Member, told: NodeReport) -> list[str]:
    """Return a sentence for each archive that takes nothing from a node."""
    return [
        f"the archive of {name} takes nothing from {member.name}: {reason}"
        for name, reason in told.archives.items()
    ]


def standing_still(member: Member, told: NodeReport) -> list[str]:
    """Return a sentence for a node none of whose slots makes progress while streams wait for one."""
    waiting = sum(waits.kind == "slot" for waits in told.waits)
    still = [work for work in told.works if work.still_s >= STILL_S]
    slots = next((work.slots for work in member.load.works if work.kind == STREAMS), member.load.slots)
    if not waiting or len(still) < slots:
        return []
    streams = "1 stream waits" if waiting == 1 else f"{waiting} streams wait"
    still_s, longest = min(work.still_s for work in still), still[0]
    text = (
        f"no slot of {member.name} has told of progress for {duration(still_s)}, and {streams} for one:"
        f" {longest.of} has been in {longest.slot} longest, for {duration(longest.for_s)}"
    )
    return [text]


async def what_waits(peer: Peer, member: Member) -> NodeReport | str:
    """Ask a node what waits there; returns its report, or why it could not be asked."""
    try:
        reply = await peer.call(member.address, Waiting(member.id, PAGE), ASK_TIMEOUT_S)
        if not isinstance(reply, Done):
            return "it has just joined anew"
        with reading(f"what {member.name} tells"):
            return msgspec.json.decode(reply.text, type=NodeReport) if reply.ok else NodeReport()
    except HoldfastError as error:
        return str(error)


async def target_errors(services: Services) -> dict[str, str]:
    """The last errors of targets that take nothing at present, by the name or URL that operators see, as far
    as nodes tell."""
    reports = await node_reports(services, await services.coordinator().members())
    return {name: error for report in reports.values() for name, error in report.targets.items()}


async def node_reports(services: Services, members: Iterable[Member]) -> dict[str, NodeReport]:
    """The reports of the nodes that answer, by name."""
    ours = [member for member in members if not member.foreign]
    peer = services.caller()
    told = await asyncio.gather(*(what_waits(peer, member) for member in ours))
    return {
        member.name: report
        for member, report in zip(ours, told, strict=True)
        if isinstance(report, NodeReport)
    }


def of_streams(claims: Iterable[Claim]) -> list[Claim]:
    """The claims that are of streams, and not of products."""
    labels = tuple(product.claim_label for product in products() if product.claim_label)
    return [claim for claim in claims if not claim.key.startswith(labels)]


async def _of_products(
    services: Services, members: Sequence[Member], claims: Iterable[Claim]
) -> list[StatusTable]:
    tables = []
    for product, part in operator_parts(StatusPart):
        label = product.claim_label
        own = [claim for claim in claims if label and claim.key.startswith(label)]
        if (table := await part.status(services, members, own)) is not None:
            tables.append(table)
    return tables


def calls_per_message(loads: Iterable[Load]) -> float | None:
    """Calls to metered services for each message handled, or None if none was."""
    told = list(loads)
    handled = sum(load.handled for load in told)
    return round(sum(load.calls for load in told) / handled, 3) if handled else None


async def all_checkpoints(state: StateStore) -> list[Checkpoint]:
    """Every checkpoint, in order of key."""
    found: list[Checkpoint] = []
    while page := await state.checkpoints(found[-1].key if found else "", PAGE):
        found.extend(page)
    return found


def _stream(
    full_key: str, claim: Claim | None, checkpoint: Checkpoint | None, names: dict[str, str], now: float
) -> StreamStatus:
    stream, key = split_key(full_key)
    point = checkpoint or Checkpoint(full_key)
    return StreamStatus(
        stream=stream,
        key=key,
        owner=names.get(claim.member, "") if claim else "",
        epoch=point.epoch,
        run=point.log.run if point.log else None,
        seq=point.log.last if point.log else None,
        done=point.done,
        skipped=point.skipped,
        parked=point.parked,
        quiet_s=max(0.0, now - point.at) if point.at else None,
        timers=len(point.timers),
        next_timer_s=min((timer.at - now for timer in point.timers), default=None),
        due_s=point.due - now if point.due else None,
    )


async def stream_names(services: Services) -> list[str]:
    """Streams that a commit or a claim is known of."""
    claims = await services.coordinator().claims()
    keys = [claim.key for claim in of_streams(claims)]
    keys += [point.key for point in await all_checkpoints(services.state())]
    return sorted({split_key(key)[0] for key in keys})
