"""Collects what a handler asks for while it handles one message: effects and timers, checked as it asks."""

from __future__ import annotations

import math
from collections.abc import Collection
from datetime import UTC, datetime
from typing import Any

from holdfast.common.acts import Acts, Send, TimerChange
from holdfast.common.codec import encode_result
from holdfast.common.message import check_key
from holdfast.errors import InvalidMessage, TooLarge
from holdfast.registration import check_target
from holdfast.streams.rules.timers import TIMER_BYTES_MAX

EFFECTS_MAX = 100
"""How many effects one message may send."""

EFFECT_BYTES_MAX = 256 * 1024
"""The largest body of an effect: what every queue takes."""

EFFECTS_BYTES_MAX = 1 << 20
"""The most bytes of effects that one message may send."""

NAME_CHARS_MAX = 64
"""The longest name of a timer."""


class ActRecorder:
    """What one message's handler asked for. ``targets`` are the names that effects may have besides URLs."""

    __slots__ = ("_bytes", "_sends", "_targets", "_timers")

    def __init__(self, targets: Collection[str]) -> None:
        self._targets = targets
        self._sends: list[Send] = []
        self._timers: dict[str, TimerChange] = {}
        self._bytes = 0

    def send(self, target: str, body: Any, key: str, delay_s: float) -> None:
        """Add an effect. Raises ConfigError for an unknown target or a URL that nothing serves,
        InvalidMessage, TooLarge for too much, and HandlerFailed for what JSON can't hold."""
        check_target(target, self._targets)
        if key:
            check_key(key, "key")
        _check_seconds("delay_s", delay_s)
        encoded = encode_result(body, EFFECT_BYTES_MAX)
        if encoded is None:
            encoded = b"null"
        bytes_now = self._bytes + len(encoded)
        if len(self._sends) >= EFFECTS_MAX or bytes_now > EFFECTS_BYTES_MAX:
            raise TooLarge(
                f"one message sends more than {EFFECTS_MAX} effects or {EFFECTS_BYTES_MAX} bytes; send one"
                " effect with a list, or put what is large into the object store"
            )
        self._bytes = bytes_now
        self._sends.append(Send(target, key, encoded, float(delay_s)))

    def wake(
        self, name: str, at: float | datetime | None, after_s: float | None, body: Any, wall: float
    ) -> None:
        """Set a timer; ``wall`` is the wall time now. Raises InvalidMessage, TooLarge, HandlerFailed."""
        _check_name(name)
        if (at is None) == (after_s is None):
            raise InvalidMessage(f"timer {name!r}: give one of at= and after_s=")
        if after_s is not None:
            _check_seconds("after_s", after_s)
            time = wall + after_s
        elif isinstance(at, datetime):
            if at.tzinfo is None:
                raise InvalidMessage(f"timer {name!r}: at= has no time zone; give an aware datetime", "at")
            time = at.astimezone(UTC).timestamp()
        else:
            assert at is not None
            _check_seconds("at", at)
            time = float(at)
        if isinstance(body, bytes | bytearray | memoryview):
            raise InvalidMessage(f"timer {name!r}: its body must be a value that JSON can hold", "body")
        encoded = encode_result(body) or b""
        if len(encoded) > TIMER_BYTES_MAX:
            raise TooLarge(
                f"timer {name!r}: its body has {len(encoded)} bytes; it can have {TIMER_BYTES_MAX}: keep"
                " what is larger in the handler's state"
            )
        self._change(TimerChange(name, time, encoded))

    def unwake(self, name: str) -> None:
        """Clear a timer. Raises InvalidMessage."""
        _check_name(name)
        self._change(TimerChange(name, None))

    def _change(self, change: TimerChange) -> None:
        self._timers.pop(change.name, None)  # only the last change of a timer counts
        self._timers[change.name] = change

    def take(self) -> Acts | None:
        """Return what was asked for since the last call; None for nothing."""
        if not self._sends and not self._timers:
            return None
        acts = Acts(tuple(self._sends), tuple(self._timers.values()))
        self._sends, self._timers, self._bytes = [], {}, 0
        return acts


def _check_name(name: object) -> None:
    if not isinstance(name, str) or not 0 < len(name) <= NAME_CHARS_MAX or not name.isprintable():
        raise InvalidMessage(
            f"timer name {name!r:.100} must be a printable text of 1 to {NAME_CHARS_MAX} characters", "name"
        )


def _check_seconds(field: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise InvalidMessage(
            f"field {field!r} is {value!r:.100}; it is a number of seconds, 0 or more", field
        )
