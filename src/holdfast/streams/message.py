"""A message to send. Apart from what sends it, for every program that imports holdfast imports it."""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.common.settings import Delay, faults
from holdfast.errors import InvalidMessage


class StreamMessage(msgspec.Struct, frozen=True):
    """A message to send to a stream.

    ``body`` is of the stream's declared type, or its JSON; or the raw body, as bytes, where the stream is of
    bytes. ``key``, ``seq`` and ``run`` say its place where the body doesn't. ``message_id`` tells messages
    apart in a stream without seqs: of those with the same, one is handled. A node gets it after ``delay_s``
    seconds at the earliest. Raises InvalidMessage, which names the field, for a value of another type or out
    of range.
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
