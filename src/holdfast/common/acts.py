"""What a handler asks for besides its result: effects to send, and timers to set or clear."""

from __future__ import annotations

import msgspec


class Send(msgspec.Struct, frozen=True, array_like=True):
    """An effect as a handler sends it: to ``target``, a name or a URL, under the target's ``key`` ("": none),
    ``delay_s`` after its commit."""

    target: str
    key: str
    body: bytes
    delay_s: float = 0.0


class TimerChange(msgspec.Struct, frozen=True, array_like=True):
    """A timer that a handler sets to the wall time ``at``; None clears it."""

    name: str
    at: float | None
    body: bytes = b""


class Acts(msgspec.Struct, frozen=True, array_like=True):
    """What the handler asked for while it handled one message or woke."""

    sends: tuple[Send, ...] = ()
    timers: tuple[TimerChange, ...] = ()
