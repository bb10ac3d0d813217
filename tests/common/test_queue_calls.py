"""What queues check in each call, and what they write for receipts and attributes is read again."""

import pytest

from holdfast.common.queue_calls import (
    MICROS_MAX,
    by_bytes,
    check_batch,
    check_bodies,
    decode_attributes,
    encode_attributes,
    make_receipt,
    micros,
    read_receipt,
)
from holdfast.errors import TooLarge


def test_a_batch_up_to_the_limit_is_taken_and_no_larger_one() -> None:
    check_batch(range(10), 10)
    with pytest.raises(TooLarge, match="11 in one call is over the queue's max_batch, 10"):
        check_batch(range(11), 10)


def test_each_body_is_held_to_the_limit() -> None:
    check_bodies([b"", b"x" * 10], 10)
    with pytest.raises(TooLarge, match="a body of 11 bytes is over the queue's max_bytes, 10"):
        check_bodies([b"x", b"x" * 11], 10)


def test_items_are_split_into_parts_by_their_bytes() -> None:
    assert by_bytes([], len, 3) == []
    assert by_bytes(["a", "bb", "c", "dddd", "e"], len, 3) == [["a", "bb"], ["c"], ["dddd"], ["e"]]


def test_a_duration_in_microseconds_has_the_limits_of_databases() -> None:
    assert [micros(1.5), micros(-1.0), micros(float("inf"))] == [1_500_000, 0, MICROS_MAX]


def test_a_receipt_is_read_as_it_was_written() -> None:
    assert read_receipt(make_receipt(10**18 - 1, 10**9 - 1)) == (10**18 - 1, 10**9 - 1)
    assert read_receipt(make_receipt("7", "2")) == (7, 2)


JUNK = [
    "",
    "7",
    "7.",
    ".2",
    "7.0",
    "0.1",
    "07.1",
    "7.-1",
    "7.1\n",
    "7.1 ",
    "\u0667.1",
    "7.1.1",
    f"{10**18}.1",
]


@pytest.mark.parametrize("junk", JUNK)
def test_what_is_no_receipt_is_read_as_none(junk: str) -> None:
    assert read_receipt(junk) is None


@pytest.mark.parametrize("attributes", [{}, {"a": "b"}, {"ключ": '"\\\n', "": ""}])
def test_attributes_are_read_as_they_were_written(attributes: dict[str, str]) -> None:
    written = encode_attributes(attributes)
    assert decode_attributes(written) == attributes
    assert decode_attributes(written.decode()) == attributes


@pytest.mark.parametrize("junk", [b"", "", b"{", b"\xff", b'{"a": 1}', b"[]", b"[" * 100_000])
def test_attributes_that_can_t_be_read_are_none(junk: bytes | str) -> None:
    assert decode_attributes(junk) == {}
