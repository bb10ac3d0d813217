"""The one contract of everything that runs: started once, stopped once, in whatever order that is asked."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any


class Tasks:
    """The background tasks of one node. A task that fails unexpectedly ends the node: ``on_crash``.

    Errors that may be retried are handled where they arise; what gets here is a bug or a broken machine,
    and a node that is restarted from its checkpoints is better than one that limps."""

    def __init__(self, on_crash: Callable[[BaseException], None]) -> None:
        self._on_crash = on_crash
        self._tasks: dict[asyncio.Task[Any], None] = {}
        self._closed = False

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any] | None:
        """Run ``work`` in the background; None (and not run) after ``close``."""
        if self._closed:
            work.close()
            return None
        task = asyncio.get_running_loop().create_task(work)
        self._tasks[task] = None
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None and not self._closed:
            self._on_crash(error)

    def cancel(self) -> None:
        """Cancel everything, in order of age, and take no more."""
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


class Service:
    """``start`` and ``stop`` may each be called any number of times; they take effect once.

    A stop during the start lets the start finish first. A stop before the start prevents it."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._begun = False
        self._ended = False

    async def start(self) -> None:
        """Begin to work; returns when ready."""
        async with self._lock:
            if self._begun or self._ended:
                return
            self._begun = True
            await self._start()

    async def stop(self) -> None:
        """End in good order; returns when all is released."""
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
