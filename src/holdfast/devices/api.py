"""The operations of the console's JSON API on outboxes: commands are added, listed, tried again and taken
back; pauses; devices; rollouts."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from msgspec import Meta

from holdfast.devices.outbox import OWN_EXPIRY, Outbox
from holdfast.devices.outboxes import (
    ABORT_ACTION,
    CANCEL_ACTION,
    CANCEL_ALL_ACTION,
    PAUSE_ACTION,
    RESUME_ACTION,
    RETRY_ACTION,
    CommandRecord,
    DeviceFilter,
    Outboxes,
    OutboxView,
    command_record,
    number_in,
)
from holdfast.devices.rules.device_queue import NUMBER_MAX, CommandState, StoredCommand
from holdfast.devices.rules.device_turn import Rollout
from holdfast.devices.rules.dialect import PlainDialect
from holdfast.devices.spec import OutboxSpec
from holdfast.devices.standing import STALE_S, DeviceRecord
from holdfast.errors import InvalidMessage, OperationRefused
from holdfast.extend.api import Call, Limit, NoFields, Operation, shown
from holdfast.extend.tracing import current_traceparent

if TYPE_CHECKING:
    from holdfast.extend.products import Services

LIMIT = 100
ADD_MAX = 1000
LOOK_AT = 10_000
"""How many devices are looked at, at most, for those that are asked for."""

Device = Annotated[str, Meta(min_length=1, max_length=255)]


class CommandsQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The parameters that choose commands."""

    state: CommandState | None = None
    device: Annotated[str, Meta(max_length=255, description="Only those of this device.")] = ""
    after: Annotated[int, Meta(ge=0, le=NUMBER_MAX, description="What the page before said in `next`.")] = 0
    newest: Annotated[bool, Meta(description="The newest first.")] = False
    limit: Limit = LIMIT


class CommandList(msgspec.Struct):
    """Commands by their ids. ``next`` is the id to give as ``after`` for more; null if these are the last."""

    commands: list[CommandRecord]
    next: int | None


class CommandView(msgspec.Struct):
    """A command with its ``body`` and what its device answered."""

    command: CommandRecord
    contents: dict[str, Any]


class CommandToAdd(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A command to add. ``body`` is JSON; other bytes are in ``body_base64`` instead. With a ``dedupe_key``
    that the device already has, nothing is added. It replaces commands with its ``supersede_key`` that were
    never sent. Without ``expires_in_s`` it lasts as long as the outbox says; null is for ever."""

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
    """The ids of commands, in the order in which they were given."""

    ids: list[int]


class CommandsOf(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The commands that are meant: those of a device, those with a supersede key, or both."""

    device: Annotated[str, Meta(max_length=255)] = ""
    supersede_key: str | None = None


class DeviceOnly(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A device; the whole outbox if it is left out."""

    device: Annotated[str, Meta(max_length=255)] = ""


class CancelledCommands(msgspec.Struct):
    """The number of commands that were scheduled. They are taken back unless the next turn finds them out."""

    asked_back: int


class OutboxNames(msgspec.Struct):
    """The names of outboxes."""

    outboxes: list[str]


class DevicesQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The parameters that choose devices."""

    chosen: Annotated[
        DeviceFilter,
        Meta(description="`away`: paused, away, stale or never seen. `stuck`: commands are held up."),
    ] = "all"
    stale_after_s: Annotated[float, Meta(gt=0, description="Silent for so long is stale.")] = STALE_S
    after: Annotated[str, Meta(max_length=255, description="What the page before said in `next`.")] = ""
    limit: Limit = LIMIT


class DeviceList(msgspec.Struct):
    """Devices by their ids. ``next`` is the id to give as ``after`` for more; empty if these are the last. A
    page may have fewer devices than were asked for, or none, though there are more."""

    devices: list[DeviceRecord]
    next: str


class DeviceOperations:
    """Operations on the outboxes of one database."""

    def __init__(self, services: Services) -> None:
        self._services = services

    def all(self) -> Sequence[Operation]:
        """Return all of them."""
        outbox, command = "/outboxes/{outbox}", "/commands/{command}"
        return [
            Operation(
                method="GET",
                path="/outboxes",
                name="listOutboxes",
                summary="List the outboxes.",
                act=self._names,
                answer=OutboxNames,
            ),
            Operation(
                method="GET",
                path=outbox,
                name="getOutbox",
                summary="Count the commands of an outbox, and tell how far its rollouts have come.",
                act=self._view,
                answer=OutboxView,
            ),
            Operation(
                method="GET",
                path=f"{outbox}/commands",
                name="listCommands",
                summary="List commands of an outbox.",
                act=self._list,
                answer=CommandList,
                query=CommandsQuery,
            ),
            Operation(
                method="POST",
                path=f"{outbox}/commands",
                name="addCommands",
                action="add commands",
                summary="Add commands for devices: all of them, or none.",
                description="With a `dedupe_key` each, the same may be sent again if no answer comes.",
                act=self._add,
                answer=AddedCommands,
                body=CommandsToAdd,
                status=202,
                body_bytes_max=4 << 20,
            ),
            Operation(
                method="POST",
                path=f"{outbox}/cancel",
                name="cancelCommandsOf",
                action=CANCEL_ALL_ACTION,
                summary="Take back the commands of a device, or of a supersede key, that are not out.",
                act=self._cancel_all,
                answer=CancelledCommands,
                body=CommandsOf,
                status=202,
            ),
            Operation(
                method="POST",
                path=f"{outbox}/pause",
                name="pauseOutbox",
                action=PAUSE_ACTION,
                summary="Send nothing more to a device, or to any, until it is resumed.",
                act=self._pause,
                answer=OutboxView,
                body=DeviceOnly,
            ),
            Operation(
                method="POST",
                path=f"{outbox}/resume",
                name="resumeOutbox",
                action=RESUME_ACTION,
                summary="End a pause: that of a device, or that of the outbox.",
                act=self._resume,
                answer=OutboxView,
                body=DeviceOnly,
            ),
            Operation(
                method="POST",
                path=f"{outbox}/rollouts/{{rollout}}/abort",
                name="abortRollout",
                action=ABORT_ACTION,
                summary="Send nothing more of a rollout; what is out may still succeed.",
                act=self._abort,
                answer=Rollout,
                body=NoFields,
            ),
            Operation(
                method="GET",
                path=f"{outbox}/devices",
                name="listDevices",
                summary="List devices: how each stands, and why what is for it waits.",
                act=self._devices,
                answer=DeviceList,
                query=DevicesQuery,
            ),
            Operation(
                method="GET",
                path=f"{outbox}/devices/{{device}}",
                name="getDevice",
                summary="Look at one device.",
                act=self._device,
                answer=DeviceRecord,
            ),
            Operation(
                method="GET",
                path=command,
                name="getCommand",
                summary="Look at one command: what it says, and what the device answered.",
                act=self._show,
                answer=CommandView,
            ),
            Operation(
                method="POST",
                path=f"{command}/cancel",
                name="cancelCommand",
                action=CANCEL_ACTION,
                summary="Take a command back that is not out; it counts as failed.",
                act=self._cancel,
                answer=CommandRecord,
                body=NoFields,
            ),
            Operation(
                method="POST",
                path=f"{command}/retry",
                name="retryCommand",
                action=RETRY_ACTION,
                summary="Send a failed or expired command again, without expiry.",
                act=self._retry,
                answer=CommandRecord,
                body=NoFields,
            ),
        ]

    @property
    def _outboxes(self) -> Outboxes:
        return Outboxes.of(self._services)

    async def _names(self, call: Call[NoFields, None]) -> OutboxNames:
        return OutboxNames(await self._outboxes.store.names())

    async def _view(self, call: Call[Any, Any]) -> OutboxView:
        return await self._outboxes.view(call.path["outbox"])

    async def _list(self, call: Call[CommandsQuery, None]) -> CommandList:
        query, outboxes = call.query, self._outboxes
        found = await outboxes.store.commands(
            await outboxes.check(call.path["outbox"]),
            after=query.after,
            limit=query.limit,
            state=query.state,
            device=query.device,
            newest=query.newest,
        )
        more = len(found) == query.limit
        return CommandList([command_record(each) for each in found], found[-1].id if more else None)

    async def _add(self, call: Call[NoFields, CommandsToAdd]) -> AddedCommands:
        store = self._outboxes.store
        name = await self._outboxes.check(call.path["outbox"])
        adding = await store.writer_settings(name)
        if adding is None:
            raise OperationRefused(f"no node has said how commands are added to outbox {name!r}; start one")
        # Only the app knows how ids travel in payloads: its node tells of a command that can't hold one.
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
        request = call.body
        count = await self._outboxes.cancel_all(
            call.path["outbox"], device=request.device, supersede_key=request.supersede_key
        )
        call.outcome = f"{count} commands"
        return CancelledCommands(count)

    async def _pause(self, call: Call[NoFields, DeviceOnly]) -> OutboxView:
        await self._outboxes.pause(call.path["outbox"], call.body.device)
        return await self._view(call)

    async def _resume(self, call: Call[NoFields, DeviceOnly]) -> OutboxView:
        await self._outboxes.resume(call.path["outbox"], call.body.device)
        return await self._view(call)

    async def _abort(self, call: Call[NoFields, NoFields]) -> Rollout:
        return await self._outboxes.abort(call.path["outbox"], number_in(call.path["rollout"], "rollout"))

    async def _devices(self, call: Call[DevicesQuery, None]) -> DeviceList:
        query = call.query
        found = await self._outboxes.devices(
            call.path["outbox"],
            chosen=query.chosen,
            after=query.after,
            limit=query.limit,
            look_at=LOOK_AT,
            stale_after_s=query.stale_after_s,
        )
        return DeviceList(found.devices, found.next)

    async def _device(self, call: Call[NoFields, None]) -> DeviceRecord:
        return await self._outboxes.device(call.path["outbox"], call.path["device"])

    async def _show(self, call: Call[NoFields, None]) -> CommandView:
        found = await self._command(call)
        contents = shown(found.body, "body")
        if found.answer is not None:
            contents |= shown(found.answer, "answer")
        return CommandView(command_record(found), contents)

    async def _cancel(self, call: Call[NoFields, NoFields]) -> CommandRecord:
        await self._outboxes.cancel([(await self._command(call)).id])
        return command_record(await self._command(call))

    async def _retry(self, call: Call[NoFields, NoFields]) -> CommandRecord:
        await self._outboxes.retry([(await self._command(call)).id])
        return command_record(await self._command(call))

    async def _command(self, call: Call[Any, Any]) -> StoredCommand:
        return await self._outboxes.command(number_in(call.path["command"], "command"))


def _fields(command: CommandToAdd) -> Any:
    """Return the arguments of ``Outbox.add``. Raises InvalidMessage."""
    fields = msgspec.structs.asdict(command)
    body, encoded = fields.pop("body"), fields.pop("body_base64")
    if (body is msgspec.UNSET) == (encoded is None):
        raise InvalidMessage("give either 'body' or 'body_base64'", "body")
    try:
        # A text is JSON too: without this it would be sent without its quotation marks.
        fields["command"] = (
            msgspec.json.encode(body) if encoded is None else b64decode(encoded, validate=True)
        )
    except ValueError:
        raise InvalidMessage("field 'body_base64' is no Base64", "body_base64") from None
    if fields["expires_in_s"] is msgspec.UNSET:
        fields["expires_in_s"] = OWN_EXPIRY
    return fields | {"traceparent": current_traceparent()}
