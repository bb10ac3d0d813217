"""Calls to services that are repeated until they are answered."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from holdfast.common.retry import Backoff
from holdfast.errors import HoldfastError, Retry
from holdfast.ports.clock import Clock

T = TypeVar("T")


def may_repeat(error: Exception) -> bool:
    """Return True for an error after which the same call may be made again."""
    return isinstance(error, HoldfastError) and error.retry in (Retry.SAFE, Retry.SAME)


async def retry_call(
    call: Callable[[], Awaitable[T]],
    clock: Clock,
    backoff: Backoff,
    on_failure: Callable[[Exception], None],
) -> T:
    """Repeat a call until it is answered, and return the answer. To repeat it must be harmless.

    ``on_failure`` gets each error of Holdfast or of the machine. It logs the error, or raises it to end the
    tries. Other errors are raised at once.
    """
    failures = 0
    while True:
        try:
            return await call()
        except (HoldfastError, OSError) as error:
            on_failure(error)
        failures += 1
        await clock.sleep(backoff.delay_s(failures, clock.random()))
