"""An attempt that a node runs, and its result."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable

from holdfast.common.acts import Send
from holdfast.ports.slots import Attempt, AttemptReport, Progress
from holdfast.ports.tracing import TracedCall
from holdfast.rules.tasks.attempt import AttemptEnd, How


class Ended(AttemptEnd, frozen=True):
    """The result of an attempt: how it ended, and what it brought.

    ``result`` is what the handler returned, as JSON (empty: nothing). An attempt that exceeded its time is
    TIMED_OUT even if it still returned something; one that was asked to end may still have RETURNED or
    RAISED. ``took_s`` is how long it ran, ``memory_mb`` the most that its process used (0: unknown).
    ``sends`` are the effects that it sent, if it RETURNED. ``traced`` is what its slot recorded, if it stands
    in a trace.
    """

    result: bytes = b""
    took_s: float = 0.0
    memory_mb: int = 0
    sends: tuple[Send, ...] = ()
    traced: TracedCall | None = None


class Running:
    """An attempt in the pool of slots. Times are monotonic seconds.

    Attributes:
        attempt: what to run.
        begun_at: when its handler began; None while it waits.
        advanced_at: when it last advanced (began, or called ``job.progress``).
        progress: what it last reported.
        ended: a future with its result.
        until: when its lease ends.
        fate: how it will end in any case, once that is decided, and ``reason`` why.
    """

    __slots__ = (
        "advanced_at",
        "attempt",
        "begun_at",
        "ended",
        "fate",
        "number",
        "on_progress",
        "over",
        "progress",
        "reason",
        "stacks",
        "until",
    )

    def __init__(
        self,
        number: int,
        attempt: Attempt,
        now: float,
        ended: asyncio.Future[Ended],
        on_progress: Callable[[Running], None] | None,
    ) -> None:
        self.number = number
        self.attempt = attempt
        self.begun_at: float | None = None
        self.advanced_at = now
        self.progress = Progress()
        self.ended = ended
        self.on_progress = on_progress
        self.until = now + attempt.lease_s if attempt.lease_s else math.inf
        self.fate: How | None = None
        self.reason = ""
        self.stacks = ""
        self.over: asyncio.Event | None = None

    def hangs_at(self) -> float:
        """Return when its time is over (monotonic seconds); infinite if it hasn't begun, or has a fate."""
        if self.begun_at is None or self.fate is not None:
            return math.inf
        at = self.begun_at + self.attempt.timeout_s
        return min(at, self.advanced_at + self.attempt.stall_s) if self.attempt.stall_s else at

    def why(self, now: float) -> str:
        """Say which limit of its time is over."""
        attempt = self.attempt
        if self.begun_at is not None and now >= self.begun_at + attempt.timeout_s:
            return f"over its time: timeout_s = {attempt.timeout_s:g}"
        return f"hangs: no progress for stall_s = {attempt.stall_s:g}"


def outcome(run: Running, tried: AttemptReport) -> Ended:
    """Return the result of an attempt from the report of its process."""
    how, error, detail = How.RETURNED, tried.error, tried.detail
    if run.fate is How.TIMED_OUT:
        how, error, detail = How.TIMED_OUT, run.reason, run.stacks or detail
    elif tried.cancelled:
        how, error = How.CANCELLED, run.reason or error
    elif error:
        how = How.RAISED
    return Ended(
        how,
        result=tried.result if how is How.RETURNED else b"",
        error=error,
        detail=detail,
        permanent=tried.permanent and how is How.RAISED,
        pause_s=tried.pause_s if how is How.RAISED else 0.0,
        took_s=tried.took_s,
        memory_mb=tried.memory_mb,
        sends=tried.sends if how is How.RETURNED else (),
        traced=tried.traced,
    )
