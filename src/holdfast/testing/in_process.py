"""Slots for tests: handlers run in threads of the test's process, each slot in a thread of its own.

A thread can't be killed like a process. So a handler that hangs is abandoned, and its thread goes on; and an
attempt that must end notices that at its next call of ``job.progress``.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from typing import Any, TypeVar

from holdfast.app.app import App
from holdfast.ports.meter import Meter
from holdfast.ports.slots import (
    Attempt,
    AttemptReport,
    MessageWork,
    Progress,
    QueryResult,
    RunResult,
    SlotHost,
    TaskHost,
)
from holdfast.registration.services import service_of
from holdfast.slots.thread import SlotThread, drive
from holdfast.streams.worker import StreamWorker
from holdfast.tasks.worker import TaskExecutor

T = TypeVar("T")


class HandlerDriver:
    """Runs a worker's calls for programs with an event loop, as notebooks are, and for those without."""

    def __init__(self) -> None:
        self._thread: SlotThread | None = None

    def drive(self, work: Coroutine[Any, Any, T]) -> T:
        """Return the outcome of a coroutine: of one that needs no event loop. Where one runs, it is had in a
        thread, for async handlers need a loop of their own."""
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return drive(work)
        self._thread = self._thread or SlotThread("holdfast-test")
        return self._thread.run(work).result()


class ThreadWorker:
    """A slot's handlers of streams, in a thread."""

    def __init__(self, app: App, objects_url: str, host: SlotHost) -> None:
        self._thread = SlotThread("holdfast-test-slot")
        objects = service_of(objects_url).slot_objects(objects_url, Meter())
        self._worker = StreamWorker(app.streams, objects, host, models=app.models, targets=app.targets)

    async def load(self, stream: str, key: str, models: Sequence[str]) -> None:
        await self._thread.wait(self._worker.load(stream, key, models))

    async def open(self, stream: str, key: str, state: bytes | None, version: int) -> None:
        await self._thread.wait(self._worker.open(stream, key, state, version))

    async def run(
        self, stream: str, key: str, work: Sequence[MessageWork], limit: int, after_s: float
    ) -> RunResult:
        return await self._thread.wait(self._worker.run(stream, key, work, limit, after_s))

    async def query(
        self, stream: str, key: str, state: bytes | None, version: int, request: bytes
    ) -> QueryResult:
        return await self._thread.wait(self._worker.query(stream, key, state, version, request))

    async def close(self, stream: str, key: str) -> None:
        await self._thread.wait(self._worker.close(stream, key))

    async def stop(self) -> None:
        await self._thread.wait(self._worker.stop())
        self._thread.end()


class ThreadTaskWorker:
    """A slot's handlers of tasks, in a thread. Their reports go to the slot in its own loop."""

    def __init__(self, app: App, host: TaskHost) -> None:
        self._host = host
        self._loop = asyncio.get_running_loop()
        self._thread = SlotThread("holdfast-test-task-slot")
        self._worker = TaskExecutor(app.name, app.tasks, self, app.targets)

    async def close(self) -> None:
        """Let the thread end. An attempt under way goes on alone."""
        self._thread.call(self._worker.close)
        self._thread.end()

    async def attempt(self, number: int, attempt: Attempt) -> AttemptReport:
        return await self._thread.wait(self._worker.attempt(number, attempt))

    def cancel(self, reason: str) -> None:
        self._worker.cancel(reason)

    def raise_if_cancelled(self) -> None:
        self._worker.raise_if_cancelled()

    def coroutines(self) -> Collection[asyncio.Task[Any]]:
        return self._worker.coroutines()

    # As the worker's host, called in its thread.

    def now(self) -> float:
        return self._host.now()

    def progress(self, number: int, progress: Progress) -> None:
        self._tell(self._host.progress, number, progress)
        self._worker.raise_if_cancelled()

    def log(self, number: int, level: str, event: str, values: Mapping[str, Any]) -> None:
        self._tell(self._host.log, number, level, event, values)

    async def begin(self, attempt: Attempt) -> None:
        pass

    def failed(self, error: BaseException) -> None:
        pass

    def interrupt(self) -> None:
        pass

    def _tell(self, function: Callable[..., None], *values: Any) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: the test is over
            self._loop.call_soon_threadsafe(function, *values)
