"""Reads that are repeated while a service is unavailable."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from holdfast.cli import output
from holdfast.common.redaction import redact
from holdfast.common.retry import Backoff
from holdfast.ports.clock import Clock
from holdfast.system.retrying import may_repeat, retry_call

T = TypeVar("T")

PATIENCE_S = 15.0
"""Seconds for which a command repeats a read: longer than a restart or a fail-over takes."""

PAUSES = Backoff(0.1, 2.0)


class ReadPatience:
    """Repeats reads while a service is unavailable: for ``PATIENCE_S``, or for ``ever``. Each outage is
    reported once, on stderr."""

    def __init__(self, clock: Clock, *, ever: bool = False) -> None:
        self._clock = clock
        self._ever = ever

    async def read(self, call: Callable[[], Awaitable[T]]) -> T:
        """Return the answer of a call that may be repeated. Raises its permanent error, or the last one."""
        give_up_at, errors = self._clock.monotonic() + PATIENCE_S, list[Exception]()

        def failed(error: Exception) -> None:
            late = not self._ever and self._clock.monotonic() >= give_up_at
            if late or not may_repeat(error):
                raise error
            if not errors:
                output.complain(f"no answer yet, trying again: {redact(str(error))}")
            errors.append(error)

        answer = await retry_call(call, self._clock, PAUSES, failed)
        if errors:
            output.complain("there is an answer again")
        return answer
