"""Ids inside payloads."""

import contextlib
import json
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.devices.rules.dialect import JsonDialect, PlainDialect, Reading, check_id, read_answer, write_id
from holdfast.errors import InvalidMessage

DIALECT = JsonDialect()


@pytest.mark.slow
@given(st.dictionaries(st.text(), st.integers() | st.text()), st.text(min_size=1))
def test_an_id_that_was_written_is_read_and_nothing_else_changes(
    fields: dict[str, object], name: str
) -> None:
    payload = DIALECT.write(json.dumps(fields).encode(), name)
    assert json.loads(payload) == fields | {"messageId": name}
    assert DIALECT.read(payload).id == name


@pytest.mark.parametrize("payload", [b"", b"7", b"[]", b"{", b"\xff", b'{"a":}'])
def test_a_payload_without_a_place_for_an_id_is_refused(payload: bytes) -> None:
    with pytest.raises(InvalidMessage, match="messageId"):
        DIALECT.write(payload, "x")


@given(st.binary())
def test_any_bytes_are_an_answer_or_an_invalid_message(payload: bytes) -> None:
    with contextlib.suppress(InvalidMessage):
        assert DIALECT.read(payload).ok


@pytest.mark.parametrize("id_value", [b"null", b"true", b"1.5", b"[]", b"{}"])
def test_an_id_is_text_or_a_number(id_value: bytes) -> None:
    with pytest.raises(InvalidMessage):
        DIALECT.read(b'{"messageId":' + id_value + b"}")
    assert DIALECT.read(b'{"messageId":17}').id == "17"
    assert DIALECT.read(b"{}").id == ""


def test_a_device_may_say_that_it_could_not() -> None:
    dialect = JsonDialect("id", "code", (0, "200"))
    assert dialect.read(b'{"id":"a","code":0}').ok
    assert dialect.read(b'{"id":"a","code":"200"}').ok
    assert not dialect.read(b'{"id":"a","code":500}').ok
    assert not dialect.read(b'{"id":"a"}').ok
    assert not dialect.read(b'{"id":"a","code":[0]}').ok


def test_a_plain_payload_stays_as_it_is() -> None:
    assert PlainDialect().write(b"\x00any", "7") == b"\x00any"
    assert PlainDialect().read(b"\x00any").id == ""


@pytest.mark.parametrize("name", ["", "a b", "x" * 129, "\u00e9", "a\n"])
def test_an_invalid_id_is_refused(name: str) -> None:
    assert check_id("7.3/2") == "7.3/2"
    with pytest.raises(InvalidMessage, match="128 printable"):
        check_id(name)


class Typed:
    """A user's own dialect: the command's type is the first byte, and there is one for each id. It doesn't
    mind what else it may be given."""

    def write(self, payload: bytes, id: str) -> bytes:  # noqa: A002
        if payload[0] != ord("c"):
            raise InvalidMessage("it must begin with c", "payload")
        return payload + bytes([int(id)])

    def read(self, payload: bytes) -> Reading:
        if payload[0] != ord("a"):
            raise InvalidMessage("it must begin with a", "payload")
        return Reading(str(payload[1]))


def test_the_results_of_a_dialect_are_unchanged() -> None:
    assert write_id(Typed(), b"c", "7") == b"c\x07"
    assert read_answer(Typed(), b"a\x07") == Reading("7")


def test_an_error_of_a_dialect_is_raised_unchanged() -> None:
    with pytest.raises(InvalidMessage, match=r"^it must begin with c$"):
        write_id(Typed(), b"x", "7")
    with pytest.raises(InvalidMessage, match=r"^it must begin with a$"):
        read_answer(Typed(), b"x")


@pytest.mark.parametrize(
    "method, payload, name, kind",
    [
        ("write", b"", "7", "IndexError"),
        ("write", b"c", "seven", "ValueError"),
        ("write", b"c", "256", "ValueError"),
        ("read", b"", "", "IndexError"),
        ("read", b"a", "", "IndexError"),
    ],
)
def test_a_payload_that_a_dialect_fails_at_is_invalid(
    method: str, payload: bytes, name: str, kind: str
) -> None:
    with pytest.raises(
        InvalidMessage, match=rf"Typed\.{method} failed with {kind}; make it raise"
    ) as refused:
        write_id(Typed(), payload, name) if method == "write" else read_answer(Typed(), payload)
    assert refused.value.field == "payload"
    assert type(refused.value.__cause__).__name__ == kind, "its author is to find the place"


class Untyped:
    """A user's own dialect, without types: it returns what it was made with."""

    def __init__(self, returned: Any) -> None:
        self._returned = returned

    def write(self, payload: bytes, id: str) -> Any:  # noqa: A002
        return self._returned

    def read(self, payload: bytes) -> Any:
        return self._returned


@pytest.mark.parametrize("returned", [None, "a", 7])
def test_a_command_for_which_a_dialect_returns_no_bytes_is_invalid(returned: Any) -> None:
    kind = type(returned).__name__
    with pytest.raises(InvalidMessage, match=rf"^Untyped\.write returned {kind}; make it return bytes"):
        write_id(Untyped(returned), b"c", "7")


@pytest.mark.parametrize(
    "returned, kind", [(None, "NoneType"), ("7", "str"), (Reading(cast("str", 7)), "int")]
)
def test_an_answer_for_which_a_dialect_returns_no_reading_is_invalid(returned: Any, kind: str) -> None:
    with pytest.raises(InvalidMessage, match=rf"^Untyped\.read returned {kind}; make it return a Reading"):
        read_answer(Untyped(returned), b"a")
