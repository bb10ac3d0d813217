"""Addressing messages, decoding them, storing results."""

import dataclasses
import datetime as dt
import math
from typing import Any, TypedDict

import msgspec
import numpy as np
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.common.codec import decoder, encode_result
from holdfast.common.message import NO_RUN, SEQ_DIGITS, Place
from holdfast.errors import ConfigError, HandlerFailed, InvalidMessage, TooLarge
from holdfast.streams.addressing import address, labels, unwrap, wrap
from holdfast.streams.handler import StreamHandler
from holdfast.streams.spec import StreamSpec


def declare(**settings: Any) -> StreamSpec:
    return StreamSpec(name="frames", handler=StreamHandler, **settings)


FRAMES = declare(key="video", seq="frame", run="meta.run", seq_kind="dense")
ARRIVALS = declare(key="camera")


def place(
    spec: StreamSpec, body: Any, attributes: dict[str, str] | None = None, number: int | None = None
) -> tuple[str, Place]:
    body = body if isinstance(body, bytes) else msgspec.json.encode(body)
    return address(spec, body, attributes or {}, "delivery-1", number)


def test_fields_give_key_run_and_seq() -> None:
    body = {
        "url": "file:///x",
        "meta": {"run": 3, "fps": 30.5},
        "video": "cam-1",
        "frame": 17,
        "boxes": [1.5],
    }
    assert place(FRAMES, body) == ("cam-1", Place(3, 17))


def test_numbers_may_be_texts_and_keys_numbers() -> None:
    assert place(FRAMES, {"video": 7, "frame": "17", "meta": {"run": "3"}}) == ("7", Place(3, 17))


@pytest.mark.parametrize("key", ["camera", ("camera", "key")])
@pytest.mark.parametrize("run", [None, "film", ("film", None)])
@pytest.mark.parametrize("seq", [None, "n", ("frame", "n")])
def test_a_labelled_raw_message_is_addressed_as_it_was(key: Any, run: Any, seq: Any) -> None:
    spec = declare(message=bytes, key=key, run=run, seq=seq, seq_kind="dense" if seq else "absent")
    was = Place(3 if run else 0, 7) if seq else Place(3 if run else 0, 0, "delivery-1")
    assert place(spec, b"raw", labels(spec, "käse/1", was)) == ("käse/1", was)


@pytest.mark.parametrize("message", [dict, bytes])
@pytest.mark.parametrize("run", [None, ("film", None)])
def test_a_message_without_a_run_says_so_where_its_owner_counts_them(message: Any, run: Any) -> None:
    spec = declare(message=message, key="camera", seq="n", run=run, seq_kind="dense", restart_after_s=60.0)
    if message is bytes:
        told, body = {"camera": "cam-1", "n": "5"}, b"raw"
    else:
        told, body = {}, msgspec.json.encode({"camera": "cam-1", "n": 5})
    assert place(spec, body, told) == ("cam-1", Place(NO_RUN, 5))
    if message is bytes:
        assert place(spec, body, labels(spec, "cam-1", Place(NO_RUN, 5))) == ("cam-1", Place(NO_RUN, 5))


def test_a_negative_run_is_no_way_to_say_that_there_is_none() -> None:
    spec = declare(key="camera", seq="n", run=("film", None), seq_kind="dense", restart_after_s=60.0)
    with pytest.raises(InvalidMessage, match="must not be negative"):
        place(spec, {"camera": "cam-1", "n": 5, "film": NO_RUN})


def test_the_largest_seq_is_read_exactly() -> None:
    largest = 10**SEQ_DIGITS - 1
    assert place(FRAMES, {"video": "v", "frame": largest, "meta": {"run": 0}})[1].seq == largest


def test_one_field_may_be_key_and_seq() -> None:
    spec = declare(key="at.shelf", seq="at.shelf", seq_kind="increasing")
    assert place(spec, {"at": {"shelf": 5}}) == ("5", Place(0, 5))


def test_a_field_of_any_name_is_found_in_a_body() -> None:
    spec = declare(key="video id", seq="класс", seq_kind="dense")
    assert place(spec, {"video id": "v", "класс": 1}) == ("v", Place(0, 1))


def test_without_seq_the_delivery_tells_messages_apart() -> None:
    assert place(ARRIVALS, {"camera": "c"}) == ("c", Place(0, 0, "delivery-1"))
    assert place(ARRIVALS, {"camera": "c"}, {"id": "own"}) == ("c", Place(0, 0, "own"))


@pytest.mark.parametrize("text", ["", "x" * 257, "a\nb"])
def test_an_unusable_id_is_refused_by_name(text: str) -> None:
    with pytest.raises(InvalidMessage, match="attribute 'id'"):
        place(ARRIVALS, {"camera": "c"}, {"id": text})


def test_a_message_is_placed_by_the_number_of_its_queue() -> None:
    spec = declare(key="camera", seq="queue", seq_kind="increasing")
    assert place(spec, {"camera": "c"}, number=10**30) == ("c", Place(0, 10**30))
    with pytest.raises(InvalidMessage, match="declare seq="):
        place(spec, {"camera": "c"})


def test_raw_messages_carry_their_place_in_attributes() -> None:
    spec = declare(message=bytes, key="video", seq="frame", seq_kind="dense")
    assert place(spec, b"\xff\x00", {"video": "v", "frame": "12"}) == ("v", Place(0, 12))
    with pytest.raises(InvalidMessage, match="attribute 'frame' is missing") as failure:
        place(spec, b"", {"video": "v"})
    assert failure.value.field == "frame"
    with pytest.raises(InvalidMessage, match="'frame' must be an integer"):
        place(spec, b"", {"video": "v", "frame": "twelve"})


EITHER = declare(
    key=("video", "video_id"),
    seq=("meta.frame", "frame_id"),
    run=("meta.run", None),
    seq_prefix="frame",
    seq_kind="dense",
)


@pytest.mark.parametrize(
    "body, expected",
    [
        ({"video": "v", "meta": {"frame": 1, "run": 2}}, ("v", Place(2, 1))),
        ({"video": "v", "meta": {"frame": 1}}, ("v", Place(0, 1))),
        ({"video_id": 7, "frame_id": 1, "timestamp": None}, ("7", Place(0, 1))),
        ({"video_id": "v", "frame_id": "0001", "meta": {"run": 3}}, ("v", Place(3, 1))),
        ({"video_id": "old", "video": "v", "meta": {"frame": 1}, "frame_id": 9}, ("v", Place(0, 1))),
    ],
)
def test_the_first_name_that_a_message_has_is_used(body: dict[str, Any], expected: tuple[str, Place]) -> None:
    assert place(EITHER, body) == expected


@pytest.mark.parametrize("seq", ["17", "017", "frame17", "frame-000017", "frame_17", "frame: 17"])
def test_a_seq_may_have_a_prefix(seq: str) -> None:
    assert place(EITHER, {"video_id": "v", "frame_id": seq}) == ("v", Place(0, 17))


@pytest.mark.parametrize(
    "body, field, text",
    [
        ({"frame_id": 1}, "video or video_id", "'video or video_id' is missing"),
        ({"video_id": "v"}, "meta.frame or frame_id", "is missing; every message of 'frames' has it"),
        ({"video_id": "v", "meta": {"frame": None}, "frame_id": 1}, "meta.frame", "not null"),
        ({"video_id": "v", "frame_id": 1, "meta": 3}, None, "can't be read"),
        ({"video_id": "v", "frame_id": "image-1"}, "meta.frame or frame_id", "must be an integer"),
        ({"video_id": "v", "frame_id": "frame"}, "meta.frame or frame_id", "must be an integer"),
        ({"video_id": "v", "frame_id": "frame--1.5"}, "meta.frame or frame_id", "must be an integer"),
        ({"video_id": "", "frame_id": 1}, "video or video_id", "non-empty"),
    ],
)
def test_what_fits_no_form_says_why(body: Any, field: str | None, text: str) -> None:
    with pytest.raises(InvalidMessage, match=text) as failure:
        place(EITHER, body)
    assert failure.value.field == field


def test_the_first_attribute_that_a_raw_message_has_is_used() -> None:
    spec = declare(message=bytes, key=("video", "v"), seq="n", run=("run", None), seq_kind="dense")
    assert place(spec, b"", {"v": "cam", "n": "2"}) == ("cam", Place(0, 2))
    assert place(spec, b"", {"video": "cam", "v": "x", "n": "2", "run": "3"}) == ("cam", Place(3, 2))
    with pytest.raises(InvalidMessage, match="attribute 'video or v' is missing"):
        place(spec, b"", {"n": "2"})


def frame(**changes: Any) -> dict[str, Any]:
    return {"video": "v", "frame": 1, "meta": {"run": 0}} | changes


@pytest.mark.parametrize(
    "body,field,text",
    [
        (b"", None, "not JSON"),
        (b"{", None, "not JSON"),
        (b'{"video": "\xff"}', None, "not JSON"),
        (b'{"video":' + b"[" * 100_000, None, "not JSON"),
        (b'{"video": "v", "frame": 1e999}', None, "out of range"),
        ([1], None, "must be a JSON object, not an array"),
        (None, None, "must be a JSON object, not null"),
        ({"frame": 1}, "video", "'video' is missing"),
        (frame(video=None), "video", "not null"),
        (frame(video={"id": 1}), "video", "not an object"),
        (frame(video=""), "video", "non-empty"),
        (frame(video="a\nb"), "video", r"U\+000A, which is not printable"),
        (frame(video="a\u202eb"), "video", r"U\+202E, which is not printable"),
        (frame(video="x" * 10_000), "video", "10000 bytes"),
        (frame(frame=-1), "frame", "negative"),
        (frame(frame=1.5), "frame", "not a fraction"),
        (frame(frame=True), "frame", "not a boolean"),
        (frame(frame="one"), "frame", "must be an integer"),
        (frame(frame=10**SEQ_DIGITS), "frame", "digits"),
        (frame(meta={}), "meta.run", "'meta.run' is missing"),
        (frame(meta=4), "meta.run", "'meta.run' is missing"),
        (frame(meta={"run": []}), "meta.run", "not an array"),
    ],
)
def test_what_cannot_be_placed_says_why(body: Any, field: str | None, text: str) -> None:
    with pytest.raises(InvalidMessage, match=text) as failure:
        place(FRAMES, body)
    assert failure.value.field == field


@pytest.mark.parametrize("key", ["می\u200cشود", "👩\u200d🔧"])
def test_a_key_may_be_spelt_with_joiners(key: str) -> None:
    assert place(FRAMES, frame(video=key))[0] == key


@given(st.binary())
def test_any_bytes_are_refused_as_an_invalid_message(body: bytes) -> None:
    with pytest.raises(InvalidMessage):
        place(FRAMES, body)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(["run", "video", "frame", ""]), inner),
    max_leaves=6,
)


@pytest.mark.slow
@given(st.dictionaries(st.sampled_from(["video", "frame", "meta", "other"]), json_values))
def test_any_json_is_placed_or_refused_as_invalid(body: dict[str, Any]) -> None:
    try:
        key, at = place(FRAMES, body)
    except InvalidMessage:
        return
    assert (key, at) == (str(body["video"]), Place(int(body["meta"]["run"]), int(body["frame"])))


def test_a_field_inside_another_field_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"'at' can't also hold 'at\.seq'"):
        place(declare(key="at", seq="at.seq", seq_kind="dense"), {})


# --- decoding


@dataclasses.dataclass
class Data:
    x: int
    when: dt.date | None = None


class Struct(msgspec.Struct):
    x: int


class Model(pydantic.BaseModel):
    x: int


@pydantic.dataclasses.dataclass
class Checked:
    x: int


class Typed(TypedDict):
    x: int


@pytest.mark.parametrize(
    "message,expected",
    [
        (Data, Data(1)),
        (Struct, Struct(1)),
        (Model, Model(x=1)),
        (Checked, Checked(1)),
        (Typed, {"x": 1}),
        (dict, {"x": 1}),
        (dict[str, int], {"x": 1}),
        (bytes, b'{"x":1}'),
    ],
)
def test_a_body_becomes_a_message_of_the_declared_type(message: Any, expected: Any) -> None:
    assert decoder(message)(b'{"x":1}') == expected


@pytest.mark.parametrize("message", [Data, Struct, Model, Checked, Typed, dict[str, int]])
@pytest.mark.parametrize("body", [b'{"x":"many"}', b'{"x":null}', b"[]", b"", b"{", b"\xff", b"[" * 99_999])
def test_a_body_that_does_not_fit_is_invalid(message: Any, body: bytes) -> None:
    with pytest.raises(InvalidMessage):
        decoder(message)(body)


class Blob(msgspec.Struct):
    data: bytes


@pytest.mark.parametrize("text", ["_-8=", "YWI", "YW\\nI="], ids=["URL-safe", "unpadded", "in lines"])
def test_base64_of_another_kind_is_refused_with_the_kind_that_is_read(text: str) -> None:
    with pytest.raises(
        InvalidMessage, match="write bytes in standard base64, padded and in one line"
    ) as failure:
        decoder(Blob)(f'{{"data":"{text}"}}'.encode())
    assert failure.value.field == "data"


@pytest.mark.parametrize("message", [Data, Struct, Model, Checked, Typed])
@pytest.mark.parametrize("body", [b'{"x":"many"}', b"{}"])
def test_the_field_that_does_not_fit_is_named(message: type, body: bytes) -> None:
    with pytest.raises(InvalidMessage, match=f"the message isn't of type {message.__name__}") as failure:
        decoder(message)(body)
    assert failure.value.field == "x"


def test_a_type_that_json_cannot_tell_is_a_wrong_setting() -> None:
    with pytest.raises(ConfigError, match="can't be read from JSON"):
        decoder(Data | Struct)


# --- results


@pytest.mark.parametrize(
    "result,stored",
    [
        (None, None),
        (b"raw", b"raw"),
        (bytearray(b"raw"), b"raw"),
        (memoryview(b"raw"), b"raw"),
        ({"a": [1, 2.5, "x", None, True]}, b'{"a":[1,2.5,"x",null,true]}'),
        (0, b"0"),
        (Data(1, dt.date(2020, 1, 2)), b'{"x":1,"when":"2020-01-02"}'),
        (Struct(1), b'{"x":1}'),
        (Model(x=1), b'{"x":1}'),
        (
            {"box": np.array([1, 2]), "score": np.float32(0.5), "id": np.int64(3)},
            b'{"box":[1,2],"score":0.5,"id":3}',
        ),
    ],
)
def test_results_are_stored_as_json(result: Any, stored: bytes | None) -> None:
    assert encode_result(result) == stored


def endless() -> list[Any]:
    cycle: list[Any] = []
    cycle.append(cycle)
    return cycle


@pytest.mark.parametrize("junk", [object(), {"a": object()}, {(1, 2): 3}, "\ud800", 1j, endless(), print])
def test_junk_is_refused_by_its_type(junk: Any) -> None:
    with pytest.raises(HandlerFailed, match=f"of type {type(junk).__name__}, can't be stored as JSON"):
        encode_result(junk)


@pytest.mark.parametrize(
    "result",
    [math.nan, {"score": math.inf}, [None, -math.inf], np.float32("nan"), {"box": np.array([np.nan])}],
)
def test_a_number_that_json_lacks_does_not_become_null(result: Any) -> None:
    with pytest.raises(HandlerFailed, match="can't be stored as JSON: it holds NaN or an infinity"):
        encode_result(result)


def test_a_result_over_its_limit_is_refused() -> None:
    assert encode_result(b"x" * 10, 10)
    with pytest.raises(TooLarge, match="11 bytes"):
        encode_result("x" * 9, 10)


@pytest.mark.parametrize("text", ["/+8=", "_-8=", "_-8", "/+\n8="])
def test_a_data_url_is_read_however_its_base64_is_written(text: str) -> None:
    assert unwrap(f"data:image/png;base64,{text}") == b"\xff\xef"


def test_a_wrapped_body_has_its_key_where_the_stream_looks_for_it() -> None:
    """Names with dots reach into objects."""
    spec = declare(key="source.name", seq="source.n", seq_kind="dense")
    body = wrap(spec, "cam", Place(0, 7), b"\xff", "image/png", 1.0)
    assert address(spec, body, {}, "id", None) == ("cam", Place(0, 7))
