"""The outboxes of one database for operators: for pages, the API and the command line."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

import msgspec

from holdfast.devices.ports.outbox import DeviceStatus, OutboxStore
from holdfast.devices.rules.device_queue import NUMBER_MAX, CommandState, HeadPhase, StoredCommand
from holdfast.devices.rules.device_turn import Rollout
from holdfast.devices.rules.topics import check_device
from holdfast.errors import InvalidMessage, NotKnown, OperationRefused

if TYPE_CHECKING:
    from holdfast.extend.products import Services

PAUSE_ACTION, RESUME_ACTION = "pause an outbox", "resume an outbox"
RETRY_ACTION, CANCEL_ACTION, CANCEL_ALL_ACTION = "send a command again", "cancel a command", "cancel commands"
ABORT_ACTION, ADD_ACTION = "abort a rollout", "add commands"
"""The names of changes in the audit log, for pages, the API and the command line."""

ROLLOUTS_MAX = 1000
"""The newest rollouts that a view has, at most."""

DIGITS_MAX = 19
READ_AT_ONCE = 500

STALE_S = 120.0
"""Seconds of silence after which a device counts as stale, unless chosen otherwise."""

DeviceFilter = Literal["all", "away", "stuck"]
"""A choice of devices: all; ``away``: paused, away, stale or never seen; ``stuck``: with commands that aren't
sent or answered."""


class Reachability(enum.StrEnum):
    """The reachability of a device, as far as it is known."""

    THERE = "there"
    PAUSED = "paused"
    AWAY = "away"
    STALE = "stale"
    UNSEEN = "never seen"


class DeviceRecord(msgspec.Struct):
    """A device. ``doing`` has the phases of its lanes that aren't idle, and ``waiting`` counts its open
    commands, up to a thousand. ``stuck`` is why they aren't sent, or that one wasn't answered; empty if they
    go on. ``seen_at`` is a wall time in seconds."""

    device: str
    standing: Reachability
    seen_at: float | None
    waiting: int
    doing: list[HeadPhase]
    stuck: str
    shard: int


class CommandRecord(msgspec.Struct):
    """A command without its body and answer. Times are wall times in seconds."""

    id: int
    device: str
    lane: int
    shard: int
    state: CommandState
    priority: int
    not_before: float
    expires_at: float | None
    tries: int
    spent: int
    epoch: int
    dedupe_key: str | None
    supersede_key: str | None
    trace_id: str
    rollout: int | None
    created_at: float
    published_at: float | None
    closed_at: float | None
    reason: str
    traceparent: str
    spoilt: str


class OutboxView(msgspec.Struct):
    """An outbox: its commands by state, its newest rollouts in order of their ids, since when it is paused,
    and its paused devices."""

    outbox: str
    commands: Mapping[CommandState, int]
    rollouts: list[Rollout]
    paused_since: float | None
    paused_devices: dict[str, float]


class DevicePage(NamedTuple):
    """Devices in order. ``next`` is the device after which the next page begins; empty on the last page."""

    devices: list[DeviceRecord]
    next: str


class Outboxes:
    """The outboxes of one database. All methods raise the errors of its store, and NotKnown for an unknown
    outbox, device or command."""

    def __init__(self, store: OutboxStore) -> None:
        self.store = store

    @classmethod
    def of(cls, services: Services) -> Outboxes:
        """Return the outboxes of ``outbox_url``. Raises ConfigError if it isn't set."""
        from holdfast.devices.adapters import shared_outbox  # noqa: PLC0415 - a page of help needs no database

        return cls(shared_outbox(services))

    async def check(self, outbox: str) -> str:
        """Return the name of an outbox if it exists."""
        if not await self.store.epochs(outbox):
            raise NotKnown(f"no outbox {outbox[:100]!r} in outbox_url; a node creates it")
        return outbox

    async def view(self, outbox: str) -> OutboxView:
        """Return the state of an outbox."""
        paused = dict(await self.store.paused(await self.check(outbox)))
        newest = await self.store.rollouts(outbox, limit=ROLLOUTS_MAX, newest=True)
        return OutboxView(
            outbox=outbox,
            commands=await self.store.counts(outbox),
            rollouts=newest[::-1],
            paused_since=paused.pop("", None),
            paused_devices=paused,
        )

    # --- commands

    async def command(self, number: int) -> StoredCommand:
        """Return a command."""
        found = await self.store.command(number)
        if found is None:
            raise NotKnown(f"no command {number}; it may have been deleted or archived for its age")
        return found

    async def retry(self, numbers: Sequence[int]) -> None:
        """Send commands again, without expiry. Raises OperationRefused with the ids of others."""
        refused = [number for number in numbers if not await self.store.retry(number)]
        _refuse(
            refused,
            "only a failed or expired command is sent again, once its end is reported, unless a newer command"
            " has replaced it or its rollout was aborted",
        )

    async def cancel(self, numbers: Sequence[int]) -> None:
        """Cancel scheduled commands. Raises OperationRefused with the ids of others."""
        refused = [number for number in numbers if not await self.store.cancel(number)]
        _refuse(
            refused,
            "a closed command can't be cancelled, nor a published one, which its device may be doing: wait"
            " for its end",
        )

    async def cancel_all(self, outbox: str, *, device: str = "", supersede_key: str | None = None) -> int:
        """Cancel the scheduled commands of a device, with a supersede key, or both; return their number."""
        if not device and supersede_key is None:
            raise InvalidMessage("give 'device', 'supersede_key' or both", "device")
        await self.check(outbox)
        return await self.store.cancel_all(outbox, device=device, supersede_key=supersede_key)

    # --- pauses and rollouts

    async def pause(self, outbox: str, device: str = "") -> None:
        """Send nothing more to a device, or to any."""
        await self.store.pause(await self.check(outbox), check_device(device) if device else "")

    async def resume(self, outbox: str, device: str = "") -> None:
        """End a pause. Raises OperationRefused without one."""
        if not await self.store.resume(await self.check(outbox), device):
            named = f"device {device[:200]!r}" if device else f"outbox {outbox!r}"
            raise OperationRefused(f"{named} is not paused")

    async def abort(self, outbox: str, rollout: int) -> Rollout:
        """Send nothing more of a rollout; return it. Raises OperationRefused if it is over or aborted."""
        await self.check(outbox)
        done = await self.store.abort(outbox, rollout)
        found = await self.store.rollouts(outbox, after=rollout - 1, limit=1)
        if not found or found[0].id != rollout:
            raise NotKnown(f"outbox {outbox!r} has no rollout {rollout}")
        if not done:
            raise OperationRefused(f"rollout {rollout} is {rollout_state(found[0])} already")
        return found[0]

    # --- devices

    async def device(self, outbox: str, device: str, *, stale_after_s: float = STALE_S) -> DeviceRecord:
        """Return the state of a device."""
        found = await self.store.devices(await self.check(outbox), device=device, limit=1)
        if not found:
            raise NotKnown(f"outbox {outbox!r} has never had a command for device {device[:200]!r}")
        paused = "" in await self.store.paused(outbox)
        return device_record(found[0], await self.store.now(), all_paused=paused, stale_after_s=stale_after_s)

    async def devices(
        self,
        outbox: str,
        *,
        chosen: DeviceFilter = "all",
        after: str = "",
        limit: int = 100,
        look_at: int | None = None,
        stale_after_s: float = STALE_S,
    ) -> DevicePage:
        """Return up to ``limit`` chosen devices after the device ``after``, of up to ``look_at`` devices."""
        paused = "" in await self.store.paused(await self.check(outbox))
        now = await self.store.now()
        found: list[DeviceRecord] = []
        looked_at = 0
        while look_at is None or looked_at < look_at:
            at_once = min(READ_AT_ONCE, limit) if chosen == "all" else READ_AT_ONCE
            page = await self.store.devices(outbox, after=after, limit=at_once)
            for status in page:
                after = status.device
                record = device_record(status, now, all_paused=paused, stale_after_s=stale_after_s)
                if _is_chosen(record, chosen):
                    found.append(record)
                    if len(found) == limit:
                        return DevicePage(found, after)
            looked_at += len(page)
            if len(page) < at_once:
                return DevicePage(found, "")
        return DevicePage(found, after)


def device_record(
    status: DeviceStatus, now: float, *, all_paused: bool, stale_after_s: float = STALE_S
) -> DeviceRecord:
    """Return the state of a device at this wall time. ``all_paused``: its whole outbox is paused."""
    standing = _reachability(status, now, stale_after_s)
    doing = sorted({*status.phases} - {HeadPhase.IDLE})
    stuck = _stuck(status, standing, doing, now, all_paused=all_paused) if status.waiting else ""
    return DeviceRecord(status.device, standing, status.seen_at, status.waiting, doing, stuck, status.shard)


def _reachability(status: DeviceStatus, now: float, stale_after_s: float) -> Reachability:
    if status.paused:
        return Reachability.PAUSED
    if status.away:
        return Reachability.AWAY
    if status.seen_at is None:
        return Reachability.UNSEEN
    return Reachability.STALE if now - status.seen_at > stale_after_s else Reachability.THERE


def _stuck(
    status: DeviceStatus, standing: Reachability, doing: list[HeadPhase], now: float, *, all_paused: bool
) -> str:
    silent = "" if status.seen_at is None else f", not heard of for {max(0.0, now - status.seen_at):.0f} s"
    if all_paused:
        return "its outbox is paused"
    if standing is Reachability.PAUSED:
        return "it is paused"
    if standing is Reachability.AWAY:
        return f"it is away{silent}"
    if not doing:
        return "no node has taken its commands up yet"
    # A device that is only silent still gets commands: others than the one that is out wait for their time.
    if standing is not Reachability.THERE and HeadPhase.OUT in doing:
        return f"sent, and not answered{silent}"
    return ""


def command_record(command: StoredCommand) -> CommandRecord:
    """Return a command without its body and answer."""
    return CommandRecord(**{name: getattr(command, name) for name in CommandRecord.__struct_fields__})


def number_in(text: str, what: str) -> int:
    """Return the number of a command or a rollout from a text. Raises InvalidMessage."""
    if not (text.isascii() and text.isdigit() and len(text) <= DIGITS_MAX and int(text) <= NUMBER_MAX):
        raise InvalidMessage(f"{what!r} is {text[:50]!r}; it is the number of a {what}", what)
    return int(text)


def rollout_state(rollout: Rollout) -> str:
    """Return ``running``, ``done`` or ``aborted``."""
    return "aborted" if rollout.aborted else "done" if rollout.over else "running"


def _is_chosen(record: DeviceRecord, chosen: DeviceFilter) -> bool:
    match chosen:
        case "all":
            return True
        case "away":
            return record.standing is not Reachability.THERE
        case "stuck":
            return bool(record.stuck)


def _refuse(numbers: Sequence[int], why: str) -> None:
    if numbers:
        raise OperationRefused(f"nothing was done to {', '.join(map(str, numbers))}: {why}")
