"""A thread for handlers in the process of a test or a command."""

from __future__ import annotations

import asyncio
import concurrent.futures
import queue
import threading
import weakref
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class SlotThread:
    """Runs coroutines without an event loop, one after another, in one thread, which ends with this
    object."""

    def __init__(self, name: str) -> None:
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        threading.Thread(target=_serve, args=(self._calls,), name=name, daemon=True).start()
        self.end = weakref.finalize(self, self._calls.put, None)
        """Let the thread end after its work."""

    def run(self, work: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """Run a coroutine, even if nothing waits for its outcome."""
        outcome: concurrent.futures.Future[T] = concurrent.futures.Future()

        def call() -> None:
            try:
                result = drive(work)
            except BaseException as error:  # noqa: BLE001 - raised where the outcome is read
                outcome.set_exception(error)
            else:
                outcome.set_result(result)

        outcome.set_running_or_notify_cancel()  # it can't be cancelled from here on
        self.call(call)
        return outcome

    async def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Return the outcome of a coroutine."""
        return await asyncio.wrap_future(self.run(work))

    def call(self, function: Callable[[], None]) -> None:
        """Call a function in the thread without waiting for it."""
        self._calls.put(function)


def _serve(calls: queue.SimpleQueue[Callable[[], None] | None]) -> None:
    while (call := calls.get()) is not None:
        call()


def drive(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that never suspends, such as a worker's call without a running loop."""
    try:
        work.send(None)
    except StopIteration as end:
        value: T = end.value
        return value
    work.close()
    raise RuntimeError("a synchronous call can't wait while a loop runs; use the async form and await it")
