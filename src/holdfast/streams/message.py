"""A message to send. It is apart from what sends it, because every program that imports holdfast imports this
module."""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.common.settings import Delay, faults
from holdfast.errors import InvalidMessage


class StreamMessage(msgspec.Struct, frozen=True):
    """A message to send to a stream.

    ``body`` is an object of the stream's declared type, or its JSON form, or the raw body as bytes. ``key``,
    ``seq`` and ``run`` are needed where the body doesn't hold them. ``message_id`` finds duplicates in a
    stream without seqs: of all messages with one id, one is handled. The queue delivers the message after
    ``delay_s`` seconds at the earliest. Raises InvalidMessage, which names the field, for a value of a wrong
    type or out of range.
    """

    body: Any
    key: str | int | None = None
    seq: int | None = None
    run: int | None = None
    message_id: str = ""
    delay_s: Delay = 0.0

    def __post_init__(self) -> None:
        for field, text in faults(self):
            raise InvalidMessage(f"field {field!r} {text}", field)
