"""What must hold, checked over everything that the services saw."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from typing import Any

from holdfast.common.message import Place
from holdfast.ports.coordinator import Change
from holdfast.ports.queue import DeadLetter
from holdfast.rules.streams.ledger import RunLog
from holdfast.services.memory.queue import QueueEvent
from holdfast.services.memory.state import CommitRecord, LossRecord, OpenRecord
from simulator.handler import START, link
from simulator.scenario import FAR, STREAM, PlannedMessage
from simulator.world import World, body_of

CALLS_A_MESSAGE_MAX = 400
CALLS_A_NODE_SECOND_MAX = 40


class Streams:
    """What accepted commits say, as the history is read; and what they said that the store has forgotten."""

    def __init__(self) -> None:
        self.issued: dict[str, int] = {}
        self.applied: list[OpenRecord | CommitRecord] = []
        self.handled: dict[str, list[tuple[str, Any]]] = defaultdict(list)
        self.names: dict[str, set[str]] = defaultdict(set)
        self.aside: dict[str, dict[str, str]] = defaultdict(dict)
        self.asides_log: dict[tuple[str, str], RunLog | None] = {}
        """By key and name of what a commit set aside: where the stream stood then."""
        self.forgotten: dict[str, list[tuple[str, Any]]] = defaultdict(list)
        self.logs: dict[str, RunLog | None] = {}
        self.buried: set[str] = set()
        self.copies: Counter[str] = Counter()
        """Messages in the queue, by identity: a reissued one has two for a while."""
        self.repeats: set[bytes] = set()
        """Bodies of messages that bring the very seq at which a store stands that has lost the later ones."""


def check(world: World, unfinished: str) -> list[str]:
    """Every violation found, in words."""
    wrong = [f"{name} failed: {error!r}" for name, error in world.failures]
    wrong += world.coordinator.violations
    if unfinished:
        wrong.append(unfinished)
    streams = Streams()
    streams.repeats |= seem_repeated(world)
    for event in world.log:
        if isinstance(event, OpenRecord):
            wrong += _opened(event, streams)
        elif isinstance(event, CommitRecord):
            wrong += _committed(event, streams)
        elif isinstance(event, LossRecord):
            _forgot(event, streams)
        elif isinstance(event, QueueEvent):
            if event.kind == "sent":
                streams.copies[identity(world, event)] += 1
            wrong += _queued(world, event, streams)
    for key, handled in streams.handled.items():
        wrong += _chain(world, key, handled, streams.forgotten[key])
    wrong += _answers(world, streams)
    wrong += _lapses(world)
    wrong += _all_told(world, streams, unfinished)
    wrong += _hot(world)
    return wrong


def _opened(event: OpenRecord, streams: Streams) -> list[str]:
    if event.after is None:
        return []
    streams.applied.append(event)
    stood = event.before.epoch if event.before else 0
    issued = streams.issued.get(event.key, 0)
    streams.issued[event.key] = event.after.epoch
    if event.expect != stood or event.after.epoch != issued + 1:
        return [f"{event.key}: open({event.expect}) at epoch {stood} gave {event.after.epoch} after {issued}"]
    return []


def _committed(event: CommitRecord, streams: Streams) -> list[str]:
    if event.after is None or event.repeated:
        return []
    streams.applied.append(event)
    commit, wrong = event.commit, []
    stood, number = (event.before.epoch, event.before.number) if event.before else (0, 0)
    if commit.epoch < stood:
        wrong.append(
            f"{commit.key}: a commit of epoch {commit.epoch} was accepted below the last opened epoch"
        )
    if commit.number != number + 1:
        wrong.append(f"{commit.key}: commit {commit.number} was accepted out of turn")
    if commit.log is not None and commit.log.seq >= FAR:
        wrong.append(f"{commit.key}: all before seq {commit.log.seq} was skipped for a mistaken number")
    streams.logs[commit.key] = commit.log
    for result in commit.results:
        if any(name == result.name for name, _ in streams.handled[commit.key]):
            wrong.append(f"{commit.key}:{result.name} was committed twice")
        streams.names[commit.key].add(result.name)
        streams.handled[commit.key].append((result.name, json.loads(result.body)))
    for aside in commit.aside:
        streams.aside[commit.key][aside.name] = aside.reason
        streams.asides_log[commit.key, aside.name] = event.after.log
    return wrong


def _forgot(event: LossRecord, streams: Streams) -> None:
    """The store's last writes never were. What followed from them was right when it was done."""
    while streams.applied and streams.applied[-1].at >= event.since:
        undone = streams.applied.pop()
        if isinstance(undone, CommitRecord):
            key, count = undone.commit.key, len(undone.commit.results)
            streams.logs[key] = undone.before.log if undone.before else None
            if count:
                streams.forgotten[key] += streams.handled[key][-count:]
                del streams.handled[key][-count:]


def seem_repeated(world: World) -> set[bytes]:
    """Bodies of messages of a later run that nobody can tell from a repeat: each brings the very seq at which
    a store stands that has lost what came after it."""
    if not (world.rewound and world.scenario.restarts):
        return set()
    applied: list[CommitRecord] = []
    stood: set[tuple[str, int]] = set()
    for event in world.log:
        if isinstance(event, CommitRecord) and event.after is not None and not event.repeated:
            applied.append(event)
        elif isinstance(event, LossRecord):
            logs: dict[str, RunLog | None] = {}
            while applied and applied[-1].at >= event.since:
                undone = applied.pop()
                logs[undone.commit.key] = undone.before.log if undone.before else None
            stood |= {(key, log.seq) for key, log in logs.items() if log is not None}
    return {
        body_of(planned)
        for planned in world.scenario.messages
        if planned.run and (f"{STREAM}/{planned.key}", planned.seq) in stood
    }


def _queued(world: World, event: QueueEvent, streams: Streams) -> list[str]:
    if event.kind == "deleted":
        deleted = identity(world, event)
        key, _, name = deleted.partition(":")
        streams.copies[deleted] -= 1
        covered = name in streams.names[key] or name in streams.aside[key]
        log, seq = streams.logs.get(key), world.plan_by_body[event.body].seq
        if world.rewound and world.scenario.restarts and log is not None and seq == log.seq:
            streams.repeats.add(event.body)  # it can't be told from a repeat
        covered = covered or event.body in streams.repeats
        if not covered and not streams.copies[deleted]:
            return [f"{deleted} was deleted before a commit covered it"]
    if event.kind == "buried" and event.letter is not None:
        letter = event.letter
        key, _, name = letter.id.partition(":")
        if name not in streams.aside[key] and not _passed_over(streams.logs.get(key), letter):
            return [f"{letter.id} was dead-lettered before a commit named it"]
        planned = world.plan_by_body[letter.body]
        again = letter.id in streams.buried  # a late copy of one that was set aside before changes nothing
        streams.buried.add(letter.id)
        if again:
            return []
        if letter.reason.startswith("poison") and not planned.kills:
            return [f"{letter.id} kills nothing and was dead-lettered: {letter.reason}"]
        if planned.healthy and not _excused(world, streams, letter, planned):
            return [f"{letter.id} was healthy and dead-lettered: {letter.reason}"]
    return []


def _passed_over(log: RunLog | None, letter: DeadLetter) -> bool:
    """True if a commit recorded the letter's seq as one that never came."""
    return log is not None and letter.run == log.run and letter.seq.isdigit() and log.skipped(int(letter.seq))


def identity(world: World, event: QueueEvent) -> str:
    """Return the identity of the message in the queue: full key and place."""
    planned = world.plan_by_body[event.body]
    place = Place(planned.run, planned.seq)
    if world.scenario.fifo:
        place = Place(planned.run, int(event.id.removeprefix("m")))
    elif world.scenario.kind == "absent":
        place = Place(planned.run, 0, event.attributes.get("id", event.id))
    return f"{STREAM}/{planned.key}:{place.name}"


def _excused(world: World, streams: Streams, letter: DeadLetter, planned: PlannedMessage) -> bool:
    """A stream that is paused sets aside what finds no room, and gets it back. A message may have spent its
    tries with slots that the scenario killed. Beyond that only an order that can't be kept is a reason to set
    a healthy message aside; or that the store has forgotten that the message was handled, so that a late copy
    of it looks like one that never was."""
    if letter.reason.startswith(("slot", "ValueError")):
        return _are_tries_spent(world, planned)
    if not letter.reason.startswith("late"):
        return letter.reason.startswith("parked: paused")
    key, _, name = letter.id.partition(":")
    forgotten = any(name == handled for handled, _ in streams.forgotten[key])
    return forgotten or (_may_be_late(world) and is_late(streams, key, letter))


def _are_tries_spent(world: World, planned: PlannedMessage) -> bool:
    kills = sum(fault.kind == "slot" for fault in (*world.scenario.faults, *world.scenario.faults_again))
    return kills + planned.fails >= world.scenario.max_tries


def _may_be_late(world: World) -> bool:
    """Where a stream begins at whatever comes first, or goes by an order that this queue does not keep, or
    may meet a later run before an earlier one, a message may rightly come too late."""
    if world.scenario.fifo:
        return False
    if world.scenario.restarts:
        return False
    runs = any(planned.run for planned in world.scenario.messages)
    return runs or world.scenario.first == "first" or world.scenario.kind == "increasing"


def is_late(streams: Streams, key: str, letter: DeadLetter) -> bool:
    """True if the stream had passed the place of the letter's message when it was set aside."""
    log = streams.asides_log.get((key, letter.id.partition(":")[2]))
    return log is not None and (letter.run, int(letter.seq)) <= (log.run, log.seq)


def _chain(
    world: World, key: str, handled: list[tuple[str, Any]], forgotten: list[tuple[str, Any]]
) -> list[str]:
    """Results must chain: each was computed from the state that the one before left. The first may go on
    from one that the store has forgotten: its owner knew the state."""
    wrong: list[str] = []
    chain = START
    if handled and handled[0][1]["before"] in [result["after"] for _, result in forgotten]:
        chain = handled[0][1]["before"]
    last: tuple[int, Any] = (-1, None)
    for name, result in handled:
        if result["before"] != chain or result["after"] != link(chain, result["run"], result["seq"]):
            wrong.append(f"{key}:{name} was not computed from the state before it")
        chain = result["after"]
        place = (result["run"], name if world.scenario.fifo else result["seq"])
        if (world.scenario.kind != "absent" or world.scenario.in_order) and place <= last:
            wrong.append(f"{key}:{name} was committed after {last}")
        last = place
    return wrong


def _all_told(world: World, streams: Streams, unfinished: str) -> list[str]:
    """Every message sent ended in a result, or was set aside and lies with the dead letters."""
    if unfinished:
        return []
    wrong: list[str] = []
    letters = {letter.body for letter in world.queue.letters.values()}
    ever = [*streams.handled.items(), *streams.forgotten.items()]
    bodies = {json.dumps([key, r["run"], r["seq"]]) for key, rs in ever for _, r in rs}
    for planned in world.scenario.messages:
        key = f"{STREAM}/{planned.key}"
        told = json.dumps([key, planned.run, planned.seq]) in bodies
        if not told and body_of(planned) not in letters | streams.repeats:
            wrong.append(f"{key}: run {planned.run} seq {planned.seq} is lost")
    return wrong


def _answers(world: World, streams: Streams) -> list[str]:
    """What a client was told is what was committed for its message; or that it is done, if the store has
    forgotten what was."""
    wrong: list[str] = []
    for planned, answer in world.answers.items():
        key = f"{STREAM}/{planned.key}"
        told = json.loads(answer) if answer is not None else None
        said = streams.handled[key], streams.forgotten[key]
        mine, lost = (
            [r for _, r in some if (r["run"], r["seq"]) == (planned.run, planned.seq)] for some in said
        )
        forgot = world.rewound and world.scenario.restarts
        if forgot and told and told["seq"] == planned.seq and told["run"] < planned.run:  # taken for a repeat
            streams.repeats.add(body_of(planned))
            continue
        if [told] != mine and not (lost and told in (None, *lost)):
            wrong.append(
                f"{key}: a client of run {planned.run} seq {planned.seq} was told {told}, not {mine}"
            )
    return wrong


def _lost_commits(world: World) -> list[tuple[float, set[str]]]:
    """Return when the store forgot commits, and the keys of these."""
    records = [event for event in world.log if isinstance(event, CommitRecord)]
    return [
        (event.at, {record.commit.key for record in records if event.since <= record.at <= event.at})
        for event in world.log
        if isinstance(event, LossRecord)
    ]


def _lapses(world: World) -> list[str]:
    """What a healthy node received never shows again by itself: it, or who it forwarded to, keeps it alive,
    whatever becomes of the owner. Only an owner that has accepted it and is cut off from the queue can't. And
    where a FIFO queue told which message comes before it, and the store has forgotten that this one is done
    with, it is left to the queue to say so again."""
    wrong: list[str] = []
    owners: dict[str, list[str]] = defaultdict(lambda: [""])
    last: dict[str, tuple[QueueEvent, int]] = {}
    """By message, and how many owners its key had had before the one of that time."""
    lost = _lost_commits(world) if world.scenario.fifo else []
    for event in world.log:
        if isinstance(event, Change) and event.claim is not None:
            owners[event.claim.key].append(event.claim.member)
        if not isinstance(event, QueueEvent) or event.kind in ("extended", "stale"):
            continue
        key = f"{STREAM}/{world.plan_by_body[event.body].key}"
        before, since = last.get(event.id, (None, 0))
        if event.kind == "received" and before is not None and before.kind == "received":
            node = before.holder.rpartition(".")[0]
            forgotten = any(at <= event.at and (before.at <= at or key in keys) for at, keys in lost)
            cut_off = any(
                fault.kind == "cut"
                and fault.detail == "queue"
                and any(owner.startswith(f"n{fault.node}.") for owner in owners[key][since:])
                and fault.at_s <= event.at
                and before.at <= fault.at_s + fault.for_s
                for fault in world.scenario.faults
            )
            troubled = forgotten or cut_off or world.was_troubled(node, before.at, event.at)
            if not troubled and event.receipt not in world.doubled:
                wrong.append(
                    f"{event.body.decode()} lapsed at {event.at:.1f}, received by the healthy {node}"
                )
        last[event.id] = event, len(owners[key]) - 1
    return wrong


def _hot(world: World) -> list[str]:
    """Nobody calls in circles once the world is well."""
    seconds = world.seconds_after_healing
    most = CALLS_A_MESSAGE_MAX * len(world.scenario.messages) + CALLS_A_NODE_SECOND_MAX * seconds * len(
        world.nodes
    )
    if world.calls_made > most:
        return [f"{world.calls_made} calls in {seconds:.0f} s after healing: a hot loop"]
    return []
