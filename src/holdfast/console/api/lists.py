"""Pages of lists, and what is shown of bodies in them."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from typing import Annotated, Any

from msgspec import Meta

from holdfast.errors import InvalidMessage
from holdfast.operate.records import body

LIMIT = 100
LIMIT_MAX = 1000

SHOWN_BYTES = 16_384
"""Larger bodies are cut."""

Limit = Annotated[int, Meta(ge=1, le=LIMIT_MAX, description="The most to list.")]
Cursor = Annotated[str, Meta(max_length=4000, description="The `next` of the page before.")]
Next = Annotated[str, Meta(description="The cursor of the next page; empty if this is the last.")]


def cursor(*place: Any) -> str:
    """Return a place in a list as a cursor."""
    return base64.urlsafe_b64encode(json.dumps(place).encode()).decode()


def place_in(text: str, kinds: Sequence[type]) -> list[Any] | None:
    """Return the place in a list that a cursor stands for; None without a cursor. Raises InvalidMessage."""
    if not text:
        return None
    try:
        place = json.loads(base64.urlsafe_b64decode(text))
    except (ValueError, RecursionError):
        place = None
    if not isinstance(place, list) or [type(part) for part in place] != list(kinds):
        raise InvalidMessage(
            "parameter 'cursor' isn't from this list; give `next` of the page before, or leave it out",
            "cursor",
        )
    return place


def shown(data: bytes, name: str) -> dict[str, Any]:
    """Return a body as a field of a record, and its size. Of a large one only the beginning is shown, in
    Base64."""
    size = {f"{name}_bytes": len(data)}
    if len(data) <= SHOWN_BYTES:
        return size | body(data, name)
    return size | {f"{name}_begins_base64": base64.b64encode(data[:SHOWN_BYTES]).decode()}
