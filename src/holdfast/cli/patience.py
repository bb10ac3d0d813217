"""Reading while a service is away: asked again until it answers, as nodes do."""

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
"""How long a command that ends by itself asks again: a restart or a fail-over is over by then."""

PAUSES = Backoff(0.1, 2.0)


class ReadPatience:
    """Reads that ride out a service which is silent: for ``PATIENCE_S``, or for ``ever``. People are told
    of each outage once, on stderr."""

    def __init__(self, clock: Clock, *, ever: bool = False) -> None:
        self._clock = clock
        self._ever = ever

    async def read(self, call: Callable[[], Awaitable[T]]) -> T:
        """The answer of a call that may be repeated. Raises what it raises for good, or for too long."""
        give_up_at, errors = self._clock.monotonic() + PATIENCE_S, list[Exception]()

        def failed(error: Exception) -> None:
            late = not self._ever and self._clock.monotonic() >= give_up_at
            if late or not may_repeat(error):
                raise error
            if not errors:
                output.complain(f"no answer yet, asking again: {redact(str(error))}")
            errors.append(error)

        answer = await retry_call(call, self._clock, PAUSES, failed)
        if errors:
            output.complain("answered again")
        return answer
