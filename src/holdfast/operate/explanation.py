"""The explanation of a stream: which node owns it, what it waits for, and why it isn't moving."""

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
    """The report of a stream by its owner, as far as ``why`` needs it."""

    busy: float
    here_s: float
    rests_s: float
    parked: str
    waits: StreamWait | None = None
    runs: SlotWork | None = None
    archive: str = ""


class Why(msgspec.Struct):
    """The node of a stream, what the stream waits for, and why it stays there. Loads are in busy slots.
    ``node`` is empty where nobody owns it, and ``here_s`` null where its node tells nothing of it. ``waits``
    is empty where it waits for nothing, ``runs`` where no handler is at work for it, and ``archive`` where
    its archive takes what is committed. ``target_errors`` has the last errors of targets of its effects that
    take nothing at present."""

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

    def has(self, checkpoint: Checkpoint, now: float, errors: Mapping[str, str]) -> None:
        """Note what the stream has to do though no message comes. ``errors`` are the last ones of targets
        that take nothing."""
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
        """Sentences about what it waits for, what it does, and why it stays."""
        said = []
        if self.waits:
            so_far = f"; it has waited for {duration(self.waits_s)}" if self.waits_s is not None else ""
            said.append(self.waits + so_far)
        if self.runs:
            said.append(self.runs)
        if self.archive:
            said.append(f"its archive takes nothing, so committed messages stay in the queue: {self.archive}")
        return [*said, *self.to_do, *self.reasons]

    @property
    def to_do(self) -> list[str]:
        """Sentences about what it has to do though no message comes."""
        said = []
        if self.oldest_effect_s is not None:
            target = self.oldest_target or "the dead letters"
            if error := self.target_errors.get(self.oldest_target):
                target += f", whose last error is {error!r}"
            age = duration(self.oldest_effect_s)
            are = "is" if self.pending_effects == 1 else "are"
            said.append(
                f"{counted(self.pending_effects, 'effect')} {are} pending, the oldest for {age},"
                f" for {target}: `holdfast streams effects {self.key}` lists them"
            )
        if self.next_timer_s is not None:
            due = f"in {duration(self.next_timer_s)}" if self.next_timer_s > 0 else "now"
            said.append(f"its next timer is {self.next_timer!r}, due {due}")
        return said


async def explain(services: Services, key: str) -> Why:
    """Tell of the stream ``STREAM/KEY``, or of the one that has this plain key. Raises OperationRefused where
    nothing is known of it, or of more than one."""
    members = await services.coordinator().members()
    key = await _full_key(services, members, key)
    claim = await services.coordinator().lookup(key)
    owner = next((member for member in members if claim is not None and member.id == claim.member), None)
    checkpoint = await services.state().peek(key) or Checkpoint(key)
    found = Why(key, "", checkpoint.epoch, None, 0.0, 0.0, 0.0, [], parked=checkpoint.parked)
    errors = await target_errors(services) if checkpoint.effects else {}
    found.has(checkpoint, services.clock.wall(), errors)
    if checkpoint.log is not None:
        found.run, found.seq = checkpoint.log.run, checkpoint.log.last
    if owner is not None and owner.foreign:
        found.node = owner.name
        found.reasons = ["another program owns it, which isn't asked: messages go back to the queue for it"]
    elif owner is not None:
        await _look_at_owner(services, members, owner, found)
    elif checkpoint.parked:
        found.waits = f"parked: {checkpoint.parked}"
    else:
        await _look_at_nodes(services, members, found)
    return found


async def _look_at_nodes(services: Services, members: list[Member], found: Why) -> None:
    """Note in ``found`` why no node owns the stream."""
    reports = await node_reports(services, members)
    for waits in (waits for report in reports.values() for waits in report.waits):
        if waits.key == found.key and waits.kind == "room":
            found.waits, found.waits_s = waits.sentence, waits.since_s
    stream = found.key.partition("/")[0]
    if choose(found.key, members) is not None:
        reason = "as nothing of it waits at a node; the next message places it"
    else:
        reason = f"and none would take it: {shortage(found.key, members)}"
    lacks = [
        f"{name} can't run {stream}: {report.lacks[stream]}"
        for name, report in reports.items()
        if stream in report.lacks
    ]
    found.reasons = [f"no node owns it, {reason}", *lacks]


async def _look_at_owner(services: Services, members: list[Member], owner: Member, found: Why) -> None:
    """Note in ``found`` what the owner tells, if it does, and what the loads of nodes say to the stream's
    staying there."""
    known = [node_load(member) for member in members if not (member.load.draining or member.foreign)]
    capacity = sum(node.capacity for node in known) or 1.0
    here = node_load(owner)
    found.node, found.node_load = owner.name, here.load
    found.mean_load = sum(node.load for node in known) / capacity * here.capacity
    request = Explain(owner.id, found.key.partition("/")[0], found.key)
    try:
        answer = await ask(services, owner, request, services.config.peer_timeout_s)
        with reading(f"what {owner.name} tells of {found.key}"):
            told = msgspec.json.decode(answer, type=StreamReport)
    except (OperationRefused, Unavailable, OutcomeUnknown) as error:
        found.reasons = [f"its node tells nothing of it: {error}"]
        return
    found.here_s, found.busy = told.here_s, told.busy
    if told.waits is not None:
        found.waits = told.waits.sentence
        found.waits_s = told.waits.since_s if told.waits.kind != "parked" else None
    found.runs = told.runs.sentence if told.runs is not None else ""
    found.archive = told.archive
    found.reasons = reasons(found, told.rests_s, len(known))


async def _full_key(services: Services, members: list[Member], key: str) -> str:
    """The full key that is meant. Raises OperationRefused where nothing is known of it, or of more than
    one."""
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
        raise OperationRefused(f"several streams have the key {key!r}: say which of {', '.join(meant)}")
    near = difflib.get_close_matches(key, known, 3)
    hint = f"; did you mean {' or '.join(near)}?" if near else ""
    raise NotKnown(
        f"nothing is known of {key!r}: no node owns such a stream, and nothing of it was committed{hint}"
    )


def reasons(found: Why, rests_s: float, nodes: int) -> list[str]:
    """Return why the stream isn't moved to another node, or that it may be, in sentences."""
    said = []
    excess = found.node_load - found.mean_load
    if nodes < 2:
        said.append("there is no other node")
    if rests_s > 0:
        said.append(f"it came lately and rests for another {duration(rests_s)} (rest_s)")
    if excess <= BAND * found.mean_load:
        said.append(f"its node is not hot: no more than {BAND:.0%} over the mean")
    elif found.busy > excess:
        said.append("it is hotter than all that its node has over the mean: moving it would heat another")
    if not said:
        said.append("it may be moved at the next round of the balancer, if it is the cheapest for its load")
    return said
