"""Bodies and attributes survive SQS, whatever they hold."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import TooLarge
from holdfast.services.aws.message import MAX_BYTES, MESSAGE_BYTES, Entry, batches, decode, encode, size
from holdfast.services.aws.sqs import Attribute, SqsMessage

TRACEPARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
TEXTS = st.text(max_size=20) | st.just("\ud800")
NAMES = st.sampled_from(
    ["holdfast", "holdfast-body", "holdfast-attributes", "AWS.x", "a.b", ".a", "x" * 257, ""]
)


def received(entry: Entry) -> SqsMessage:
    attributes = {
        name: Attribute(value["DataType"], value["StringValue"])
        for name, value in entry.get("MessageAttributes", {}).items()
    }
    return SqsMessage("id", "receipt", entry["MessageBody"], {}, attributes)


@pytest.mark.slow
@given(
    body=st.binary() | st.text().map(str.encode),
    attributes=st.dictionaries(NAMES | TEXTS, TEXTS, max_size=15),
)
def test_body_and_attributes_arrive_unchanged(body: bytes, attributes: dict[str, str]) -> None:
    entry = encode(body, attributes, letter='{"id": "1"}')
    sent = entry["MessageAttributes"]
    assert len(sent) <= 10
    assert all(
        0 < len(name) <= 256 and name.isascii() and value["StringValue"] for name, value in sent.items()
    )
    assert entry["MessageBody"]
    assert decode(received(entry)) == (body, attributes, '{"id": "1"}')


def test_plain_text_travels_as_it_is() -> None:
    entry = encode('{"frame": 1, "käse": "☃"}\r\n'.encode(), {"kind": "frame"})
    assert entry == {
        "MessageBody": '{"frame": 1, "käse": "☃"}\r\n',
        "MessageAttributes": {"kind": {"DataType": "String", "StringValue": "frame"}},
    }


def test_what_others_send_arrives_as_it_is() -> None:
    attributes = {
        "n": Attribute("Number", "1.50"),
        "b": Attribute("Binary", None, "AAE="),
        "holdfast-body": Attribute("String", "base64"),
        "holdfast-attributes": Attribute("String", "[]"),
    }
    body, found, letter = decode(SqsMessage("id", "receipt", "not base64!", {}, attributes))
    assert (body, letter) == (b"not base64!", "")
    assert found == {"n": "1.50", "b": "AAE=", "holdfast-body": "base64", "holdfast-attributes": "[]"}


def test_the_largest_body_fits_a_message_with_its_attributes() -> None:
    entry = encode(b"\xff" * MAX_BYTES, {f"name-{i}": "x" * 5000 for i in range(12)})
    assert size(entry) <= MESSAGE_BYTES


def test_the_size_of_a_message_counts_as_sqs_counts_it() -> None:
    assert size(encode("ä".encode(), {"k": "ö"})) == 2 + 1 + len("String") + 2


def test_batches_hold_what_a_call_takes() -> None:
    large = [encode(b"x" * (MESSAGE_BYTES // 3), {}) for _ in range(5)]
    assert [len(batch) for batch in batches(large)] == [3, 2]
    small = [encode(b"%d" % i, {}) for i in range(23)]
    split = batches(small)
    assert [len(batch) for batch in split] == [10, 10, 3]
    assert [entry for batch in split for entry in batch] == small
    assert batches([]) == []
    with pytest.raises(TooLarge, match=str(MESSAGE_BYTES)):
        batches([encode(b"x" * (MESSAGE_BYTES + 1), {})])


def test_packed_attributes_that_are_nested_too_deeply_stay_as_they_are() -> None:
    deep = "[" * 100_000
    message = SqsMessage("m", "r", "body", {}, {"holdfast-attributes": Attribute("String", deep)})
    assert decode(message) == (b"body", {"holdfast-attributes": deep}, "")


def test_a_place_in_a_trace_is_written_before_all_other_attributes() -> None:
    attributes = {f"a{n}": str(n) for n in range(12)} | {"traceparent": TRACEPARENT}
    sent = encode(b"\0", attributes, letter="{}")["MessageAttributes"]
    assert len(sent) == 10
    assert sent["traceparent"]["StringValue"] == TRACEPARENT
    assert decode(received(encode(b"\0", attributes)))[1] == attributes


@pytest.mark.parametrize(
    "header, wanted",
    [
        (
            "Root=1-4bf92f35-77b34da6a3ce929d0e0e4736;Parent=00f067aa0ba902b7;Sampled=1",
            {"traceparent": TRACEPARENT},
        ),
        (
            "Self=1-67891234-12; Root=1-4bf92f35-77b34da6a3ce929d0e0e4736;Parent=00f067aa0ba902b7;Sampled=0",
            {"traceparent": TRACEPARENT.removesuffix("01") + "00"},
        ),
        ("Root=1-4bf92f35-77b34da6a3ce929d0e0e4736", {}),
        ("Root=1-4bf92f35-77b34da6a3ce929d0e0e4736;Parent=none", {}),
        ("nonsense", {}),
    ],
)
def test_a_place_in_a_trace_is_read_from_what_x_ray_writes_beside_the_attributes(
    header: str, wanted: dict[str, str]
) -> None:
    message = SqsMessage("id", "receipt", "x", {"AWSTraceHeader": header})
    assert decode(message)[1] == wanted


def test_a_place_among_the_attributes_counts_more_than_the_one_of_x_ray() -> None:
    header = "Root=1-11111111-111111111111111111111111;Parent=1111111111111111;Sampled=1"
    own = {"traceparent": Attribute("String", TRACEPARENT)}
    assert decode(SqsMessage("id", "receipt", "x", {"AWSTraceHeader": header}, own))[1] == {
        "traceparent": TRACEPARENT
    }
