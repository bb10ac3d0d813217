"""Background tasks, and objects that start and stop once, in any order of calls."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, ParamSpec, TypeVar

from holdfast.common.retry import Backoff
from holdfast.common.user_code import UserCodeExited, is_interrupted
from holdfast.errors import OutcomeUnknown, Unavailable
from holdfast.ports.clock import Clock

P = ParamSpec("P")
T = TypeVar("T")

AGAIN = Backoff(0.1, 5.0)
LONG_S = 60.0
"""Seconds without a failure after which repeated work starts again with the shortest pause."""


class Tasks:
    """The background tasks of one node. A task that fails unexpectedly ends the node through ``on_crash``.

    Errors that may be retried are handled where they occur. Any other error is a bug or a broken machine, and
    it is better to restart the node from its checkpoints. But repeated work (:meth:`repeat`) survives I/O
    errors, such as a full disk or missing file descriptors: a restarted node would have the same errors."""

    def __init__(self, on_crash: Callable[[BaseException], None]) -> None:
        self._on_crash = on_crash
        self._tasks: dict[asyncio.Task[Any], None] = {}
        self._closed = False

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any] | None:
        """Run ``work`` in the background. After ``close``, return None and don't run it."""
        if self._closed:
            work.close()
            return None
        task = asyncio.get_running_loop().create_task(work)
        self._tasks[task] = None
        task.add_done_callback(self._done)
        return task

    def repeat(
        self, loop: Callable[[], Coroutine[Any, Any, Any]], clock: Clock, log: Any
    ) -> asyncio.Task[Any] | None:
        """Run an endless loop in the background. After an I/O error it starts again with a pause."""
        return self.spawn(_repeat(loop, clock, log))

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None and not self._closed:
            self._on_crash(error)

    def cancel(self) -> None:
        """Cancel all tasks, in order of age, and accept no further ones."""
        self._closed = True
        for task in list(self._tasks):
            task.cancel()

    async def close(self) -> None:
        """Cancel and wait for the end of every task but the calling one."""
        current = asyncio.current_task()
        if current is not None:
            self._tasks.pop(current, None)
        self.cancel()
        waiting = list(self._tasks)
        if waiting:
            await asyncio.wait(waiting)


async def _repeat(loop: Callable[[], Coroutine[Any, Any, Any]], clock: Clock, log: Any) -> None:
    failures = 0
    while True:
        began_at = clock.monotonic()
        try:
            await loop()
            return
        except (Unavailable, OutcomeUnknown, OSError) as error:
            failures = failures + 1 if clock.monotonic() - began_at < LONG_S else 1
            name = getattr(loop, "__qualname__", "a loop")
            log.error("background work failed", work=name, error=str(error), failures=failures)
        await clock.sleep(AGAIN.delay_s(failures, clock.random()))


async def await_user_code(function: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call asynchronous user code, as :func:`holdfast.common.user_code.run_user_code` does. The cancellation
    of the waiting task is raised as it is."""
    try:
        return await function(*args, **kwargs)
    except (Exception, GeneratorExit):
        raise
    except BaseException as error:
        task = asyncio.current_task()
        ended = isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling() > 0
        if ended or is_interrupted(error):
            raise
        raise UserCodeExited(error) from error


class Startable:
    """An object whose ``start`` and ``stop`` take effect once, however often they are called. A stop during
    the start waits for its end. A stop before the start prevents it."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._begun = False
        self._ended = False

    async def start(self) -> None:
        """Start; return when ready."""
        async with self._lock:
            if self._begun or self._ended:
                return
            self._begun = True
            await self._start()

    async def stop(self) -> None:
        """Stop; return when everything is closed."""
        async with self._lock:
            if self._ended:
                return
            self._ended = True
            if self._begun:
                await self._stop()

    async def _start(self) -> None:
        raise NotImplementedError

    async def _stop(self) -> None:
        raise NotImplementedError
