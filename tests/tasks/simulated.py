"""Tests that run in virtual time."""

import functools
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec

from simulator.loop import run

P = ParamSpec("P")


def simulated(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Run a test in a loop whose clock jumps to the next event."""

    @functools.wraps(test)
    def in_virtual_time(*args: P.args, **values: P.kwargs) -> None:
        run(test(*args, **values))

    return in_virtual_time
