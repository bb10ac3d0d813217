"""The explanation of a stream: its owner, what it waits for, and why it stays on its node."""

from __future__ import annotations

import difflib
from collections.abc import Mapping

import msgspec

from holdfast.cluster.balancer import node_load
from holdfast.common.protocol import Explain
from holdfast.common.record import reading
from holdfast.common.redaction import redact
from holdfast.common.text import counted, duration
from holdfast.errors import NotKnown, OperationRefused, OutcomeUnknown, Unavailable
from holdfast.operate.nodes import ask
from holdfast.operate.survey import all_checkpoints, node_reports, of_streams, target_errors
from holdfast.ports.coordinator import Member
from holdfast.rules.cluster.balance import BAND
from holdfast.rules.cluster.placement import choose, shortage
from holdfast.rules.streams.ledger import Checkpoint
from holdfast.streams.slots import SlotWork
from holdfast.streams.waiting_streams import StreamWait
from holdfast.wiring.services import Services


class StreamReport(msgspec.Struct):
    """The part of an owner's report about a stream that ``why`` needs."""

    busy: float
    here_s: float
    rests_s: float
    parked: str
    waits: StreamWait | None = None
    runs: SlotWork | None = None
    archive: str = ""


class Why(msgspec.Struct):
    """The node of a stream, what the stream waits for, and why it stays there. Loads are in busy slots.
    ``node`` is empty without an owner, and ``here_s`` null if the owner reports nothing. ``waits`` is empty
    if the stream waits for nothing, ``runs`` if no handler works for it, and ``archive`` if its archive
    works. ``target_errors`` has the last errors of targets of its effects that fail at present."""

    key: str
    node: str
    epoch: int
    here_s: float | None
    busy: float
    node_load: float
    mean_load: float
    reasons: list[str]
    waits: str = ""
    waits_s: float | None = None
    runs: str = ""
    archive: str = ""
    parked: str = ""
    run: int | None = None
    seq: int | None = None
    pending_effects: int = 0
    oldest_effect_s: float | None = None
    oldest_target: str = ""
    next_timer: str = ""
    next_timer_s: float | None = None
    target_errors: dict[str, str] = {}

    def add_work(self, checkpoint: Checkpoint, now: float, errors: Mapping[str, str]) -> None:
        """Add pending effects and timers. ``errors`` are the last errors of targets that fail."""
        if checkpoint.effects:
            oldest = min(checkpoint.effects, key=lambda effect: effect.at)
            self.pending_effects = len(checkpoint.effects)
            self.oldest_effect_s, self.oldest_target = now - oldest.at, redact(oldest.target)
            targets = {redact(effect.target) for effect in checkpoint.effects}
            self.target_errors = {name: error for name, error in errors.items() if name in targets}
        if checkpoint.timers:
            timer = min(checkpoint.timers, key=lambda timer: timer.at)
            self.next_timer, self.next_timer_s = timer.name, timer.at - now

    @property
    def sentences(self) -> list[str]:
        """The waits and the work of the stream, and why it stays, in sentences."""
        found = []
        if self.waits:
            so_far = f"; it has waited for {duration(self.waits_s)}" if self.waits_s is not None else ""
            found.append(self.waits + so_far)
        if self.runs:
            found.append(self.runs)
        if self.archive:
            found.append(f"its archive fails, so committed messages stay in the queue: {self.archive}")
        return [*found, *self.to_do, *self.reasons]

    @property
    def to_do(self) -> list[str]:
        """Its pending effects and its next timer, in sentences."""
        found = []
        if self.oldest_effect_s is not None:
            target = self.oldest_target or "the dead letters"
            if error := self.target_errors.get(self.oldest_target):
                target += f", whose last error is {error!r}"
            age = duration(self.oldest_effect_s)
            are = "is" if self.pending_effects == 1 else "are"
            found.append(
                f"{counted(self.pending_effects, 'effect')} {are} pending, the oldest for {age},"
                f" for {target}: `holdfast streams effects {self.key}` lists them"
            )
        if self.next_timer_s is not None:
            due = f"in {duration(self.next_timer_s)}" if self.next_timer_s > 0 else "now"
            found.append(f"its next timer is {self.next_timer!r}, due {due}")
        return found


async def explain(services: Services, key: str) -> Why:
    """Explain the stream ``STREAM/KEY``, or the one with this plain key. Raises OperationRefused if there
    is no such stream, or more than one."""
    members = await services.coordinator().members()
    key = await _full_key(services, members, key)
    claim = await services.coordinator().lookup(key)
    owner = next((member for member in members if claim is not None and member.id == claim.member), None)
    checkpoint = await services.state().peek(key) or Checkpoint(key)
    found = Why(key, "", checkpoint.epoch, None, 0.0, 0.0, 0.0, [], parked=checkpoint.parked)
    errors = await target_errors(services) if checkpoint.effects else {}
    found.add_work(checkpoint, services.clock.wall(), errors)
    if checkpoint.log is not None:
        found.run, found.seq = checkpoint.log.run, checkpoint.log.last
    if owner is not None and owner.foreign:
        found.node = owner.name
        found.reasons = ["another program owns it, and isn't asked: its messages go back to the queue"]
    elif owner is not None:
        await _add_owner(services, members, owner, found)
    elif checkpoint.parked:
        found.waits = f"parked: {checkpoint.parked}"
    else:
        await _add_nodes(services, members, found)
    return found


async def _add_nodes(services: Services, members: list[Member], found: Why) -> None:
    """Add to ``found`` why no node owns the stream."""
    reports = await node_reports(services, members)
    for waits in (waits for report in reports.values() for waits in report.waits):
        if waits.key == found.key and waits.kind == "room":
            found.waits, found.waits_s = waits.sentence, waits.since_s
    stream = found.key.partition("/")[0]
    if choose(found.key, members) is not None:
        reason = "and none of its messages waits at a node; the next message places it"
    else:
        reason = f"and none would take it: {shortage(found.key, members)}"
    lacks = [
        f"{name} can't run {stream}: {report.lacks[stream]}"
        for name, report in reports.items()
        if stream in report.lacks
    ]
    found.reasons = [f"no node owns it, {reason}", *lacks]


async def _add_owner(services: Services, members: list[Member], owner: Member, found: Why) -> None:
    """Add to ``found`` the report of the owner, and why the loads of nodes leave the stream there."""
    known = [node_load(member) for member in members if not (member.load.draining or member.foreign)]
    capacity = sum(node.capacity for node in known) or 1.0
    here = node_load(owner)
    found.node, found.node_load = owner.name, here.load
    found.mean_load = sum(node.load for node in known) / capacity * here.capacity
    request = Explain(owner.id, found.key.partition("/")[0], found.key)
    try:
        answer = await ask(services, owner, request, services.config.peer_timeout_s)
        with reading(f"the report of {owner.name} about {found.key}"):
            report = msgspec.json.decode(answer, type=StreamReport)
    except (OperationRefused, Unavailable, OutcomeUnknown) as error:
        found.reasons = [f"its node doesn't report on it: {error}"]
        return
    found.here_s, found.busy = report.here_s, report.busy
    if report.waits is not None:
        found.waits = report.waits.sentence
        found.waits_s = report.waits.since_s if report.waits.kind != "parked" else None
    found.runs = report.runs.sentence if report.runs is not None else ""
    found.archive = report.archive
    found.reasons = reasons(found, report.rests_s, len(known))


async def _full_key(services: Services, members: list[Member], key: str) -> str:
    """Return the full key of a full or plain key. Raises OperationRefused for no stream or several."""
    if await services.coordinator().lookup(key) or await services.state().peek(key):
        return key
    claims = await services.coordinator().claims()
    known = {claim.key for claim in of_streams(claims)}
    known |= {point.key for point in await all_checkpoints(services.state())}
    reports = await node_reports(services, members)
    known |= {waits.key for report in reports.values() for waits in report.waits}
    if key in known:
        return key
    meant = sorted(full for full in known if full.partition("/")[2] == key)
    if len(meant) == 1:
        return meant[0]
    if meant:
        raise OperationRefused(f"several streams have the key {key!r}: give one of {', '.join(meant)}")
    near = difflib.get_close_matches(key, known, 3)
    hint = f"; did you mean {' or '.join(near)}?" if near else ""
    raise NotKnown(f"no stream {key!r} is known: no node owns it, and nothing of it was committed{hint}")


def reasons(found: Why, rests_s: float, nodes: int) -> list[str]:
    """Return in sentences why the stream isn't moved to another node, or that it may be."""
    excess = found.node_load - found.mean_load
    some = []
    if nodes < 2:
        some.append("there is no other node")
    if rests_s > 0:
        some.append(f"it came lately and rests for another {duration(rests_s)} (rest_s)")
    if excess <= BAND * found.mean_load:
        some.append(f"its node isn't overloaded: at most {BAND:.0%} over the mean")
    elif found.busy > excess:
        some.append("its load is more than its node has over the mean: moving it would overload another")
    return some or ["the balancer may move it in its next round, if it is the cheapest for its load"]
