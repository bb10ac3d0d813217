"""Calls to services that are repeated until they are answered."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from holdfast.cluster.host import Host
from holdfast.errors import HoldfastError, Retry, TooLarge
from holdfast.system import retrying

T = TypeVar("T")

STORE = "the task store"


def is_refusal(error: Exception) -> bool:
    """Return True if a service refuses the call until an operator solves the cause."""
    return isinstance(error, HoldfastError) and error.retry in (Retry.NEVER, Retry.STOP)


def retry_service(
    host: Host,
    service: str,
    call: Callable[[], Awaitable[T]],
    *,
    raises: Callable[[Exception], bool] = lambda _: False,
) -> Coroutine[Any, Any, T]:
    """Repeat a call until it is answered, which must be harmless. Raises an error for which ``raises``
    returns True."""

    def failed(error: Exception) -> None:
        if raises(error):
            raise error
        host.log.warning("service does not answer", service=service, error=str(error))

    return retrying.retry_call(call, host.clock, host.limits.retry, failed)


async def retry_unless_refused(host: Host, service: str, call: Callable[[], Awaitable[T]]) -> T | None:
    """Repeat a call until it is answered. Return None if it is refused. Raises TooLarge."""
    try:
        return await retry_service(host, service, call, raises=is_refusal)
    except TooLarge:
        raise
    except HoldfastError as error:
        host.log.error("service call refused", service=service, error=str(error))
        return None
