"""The body of a task in a message: a protobuf message, or text, which may be JSON."""

from __future__ import annotations

from typing import Any

import msgspec
from google.protobuf.message import Message

from holdfast.common.codec import encode
from holdfast.common.stored import StoredValue
from holdfast.errors import InvalidMessage


class Body(msgspec.Struct, frozen=True, array_like=True):
    """The body of a task. If ``data`` is a protobuf message, ``name`` is the full name of its type; else it
    is text, and ``name`` is empty. A body that is too large for a queue has no ``data`` and is ``stored``."""

    data: bytes
    name: str = ""
    stored: StoredValue | None = None


def body_of(value: Any) -> Body:
    """Return the body that holds ``value``: a protobuf message, a text (or its UTF-8), or any value that JSON
    can hold. Raises InvalidMessage."""
    if isinstance(value, Message):
        return Body(value.SerializeToString(), value.DESCRIPTOR.full_name)
    try:
        text = value if isinstance(value, str) else value.decode() if isinstance(value, bytes) else None
        return Body(encode(value) if text is None else text.encode())
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidMessage(
            f"a task's body must be a protobuf message, a text or what JSON can hold: {error}"
        ) from None
