"""Checks and collects the effects that a handler sends."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator
from typing import Any

from holdfast.common.acts import Send
from holdfast.common.codec import encode_result
from holdfast.common.message import check_key, check_text
from holdfast.errors import InvalidMessage, TooLarge
from holdfast.registration.targets import check_target

EFFECTS_MAX = 100
"""The most effects of one message or task."""

EFFECT_BYTES_MAX = 256 * 1024
"""The largest body of an effect, which every queue takes."""

EFFECTS_BYTES_MAX = 1 << 20
"""The most bytes of effects of one message or task."""


class AnyName(Collection[str]):
    """The targets of a handler that runs without its app: any name."""

    def __contains__(self, name: object) -> bool:
        return True

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0


class SendRecorder:
    """The effects of one message or task. ``targets`` are the declared targets; URLs are allowed too.
    ``what`` is the sender for errors: "message" or "task"."""

    __slots__ = ("_bytes", "_sends", "_targets", "_what")

    def __init__(self, targets: Collection[str], what: str) -> None:
        self._targets = targets
        self._what = what
        self._sends: list[Send] = []
        self._bytes = 0

    def send(self, target: str, body: Any, key: str, delay_s: float) -> None:
        """Add an effect. Raises ConfigError for an unknown target or URL scheme, InvalidMessage, TooLarge,
        and HandlerFailed for a body that JSON can't represent."""
        target = check_text(target, "target")
        check_target(target, self._targets)
        if key != "":
            key = check_key(key, "key")
        check_seconds("delay_s", delay_s)
        encoded = encode_result(body)
        if encoded is None:
            encoded = b"null"
        if len(encoded) > EFFECT_BYTES_MAX:
            raise TooLarge(
                f"an effect of {len(encoded)} bytes is too large; the limit is {EFFECT_BYTES_MAX}: put large"
                " data into the object store, and send its URL"
            )
        bytes_now = self._bytes + len(encoded)
        if len(self._sends) >= EFFECTS_MAX or bytes_now > EFFECTS_BYTES_MAX:
            raise TooLarge(
                f"one {self._what} sends more than {EFFECTS_MAX} effects or {EFFECTS_BYTES_MAX} bytes; send"
                " one effect with a list, or put large data into the object store"
            )
        self._bytes = bytes_now
        self._sends.append(Send(target, key, encoded, float(delay_s)))

    def take_sends(self) -> tuple[Send, ...]:
        """Return the effects since the last call."""
        sends = tuple(self._sends)
        self._sends, self._bytes = [], 0
        return sends


def check_seconds(field: str, value: object, most: float = sys.float_info.max) -> None:
    """Raise InvalidMessage unless the value is a number of seconds from 0 on, and at most ``most``."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= sys.float_info.max:
        raise InvalidMessage(
            f"field {field!r} is {value!r:.100}; it is a number of seconds, 0 or more", field
        )
    if value > most:
        raise InvalidMessage(f"field {field!r} is {value:g}; it is at most {most:g} seconds", field)
