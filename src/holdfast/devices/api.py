"""The operations of the console's JSON API on outboxes: commands, pauses, devices and rollouts."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from msgspec import Meta

from holdfast.devices import actions
from holdfast.devices.outbox import OWN_EXPIRY, Outbox
from holdfast.devices.outboxes import (
    ADD_ACTION,
    CANCEL_ALL_ACTION,
    STALE_S,
    CommandRecord,
    DeviceFilter,
    DeviceRecord,
    Outboxes,
    OutboxView,
    command_record,
    number_in,
)
from holdfast.devices.rules.device_queue import NUMBER_MAX, CommandState
from holdfast.devices.rules.dialect import PlainDialect
from holdfast.devices.spec import OutboxSpec
from holdfast.errors import InvalidMessage, OperationRefused
from holdfast.extend.api import Call, Limit, NoFields, Operation, derived, described, shown
from holdfast.extend.tracing import current_traceparent

if TYPE_CHECKING:
    from holdfast.extend.products import Services

LIMIT = 100
ADD_MAX = 1000
LOOK_AT = 10_000
"""Devices that are read for a page of chosen ones, at most."""

Device = Annotated[str, Meta(min_length=1, max_length=255)]


class CommandsQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The parameters that choose commands."""

    state: CommandState | None = None
    device: Annotated[str, Meta(max_length=255, description="Only commands of this device.")] = ""
    after: Annotated[int, Meta(ge=0, le=NUMBER_MAX, description="`next` of the page before.")] = 0
    newest: Annotated[bool, Meta(description="The newest first.")] = False
    limit: Limit = LIMIT


class CommandList(msgspec.Struct):
    """Commands by their ids. ``next`` is the id to give as ``after`` for more; null on the last page."""

    commands: list[CommandRecord]
    next: int | None


class CommandView(msgspec.Struct):
    """A command with its ``body`` and its device's ``answer``."""

    command: CommandRecord
    contents: dict[str, Any]


class CommandToAdd(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A command to add. ``body`` is JSON; other bytes go into ``body_base64``. With a ``dedupe_key`` that the
    device already has, nothing is added. A command replaces unsent ones with its ``supersede_key``. Without
    ``expires_in_s`` the outbox's expiry holds; null is for ever."""

    device: Device
    body: Any | msgspec.UnsetType = msgspec.UNSET
    body_base64: str | None = None
    dedupe_key: str | None = None
    supersede_key: str | None = None
    priority: int = 0
    delay_s: float = 0.0
    expires_in_s: float | msgspec.UnsetType | None = msgspec.UNSET
    trace_id: str | None = None


class CommandsToAdd(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Commands to add, in one transaction."""

    commands: Annotated[list[CommandToAdd], Meta(min_length=1, max_length=ADD_MAX)]


class AddedCommands(msgspec.Struct):
    """The ids of the added commands, in their order."""

    ids: list[int]


class CommandsOf(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Commands of a device, with a supersede key, or both."""

    device: Annotated[str, Meta(max_length=255)] = ""
    supersede_key: str | None = None


class CancelledCommands(msgspec.Struct):
    """The number of scheduled commands. They are cancelled unless the next turn sends them first."""

    asked_back: int


class OutboxNames(msgspec.Struct):
    """The names of outboxes."""

    outboxes: list[str]


class DevicesQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The parameters that choose devices."""

    chosen: Annotated[
        DeviceFilter,
        Meta(description="`away`: paused, away, stale or never seen. `stuck`: their commands can't go on."),
    ] = "all"
    stale_after_s: Annotated[float, Meta(gt=0, description="Silence that makes a device stale.")] = STALE_S
    after: Annotated[str, Meta(max_length=255, description="`next` of the page before.")] = ""
    limit: Limit = LIMIT


class DeviceList(msgspec.Struct):
    """Devices by their ids. ``next`` is the id to give as ``after`` for more; empty on the last page. A page
    may have fewer devices than its limit, or none, although more follow."""

    devices: list[DeviceRecord]
    next: str


class DeviceOperations:
    """Operations on the outboxes of one database. The docstring of a method is the summary of its
    operation."""

    def __init__(self, services: Services) -> None:
        self._services = services

    def all(self) -> Sequence[Operation]:
        """Return all operations."""
        outbox, command, services = "/outboxes/{outbox}", "/commands/{command}", self._services
        commands, devices, rollout = (
            f"{outbox}/commands",
            f"{outbox}/devices",
            f"{outbox}/rollouts/{{rollout}}",
        )
        adding = {"action": ADD_ACTION, "status": 202, "body_bytes_max": 4 << 20}
        cancelling = {"action": CANCEL_ALL_ACTION, "status": 202}
        return [
            described(self._names, "GET", "/outboxes", "listOutboxes"),
            described(self._view, "GET", outbox, "getOutbox"),
            described(self._list, "GET", commands, "listCommands"),
            described(self._add, "POST", commands, "addCommands", **adding),
            described(self._cancel_all, "POST", f"{outbox}/cancel", "cancelCommandsOf", **cancelling),
            derived(actions.pause, outbox, itemgetter("outbox"), services),
            derived(actions.resume, outbox, itemgetter("outbox"), services),
            derived(actions.abort, rollout, _rollout, services),
            described(self._devices, "GET", devices, "listDevices"),
            described(self._device, "GET", f"{devices}/{{device}}", "getDevice"),
            described(self._show, "GET", command, "getCommand"),
            derived(actions.cancel, command, _command, services),
            derived(actions.retry, command, _command, services),
        ]

    @property
    def _outboxes(self) -> Outboxes:
        return Outboxes.of(self._services)

    async def _names(self, call: Call[NoFields, None]) -> OutboxNames:
        """List the outboxes."""
        return OutboxNames(await self._outboxes.store.names())

    async def _view(self, call: Call[NoFields, None]) -> OutboxView:
        """Count the commands of an outbox, and show the progress of its rollouts."""
        return await self._outboxes.view(call.path["outbox"])

    async def _list(self, call: Call[CommandsQuery, None]) -> CommandList:
        """List commands of an outbox."""
        outboxes, chosen = self._outboxes, msgspec.structs.asdict(call.query)
        found = await outboxes.store.commands(await outboxes.check(call.path["outbox"]), **chosen)
        more = len(found) == call.query.limit
        return CommandList([command_record(each) for each in found], found[-1].id if more else None)

    async def _add(self, call: Call[NoFields, CommandsToAdd]) -> AddedCommands:
        """Add commands for devices: all of them, or none.

        With a `dedupe_key` each, the request may be repeated if no answer comes."""
        store = self._outboxes.store
        name = await self._outboxes.check(call.path["outbox"])
        adding = await store.writer_settings(name)
        if adding is None:
            raise OperationRefused(f"no node has prepared outbox {name!r} for adding commands; start one")
        # Only the app knows its dialect. Its node reports a command that can't carry an id.
        spec = OutboxSpec(
            name=name,
            dialect=PlainDialect(),
            shards=len(await store.epochs(name)),
            lanes=adding.lanes,
            expires_in_s=adding.expires_in_s,
            max_body=adding.max_body,
        )
        outbox, made = Outbox(spec), []
        outbox.wall = self._services.clock.wall
        for place, command in enumerate(call.body.commands):
            try:
                made += outbox.new([_fields(command)])
            except InvalidMessage as error:
                raise InvalidMessage(f"commands[{place}]: {error}", error.field) from None
        ids = await store.add(made)
        call.outcome = f"{len(ids)} commands"
        return AddedCommands(ids)

    async def _cancel_all(self, call: Call[NoFields, CommandsOf]) -> CancelledCommands:
        """Cancel the scheduled commands of a device, or of a supersede key."""
        chosen = msgspec.structs.asdict(call.body)
        count = await self._outboxes.cancel_all(call.path["outbox"], **chosen)
        call.outcome = f"{count} commands"
        return CancelledCommands(count)

    async def _devices(self, call: Call[DevicesQuery, None]) -> DeviceList:
        """List devices: whether each is there, and why its commands wait."""
        chosen = msgspec.structs.asdict(call.query)
        return DeviceList(*await self._outboxes.devices(call.path["outbox"], look_at=LOOK_AT, **chosen))

    async def _device(self, call: Call[NoFields, None]) -> DeviceRecord:
        """Show one device."""
        return await self._outboxes.device(call.path["outbox"], call.path["device"])

    async def _show(self, call: Call[NoFields, None]) -> CommandView:
        """Show one command: its body, and its device's answer."""
        found = await self._outboxes.command(_command(call.path))
        contents = shown(found.body, "body")
        if found.answer is not None:
            contents |= shown(found.answer, "answer")
        return CommandView(command_record(found), contents)


def _command(path: Mapping[str, str]) -> int:
    return number_in(path["command"], "command")


def _rollout(path: Mapping[str, str]) -> actions.RolloutName:
    return actions.RolloutName(path["outbox"], number_in(path["rollout"], "rollout"))


def _fields(command: CommandToAdd) -> Any:
    """Return the arguments of ``Outbox.add``. Raises InvalidMessage."""
    fields = msgspec.structs.asdict(command)
    body, encoded = fields.pop("body"), fields.pop("body_base64")
    if (body is msgspec.UNSET) == (encoded is None):
        raise InvalidMessage("give either 'body' or 'body_base64'", "body")
    try:
        # A text is JSON too, and keeps its quotation marks.
        fields["command"] = (
            msgspec.json.encode(body) if encoded is None else b64decode(encoded, validate=True)
        )
    except ValueError:
        raise InvalidMessage("field 'body_base64' is not Base64", "body_base64") from None
    if fields["expires_in_s"] is msgspec.UNSET:
        fields["expires_in_s"] = OWN_EXPIRY
    return fields | {"traceparent": current_traceparent()}
