"""Collects what a handler asks for while it handles one message: effects and timers, checked as it asks."""

from __future__ import annotations

from collections.abc import Collection
from datetime import UTC, datetime
from typing import Any

from holdfast.common.acts import Acts, TimerChange
from holdfast.common.codec import encode_result
from holdfast.common.message import check_text, unprintable
from holdfast.errors import InvalidMessage, TooLarge
from holdfast.rules.streams.timers import TIMER_BYTES_MAX
from holdfast.slots.sends import SendRecorder, check_seconds

NAME_CHARS_MAX = 64
"""The longest name of a timer."""


class ActRecorder(SendRecorder):
    """The recorder of what one message's handler asks for. ``targets`` are the names that effects may have
    instead of URLs."""

    __slots__ = ("_timers",)

    def __init__(self, targets: Collection[str]) -> None:
        super().__init__(targets, "message")
        self._timers: dict[str, TimerChange] = {}

    def wake(
        self, name: str, at: float | datetime | None, after_s: float | None, body: Any, wall: float
    ) -> None:
        """Set a timer; ``wall`` is the wall time now. Raises InvalidMessage, TooLarge, HandlerFailed."""
        name = _checked_name(name)
        if (at is None) == (after_s is None):
            raise InvalidMessage(f"timer {name!r}: give one of at= and after_s=")
        if after_s is not None:
            check_seconds("after_s", after_s)
            time = wall + after_s
        elif isinstance(at, datetime):
            if at.tzinfo is None:
                raise InvalidMessage(f"timer {name!r}: at= has no time zone; give an aware datetime", "at")
            time = at.astimezone(UTC).timestamp()
        else:
            assert at is not None
            check_seconds("at", at)
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
        self._change(TimerChange(_checked_name(name), None))

    def _change(self, change: TimerChange) -> None:
        self._timers.pop(change.name, None)  # only the last change of a timer counts
        self._timers[change.name] = change

    def take(self) -> Acts | None:
        """Return what was asked for since the last call; None for nothing."""
        if not (self._sends or self._timers):
            return None
        sends, timers = self.take_sends(), tuple(self._timers.values())
        self._timers = {}
        return Acts(sends, timers)


def _checked_name(name: object) -> str:
    if not isinstance(name, str) or not 0 < len(name) <= NAME_CHARS_MAX or unprintable(name):
        raise InvalidMessage(
            f"timer name {name!r:.100} must be a printable text of 1 to {NAME_CHARS_MAX} characters", "name"
        )
    return check_text(name, "name")
