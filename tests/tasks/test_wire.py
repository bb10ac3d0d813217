"""Tasks and briefs on the wire, and what an independent program makes of them."""

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.wrappers_pb2 import StringValue

import holdfast.tasks
from holdfast.errors import InvalidMessage
from holdfast.rules.tasks.task import State
from holdfast.tasks.body import Body, body_of
from holdfast.tasks.order import FOLLOW_UPS_MAX
from holdfast.tasks.outcome import Outcome
from holdfast.tasks.wire import (
    BatchPlace,
    Envelope,
    FollowUp,
    SentTask,
    TaskBrief,
    TaskEnvelop,
    TaskMessage,
    Unreadable,
    WireBatch,
    WireFollowUp,
    decode_event,
    decode_follow_ups,
    decode_task,
    encode_event,
    encode_follow_ups,
    encode_task,
    with_attributes,
    without_attributes,
)
from tests.tasks.plain import compile_proto, plain

DEFAULT = Envelope(app="reports", task_id="m-1", task_type="publish")
SENT = Envelope(
    app="reports",
    task_id="t-1",
    task_type="publish",
    group="c",
    priority=3,
    sent_at=1.5,
    timeout_s=0.25,
    tries=7,
)
OUTCOME = Outcome(
    task_id="t-1",
    state=State.FAILED,
    task_type="publish",
    app="reports",
    value={"rows": 3},
    detail="no such table",
    attempts=3,
    started_at=10.25,
    ended_at=11.5,
    node="n1",
    progress=0.5,
    epoch=7,
)


def test_the_compiled_description_is_that_of_the_proto(tmp_path: Path) -> None:
    folder = Path(holdfast.tasks.__file__).parent
    root = folder.parents[1]
    compile_proto(folder / "tasks.proto", f"--descriptor_set_out={tmp_path / 'set'}", root=root)
    ours = FileDescriptorSet.FromString((folder / "tasks.binpb").read_bytes())
    assert ours == FileDescriptorSet.FromString((tmp_path / "set").read_bytes())


@pytest.mark.parametrize("value", ["text", {"a": [1, 2.5, None]}, 7, "", b"bytes that are text"])
def test_a_task_comes_back_as_it_was_sent(value: object) -> None:
    message = decode_task(encode_task(SentTask(SENT, body_of(value))), DEFAULT)
    assert message.body == body_of(value)
    assert (message.envelope.task_id, message.envelope.group) == ("t-1", "c")
    assert (message.envelope.priority, message.envelope.sent_at) == (3, 1.5)
    assert (message.envelope.timeout_s, message.envelope.tries) == (0.25, 7)


def test_programs_with_plain_protobuf_read_tasks() -> None:
    order = plain().Order(customer="acme", rows=7)
    wire = plain().TaskMessage.FromString(base64.b64decode(encode_task(SentTask(SENT, body_of(order)))))
    assert (wire.Envelop.App, wire.Envelop.TraceID, wire.Envelop.TaskType) == ("reports", "t-1", "publish")
    unpacked = plain().Order()
    assert wire.Body.Unpack(unpacked)
    assert unpacked == order
    text = plain().TaskMessage.FromString(base64.b64decode(encode_task(SentTask(SENT, body_of({"a": 1})))))
    value = StringValue()
    assert text.Body.Unpack(value)
    assert json.loads(value.value) == {"a": 1}


@pytest.mark.parametrize("encoded", [True, False])
def test_we_read_tasks_of_plain_programs(encoded: bool) -> None:
    wire = plain().TaskMessage()
    wire.Envelop.App, wire.Envelop.TraceID, wire.Envelop.TaskType = "reports", "t-1", "publish"
    wire.Body.Pack(plain().Order(customer="acme"))
    data = wire.SerializeToString()
    message = decode_task(base64.b64encode(data) if encoded else data, DEFAULT)
    assert message.envelope.task_id == "t-1"
    assert message.body == Body(plain().Order(customer="acme").SerializeToString(), "plain.Order")


def test_plain_programs_read_our_briefs_and_keep_what_they_do_not_know() -> None:
    brief = plain().TaskBrief.FromString(base64.b64decode(encode_event(SENT, OUTCOME)))
    assert (brief.Envelop.TraceID, brief.Result) == ("t-1", plain().FAILED)
    assert decode_event(base64.b64encode(brief.SerializeToString())) == OUTCOME


def test_we_read_briefs_of_plain_programs() -> None:
    brief = plain().TaskBrief(Result=plain().SUCCEED)
    brief.Envelop.App, brief.Envelop.TraceID = "reports", "t-1"
    outcome = decode_event(base64.b64encode(brief.SerializeToString()))
    assert (outcome.task_id, outcome.state, outcome.ok) == ("t-1", State.SUCCEEDED, True)


def test_unknown_fields_of_an_envelope_come_back_in_the_brief() -> None:
    newer = b"\xfa\x07\x03new"  # field 127, of a later version
    envelope = (
        plain().TaskEnvelop(App="reports", TraceID="t-1", TaskType="publish").SerializeToString() + newer
    )
    data = b"\x0a" + bytes([len(envelope)]) + envelope
    message = decode_task(base64.b64encode(data), DEFAULT)
    brief = plain().TaskBrief.FromString(base64.b64decode(encode_event(message.envelope, OUTCOME)))
    assert newer in brief.Envelop.SerializeToString()


def test_json_comes_with_and_without_envelope() -> None:
    said = {"Envelop": {"App": "reports", "TraceID": "t-9", "Group": "acme"}, "Body": {"rows": 3}}
    message = decode_task(json.dumps(said).encode(), DEFAULT)
    assert (message.envelope.task_id, message.envelope.task_type) == ("t-9", "publish")
    assert (message.envelope.group, json.loads(message.body.data)) == ("acme", {"rows": 3})
    bare = decode_task(b'{"rows": 3}', DEFAULT)
    assert (bare.envelope, bare.body) == (DEFAULT, Body(b'{"rows": 3}'))


def test_text_reaches_a_handler_that_takes_text() -> None:
    for text in (b"plain words", b"aGVsbG8=", b'{"not": "parsed"}', b"\xff\x00"):
        assert decode_task(text, DEFAULT, text=True) == SentTask(DEFAULT, Body(text))
    sent = encode_task(SentTask(SENT, body_of("words")))
    assert decode_task(sent, DEFAULT, text=True).body == Body(b"words")


@pytest.mark.parametrize(
    "data, said",
    [
        (b"", "empty"),
        (b"  ", "empty"),
        (b"{", "begins as JSON"),
        (b"[1]", "neither a TaskMessage"),
        (b"no base64 at all", "neither a TaskMessage"),
        (base64.b64encode(b"no protobuf"), "neither a TaskMessage"),
        (base64.b64encode(b"\x0a\xff\xff"), "neither a TaskMessage"),
        (b'{"Envelop": {"App": 7}}', "Envelop is wrong"),
        (b'{"Envelop": {"TraceID": "\\u0000"}}', "TraceID"),
        (b'{"Envelop": {"TraceID": "%s"}}' % (b"x" * 600), "TraceID"),
    ],
)
def test_what_holds_no_task_is_refused_with_a_reason(data: bytes, said: str) -> None:
    with pytest.raises(Unreadable, match=said) as caught:
        decode_task(data, DEFAULT)
    assert caught.value.envelope is None


def test_a_task_of_another_app_is_refused_with_its_envelope() -> None:
    other = Envelope(app="billing", task_id="t-1", task_type="publish")
    with pytest.raises(Unreadable, match="billing") as caught:
        decode_task(encode_task(SentTask(other, Body(b""))), DEFAULT)
    assert caught.value.envelope is not None
    assert caught.value.envelope.task_id == "t-1"


@pytest.mark.parametrize(
    "brief, said",
    [
        ({}, "'After': field 'Result' of the brief of 'before' is 0"),
        ({"Result": 99}, "'After': field 'Result' of the brief of 'before' is 99"),
        ({"Result": 3, "Value": "{"}, "'After': field 'Value' of the brief isn't JSON"),
    ],
)
def test_a_task_that_follows_upon_no_outcome_is_refused_with_its_envelope(
    brief: dict[str, Any], said: str
) -> None:
    wire = TaskMessage(After=TaskBrief(**brief))
    wire.Envelop.App, wire.Envelop.TraceID, wire.Envelop.TaskType = "reports", "t-1", "publish"
    wire.After.Envelop.TraceID = "before"
    with pytest.raises(Unreadable, match=said) as caught:
        decode_task(base64.b64encode(wire.SerializeToString()), DEFAULT)
    assert caught.value.envelope is not None
    assert caught.value.envelope.task_id == "t-1"


@pytest.mark.parametrize("data", [b"%", base64.b64encode(b"\xff"), base64.b64encode(b""), b""])
def test_what_is_no_brief_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidMessage):
        decode_event(data)


NESTED = b"[" * 100_000 + b"]" * 100_000


@pytest.mark.parametrize(
    "data",
    [
        b'{"a": %s}' % NESTED,
        b'{"Envelop": {"TraceID": "t"}, "Body": %s}' % NESTED,
        b'{"Envelop": %s}' % NESTED,
        b'{"a\xed\xa0\x80": 1}',
        b'{"Envelop": {"TraceID": "\xff"}}',
        b'{"Envelop": {"TraceID": "t", "Priority": 2147483648}}',
        b'{"Envelop": {"TraceID": "t", "SentAtMs": -1}}',
        b'{"Envelop": {"TraceID": "t", "SentAtMs": 9223372036854775807}}',
        b'{"Envelop": {"TraceID": "a\\u0007b"}}',
        b'{"Envelop": {"TraceID": "%s"}}' % (b"x" * 600),
    ],
)
def test_no_message_does_more_than_be_refused(data: bytes) -> None:
    with pytest.raises(Unreadable):
        decode_task(data, DEFAULT)


@pytest.mark.parametrize("field", ["TaskType", "Group"])
def test_endless_names_are_refused_and_not_told_on(field: str) -> None:
    envelope = {"App": "reports", "TraceID": "t-1", "TaskType": "publish"} | {field: "x" * 5000}
    with pytest.raises(Unreadable, match=field) as refused:
        decode_task(json.dumps({"Envelop": envelope}).encode(), DEFAULT)
    known = refused.value.envelope
    assert known is not None
    assert (known.task_id, known.task_type, known.group) == ("t-1", "publish", "")


def test_any_moment_that_a_program_sends_goes_back_to_it() -> None:
    wire = plain().TaskMessage()
    wire.Envelop.App, wire.Envelop.TraceID, wire.Envelop.TaskType = "reports", "t-1", "publish"
    odd = bytes([0x90, 0x01]) + b"\xff" * 8 + b"\x7f"  # SentAtMs, the largest there is
    raw = wire.Envelop.SerializeToString() + odd
    message = bytes([0x0A, len(raw)]) + raw
    envelope = decode_task(base64.b64encode(message), DEFAULT).envelope
    assert odd in base64.b64decode(encode_event(envelope, OUTCOME))


@pytest.mark.parametrize("task_id", ["", "a\x07b", "x" * 600])
@pytest.mark.parametrize("data, text", [(b"{}", False), (b"words", True)])
def test_what_a_queue_calls_a_message_must_do_as_a_trace(task_id: str, data: bytes, text: bool) -> None:
    with pytest.raises(Unreadable, match="TraceID"):
        decode_task(data, Envelope(app="reports", task_id=task_id, task_type="publish"), text=text)


@pytest.mark.parametrize(
    "write",
    [
        base64.b64encode,
        base64.encodebytes,
        base64.urlsafe_b64encode,
        lambda data: base64.b64encode(data).rstrip(b"="),
        lambda data: b"\n" + base64.encodebytes(data),
        bytes,
    ],
)
def test_base64_is_read_however_a_producer_writes_it(write: Callable[[bytes], bytes]) -> None:
    data = base64.b64decode(encode_task(SentTask(SENT, body_of("käse? ÿÿÿ~~~" * 9))))
    assert decode_task(write(data), DEFAULT).body.data.decode() == "käse? ÿÿÿ~~~" * 9
    if write is not bytes:
        brief = base64.b64decode(encode_event(SENT, OUTCOME))
        assert decode_event(write(brief)) == OUTCOME


@pytest.mark.parametrize(
    "field,value", [("Tries", -1), ("TimeoutS", -0.5), ("TimeoutS", 2e9), ("TimeoutS", float("nan"))]
)
def test_an_option_out_of_its_range_is_refused_by_its_name(field: str, value: float) -> None:
    message = TaskMessage()
    message.Envelop.App, message.Envelop.TraceID = "reports", "t-1"
    setattr(message.Envelop, field, value)
    with pytest.raises(Unreadable, match=field) as refusal:
        decode_task(base64.b64encode(message.SerializeToString()), DEFAULT)
    assert refusal.value.envelope is not None, "its producer is told"
    assert encode_event(refusal.value.envelope, OUTCOME)
    if value == value:
        json = b'{"Envelop": {"App": "reports", "TraceID": "t-1", "%s": %s}}' % (
            field.encode(),
            str(value).encode(),
        )
        with pytest.raises(Unreadable, match=field):
            decode_task(json, DEFAULT)


def follow_up(
    task_id: str = "", *more: FollowUp, task_type: str = "mail.send", **changes: object
) -> FollowUp:
    envelope = Envelope(app="reports", task_id=task_id, task_type=task_type, tries=2)
    made = FollowUp(SentTask(envelope, Body(b'{"to": "a"}'), more))
    return msgspec.structs.replace(made, **changes)


def without_raw(follow_up: FollowUp) -> FollowUp:
    task = follow_up.task
    return msgspec.structs.replace(
        follow_up,
        task=msgspec.structs.replace(
            task,
            envelope=msgspec.structs.replace(task.envelope, raw=b""),
            follow_ups=tuple(map(without_raw, task.follow_ups)),
        ),
    )


def test_follow_ups_come_back_as_they_were_sent() -> None:
    sent = (
        follow_up("", follow_up("t-9", on_failure=True), delay_s=1.5),
        follow_up("", on_failure=True),
    )
    message = decode_task(encode_task(SentTask(SENT, body_of(1), sent)), DEFAULT)
    assert tuple(map(without_raw, message.follow_ups)) == sent
    assert tuple(map(without_raw, decode_follow_ups(encode_follow_ups(sent), "reports"))) == sent
    assert encode_follow_ups(()) == b""


def test_a_follow_up_is_told_the_outcome_before_it() -> None:
    after = encode_event(SENT, OUTCOME)
    message = decode_task(encode_task(SentTask(SENT, body_of(1), after=after)), DEFAULT)
    assert decode_event(message.after) == OUTCOME


def test_a_follow_up_in_json_is_decoded() -> None:
    task = {"Envelop": {"TaskType": "mail.send", "Tries": 2}, "Body": {"to": "a"}}
    sent = {
        "Envelop": {"App": "reports", "TraceID": "t-1"},
        "Body": 1,
        "FollowUps": [{"Task": task, "DelayS": 1.5}],
    }
    message = decode_task(json.dumps(sent).encode(), DEFAULT)
    assert message.follow_ups == (follow_up(delay_s=1.5),)


@pytest.mark.parametrize(
    "wrong,said",
    [
        (follow_up(task_type=""), "TaskType is empty"),
        (follow_up(task_type="t" * 300), "TaskType"),
        (follow_up(delay_s=-1.0), "DelayS is -1"),
        (follow_up("a\x07b"), "TraceID"),
        (follow_up("", follow_up(task_type="")), "field 'FollowUps': its TaskType is empty"),
    ],
)
def test_a_follow_up_that_can_not_be_sent_is_refused_with_its_task(wrong: FollowUp, said: str) -> None:
    with pytest.raises(Unreadable, match=f"field 'FollowUps': .*{said}") as refusal:
        decode_task(encode_task(SentTask(SENT, body_of(1), (wrong,))), DEFAULT)
    assert refusal.value.envelope is not None
    assert refusal.value.envelope.task_id == "t-1", "its producer is told"


def json_chain(length: int, body: bytes = b"1") -> bytes:
    """A task in JSON upon which so many follow, one upon another."""
    task = b'{"Envelop":{"TaskType":"mail.send"},"Body":%s}' % body
    for _ in range(length):
        task = b'{"Envelop":{"TaskType":"mail.send"},"Body":1,"FollowUps":[{"Task":%s}]}' % task
    return task


@pytest.mark.parametrize(
    "wrong, said",
    [
        (json_chain(1, b'"\xff"'), "'Body' can't be read"),
        (json_chain(FOLLOW_UPS_MAX + 1), "more than 16 tasks follow each other"),
        (json_chain(60), "more than 16 tasks follow each other"),
    ],
)
def test_a_follow_up_in_json_that_no_record_could_hold_is_refused(wrong: bytes, said: str) -> None:
    with pytest.raises(Unreadable, match=f"field 'FollowUps': .*{said}") as refusal:
        decode_task(wrong, DEFAULT)
    assert refusal.value.envelope is not None


@pytest.mark.parametrize("type_url", ["", "type.googleapis.com/"])
def test_a_follow_up_in_protobuf_that_no_record_could_hold_is_refused_with_its_task(type_url: str) -> None:
    body = AnyMessage(type_url=type_url, value=b"\xff\xfe")
    wrong = WireFollowUp(Task=TaskMessage(Envelop=TaskEnvelop(TaskType="mail.send"), Body=body))
    envelope = TaskEnvelop(App="reports", TraceID="t-1", TaskType="publish")
    for message in (
        TaskMessage(Envelop=envelope, FollowUps=[wrong]),
        TaskMessage(Envelop=envelope, Batch=WireBatch(ID="b", Size=1, FollowUps=[wrong])),
    ):
        with pytest.raises(Unreadable, match="field 'FollowUps': field 'Body' can't be read") as refusal:
            decode_task(base64.b64encode(message.SerializeToString()), DEFAULT)
        assert refusal.value.envelope is not None
        assert refusal.value.envelope.task_id == "t-1", "its producer is told"


def test_as_many_may_follow_each_other_in_json_as_in_an_order() -> None:
    record = encode_follow_ups(decode_task(json_chain(FOLLOW_UPS_MAX), DEFAULT).follow_ups)
    assert encode_follow_ups(decode_follow_ups(record, DEFAULT.app)) == record


def test_a_follow_up_of_another_app_is_refused() -> None:
    other = follow_up()
    envelope = msgspec.structs.replace(other.task.envelope, app="other")
    other = msgspec.structs.replace(other, task=msgspec.structs.replace(other.task, envelope=envelope))
    with pytest.raises(Unreadable, match="the task is for app 'other'"):
        decode_task(encode_task(SentTask(SENT, body_of(1), (other,))), DEFAULT)


def test_the_place_in_a_batch_comes_back_as_it_was_sent() -> None:
    batch = BatchPlace("b", 0, 2, (follow_up(),))
    message = decode_task(encode_task(SentTask(SENT, body_of(1), batch=batch)), DEFAULT)
    assert message.batch is not None
    assert msgspec.structs.replace(message.batch, follow_ups=()) == BatchPlace("b", 0, 2)
    assert tuple(map(without_raw, message.batch.follow_ups)) == (follow_up(),)


@pytest.mark.parametrize(
    "batch",
    [BatchPlace("", 0, 1), BatchPlace("b", 1, 1), BatchPlace("b", -1, 1), BatchPlace("b", 0, 10_001)],
)
def test_a_place_that_can_not_be_is_refused(batch: BatchPlace) -> None:
    with pytest.raises(Unreadable, match="field 'Batch'"):
        decode_task(encode_task(SentTask(SENT, body_of(1), batch=batch)), DEFAULT)


def wire_with_rest(**odd: Any) -> TaskMessage:
    """A task in protobuf with a follow-up and a place in a batch. ``odd`` is set in its envelope."""
    sent = SentTask(SENT, body_of(1), (follow_up(on_failure=True),), batch=BatchPlace("b", 1, 2))
    wire = TaskMessage.FromString(base64.b64decode(encode_task(sent)))
    for name, value in odd.items():
        setattr(wire.Envelop, name, value)
    return wire


def refused(data: bytes) -> Unreadable:
    with pytest.raises(Unreadable) as caught:
        decode_task(data, DEFAULT)
    return caught.value


@pytest.mark.parametrize("odd", [{}, {"Tries": -1}, {"Group": "a\x07b"}, {"TaskType": "t" * 300}])
def test_a_task_that_is_refused_keeps_what_follows_upon_it_and_its_place_in_a_batch(odd: Any) -> None:
    wire = wire_with_rest(**odd)
    if not odd:
        wire.Body.value = b"\xff"
    error = refused(wire.SerializeToString())
    assert tuple(map(without_raw, error.follow_ups)) == (follow_up(on_failure=True),)
    assert error.batch == BatchPlace("b", 1, 2)
    follow = b'[{"Task": {"Envelop": {"TaskType": "mail.send", "Tries": 2}, "Body": {"to": "a"}}}]'
    data = b'{"Envelop": {"TaskType": "%s"}, "FollowUps": %s}' % (b"t" * 300, follow)
    assert refused(data).follow_ups == (follow_up(),)


def test_a_task_that_is_refused_keeps_no_more_than_can_be_read() -> None:
    wire = wire_with_rest()
    wire.FollowUps[0].DelayS = -1
    error = refused(wire.SerializeToString())
    assert (error.follow_ups, error.batch) == ((), BatchPlace("b", 1, 2))
    wire = wire_with_rest(Tries=-1)
    wire.Batch.Size = 0
    error = refused(wire.SerializeToString())
    assert len(error.follow_ups) == 1
    assert error.batch is None
    assert refused(json_chain(FOLLOW_UPS_MAX + 1)).follow_ups == ()


def test_a_task_of_another_app_keeps_nothing_that_this_app_would_send() -> None:
    error = refused(wire_with_rest(App="billing").SerializeToString())
    assert (error.follow_ups, error.batch) == ((), None)
    task = b'{"Envelop": {"TaskType": "mail.send"}}'
    other = b'{"Envelop": {"App": "billing"}, "FollowUps": [{"Task": %s}]}' % task
    assert refused(other).follow_ups == ()


def test_a_long_chain_of_follow_ups_with_a_mistake_at_its_end_is_refused_at_once() -> None:
    """Nobody reads a part of it twice at each level: that would never end."""
    wrong = follow_up(delay_s=-1.0)
    for _ in range(30):
        wrong = follow_up("", wrong)
    assert "DelayS" in str(refused(encode_task(SentTask(SENT, body_of(1), (wrong,)))))


def test_attributes_that_are_kept_with_a_body_leave_it_as_it_was() -> None:
    body = encode_task(SentTask(SENT, body_of("text")))
    kept = with_attributes(body, {"traceparent": "00-1-2-01", "hops": "3"})
    assert decode_task(kept, DEFAULT).body == body_of("text")
    assert without_attributes(kept) == (body, {"traceparent": "00-1-2-01", "hops": "3"})
    assert without_attributes(body) == (body, {})


@pytest.mark.parametrize("body", [b"", b"\0", b"no task", b'{"a": 1}'])
def test_what_is_no_task_has_no_attributes(body: bytes) -> None:
    assert without_attributes(body) == (body, {})
