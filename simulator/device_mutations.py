"""The protections of devices that can be switched off, one at a time. See ``simulator.mutations``.

Each replaces a public name: of the rules, of the rows in memory, or of the dispatcher's parts.
"""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple
from unittest import mock

import msgspec

from holdfast.devices.dispatcher import limits, pending
from holdfast.devices.dispatcher.limits import InFlight
from holdfast.devices.dispatcher.pending import RecentWrite
from holdfast.devices.dispatcher.shard import ServedShard
from holdfast.devices.rules import device_queue, device_turn, group_rate
from holdfast.devices.rules.device_queue import HeadPhase, Patience
from holdfast.devices.rules.device_turn import TurnRequest
from holdfast.devices.rules.group_rate import GroupRate
from holdfast.devices.rules.presence import Presence
from holdfast.devices.services.memory import outbox as memory_outbox
from holdfast.devices.services.memory.outbox import MemoryOutbox, MemoryRows
from holdfast.devices.spec import OutboxSpec


class DeviceMutation(NamedTuple):
    """One protection: its text, where it is, its replacement that lacks it, and within how many seeds
    the simulator must notice."""

    says: str
    where: Any
    name: str
    instead: Any
    seeds: int = 300


take_turn, judge = device_turn.take_turn, device_queue.judge
heads, first, arrivals = MemoryRows.heads, MemoryRows.next_commands, MemoryRows.arrivals
report = MemoryOutbox.report
identities = itertools.count()


def _take_at_any_epoch(rows: Any, request: TurnRequest, random: Any) -> Any:
    with mock.patch.object(MemoryRows, "epochs", return_value=dict(request.grants)):
        return take_turn(rows, request, random)


def _take_without_still_out(rows: Any, request: TurnRequest, random: Any) -> Any:
    return take_turn(rows, msgspec.structs.replace(request, still_out=()), random)


def _judge_without(**known: Any) -> Any:
    """Judges commands as if their expiry, or the tries that they have spent, were these."""

    def judged(entry: Any, phase: Any, now: float, *, away: bool, patience: Any, paused: bool = False) -> Any:
        entry = msgspec.structs.replace(entry, **known)
        return judge(entry, phase, now, away=away, patience=patience, paused=paused)

    return judged


def _judge_as_there(
    entry: Any, phase: Any, now: float, *, away: bool, patience: Any, paused: bool = False
) -> Any:
    return judge(entry, phase, now, away=False, patience=patience, paused=paused)


def _judge_as_resumed(
    entry: Any, phase: Any, now: float, *, away: bool, patience: Any, paused: bool = False
) -> Any:
    return judge(entry, phase, now, away=away, patience=patience)


def _fits_any_try(entry: Any, device: str, correlation: Any) -> bool:
    return bool(entry.state == "published" and entry.device == device)


def _heads_in_wait(self: MemoryRows, pairs: Any) -> Any:
    found = heads(self, pairs)
    return {pair: msgspec.structs.replace(head, phase=HeadPhase.WAITING) for pair, head in found.items()}


def _newest_first(self: MemoryRows, pairs: Any, now: float) -> Any:
    found = dict(first(self, pairs, now))
    for entry in self.scheduled():
        if entry.pair in found and entry.not_before <= now:
            found[entry.pair] = entry
    return found


def _report_before(self: MemoryOutbox, transaction: Any, entry: Any, on_result: Any) -> None:
    del transaction.tables.untold[entry.id]
    on_result(transaction, entry)


def _report_once(self: MemoryOutbox, transaction: Any, entry: Any, on_result: Any) -> None:
    report(self, transaction, entry, on_result)
    transaction.tables.untold.pop(entry.id, None)


def _count_none_out(self: InFlight, result: Any) -> None:
    self.count = 0


def _send_on(self: ServedShard, monotonic: float, late_s: float) -> bool:
    return self.connected and self.sends_from <= monotonic


RULES: dict[str, DeviceMutation] = {
    "device-epoch": DeviceMutation(
        "a turn names the current epochs", device_turn, "take_turn", _take_at_any_epoch
    ),
    "device-takeover": DeviceMutation(
        "owners of the same devices share a client id, so that the later cuts off the earlier",
        OutboxSpec,
        "identity",
        lambda self, shard: f"holdfast-{shard}-{next(identities)}",
        seeds=1500,
    ),
    "device-one-at-once": DeviceMutation(
        "a device that is waited for gets nothing new", MemoryRows, "heads", _heads_in_wait
    ),
    "device-order": DeviceMutation(
        "a device's commands go in their order", MemoryRows, "next_commands", _newest_first
    ),
    "device-arrival": DeviceMutation(
        "an addition reaches its head",
        MemoryRows,
        "arrivals",
        lambda self, shards, limit: arrivals(self, shards, limit)[1:],
    ),
    "device-supersede": DeviceMutation(
        "a command that a newer one of its key has replaced isn't sent, nor is it when it is retried",
        device_queue,
        "replaces",
        lambda newer, entry: False,
    ),
    "device-one-try": DeviceMutation(
        "an answer fits a try of its own command", device_queue, "fits", _fits_any_try
    ),
    "device-late-answer": DeviceMutation(
        "an answer to an earlier try counts",
        device_queue,
        "answers",
        lambda entry, device, correlation: False,
    ),
    "device-last-try": DeviceMutation(
        "a device that answered an earlier try is given time for the last one",
        device_queue,
        "has_last_try",
        lambda head: False,
    ),
    "device-cancel": DeviceMutation(
        "a cancelled command isn't sent", MemoryRows, "matching_cancels", lambda self, cancels, limit: []
    ),
    "device-pause": DeviceMutation(
        "nothing goes to a device that is paused", device_queue, "judge", _judge_as_resumed
    ),
    "device-expiry": DeviceMutation(
        "an expired command isn't sent", device_queue, "judge", _judge_without(expires_at=None)
    ),
    "device-tries": DeviceMutation("tries are counted", device_queue, "judge", _judge_without(spent=0)),
    "device-retry": DeviceMutation(
        "an answer is waited for",
        Patience,
        "interval_s",
        lambda self, spent, random, answers_after_s=0.0: 0.5,
    ),
    "device-late": DeviceMutation("a try that is late isn't sent", Patience, "late_s", 99.0),
    "device-confirmed": DeviceMutation(
        "nothing is sent on a line that stalls", ServedShard, "is_sendable", _send_on
    ),
    "device-still-out": DeviceMutation(
        "the answer to a try is waited for from when it may have come",
        device_turn,
        "take_turn",
        _take_without_still_out,
    ),
    "device-forgotten": DeviceMutation(
        "a try that a crash of the database undoes is known to be out", pending, "FORGOTTEN_S", -1.0
    ),
    "device-put-off-forgotten": DeviceMutation(
        "a try that a crash of the database undoes is waited for again",
        pending,
        "RecentWrite",
        lambda at, sent, still_out, fresh: RecentWrite(at, sent, [], []),
    ),
    "device-fresh": DeviceMutation(
        "tries of an earlier owner are given their time",
        MemoryRows,
        "postpone",
        lambda self, shards, until: None,
        seeds=1500,
    ),
    "device-away": DeviceMutation(
        "a device that is away is only probed", device_queue, "judge", _judge_as_there
    ),
    "device-presence": DeviceMutation(
        "a device that gives no sign of life is away", Presence, "settle", lambda self, now: None
    ),
    "device-clock": DeviceMutation(
        "due times follow the clock", MemoryRows, "shift", lambda self, shards, by_s: None
    ),
    "device-business-clock": DeviceMutation(
        "times follow the database's clock, whatever the business's shows",
        memory_outbox,
        "on_store_clock",
        lambda command, now: command,
    ),
    "device-in-flight": DeviceMutation(
        "a node waits for at most its limit of devices", InFlight, "add", _count_none_out
    ),
    "device-freed": DeviceMutation(
        "an answer frees only a device that is waited for",
        device_queue,
        "is_out",
        lambda head: True,
    ),
    "device-rate": DeviceMutation("a node keeps to its rate", limits, "BURST_S", 99.0),
    "device-group": DeviceMutation(
        "a group keeps to its rate", GroupRate, "wait_until", lambda self, pair, now: 0.0
    ),
    "device-burst": DeviceMutation(
        "a group's rate has no burst of a second", group_rate, "BURST_S", 1.0, seeds=400
    ),
    "device-result": DeviceMutation(
        "a result is reported in the transaction that closes", MemoryOutbox, "report", _report_before
    ),
    "device-told-again": DeviceMutation(
        "a result that the program failed to take is reported again", MemoryOutbox, "report", _report_once
    ),
}
