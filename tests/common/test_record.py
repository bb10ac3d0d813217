"""Whatever bytes a service holds, reading them ends in a record or in an error of ours."""

import base64
from typing import Any

import msgspec
import pytest

from holdfast.common.record import UNREADABLE, from_base64, reading
from holdfast.errors import Damaged, Retry

DECODE = msgspec.json.Decoder(dict[str, int]).decode


def test_a_record_of_valid_json_is_decoded() -> None:
    with reading("the record"):
        assert DECODE(b'{"a": 1}') == {"a": 1}


@pytest.mark.parametrize("body", [b"", b"\xff", b'{"\xff": 1}', b"[]", b"[" * 100_000, b'{"a": 1e400}'])
def test_bytes_that_are_no_record_are_damaged(body: bytes) -> None:
    with pytest.raises(Damaged, match=r"^the record can't be read") as caught, reading("the record"):
        DECODE(body)
    assert caught.value.retry is Retry.SAFE


@pytest.mark.parametrize("shape", [[], {}, None, "x"])
def test_a_record_of_another_shape_is_damaged(shape: Any) -> None:
    with pytest.raises(Damaged), reading("the record"):
        int(shape["a"])


def test_json_that_is_not_utf_8_or_too_deep_is_unreadable() -> None:
    for body in (b'"\xff"', b"[" * 100_000):
        with pytest.raises(UNREADABLE):
            msgspec.json.decode(body)


@pytest.mark.parametrize("size", range(80))
def test_base64_is_read_however_it_is_written(size: int) -> None:
    data = bytes(255 - n for n in range(size))
    standard = base64.b64encode(data)
    for text in (
        standard,
        base64.urlsafe_b64encode(data),
        base64.encodebytes(data),
        standard.replace(b"=", b""),
        base64.urlsafe_b64encode(data).rstrip(b"=") + b"\r\n",
        b"\n " + b"\r\n".join(standard[at : at + 64] for at in range(0, len(standard), 64)),
    ):
        assert from_base64(text) == data


@pytest.mark.parametrize("text", [b"a", b"ab!c", b"\xff", b"abcde", b"ab=cd", b"{}"])
def test_what_is_no_base64_is_an_error(text: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        from_base64(text)
