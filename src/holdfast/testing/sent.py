"""Shows tests what handlers sent."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from holdfast.common.acts import Send


class SentEffect(NamedTuple):
    """An effect that a handler sent: what it gave to ``context.send`` or ``job.send``, with the key that
    counts."""

    target: str
    body: Any
    key: str
    delay_s: float = 0.0


def sent_effect(send: Send) -> SentEffect:
    """Return an effect as a test sees it."""
    return SentEffect(send.target, decoded(send.body), send.key, send.delay_s)


def decoded(result: bytes | None) -> Any:
    """Return the value that was encoded; bytes that aren't JSON as they are."""
    try:
        return None if result is None else msgspec.json.decode(result)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return result
