"""The reasons for which a stream waits."""

from __future__ import annotations

from typing import Literal

import msgspec

WaitKind = Literal[
    "room",
    "opening",
    "membership",
    "moving",
    "parked",
    "slot",
    "model",
    "store",
    "archive",
    "effects",
    "retry",
    "gap",
    "suspect",
]


class WaitReason(msgspec.Struct, frozen=True):
    """The reason why a stream waits. ``until`` is when the wait ends and ``since`` when it began, in
    monotonic seconds, if that is known."""

    kind: WaitKind
    text: str
    until: float | None = None
    since: float | None = None
