"""Tasks and briefs as queues carry them: protobuf in base64, or JSON, or plain text.

A message that begins with ``{`` is JSON: ``{"Envelop": {"App", "TraceID", "TaskType"}, "Body": …}``, or the
body alone, because app and type follow from the queue. Anything else is protobuf as in ``tasks.proto``, in
base64 or raw; or, for a handler that takes text, the text itself.
"""

from __future__ import annotations

import base64
import contextlib
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Annotated, Any

import msgspec
from google.protobuf import any_pb2, wrappers_pb2  # noqa: F401 - tasks.proto imports Any
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import Default
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass

from holdfast.common.message import check_key
from holdfast.common.record import UNREADABLE, from_base64
from holdfast.common.settings import COUNT_MAX, SECONDS_MAX
from holdfast.common.stored import StoredValue
from holdfast.errors import InvalidMessage
from holdfast.rules.tasks.task import MEMBERS_MAX, State
from holdfast.tasks.body import Body
from holdfast.tasks.order import FOLLOW_UPS_MAX
from holdfast.tasks.outcome import Outcome

_pool = Default()
# From the compiled description: generated code would need one version of protobuf.
for _proto in FileDescriptorSet.FromString(files(__package__).joinpath("tasks.binpb").read_bytes()).file:
    _pool.Add(_proto)


def _message(name: str) -> Any:
    return GetMessageClass(_pool.FindMessageTypeByName(f"holdfast.tasks.v1.{name}"))


TaskEnvelop = _message("TaskEnvelop")
TaskMessage = _message("TaskMessage")
TaskBrief = _message("TaskBrief")
WireBatch = _message("Batch")
WireFollowUp = _message("FollowUp")
WireStoredValue = _message("StoredValue")
WireState: Any = _pool.FindEnumTypeByName("holdfast.tasks.v1.State")

PREFIX = "type.googleapis.com/"
TEXT = "google.protobuf.StringValue"
"""Text and JSON are sent in this well-known type, so that every program with protobuf can read them."""

ENVELOPE = 0x0A
"""The first byte of a message with an envelope that isn't in base64."""

NO_TEXT = b"\xff"
"""The text in place of a body that is stored or left out: no text. Programs that don't know stored bodies
refuse the task."""

MS = 1000.0

TYPE_BYTES_MAX = 256
"""The longest name of a type, in bytes; the app may not know the type."""

Int32 = Annotated[int, msgspec.Meta(ge=-(2**31), lt=2**31)]
Tries = Annotated[int, msgspec.Meta(ge=0, le=COUNT_MAX)]
TimeoutS = Annotated[float, msgspec.Meta(ge=0, le=SECONDS_MAX)]
Moment = Annotated[int, msgspec.Meta(ge=0, lt=2**53)]

_numbers = {State(value.name.lower()): value.number for value in WireState.values[1:]}
_states = {number: state for state, number in _numbers.items()}


class Envelope(msgspec.Struct, frozen=True, kw_only=True):
    """The app, type and task id of the task in a message, and its options; a ``timeout_s`` or ``tries`` of 0
    is that of the type. ``raw`` is the envelope as it came, so that a
    brief carries all its fields, with unknown ones."""

    app: str
    task_id: str
    task_type: str
    group: str = ""
    priority: int = 0
    sent_at: float = 0.0
    timeout_s: float = 0.0
    tries: int = 0
    raw: bytes = b""


class SentTask(msgspec.Struct, frozen=True):
    """A task as a message holds it. ``after`` is the brief of the task that it follows upon (empty: of
    none)."""

    envelope: Envelope
    body: Body
    follow_ups: tuple[FollowUp, ...] = ()
    after: bytes = b""
    batch: BatchPlace | None = None

    @property
    def is_light(self) -> bool:
        """True if nothing of it is stored, so that it can begin as it is."""
        return self.body.stored is None and not (self.after and decode_event(self.after).stored is not None)


class FollowUp(msgspec.Struct, frozen=True):
    """A task to send once another has ended: if that has succeeded, or with ``on_failure`` if it hasn't. Its
    task id is empty if it is to be made from that of the other."""

    task: SentTask
    on_failure: bool = False
    delay_s: float = 0.0


class BatchPlace(msgspec.Struct, frozen=True):
    """The place of a task in the batch ``task_id`` of ``size`` tasks. The first has the follow-ups of the
    batch."""

    task_id: str
    place: int
    size: int
    follow_ups: tuple[FollowUp, ...] = ()


class Unreadable(InvalidMessage):
    """A message without a task that can run. ``envelope``, ``follow_ups`` and ``batch`` are what could be
    read of it, if anything."""

    def __init__(
        self,
        text: str,
        envelope: Envelope | None = None,
        follow_ups: tuple[FollowUp, ...] = (),
        batch: BatchPlace | None = None,
    ) -> None:
        super().__init__(text)
        self.envelope = envelope
        self.follow_ups = follow_ups
        self.batch = batch


def encode_task(message: SentTask) -> bytes:
    """Encode a task as its queue carries it."""
    return base64.b64encode(_wire_task(message).SerializeToString())


def encode_without_body(envelope: Envelope) -> bytes:
    """Encode a task without its body. Its receiver refuses it."""
    wire = TaskMessage(Envelop=_wire_envelope(msgspec.structs.replace(envelope, raw=b"")))
    wire.Body.type_url, wire.Body.value = PREFIX + TEXT, NO_TEXT
    return base64.b64encode(wire.SerializeToString())


def with_attributes(body: bytes, attributes: Mapping[str, str]) -> bytes:
    """Return an encoded task together with the attributes of its message, for a store that keeps the body
    alone."""
    wire = TaskMessage.FromString(from_base64(body))
    wire.Attributes.update(attributes)
    return base64.b64encode(wire.SerializeToString())


def without_attributes(body: bytes) -> tuple[bytes, dict[str, str]]:
    """Return what ``with_attributes`` was given."""
    wire = _parse(body) if body else None
    if wire is None or not wire.Attributes:
        return body, {}
    attributes = dict(wire.Attributes)
    wire.ClearField("Attributes")
    return base64.b64encode(wire.SerializeToString()), attributes


def encode_follow_ups(follow_ups: Sequence[FollowUp]) -> bytes:
    """Encode follow-ups as the task store keeps them; empty for none."""
    if not follow_ups:
        return b""
    wire: bytes = TaskMessage(FollowUps=map(_wire_follow_up, follow_ups)).SerializeToString()
    return wire


def decode_follow_ups(data: bytes, app: str) -> tuple[FollowUp, ...]:
    """Decode what ``encode_follow_ups`` made, for tasks of ``app``. Raises Unreadable."""
    return _follow_ups(TaskMessage.FromString(data), Envelope(app=app, task_id="", task_type=""))


def decode_task(data: bytes, default: Envelope, *, text: bool = False) -> SentTask:
    """Decode the task in a message. ``default`` has what follows from the queue: the app, the type if the
    queue is for one, and a task id for a message without one. ``text``: its handler takes text. Raises
    Unreadable."""
    if not data.strip():
        raise Unreadable("the message is empty; it must hold a TaskMessage in base64, or JSON")
    if data.lstrip()[:1] == b"{" and not text:
        return _from_json(data, default)
    wire = _parse(data)
    if wire is not None:
        try:
            return _from_wire(wire, default)
        except Unreadable as error:
            raise _refused(error, wire, default) from None
    if text:
        return SentTask(_checked(default, default), Body(data))
    raise Unreadable(
        "the message is neither a TaskMessage with an Envelop (protobuf, in base64 or as it is) nor a JSON"
        " object"
    )


def encode_event(envelope: Envelope, outcome: Outcome) -> bytes:
    """Encode an outcome as the queue of briefs carries it."""
    return base64.b64encode(_wire_brief(envelope, outcome).SerializeToString())


def _wire_brief(envelope: Envelope, outcome: Outcome) -> Any:
    brief = TaskBrief(
        Envelop=_wire_envelope(envelope),
        Result=_numbers[outcome.state],
        Detail=outcome.detail,
        Attempts=outcome.attempts,
        StartedAtMs=round(outcome.started_at * MS),
        EndedAtMs=round(outcome.ended_at * MS),
        Node=outcome.node,
        Progress=outcome.progress,
        Epoch=outcome.epoch,
    )
    if outcome.stored is not None:
        brief.Stored.CopyFrom(_wire_stored(outcome.stored))
    elif outcome.value is not None:
        brief.Value = msgspec.json.encode(outcome.value).decode()
    return brief


def decode_event(data: bytes) -> Outcome:
    """Decode the outcome in a brief. Raises InvalidMessage."""
    brief = TaskBrief()
    try:
        brief.ParseFromString(from_base64(data))
    except (ValueError, DecodeError) as error:
        raise InvalidMessage(f"this isn't a TaskBrief in base64: {error}") from None
    return _outcome(brief)


def _outcome(brief: Any) -> Outcome:
    state = _states.get(brief.Result)
    if state is None:
        raise InvalidMessage(f"field 'Result' of the brief of {brief.Envelop.TraceID!r} is {brief.Result}")
    try:
        value = msgspec.json.decode(brief.Value) if brief.Value else None
    except UNREADABLE as error:
        raise InvalidMessage(f"field 'Value' of the brief isn't JSON: {error}", "Value") from None
    return Outcome(
        task_id=brief.Envelop.TraceID,
        state=state,
        task_type=brief.Envelop.TaskType,
        app=brief.Envelop.App,
        value=value,
        detail=brief.Detail,
        attempts=brief.Attempts,
        started_at=brief.StartedAtMs / MS,
        ended_at=brief.EndedAtMs / MS,
        node=brief.Node,
        progress=brief.Progress,
        epoch=brief.Epoch,
        stored=_stored(brief) if brief.HasField("Stored") else None,
    )


# --- protobuf


def _parse(data: bytes) -> Any:
    """Return the protobuf message in ``data``, or None. A message without an envelope counts as none, because
    almost any bytes parse as some message."""
    if data[0] == ENVELOPE and (wire := _envelop(data)) is not None:
        return wire
    try:  # base64 may begin with that byte too, which is a line end
        return _envelop(from_base64(data))
    except ValueError:
        return None


def _envelop(data: bytes) -> Any:
    try:
        wire = TaskMessage.FromString(data)
    except DecodeError:
        return None
    return wire if wire.HasField("Envelop") else None


def _from_wire(wire: Any, default: Envelope) -> SentTask:
    sent = wire.Envelop
    envelope = _checked(
        Envelope(
            app=sent.App or default.app,
            task_id=sent.TraceID or default.task_id,
            task_type=sent.TaskType or default.task_type,
            group=sent.Group,
            priority=sent.Priority,
            sent_at=sent.SentAtMs / MS,
            timeout_s=sent.TimeoutS,
            tries=sent.Tries,
            raw=sent.SerializeToString(),
        ),
        default,
    )
    after, follow_ups = _after(wire, envelope), _follow_ups(wire, default, envelope)
    return SentTask(envelope, _body(wire, envelope), follow_ups, after, _batch(wire, default, envelope))


def _refused(error: Unreadable, wire: Any, default: Envelope) -> Unreadable:
    """Return the error with what follows upon the task and its place in a batch, as far as they can be read:
    the task has failed, and others wait for that."""
    envelope, batch = error.envelope, None
    follow_ups: tuple[FollowUp, ...] = ()
    if envelope is not None and envelope.app == default.app:
        with contextlib.suppress(Unreadable):
            follow_ups = _follow_ups(wire, default)
        with contextlib.suppress(Unreadable):
            batch = _batch(wire, default, envelope)
    return Unreadable(str(error), envelope, follow_ups, batch)


def _after(wire: Any, envelope: Envelope) -> bytes:
    """Return the brief of the task that this one follows upon. It is read here, so that one that is no brief
    is refused with its task."""
    if not wire.HasField("After"):
        return b""
    try:
        _outcome(wire.After)
    except InvalidMessage as error:
        raise Unreadable(f"field 'After': {error}", envelope) from None
    return base64.b64encode(wire.After.SerializeToString())


def _batch(wire: Any, default: Envelope, envelope: Envelope) -> BatchPlace | None:
    if not wire.HasField("Batch"):
        return None
    batch = wire.Batch
    if not (batch.ID and 0 <= batch.Place < batch.Size <= MEMBERS_MAX):
        raise Unreadable(
            f"field 'Batch' has ID {batch.ID!r}, Place {batch.Place} and Size {batch.Size}; a batch has an"
            f" id, and 1 to {MEMBERS_MAX} places from 0 on",
            envelope,
        )
    try:
        check_key(batch.ID, "Batch.ID")
    except InvalidMessage as error:
        raise Unreadable(str(error), envelope) from None
    return BatchPlace(batch.ID, batch.Place, batch.Size, _follow_ups(batch, default, envelope))


def _body(wire: Any, envelope: Envelope) -> Body:
    if wire.HasField("Stored"):
        return Body(b"", wire.Stored.Type, _stored(wire))
    name = wire.Body.type_url.rpartition("/")[2]
    if name != TEXT:
        return Body(wire.Body.value, name)
    value = _text_of(wire.Body.value)
    if value is None:
        raise Unreadable(f"field 'Body' says it is a {TEXT} and holds none", envelope)
    return Body(value)


def _stored(wire: Any) -> StoredValue:
    return StoredValue(wire.Stored.URL, wire.Stored.Size, wire.Stored.SHA256)


def _follow_ups(wire: Any, default: Envelope, envelope: Envelope | None = None) -> tuple[FollowUp, ...]:
    """Read the follow-ups in a message. An error has the ``envelope`` of the message, to notify its
    producer."""
    try:
        return tuple(
            _follow_up(
                _from_wire(each.Task, _unnamed(default.app)),
                each.Task.Envelop.TraceID,
                each.OnFailure,
                each.DelayS,
            )
            for each in wire.FollowUps
        )
    except Unreadable as error:
        raise Unreadable(f"field 'FollowUps': {error}", envelope) from None


def _unnamed(app: str) -> Envelope:
    """Return what stands for a follow-up's task id until it has one."""
    return Envelope(app=app, task_id="-", task_type="")


def _follow_up(task: SentTask, task_id: str, on_failure: bool, delay_s: float) -> FollowUp:
    if not task.envelope.task_type:
        raise Unreadable("its TaskType is empty")
    if not 0 <= delay_s <= SECONDS_MAX:
        raise Unreadable(f"its DelayS is {delay_s:g}; it is 0 to {SECONDS_MAX:g}")
    if not task.body.name:
        try:
            task.body.data.decode()  # it goes into the record of the task before it
        except UnicodeDecodeError as error:
            raise Unreadable(f"field 'Body' can't be read: {error}") from None
    envelope = msgspec.structs.replace(task.envelope, task_id=task_id)
    return FollowUp(msgspec.structs.replace(task, envelope=envelope), on_failure, delay_s)


def _wire_task(message: SentTask) -> Any:
    wire = TaskMessage(Envelop=_wire_envelope(message.envelope))
    body = message.body
    if body.stored is not None:
        wire.Stored.CopyFrom(_wire_stored(body.stored, body.name))
        wire.Body.type_url, wire.Body.value = PREFIX + TEXT, NO_TEXT
    elif body.name:
        wire.Body.type_url, wire.Body.value = PREFIX + body.name, body.data
    else:
        wire.Body.type_url, wire.Body.value = PREFIX + TEXT, _text_value(body.data)
    wire.FollowUps.extend(map(_wire_follow_up, message.follow_ups))
    if (batch := message.batch) is not None:
        follow_ups = map(_wire_follow_up, batch.follow_ups)
        wire.Batch.CopyFrom(
            WireBatch(ID=batch.task_id, Place=batch.place, Size=batch.size, FollowUps=follow_ups)
        )
    if message.after:
        wire.After.ParseFromString(from_base64(message.after))
    return wire


def _wire_stored(stored: StoredValue, type_name: str = "") -> Any:
    return WireStoredValue(URL=stored.url, Size=stored.size, SHA256=stored.sha256, Type=type_name)


def _wire_follow_up(follow_up: FollowUp) -> Any:
    return WireFollowUp(
        Task=_wire_task(follow_up.task), OnFailure=follow_up.on_failure, DelayS=follow_up.delay_s
    )


def _wire_envelope(envelope: Envelope) -> Any:
    wire = TaskEnvelop.FromString(envelope.raw)
    wire.App, wire.TraceID, wire.TaskType = envelope.app, envelope.task_id, envelope.task_type
    wire.Group, wire.Priority = envelope.group, envelope.priority
    wire.TimeoutS, wire.Tries = envelope.timeout_s, envelope.tries
    if not envelope.raw:
        wire.SentAtMs = round(envelope.sent_at * MS)
    return wire


def _text_value(data: bytes) -> bytes:
    return wrappers_pb2.StringValue(value=data.decode()).SerializeToString()


def _text_of(data: bytes) -> bytes | None:
    try:
        return wrappers_pb2.StringValue.FromString(data).value.encode()
    except DecodeError:
        return None


# --- JSON


class _JsonEnvelope(msgspec.Struct):
    App: str = ""
    TraceID: str = ""
    TaskType: str = ""
    Group: str = ""
    Priority: Int32 = 0
    SentAtMs: Moment = 0
    TimeoutS: TimeoutS = 0.0
    Tries: Tries = 0


class _JsonTask(msgspec.Struct):
    Envelop: _JsonEnvelope
    Body: msgspec.Raw = msgspec.Raw(b"null")
    FollowUps: list[_JsonFollowUp] = []


class _JsonFollowUp(msgspec.Struct):
    Task: _JsonTask
    OnFailure: bool = False
    DelayS: TimeoutS = 0.0


_json_task = msgspec.json.Decoder(_JsonTask)
_json_object = msgspec.json.Decoder(dict[str, msgspec.Raw])


def _from_json(data: bytes, default: Envelope) -> SentTask:
    try:
        fields = _json_object.decode(data)
    except UNREADABLE as error:
        raise Unreadable(f"the message begins as JSON and is none: {error}") from None
    if "Envelop" not in fields:
        return SentTask(_checked(default, default), Body(data))
    try:
        task = _json_task.decode(data)
    except UNREADABLE as error:
        raise Unreadable(f"the message's Envelop is wrong: {error}") from None
    try:
        return _from_json_task(task, default)
    except Unreadable as error:
        follow_ups: tuple[FollowUp, ...] = ()
        if error.envelope is not None and error.envelope.app == default.app:
            with contextlib.suppress(Unreadable):
                follow_ups = _json_follow_ups(task, default, 0)
        raise Unreadable(str(error), error.envelope, follow_ups) from None


def _from_json_task(task: _JsonTask, default: Envelope, before: int = 0) -> SentTask:
    """Return a task at the depth ``before`` of a chain of follow-ups."""
    sent = task.Envelop
    envelope = Envelope(
        app=sent.App or default.app,
        task_id=sent.TraceID or default.task_id,
        task_type=sent.TaskType or default.task_type,
        group=sent.Group,
        priority=sent.Priority,
        sent_at=sent.SentAtMs / MS,
        timeout_s=sent.TimeoutS,
        tries=sent.Tries,
    )
    envelope = _checked(envelope, default)
    if before > FOLLOW_UPS_MAX:
        raise Unreadable(f"more than {FOLLOW_UPS_MAX} tasks follow each other")
    follow_ups = _json_follow_ups(task, default, before, envelope)
    return SentTask(envelope, Body(bytes(task.Body)), follow_ups)


def _json_follow_ups(
    task: _JsonTask, default: Envelope, before: int, envelope: Envelope | None = None
) -> tuple[FollowUp, ...]:
    """Read the follow-ups of a task, as ``_follow_ups`` does."""
    try:
        return tuple(
            _follow_up(
                _from_json_task(each.Task, _unnamed(default.app), before + 1),
                each.Task.Envelop.TraceID,
                each.OnFailure,
                each.DelayS,
            )
            for each in task.FollowUps
        )
    except Unreadable as error:
        raise Unreadable(f"field 'FollowUps': {error}", envelope) from None


def _checked(envelope: Envelope, default: Envelope) -> Envelope:
    """Return the envelope if its values are valid: task id and group are ids, the app is that of this queue,
    the type isn't too long, and the options are in their range. Raises Unreadable otherwise."""
    try:
        check_key(envelope.task_id, "TraceID")
    except InvalidMessage as error:
        raise Unreadable(str(error)) from None
    if len(envelope.task_type.encode()) > TYPE_BYTES_MAX:
        known = msgspec.structs.replace(envelope, task_type=default.task_type)
        raise Unreadable(f"field 'TaskType' is over {TYPE_BYTES_MAX} bytes", known)
    try:
        if envelope.group:
            check_key(envelope.group, "Group")
    except InvalidMessage as error:
        raise Unreadable(str(error), msgspec.structs.replace(envelope, group="")) from None
    if envelope.tries < 0:
        raise Unreadable(
            f"field 'Tries' is {envelope.tries}; it is at least 1, or 0 for that of the type",
            msgspec.structs.replace(envelope, tries=0),
        )
    if not 0 <= envelope.timeout_s <= SECONDS_MAX:
        raise Unreadable(
            f"field 'TimeoutS' is {envelope.timeout_s:g}; it is above 0 and at most {SECONDS_MAX:g}, or 0 for"
            " that of the type",
            msgspec.structs.replace(envelope, timeout_s=0.0),
        )
    if envelope.app != default.app:
        raise Unreadable(f"the task is for app {envelope.app!r}; this queue is {default.app!r}'s", envelope)
    return envelope
