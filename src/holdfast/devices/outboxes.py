"""The outboxes of one database, as operators see and change them: on pages, by the API, on the command
line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

import msgspec

from holdfast.devices.rules.device_queue import NUMBER_MAX, CommandState, StoredCommand
from holdfast.devices.rules.device_turn import Rollout
from holdfast.devices.rules.topics import check_device
from holdfast.devices.standing import STALE_S, DeviceRecord, Reachability, device_record
from holdfast.errors import InvalidMessage, NotKnown, OperationRefused

if TYPE_CHECKING:
    from holdfast.devices.ports.outbox import OutboxStore
    from holdfast.extend.products import Services

PAUSE_ACTION, RESUME_ACTION = "pause an outbox", "resume an outbox"
RETRY_ACTION, CANCEL_ACTION, CANCEL_ALL_ACTION = "send a command again", "cancel a command", "cancel commands"
ABORT_ACTION = "abort a rollout"
"""What the audit log calls what is done, whether on a page, by the API or on the command line."""

ROLLOUTS_MAX = 1000
"""How many rollouts a view has: the newest."""

DIGITS_MAX = 19
READ_AT_ONCE = 500

DeviceFilter = Literal["all", "away", "stuck"]
"""Which devices are asked for: all; those that are paused, away, stale or were never seen; or those whose
commands are held up: not sent, or not answered."""


class CommandRecord(msgspec.Struct):
    """A command without what it says. Times are wall times in seconds."""

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
    """An outbox: its commands by state, its newest rollouts in order of their ids, and since when it, or
    which of its devices, is paused."""

    outbox: str
    commands: Mapping[CommandState, int]
    rollouts: list[Rollout]
    paused_since: float | None
    paused_devices: dict[str, float]


class DevicePage(NamedTuple):
    """Devices in order. ``next`` is the name to go on after; empty if these are the last."""

    devices: list[DeviceRecord]
    next: str


class Outboxes:
    """The outboxes of one database. All methods raise what its store raises, and NotKnown for an outbox, a
    device or a command that isn't there."""

    def __init__(self, store: OutboxStore) -> None:
        self.store = store

    @classmethod
    def of(cls, services: Services) -> Outboxes:
        """Return those of ``outbox_url``. Raises ConfigError where it isn't set."""
        from holdfast.devices.adapters import shared_outbox  # noqa: PLC0415 - a page of help needs no database

        return cls(shared_outbox(services))

    async def check(self, outbox: str) -> str:
        """Return the name of an outbox that is there."""
        if not await self.store.epochs(outbox):
            raise NotKnown(f"there is no outbox {outbox[:100]!r} in outbox_url; a node makes it")
        return outbox

    async def view(self, outbox: str) -> OutboxView:
        """Return how an outbox stands."""
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
            raise NotKnown(f"there is no command {number}; it may have been dropped or archived for its age")
        return found

    async def retry(self, numbers: Sequence[int]) -> None:
        """Send commands again, without expiry. Raises OperationRefused that names those which can't be."""
        refused = [number for number in numbers if not await self.store.retry(number)]
        _refuse(
            refused,
            "only what has failed or expired is sent again, once its end is told, unless a newer command has"
            " replaced it or its rollout was aborted",
        )

    async def cancel(self, numbers: Sequence[int]) -> None:
        """Take commands back. Raises OperationRefused that names those which can't be."""
        refused = [number for number in numbers if not await self.store.cancel(number)]
        _refuse(
            refused,
            "what is closed, or out at its device, which may be at it, isn't taken back: wait for its end",
        )

    async def cancel_all(self, outbox: str, *, device: str = "", supersede_key: str | None = None) -> int:
        """Take back what is scheduled for a device, or has a supersede key, or both; returns how many."""
        if not device and supersede_key is None:
            raise InvalidMessage("give 'device', 'supersede_key' or both", "device")
        await self.check(outbox)
        return await self.store.cancel_all(outbox, device=device, supersede_key=supersede_key)

    # --- pauses and rollouts

    async def pause(self, outbox: str, device: str = "") -> None:
        """Send nothing more to a device, or to any."""
        await self.store.pause(await self.check(outbox), check_device(device) if device else "")

    async def resume(self, outbox: str, device: str = "") -> None:
        """End a pause. Raises OperationRefused where there is none."""
        if not await self.store.resume(await self.check(outbox), device):
            named = f"device {device[:200]!r}" if device else f"outbox {outbox!r}"
            raise OperationRefused(f"{named} is not paused")

    async def abort(self, outbox: str, rollout: int) -> Rollout:
        """Send nothing more of a rollout; returns it as it stands. Raises OperationRefused for one that is
        over, or aborted already."""
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
        """Return how a device stands."""
        found = await self.store.devices(await self.check(outbox), device=device, limit=1)
        if not found:
            raise NotKnown(f"outbox {outbox!r} has never had anything to do with device {device[:200]!r}")
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
        """Return up to ``limit`` of the chosen devices after this one, of up to ``look_at`` that are looked
        at for it."""
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


def command_record(command: StoredCommand) -> CommandRecord:
    """Return a command without what it says."""
    return CommandRecord(**{name: getattr(command, name) for name in CommandRecord.__struct_fields__})


def number_in(text: str, what: str) -> int:
    """Return the number of a command or a rollout, as somebody has written it. Raises InvalidMessage."""
    if not (text.isascii() and text.isdigit() and len(text) <= DIGITS_MAX and int(text) <= NUMBER_MAX):
        raise InvalidMessage(f"{what!r} is {text[:50]!r}; it is the number of a {what}", what)
    return int(text)


def rollout_state(rollout: Rollout) -> str:
    """Return whether a rollout is running, done or aborted, as a word."""
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
