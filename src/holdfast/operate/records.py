"""Keys, places, times and bodies as fields of JSON records.

What a page of help has no use for is imported inside the functions: its reader waits for every import.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

Shows = Callable[[bytes, str], dict[str, Any]]
"""What shows a body as a field of this name."""


def body(data: bytes, name: str) -> dict[str, Any]:
    """A body as a field of a JSON record: as the JSON or the text that it is, else as Base64."""
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
    """Stream and key of a full key."""
    stream, _, key = full_key.partition("/")
    return stream, key


def seq(stored: str) -> int | str:
    """A stored seq as a number; where there is no seq, the message's id."""
    from holdfast.common.message import SEQ_DIGITS  # noqa: PLC0415

    return int(stored) if len(stored) == SEQ_DIGITS and stored.isdigit() else stored


def place(name: str) -> dict[str, Any]:
    """The place of a result as fields of a JSON record: run and seq of its message. That of a timer has
    none, and is the timer's name."""
    from holdfast.common.message import Place, is_timer_name  # noqa: PLC0415

    found = Place.named(name)
    if is_timer_name(name):
        return {"run": None, "seq": None, "timer": found.timer}
    return {"run": found.run, "seq": found.id or found.seq}


def moment(at: float) -> str:
    """A wall time for people and programs: ISO 8601, UTC. What is no such time is told as a number."""
    if not at:
        return ""
    try:
        return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    except (OverflowError, ValueError):
        return f"{at:g}"
