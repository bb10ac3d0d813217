"""The settings of a stream that its owner needs, and what a stream that moves to a node brings along."""

from __future__ import annotations

from typing import Literal

import msgspec

from holdfast.common.effects import EffectLimits
from holdfast.common.retry import Backoff
from holdfast.rules.streams.sequencer import Carried, Rules
from holdfast.rules.streams.timers import TIMERS


class OwnerOptions(msgspec.Struct, frozen=True):
    """The settings of a stream that its owner needs; see ``App.stream``."""

    order: Rules
    max_tries: int = 3
    backoff: Backoff = Backoff()
    max_starts: int = 5
    on_failure: Literal["skip", "park"] = "skip"
    on_late: Literal["dead-letter", "discard"] = "dead-letter"
    checkpoint_every: int = 1
    checkpoint_after_s: float = 0.02
    idle_timeout_s: float = 60.0
    max_state_bytes: int = 8 << 20
    needs_models: bool = False
    effects: EffectLimits = EffectLimits()
    max_timers: int = TIMERS
    by_key: bool = False
    fifo: bool = False

    @property
    def keeps_overflow(self) -> bool:
        """Return True if the queue keeps what a parked stream has no room for, in order."""
        return self.by_key or self.fifo


class MovedFrom(msgspec.Struct, frozen=True):
    """The things that a stream that moves here brings along: whether its key is reserved, and its wait for a
    missing message."""

    deep: bool = False
    carried: Carried | None = None


NOTHING_BROUGHT = MovedFrom()
"""Brought along by a stream that didn't move here."""
