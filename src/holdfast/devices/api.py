"""What the console's JSON API does with commands to devices: added, listed, tried again, taken back."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from msgspec import Meta

from holdfast.devices.adapters import open_outbox
from holdfast.devices.outbox import OWN_EXPIRY, Outbox
from holdfast.devices.ports.outbox import OutboxStore
from holdfast.devices.rules.device_queue import NUMBER_MAX, CommandState, StoredCommand
from holdfast.devices.rules.device_turn import Rollout
from holdfast.devices.rules.dialect import PlainDialect
from holdfast.devices.rules.topics import check_device
from holdfast.devices.spec import OutboxSpec
from holdfast.errors import InvalidMessage, NotKnown, OperationRefused
from holdfast.extend.api import Call, Limit, NoFields, Operation, shown

if TYPE_CHECKING:
    from holdfast.extend.products import Services

LIMIT = 100
ADD_MAX = 1000
ROLLOUTS = 1000
DIGITS_MAX = 19

Device = Annotated[str, Meta(min_length=1, max_length=255)]


class CommandsQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which commands."""

    state: CommandState | None = None
    device: Annotated[str, Meta(max_length=255, description="Only those of this device.")] = ""
    after: Annotated[int, Meta(ge=0, le=NUMBER_MAX, description="Only those with a higher id.")] = 0
    limit: Limit = LIMIT


class CommandRecord(msgspec.Struct):
    """A command without what it says. Times are wall times in seconds."""

    id: int
    device: str
    state: CommandState
    priority: int
    tries: int
    dedupe_key: str | None
    supersede_key: str | None
    trace_id: str
    rollout: int | None
    not_before: float
    expires_at: float | None
    created_at: float
    published_at: float | None
    closed_at: float | None
    reason: str


class CommandList(msgspec.Struct):
    """Commands in the order of their ids. ``next`` is the id to give as ``after`` for more; null if these are
    the last."""

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
    """Whose commands: those of a device, those with a supersede key, or both."""

    device: Annotated[str, Meta(max_length=255)] = ""
    supersede_key: str | None = None


class DeviceOnly(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A device; the whole outbox if it is left out."""

    device: Annotated[str, Meta(max_length=255)] = ""


class CancelledCommands(msgspec.Struct):
    """How many commands were scheduled: they are taken back unless they are out by the next turn."""

    asked_back: int


class OutboxView(msgspec.Struct):
    """An outbox: its commands by state, its rollouts, and since when it, or which of its devices, is
    paused."""

    outbox: str
    commands: Mapping[CommandState, int]
    rollouts: list[Rollout]
    paused_since: float | None
    paused_devices: dict[str, float]


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
                action="cancel commands",
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
                action="pause an outbox",
                summary="Send nothing more to a device, or to any, until it is resumed.",
                act=self._pause,
                answer=OutboxView,
                body=DeviceOnly,
            ),
            Operation(
                method="POST",
                path=f"{outbox}/resume",
                name="resumeOutbox",
                action="resume an outbox",
                summary="End a pause: that of a device, or that of the outbox.",
                act=self._resume,
                answer=OutboxView,
                body=DeviceOnly,
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
                action="cancel a command",
                summary="Take a command back that is not out; it counts as failed.",
                act=self._cancel,
                answer=CommandRecord,
                body=NoFields,
            ),
            Operation(
                method="POST",
                path=f"{command}/retry",
                name="retryCommand",
                action="send a command again",
                summary="Send a failed or expired command again, without expiry.",
                act=self._retry,
                answer=CommandRecord,
                body=NoFields,
            ),
        ]

    @property
    def _store(self) -> OutboxStore:
        opening = self._services.opening("outbox_url", self._services.config.outbox_url)
        return opening.shared(("holdfast.devices.api",), lambda: open_outbox(self._services))

    async def _outbox(self, call: Call[Any, Any]) -> str:
        """Return the outbox that the path names. Raises NotKnown."""
        name = call.path["outbox"]
        if not await self._store.epochs(name):
            raise NotKnown(f"there is no outbox {name!r} in outbox_url; a node makes it")
        return name

    async def _view(self, call: Call[Any, Any]) -> OutboxView:
        outbox, store = await self._outbox(call), self._store
        paused = dict(await store.paused(outbox))
        return OutboxView(
            outbox=outbox,
            commands=await store.counts(outbox),
            rollouts=await store.rollouts(outbox, limit=ROLLOUTS),
            paused_since=paused.pop("", None),
            paused_devices=paused,
        )

    async def _list(self, call: Call[CommandsQuery, None]) -> CommandList:
        query = call.query
        found = await self._store.commands(
            await self._outbox(call),
            after=query.after,
            limit=query.limit,
            state=query.state,
            device=query.device,
        )
        more = len(found) == query.limit
        return CommandList([_record(each) for each in found], found[-1].id if more else None)

    async def _add(self, call: Call[NoFields, CommandsToAdd]) -> AddedCommands:
        name, store = await self._outbox(call), self._store
        adding = await store.adding(name)
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
        wish = call.body
        if not wish.device and wish.supersede_key is None:
            raise InvalidMessage("give 'device', 'supersede_key' or both", "device")
        outbox = await self._outbox(call)
        count = await self._store.cancel_all(outbox, device=wish.device, supersede_key=wish.supersede_key)
        call.outcome = f"{count} commands"
        return CancelledCommands(count)

    async def _pause(self, call: Call[NoFields, DeviceOnly]) -> OutboxView:
        device = call.body.device
        await self._store.pause(await self._outbox(call), check_device(device) if device else "")
        return await self._view(call)

    async def _resume(self, call: Call[NoFields, DeviceOnly]) -> OutboxView:
        outbox, device = await self._outbox(call), call.body.device
        if not await self._store.resume(outbox, device):
            raise OperationRefused(
                f"{f'device {device!r}' if device else f'outbox {outbox!r}'} is not paused"
            )
        return await self._view(call)

    async def _show(self, call: Call[NoFields, None]) -> CommandView:
        found = await self._command(call)
        contents = shown(found.body, "body")
        if found.answer is not None:
            contents |= shown(found.answer, "answer")
        return CommandView(_record(found), contents)

    async def _cancel(self, call: Call[NoFields, NoFields]) -> CommandRecord:
        found = await self._command(call)
        if not await self._store.cancel(found.id):
            raise OperationRefused(
                f"command {found.id} is closed, or out at its device, which may be at it: wait for its answer"
            )
        return _record(await self._command(call))

    async def _retry(self, call: Call[NoFields, NoFields]) -> CommandRecord:
        found = await self._command(call)
        if not await self._store.retry(found.id):
            raise OperationRefused(
                f"command {found.id} is neither failed nor expired, or a newer command has replaced it, or"
                " its end has yet to be told, or its rollout was aborted"
            )
        return _record(await self._command(call))

    async def _command(self, call: Call[Any, Any]) -> StoredCommand:
        text = call.path["command"]
        if not (text.isascii() and text.isdigit() and len(text) <= DIGITS_MAX and int(text) <= NUMBER_MAX):
            raise InvalidMessage(f"'command' in the path is {text[:50]!r}; it is the number of a command")
        found = await self._store.command(int(text))
        if found is None:
            raise NotKnown(f"there is no command {text}; it may have been dropped or archived for its age")
        return found


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
    return fields


def _record(command: StoredCommand) -> CommandRecord:
    return CommandRecord(**{name: getattr(command, name) for name in CommandRecord.__struct_fields__})
