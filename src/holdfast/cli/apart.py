"""Calls that may block for ever, such as reads of standard input."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


async def apart(call: Callable[[], T]) -> T:
    """Make a call in its own thread and return its result. An interrupted command ends without waiting for
    it, unlike with ``asyncio.to_thread``."""
    answer: Future[T] = Future()
    answer.set_running_or_notify_cancel()

    def make() -> None:
        try:
            answer.set_result(call())
        except BaseException as error:  # noqa: BLE001 - it is raised where it is waited for
            answer.set_exception(error)

    threading.Thread(target=make, name="holdfast-apart", daemon=True).start()
    return await asyncio.wrap_future(answer)
