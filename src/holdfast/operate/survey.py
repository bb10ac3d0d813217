"""The state of nodes, queues and streams at one moment."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import msgspec

from holdfast.assembly.products import operator_parts, products
from holdfast.common.protocol import Done, Waiting
from holdfast.common.record import reading
from holdfast.common.redaction import redact
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
STALLED_AFTER_S = 30.0
"""Seconds without progress in any slot after which a node is reported as stalled."""

ASK_TIMEOUT_S = 2.0
"""Seconds that a node has to answer."""


class QueueStatus(msgspec.Struct):
    """A queue, by the name of its stream: its messages by state, and the age of the oldest if the queue knows
    it. ``error`` says why the queue could not be read."""

    stream: str
    ready: int = 0
    in_flight: int = 0
    delayed: int = 0
    dead: int = 0
    lag_s: float | None = None
    error: str = ""


class StreamStatus(msgspec.Struct):
    """One stream. ``owner`` is a node's name, or empty; ``quiet_s`` is the time since the last commit. Its
    owner reports ``waits`` (what it waits for), ``runs`` (what its handler has been working on for a while)
    and ``effects`` (the ones that no target has taken). The next of its ``timers`` is due in
    ``next_timer_s``, and its next work without a message in ``due_s``."""

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
        """Its present work, and its work without a message, in words."""
        work = [self.runs] if self.runs else []
        if self.effects is not None:
            work.append(self.effects.sentence)
        elif self.due_s is not None and self.next_timer_s is None:
            work.append(f"effects, again in {duration(self.due_s)}")
        if self.next_timer_s is not None:
            work.append(f"timer in {duration(self.next_timer_s)}")
        return "; ".join(work)


class Survey(msgspec.Struct):
    """The whole cluster at one moment. ``calls_per_message`` counts calls to metered services for each
    message that the living nodes have handled, or None before the first. ``troubles`` are problems of nodes
    and queues in words. ``tables`` are the products' tables."""

    nodes: list[Member]
    queues: list[QueueStatus]
    streams: list[StreamStatus]
    calls_per_message: float | None
    troubles: list[str] = []
    tables: list[StatusTable] = []

    def plain(self) -> dict[str, Any]:
        """Return the survey as a JSON object, with a key for each product's table."""
        own = {name: getattr(self, name) for name in self.__struct_fields__ if name != "tables"}
        return own | {table.name: table.records for table in self.tables}


class PendingEffects(msgspec.Struct):
    """The effects of a stream that no target has taken yet. ``target`` is the one that has failed most often:
    ``failures`` times in a row, the last time with ``error``."""

    key: str
    count: int
    oldest_s: float
    target: str
    failures: int = 0
    error: str = ""

    @property
    def sentence(self) -> str:
        """The effects in words."""
        error = f": {self.error}" if self.error else ""
        age = duration(self.oldest_s)
        return f"{counted(self.count, 'effect')} pending, the oldest for {age}: {self.target}{error}"


class StreamLag(msgspec.Struct):
    """A stream that is behind: the age of its oldest message at its node, and how many messages it holds."""

    key: str
    lag_s: float
    messages: int


class NodeReport(msgspec.Struct):
    """The report of a node: streams that it can't run (``lacks``), the work of its slots, archives that fail,
    and streams that wait, have pending effects, or are behind. ``took`` counts messages by their time from
    the queue to the commit, by the bounds of :data:`holdfast.cluster.timings.SHORT_S`. ``targets`` has the
    last error of each target that fails at present, by the name or URL that operators see."""

    lacks: dict[str, str] = {}
    works: list[SlotWork] = []
    archives: dict[str, str] = {}
    waits: list[StreamWait] = []
    effects: list[PendingEffects] = []
    targets: dict[str, str] = {}
    lags: list[StreamLag] = []
    took: list[int] = []


async def survey(services: Services, only: tuple[str, ...] = (), declared: tuple[str, ...] = ()) -> Survey:
    """Read coordinator, state store, queues and nodes. ``declared`` are names of further queues."""
    members = await services.coordinator().members()
    claimed = await services.coordinator().claims()
    claims = {claim.key: claim for claim in of_streams(claimed)}
    checkpoints = {point.key: point for point in await all_checkpoints(services.state())}
    keys = sorted({*claims, *checkpoints})
    names = {member.id: member.name for member in members}
    now = services.clock.wall()
    streams = [_stream(key, claims.get(key), checkpoints.get(key), names, now) for key in keys]
    run = {name for member in members for name in member.load.queues}
    filled = await _filled(services)
    known = sorted({*only} or {*declared, *run, *filled, *(entry.stream for entry in streams)})
    queues = list(await asyncio.gather(*(queue_status(services, name) for name in known)))
    shown = [entry for entry in streams if entry.stream in known]
    troubles = await _add_reports(services, members, shown)
    troubles += [
        *undeclared_queues((filled & {*known}) - {*declared}, run),
        *unplaced_queues(queues, members),
    ]
    calls = calls_per_message(member.load for member in members)
    tables = await _of_products(services, members, claimed)
    return Survey(members, queues, shown, calls, troubles, tables)


async def _filled(services: Services) -> set[str]:
    try:
        return {*await services.filled_queues()}
    except HoldfastError:
        return set()  # the status of each queue has the error


def undeclared_queues(filled: Collection[str], run: Collection[str]) -> list[str]:
    """Return a sentence for each queue that holds messages and isn't among the queues that nodes ``run``.
    Without such nodes there are none."""
    return [
        f"no node runs {name!r}, whose queue holds messages: start one whose app declares it, or find the"
        f" program that sends there. The nodes run {', '.join(sorted(run))}"
        for name in sorted({*filled} - {*run})
        if run
    ]


def unplaced_queues(queues: Iterable[QueueStatus], members: Sequence[Member]) -> list[str]:
    """Return a sentence for each stream whose queue holds messages, that some node runs, and of which no node
    takes new keys."""
    served = {name for member in members for name in member.load.serves}
    return [
        f"no node takes new keys of {queue.stream!r}, whose queue holds messages: {shortage(key, members)}"
        for queue in queues
        if queue.stream in served and queue.ready + queue.delayed > 0
        if choose(key := f"{queue.stream}/", members) is None
    ]


async def queue_status(services: Services, name: str) -> QueueStatus:
    """Return the status of a queue, or the error in it."""
    try:
        queue = services.queue(name)
        depth = await queue.depth()
    except HoldfastError as error:
        return QueueStatus(name, error=redact(str(error)))
    lag_s = depth.lag_s if queue.tells_lag else None
    return QueueStatus(name, depth.ready, depth.in_flight, depth.delayed, depth.dead, lag_s)


async def _add_reports(services: Services, members: list[Member], streams: list[StreamStatus]) -> list[str]:
    """Add to the streams what their nodes report, and streams that no node takes. Returns problems of
    nodes."""
    by_key = {f"{entry.stream}/{entry.key}": entry for entry in streams}
    troubles: list[str] = []
    for member, report in await _reports(services, members):
        troubles += node_troubles(member, report)
        if isinstance(report, str):
            continue
        for waits in report.waits:
            if waits.key not in by_key and waits.kind == "room":
                by_key[waits.key] = _stream(waits.key, None, None, {}, 0.0)
                streams.append(by_key[waits.key])
            if waits.key in by_key:
                by_key[waits.key].waits = waits.sentence
        for work in report.works:
            if work.message and work.of in by_key:
                by_key[work.of].runs = work.sentence
        for effects in report.effects:
            if effects.key in by_key:
                by_key[effects.key].effects = effects
    return troubles


def node_troubles(member: Member, report: NodeReport | str) -> list[str]:
    """Return the problems of a node, by its report or by the error of asking for it."""
    own = [f"{member.name}: {trouble}" for trouble in member.load.troubles]
    if isinstance(report, str):
        return [f"{member.name} does not answer: {report}", *own]
    lacks = [f"{member.name} can't run {name}: {reason}" for name, reason in report.lacks.items()]
    return [*lacks, *failing_archives(member, report), *stalled_slots(member, report), *own]


def failing_archives(member: Member, report: NodeReport) -> list[str]:
    """Return a sentence for each archive that takes nothing from a node."""
    return [
        f"the archive of {name} takes nothing from {member.name}: {reason}"
        for name, reason in report.archives.items()
    ]


def stalled_slots(member: Member, report: NodeReport) -> list[str]:
    """Return a sentence for a node if streams wait for a slot and none of its slots makes progress."""
    waiting = sum(waits.kind == "slot" for waits in report.waits)
    still = [work for work in report.works if work.still_s >= STALLED_AFTER_S]
    slots = next((work.slots for work in member.load.works if work.kind == STREAMS), member.load.slots)
    if not waiting or len(still) < slots:
        return []
    streams = "1 stream waits" if waiting == 1 else f"{waiting} streams wait"
    still_s, longest = min(work.still_s for work in still), still[0]
    text = (
        f"no slot of {member.name} has made progress for {duration(still_s)}, and {streams} for a slot:"
        f" {longest.of} has been in {longest.slot} longest, for {duration(longest.for_s)}"
    )
    return [text]


async def node_report(peer: Peer, member: Member) -> NodeReport | str:
    """Ask a node for its report; returns that or the error."""
    try:
        reply = await peer.call(member.address, Waiting(member.id, PAGE), ASK_TIMEOUT_S)
        if not isinstance(reply, Done):
            return "it has just joined again"
        with reading(f"the report of {member.name}"):
            return msgspec.json.decode(reply.text, type=NodeReport) if reply.ok else NodeReport()
    except HoldfastError as error:
        return str(error)


async def target_errors(services: Services) -> dict[str, str]:
    """Return the last errors of targets that fail at present, by the name or URL that operators see."""
    reports = await node_reports(services, await services.coordinator().members())
    return {name: error for report in reports.values() for name, error in report.targets.items()}


async def node_reports(services: Services, members: Iterable[Member]) -> dict[str, NodeReport]:
    """Return the reports of the nodes that answer, by name."""
    reports = await _reports(services, members)
    return {member.name: report for member, report in reports if isinstance(report, NodeReport)}


async def _reports(
    services: Services, members: Iterable[Member]
) -> Iterable[tuple[Member, NodeReport | str]]:
    ours = [member for member in members if not member.foreign]
    if not ours:
        return []
    peer = services.caller()
    return zip(ours, await asyncio.gather(*(node_report(peer, member) for member in ours)), strict=True)


def of_streams(claims: Iterable[Claim]) -> list[Claim]:
    """Return the claims of streams, without the products' claims."""
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
    """Return the calls to metered services for each handled message, or None if none was handled."""
    known = list(loads)
    handled = sum(load.handled for load in known)
    return round(sum(load.calls for load in known) / handled, 3) if handled else None


async def all_checkpoints(state: StateStore) -> list[Checkpoint]:
    """Return every checkpoint, in order of key."""
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
    """Return the names of streams that have a commit or a claim."""
    claims = await services.coordinator().claims()
    keys = [claim.key for claim in of_streams(claims)]
    keys += [point.key for point in await all_checkpoints(services.state())]
    return sorted({split_key(key)[0] for key in keys})
