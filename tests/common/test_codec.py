"""JSON says what the value says, or there is an error."""

import dataclasses
import datetime as dt
import math
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field, field_validator

from holdfast.common.codec import NEST_MAX, decode_plain, decoder, encode, encoder, nests_deeply
from holdfast.errors import InvalidMessage


@dataclasses.dataclass
class Point:
    x: float


class Record(msgspec.Struct):
    x: float | None


class Unknown:
    def __init__(self, value: Any) -> None:
        self.value = value


def nested(depth: int) -> Any:
    value: Any = None
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(
    "holding",
    [lambda n: n, lambda n: [1, {"a": (None, n)}], Point, Record, lambda n: {7: [n]}, lambda n: [{n}, None]],
)
def test_a_number_that_json_lacks_does_not_become_null(number: float, holding: Any) -> None:
    with pytest.raises(ValueError, match="it holds NaN or an infinity, which JSON doesn't have"):
        encode(holding(number))


@pytest.mark.parametrize(
    "value, written",
    [
        (None, b"null"),
        ({"a": [None, 1.5, "null"]}, b'{"a":[null,1.5,"null"]}'),
        (Record(None), b'{"x":null}'),
        ([None, msgspec.Raw(b'{"a": null}')], b'[null,{"a": null}]'),
        ("it is null", b'"it is null"'),
        ({1: None}, b'{"1":null}'),
    ],
)
def test_what_is_null_is_written_so(value: Any, written: bytes) -> None:
    assert encode(value) == written


def test_a_hook_writes_what_else_there_is() -> None:
    write = encoder(lambda unknown: unknown.value)
    assert write([Unknown(1), None]) == b"[1,null]"
    with pytest.raises(ValueError, match="NaN"):
        write([Unknown(math.nan)])
    with pytest.raises(TypeError, match="unsupported"):
        encode([Unknown(1)])
    with pytest.raises(TypeError):
        encode([None, Unknown(1)])


def test_what_nests_deeply_is_neither_written_nor_read() -> None:
    assert decode_plain(encode(nested(NEST_MAX))) == nested(NEST_MAX)
    for depth in (NEST_MAX + 1, 100_000):
        with pytest.raises(ValueError, match=f"it nests deeper than {NEST_MAX}"):
            encode(nested(depth))
        with pytest.raises(ValueError, match=f"it nests deeper than {NEST_MAX}"):
            decode_plain(b"[" * depth + b"]" * depth)


def test_brackets_in_texts_and_side_by_side_do_not_count() -> None:
    assert not nests_deeply(b'["' + b"[{" * 1000 + b'"]')
    assert not nests_deeply(b'["\\"' + b"[" * 1000 + b'\\\\", "[\\"["]')
    assert not nests_deeply(b"[" + b"[{}]," * 1000 + b"[]]")
    assert nests_deeply(b'{"a":' * (NEST_MAX + 1))


@pytest.mark.parametrize("data", [b"", b"{", b"\xff", b'"\xff"', b"NaN", b'"\\ud800"', b"1e999"])
def test_what_is_no_json_is_an_error(data: bytes) -> None:
    with pytest.raises(ValueError, match="it isn't JSON"):
        decode_plain(data)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@pytest.mark.slow
@given(JSON)
def test_what_is_written_is_read_as_it_was(value: Any) -> None:
    assert decode_plain(encode(value)) == value


def test_what_json_has_no_form_for_is_named() -> None:
    with pytest.raises(TypeError, match="objects of type object is unsupported"):
        encode(object())


def test_a_model_is_written_as_the_model_reads_it() -> None:
    class Reading(BaseModel):
        at: dt.date
        kwh: float = Field(alias="kWh")

    assert encode(Reading(at=dt.date(2026, 1, 2), kWh=1.5)) == b'{"at":"2026-01-02","kWh":1.5}'


def raised(currency: str) -> None:
    """Raise the error that the text names."""
    if currency == "lacks":
        raise KeyError(currency)
    if currency == "says why":
        raise InvalidMessage("the currency is unknown", "currency")
    if currency == "ends it":
        raise SystemExit(currency)
    if currency == "takes all memory":
        raise MemoryError


@dataclasses.dataclass
class Bill:
    currency: str

    def __post_init__(self) -> None:
        raised(self.currency)


class BillModel(BaseModel):
    currency: str

    @field_validator("currency")
    @classmethod
    def _check(cls, value: str) -> str:
        raised(value)
        return value


@pytest.mark.parametrize("kind", [Bill, BillModel])
def test_a_body_at_which_the_code_of_its_type_raises_is_refused_with_the_error(kind: Any) -> None:
    read = decoder(kind)
    assert read(b'{"currency": "EUR"}').currency == "EUR"
    with pytest.raises(
        InvalidMessage, match=rf"^the message isn't of type {kind.__name__}: it raised KeyError\('lac"
    ):
        read(b'{"currency": "lacks"}')
    with pytest.raises(InvalidMessage, match=r"^the currency is unknown$") as refusal:
        read(b'{"currency": "says why"}')
    assert refusal.value.field == "currency"
    with pytest.raises(InvalidMessage, match=r"it raised SystemExit\('ends it'\)$"):
        read(b'{"currency": "ends it"}')
    with pytest.raises(MemoryError):  # no fault of the body
        read(b'{"currency": "takes all memory"}')
