"""Ids inside payloads."""

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.dialect import JsonDialect, PlainDialect, check_id
from holdfast.errors import InvalidMessage

DIALECT = JsonDialect()


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
def test_garbage_is_told_from_answers(payload: bytes) -> None:
    with contextlib.suppress(InvalidMessage):
        assert DIALECT.read(payload).ok


@pytest.mark.parametrize("told", [b"null", b"true", b"1.5", b"[]", b"{}"])
def test_an_id_is_text_or_a_number(told: bytes) -> None:
    with pytest.raises(InvalidMessage):
        DIALECT.read(b'{"messageId":' + told + b"}")
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
def test_what_can_not_be_an_id_is_refused(name: str) -> None:
    assert check_id("7.3/2") == "7.3/2"
    with pytest.raises(InvalidMessage, match="128 printable"):
        check_id(name)
