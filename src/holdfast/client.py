"""The client of a producing application: sends tasks and hears of their outcomes. Needs no handlers."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import threading
from collections.abc import AsyncGenerator, Collection, Coroutine, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from holdfast.config import load
from holdfast.core.task import Task
from holdfast.files import access_for
from holdfast.tasks.letters import Choice, Letters
from holdfast.tasks.order import Order
from holdfast.tasks.outcome import Outcome
from holdfast.tasks.producer import Brief, Producer
from holdfast.wiring import backup_at, make_letters, make_producer, producing

T = TypeVar("T")


class AsyncClient:
    """Sends the tasks of ``app``, for programs with an event loop; use it with ``async with``.

    Services are found as a node finds them: in ``settings`` given here, the environment (``HOLDFAST_…``),
    ``.env`` and ``holdfast.toml``. Told ``registry_url`` alone, it learns the rest there at its first call,
    which raises ConfigError where no node has told it yet.
    """

    def __init__(self, app: str, *, config: Path | None = None, **settings: Any) -> None:
        self._app = app
        self._config = load(settings, config)
        self._open = contextlib.AsyncExitStack()
        self._opening = asyncio.Lock()
        self._opened: tuple[Producer, Letters] | None = None

    async def _producer(self) -> Producer:
        return (await self._parts())[0]

    async def _parts(self) -> tuple[Producer, Letters]:
        async with self._opening:
            if self._opened is None:
                services = await self._open.enter_async_context(producing(self._config, self._app))
                self._opened = make_producer(services, self._app), make_letters(services, self._app)
                self._open.push_async_callback(self._opened[0].close)
            return self._opened

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Release connections. Briefs that were acknowledged are gone, others come again."""
        await self._open.aclose()

    async def send(self, task_type: str, body: Any = None, **options: Any) -> str:
        """Send a task; returns its trace. ``options`` are those of :class:`Order`."""
        (trace,) = await (await self._producer()).send([Order(task_type=task_type, body=body, **options)])
        return trace

    async def send_many(self, orders: Sequence[Order]) -> list[str]:
        """Send tasks in as few calls as the queue allows; returns their traces, in order."""
        return await (await self._producer()).send(orders)

    async def status(self, trace_id: str) -> Task | None:
        """How a task stands; None for one that is not known (any more)."""
        return await (await self._producer()).status(trace_id)

    async def wait(self, trace_id: str, timeout_s: float | None = None) -> Outcome:
        """The outcome of a task once it has ended. Raises TimeoutError, OperationRefused (not known)."""
        return await (await self._producer()).wait(trace_id, timeout_s)

    async def briefs(self, *, follow: bool = True) -> AsyncGenerator[Brief]:
        """Outcomes as they come, or those that wait; each comes again unless its ``ack()`` is called."""
        async with contextlib.aclosing((await self._producer()).briefs(follow=follow)) as briefs:
            async for brief in briefs:
                yield brief

    async def cancel(self, trace_id: str, reason: str = "cancelled by its producer") -> Task | None:
        """Have a task end; None for one not known."""
        return await (await self._producer()).cancel(trace_id, reason)

    async def back_up(self, target: str, *, types: Collection[str] = (), **choice: Any) -> int:
        """Copy dead letters to a file of JSON lines, ``sqlite:///FILE`` or ``postgresql://USER@HOST/NAME``,
        those that it hasn't yet; returns how many. Of all known types, unless told; ``choice`` is that of
        :class:`Choice`: ``trace``, ``since``, ``until``, ``error``."""
        _, letters = await self._parts()
        async with backup_at(target, access_for(self._config.file_access)) as backup:
            return await letters.back_up(backup, types, Choice(**choice))

    async def redrive(self, *, types: Collection[str] = (), source: str = "", **choice: Any) -> int:
        """Send dead letters again, each with all its tries; returns how many. They are chosen as for
        ``back_up``, from where that put them with ``source``: then those are passed over whose tasks wait,
        run or have succeeded since."""
        _, letters = await self._parts()
        if not source:
            return await letters.redrive(types, Choice(**choice))
        async with backup_at(source) as backup:
            sent, _ = await letters.redrive_kept(backup, types, Choice(**choice))
            return sent


class Client:
    """The same for programs without an event loop; use it with ``with``. Any thread may call it."""

    def __init__(self, app: str, *, config: Path | None = None, **settings: Any) -> None:
        self._lock = threading.Lock()
        self._closed = False
        self._calls: set[concurrent.futures.Future[Any]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="holdfast-client", daemon=True)
        self._thread.start()
        try:
            self._client = self._run(_make(app, config, settings))
        except BaseException:
            self._end()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Release connections. Calls that wait in other threads end with RuntimeError."""
        with self._lock:
            self._closed, closing = True, not self._closed
        if closing:
            for call in list(self._calls):
                call.cancel()
            asyncio.run_coroutine_threadsafe(self._client.close(), self._loop).result()
            self._end()

    def send(self, task_type: str, body: Any = None, **options: Any) -> str:
        """As :meth:`AsyncClient.send`."""
        return self._run(self._client.send(task_type, body, **options))

    def send_many(self, orders: Sequence[Order]) -> list[str]:
        """As :meth:`AsyncClient.send_many`."""
        return self._run(self._client.send_many(orders))

    def status(self, trace_id: str) -> Task | None:
        """As :meth:`AsyncClient.status`."""
        return self._run(self._client.status(trace_id))

    def wait(self, trace_id: str, timeout_s: float | None = None) -> Outcome:
        """As :meth:`AsyncClient.wait`."""
        return self._run(self._client.wait(trace_id, timeout_s))

    def briefs(self, *, follow: bool = True) -> Iterator[Brief]:
        """As :meth:`AsyncClient.briefs`."""
        briefs = self._client.briefs(follow=follow)
        try:
            while (brief := self._run(_next(briefs))) is not None:
                yield brief
        finally:
            self._run(briefs.aclose())

    def cancel(self, trace_id: str, reason: str = "cancelled by its producer") -> Task | None:
        """As :meth:`AsyncClient.cancel`."""
        return self._run(self._client.cancel(trace_id, reason))

    def back_up(self, target: str, *, types: Collection[str] = (), **choice: Any) -> int:
        """As :meth:`AsyncClient.back_up`."""
        return self._run(self._client.back_up(target, types=types, **choice))

    def redrive(self, *, types: Collection[str] = (), source: str = "", **choice: Any) -> int:
        """As :meth:`AsyncClient.redrive`."""
        return self._run(self._client.redrive(types=types, source=source, **choice))

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        with self._lock:
            if self._closed:
                work.close()
                raise RuntimeError("the client is closed")
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
            self._calls.add(future)
        try:
            return future.result()
        except concurrent.futures.CancelledError:
            raise RuntimeError("the client is closed") from None
        finally:
            self._calls.discard(future)

    def _end(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _make(app: str, config: Path | None, settings: dict[str, Any]) -> AsyncClient:
    return AsyncClient(app, config=config, **settings)


async def _next(briefs: AsyncGenerator[Brief]) -> Brief | None:
    return await anext(briefs, None)
