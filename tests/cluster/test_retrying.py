"""A call is repeated until it is answered, with pauses, and ends as its caller says."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from holdfast.common.retry import Backoff
from holdfast.errors import OutcomeUnknown, TooLarge, Unavailable
from holdfast.system.clock import SystemClock
from holdfast.system.retrying import may_repeat, retry_call

VIRTUAL = True
PAUSES = Backoff(1.0, 4.0, floor=1.0)


def failing(*errors: Exception) -> Callable[[], Awaitable[str]]:
    left = list(errors)

    async def call() -> str:
        if left:
            raise left.pop(0)
        return "answer"

    return call


async def test_a_call_is_repeated_with_growing_pauses_until_it_is_answered() -> None:
    loop, clock, errors_seen = asyncio.get_running_loop(), SystemClock(), list[Exception]()
    began_at = loop.time()
    errors = Unavailable("down"), OSError("no network"), OutcomeUnknown("lost"), Unavailable("down")
    assert await retry_call(failing(*errors), clock, PAUSES, errors_seen.append) == "answer"
    assert errors_seen == [*errors]
    assert loop.time() - began_at == pytest.approx(1 + 2 + 4 + 4)


async def test_an_error_that_the_caller_raises_ends_the_tries() -> None:
    def failed(error: Exception) -> None:
        if not may_repeat(error):
            raise error

    with pytest.raises(TooLarge):
        await retry_call(failing(Unavailable("down"), TooLarge("8 MiB")), SystemClock(), PAUSES, failed)


async def test_an_error_that_is_no_failure_of_a_service_is_raised_at_once() -> None:
    errors_seen = list[Exception]()
    with pytest.raises(ZeroDivisionError):
        await retry_call(failing(ZeroDivisionError()), SystemClock(), PAUSES, errors_seen.append)
    assert errors_seen == []


def test_only_errors_that_say_so_may_be_repeated() -> None:
    given = [Unavailable("down"), OutcomeUnknown("lost"), TooLarge("8 MiB"), OSError("no network")]
    assert [may_repeat(error) for error in given] == [True, True, False, False]
