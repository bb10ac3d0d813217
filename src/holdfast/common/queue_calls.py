"""Common parts of the queue's adapters: limits of a call, receipts and attributes."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

import msgspec

from holdfast.common.message import SeqKind
from holdfast.common.record import UNREADABLE
from holdfast.errors import TooLarge

T = TypeVar("T")

CALL_BYTES = 16 << 20
"""Maximum bytes of bodies in one call to a database, unless a single body is larger."""

MICROS_MAX = 10**15
"""Maximum microseconds in a call, about 31 years."""

_RECEIPT = re.compile(r"([1-9]\d{0,17})\.([1-9]\d{0,8})", re.ASCII)

_attributes = msgspec.json.Decoder(dict[str, str])


class NumberedQueue:
    """The properties of a queue whose database numbers its messages and knows their keys."""

    max_receives = 1
    linger_s = 0.0
    hold_max_s = math.inf
    sends_in_order = True
    seq_kind: SeqKind = "increasing"
    fifo = False
    delay_max_s = math.inf
    tells_lag = True
    hides_dead_letters = False
    tells_stale = True
    frees_on_evict = True
    by_key = True


def check_batch(batch: Sequence[object], max_batch: int) -> None:
    """Raise TooLarge for a batch over the queue's limit."""
    if len(batch) > max_batch:
        raise TooLarge(f"{len(batch)} in one call is over the queue's max_batch, {max_batch}")


def check_bodies(bodies: Iterable[bytes], max_bytes: int) -> None:
    """Raise TooLarge for a body over the queue's limit."""
    for body in bodies:
        if len(body) > max_bytes:
            raise TooLarge(
                f"a body of {len(body)} bytes is over the queue's max_bytes, {max_bytes} (max_message_bytes)"
            )


def by_bytes(items: Sequence[T], bytes_of: Callable[[T], int], most: int) -> list[Sequence[T]]:
    """Split items into parts of ``most`` bytes each, unless a single item is larger."""
    parts, begin, size = [], 0, 0
    for place, item in enumerate(items):
        size += bytes_of(item)
        if size > most and place > begin:
            parts.append(items[begin:place])
            begin, size = place, bytes_of(item)
    if begin < len(items):
        parts.append(items[begin:])
    return parts


def micros(seconds: float) -> int:
    """Return a duration in microseconds, within what databases accept."""
    return round(max(0.0, min(seconds * 1e6, MICROS_MAX)))


def make_receipt(number: int | str, receives: int | str) -> str:
    """Return the receipt of one delivery: the message's number, and how often it was delivered."""
    return f"{number}.{receives}"


def read_receipt(receipt: str) -> tuple[int, int] | None:
    """Return the number and the receives in a receipt; None for another text."""
    found = _RECEIPT.fullmatch(receipt)
    return (int(found[1]), int(found[2])) if found else None


def encode_attributes(attributes: dict[str, str]) -> bytes:
    """Return a message's attributes as JSON."""
    return msgspec.json.encode(attributes)


def decode_attributes(attributes: bytes | str) -> dict[str, str]:
    """Return a message's attributes; none if they can't be read, which a later check of the message finds."""
    try:
        return _attributes.decode(attributes) if attributes else {}
    except UNREADABLE:
        return {}
