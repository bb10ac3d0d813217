"""Keys, places, times and bodies as fields of JSON records.

Imports inside functions keep pages of help fast.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

Shows = Callable[[bytes, str], dict[str, Any]]
"""A function that shows a body as a field with a name."""


def body(data: bytes, name: str) -> dict[str, Any]:
    """Return a body as a field of a JSON record: as JSON or text if it is that, else as Base64."""
    from holdfast.common.codec import decode_plain  # noqa: PLC0415

    try:
        return {name: decode_plain(data)}
    except ValueError:
        pass
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(data).decode()}


def split_key(full_key: str) -> tuple[str, str]:
    """Return stream and key of a full key."""
    stream, _, key = full_key.partition("/")
    return stream, key


def seq(stored: str) -> int | str:
    """Return a stored seq as a number; without a seq, the message's id."""
    from holdfast.common.message import SEQ_DIGITS  # noqa: PLC0415

    return int(stored) if len(stored) == SEQ_DIGITS and stored.isdigit() else stored


def place(name: str) -> dict[str, Any]:
    """Return the place of a result as fields of a JSON record: run and seq of its message, or the name of its
    timer."""
    from holdfast.common.message import Place, is_timer_name  # noqa: PLC0415

    found = Place.named(name)
    if is_timer_name(name):
        return {"run": None, "seq": None, "timer": found.timer}
    return {"run": found.run, "seq": found.id or found.seq}


def moment(at: float) -> str:
    """Return a wall time in ISO 8601, UTC; a number that isn't a valid time unchanged."""
    if not at:
        return ""
    try:
        return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    except (OverflowError, ValueError):
        return f"{at:g}"
