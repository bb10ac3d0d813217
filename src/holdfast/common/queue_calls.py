"""The common parts of the queue's adapters: the limits of a call, and the receipts, attributes and dead
letters of those that number their messages."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import msgspec

from holdfast.common.record import UNREADABLE
from holdfast.errors import TooLarge

_RECEIPT = re.compile(r"([1-9]\d{0,17})\.([1-9]\d{0,8})", re.ASCII)

_attributes = msgspec.json.Decoder(dict[str, str])


class DeadLetterRecord(msgspec.Struct):
    """The record of a dead letter, beside its id, attributes and body. ``run`` is a text because it may have
    more digits than other programs read."""

    reason: str
    detail: str = ""
    stream: str = ""
    key: str = ""
    run: str = "0"
    seq: str = ""
    turn: int | None = None


dead_letter_record = msgspec.json.Decoder(DeadLetterRecord)


def check_batch(batch: Sequence[object], max_batch: int) -> None:
    """Raise TooLarge for more than a call takes."""
    if len(batch) > max_batch:
        raise TooLarge(f"{len(batch)} in one call is over the queue's max_batch, {max_batch}")


def check_bodies(bodies: Iterable[bytes], max_bytes: int) -> None:
    """Raise TooLarge if one of the bodies is larger than the queue takes."""
    for body in bodies:
        if len(body) > max_bytes:
            raise TooLarge(
                f"a body of {len(body)} bytes is over the queue's max_bytes, {max_bytes} (max_message_bytes)"
            )


def make_receipt(number: int | str, receives: int | str) -> str:
    """The receipt of one delivery: of the message with this number, delivered for this many times."""
    return f"{number}.{receives}"


def read_receipt(receipt: str) -> tuple[int, int] | None:
    """The number and the receives that a receipt was made of. None for what is no receipt."""
    found = _RECEIPT.fullmatch(receipt)
    return (int(found[1]), int(found[2])) if found else None


def encode_attributes(attributes: dict[str, str]) -> bytes:
    """A message's attributes as JSON."""
    return msgspec.json.encode(attributes)


def decode_attributes(attributes: bytes | str) -> dict[str, str]:
    """A message's attributes; none where they can't be read: whoever needs one sets the message aside."""
    try:
        return _attributes.decode(attributes) if attributes else {}
    except UNREADABLE:
        return {}
