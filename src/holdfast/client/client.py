"""The client for programs without an event loop: the asynchronous one in a thread of its own."""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import threading
from collections.abc import (
    AsyncGenerator,
    Collection,
    Coroutine,
    Generator,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack

from holdfast.client.async_client import AsyncClient, AsyncStreamSender, DeclaredApp, wrapped
from holdfast.config.settings import ClientSettings
from holdfast.errors import ConfigError
from holdfast.rules.tasks.task import Task
from holdfast.streams.asking import TIMEOUT_S, QueryAnswer
from holdfast.streams.message import StreamMessage
from holdfast.streams.results import StreamResult
from holdfast.streams.transaction import add, is_async
from holdfast.tasks.order import BatchOptions, LetterOptions, Order, SendOptions, TimesOptions
from holdfast.tasks.outcome import Outcome
from holdfast.tasks.producer import Brief

if TYPE_CHECKING:
    from holdfast.tasks.schedule import ScheduleEntry

T = TypeVar("T")


class StreamSender:
    """Sends messages to one stream. Made by :meth:`Client.stream`."""

    def __init__(self, client: Client, stream: AsyncStreamSender) -> None:
        self._client = client
        self._stream = stream

    def send(
        self,
        message: Any,
        *,
        key: str | int | None = None,
        seq: int | None = None,
        run: int | None = None,
        message_id: str = "",
        delay_s: float = 0.0,
        connection: Any = None,
    ) -> str:
        """See :meth:`AsyncStreamSender.send`. ``connection`` is used in the thread that calls."""
        wrapped = StreamMessage(message, key, seq, run, message_id, delay_s)
        (sent,) = self.send_many([wrapped], connection=connection)
        return sent

    async def asend_many(self, messages: Iterable[Any]) -> list[str]:
        """Like ``send_many``, for a caller with an event loop, which it doesn't block."""
        sending = self._stream.send_many(wrapped(messages))
        return await asyncio.wrap_future(self._client._begin(sending))

    def send_many(self, messages: Iterable[Any], *, connection: Any = None) -> list[str]:
        """See :meth:`AsyncStreamSender.send_many`."""
        messages = wrapped(messages)  # in the thread that calls: what they come from may belong to it
        if connection is None:
            return self._client._run(self._stream.send_many(messages))
        if is_async(connection):
            raise ConfigError("connection is asynchronous; use AsyncClient, or a connection that isn't")
        return add(connection, self._client._run(self._stream._addition(messages)))


class Client:
    """The same as :class:`AsyncClient` for programs without an event loop; use it with ``with``. Any thread
    may call it."""

    def __init__(
        self, app: str | DeclaredApp, *, config: Path | None = None, **settings: Unpack[ClientSettings]
    ) -> None:
        self._pid = os.getpid()
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
        """Close all connections. Calls that wait in other threads end with RuntimeError. After a fork, this
        does nothing: the connections belong to the parent process."""
        if self._pid != os.getpid():
            return
        with self._lock:
            self._closed, closing = True, not self._closed
        if closing:
            for call in list(self._calls):
                call.cancel()
            asyncio.run_coroutine_threadsafe(self._client.close(), self._loop).result()
            self._end()

    def stream(self, name: str) -> StreamSender:
        """See :meth:`AsyncClient.stream`."""
        return StreamSender(self, self._client.stream(name))

    def query(
        self, stream: str, key: str | int, request: Any = None, *, timeout_s: float = TIMEOUT_S
    ) -> QueryAnswer:
        """See :meth:`AsyncClient.query`."""
        return self._run(self._client.query(stream, key, request, timeout_s=timeout_s))

    def results(
        self, stream: str, *, after: int | None = None, reader: str = "", follow: bool = False
    ) -> Generator[StreamResult[Any], None, None]:
        """See :meth:`AsyncClient.results`."""
        return self._each(self._client.results(stream, after=after, reader=reader, follow=follow))

    async def aresults(
        self, stream: str, *, after: int | None = None, reader: str = "", follow: bool = False
    ) -> AsyncGenerator[StreamResult[Any]]:
        """Like ``results``, for a caller with an event loop."""
        results = self._client.results(stream, after=after, reader=reader, follow=follow)
        try:
            while (result := await asyncio.wrap_future(self._begin(_next(results)))) is not None:
                yield result
        finally:
            await asyncio.wrap_future(self._begin(_close(results)))

    def state(self, stream: str, key: str | int) -> Any:
        """See :meth:`AsyncClient.state`."""
        return self._run(self._client.state(stream, key))

    def send(self, task_type: str, body: Any = None, **options: Unpack[SendOptions]) -> str:
        """See :meth:`AsyncClient.send`."""
        return self._run(self._client.send(task_type, body, **options))

    def send_many(self, orders: Sequence[Order]) -> list[str]:
        """See :meth:`AsyncClient.send_many`."""
        return self._run(self._client.send_many(orders))

    async def asend_many(self, orders: Sequence[Order]) -> list[str]:
        """Like ``send_many``, for a caller with an event loop, which it doesn't block. Call it in any event
        loop, because the client runs all its calls in a loop of its own."""
        return await asyncio.wrap_future(self._begin(self._client.send_many(orders)))

    def send_batch(self, orders: Sequence[Order], **options: Unpack[BatchOptions]) -> str:
        """See :meth:`AsyncClient.send_batch`."""
        return self._run(self._client.send_batch(orders, **options))

    def schedule(
        self,
        name: str,
        cron: str,
        order: Order,
        **options: Unpack[TimesOptions],
    ) -> None:
        """See :meth:`AsyncClient.schedule`."""
        self._run(self._client.schedule(name, cron, order, **options))

    def unschedule(self, name: str) -> None:
        """See :meth:`AsyncClient.unschedule`."""
        self._run(self._client.unschedule(name))

    def scheduled(self) -> Mapping[str, ScheduleEntry]:
        """See :meth:`AsyncClient.scheduled`."""
        return self._run(self._client.scheduled())

    def status(self, task_id: str) -> Task | None:
        """See :meth:`AsyncClient.status`."""
        return self._run(self._client.status(task_id))

    def wait(self, task_id: str, timeout_s: float | None = None) -> Outcome:
        """See :meth:`AsyncClient.wait`."""
        return self._run(self._client.wait(task_id, timeout_s))

    async def aoutcome(self, task_id: str, timeout_s: float | None = None) -> Outcome:
        """Like ``wait``, for a caller with an event loop."""
        return await asyncio.wrap_future(self._begin(self._client.wait(task_id, timeout_s)))

    def briefs(self, *, follow: bool = True) -> Iterator[Brief]:
        """See :meth:`AsyncClient.briefs`."""
        return self._each(self._client.briefs(follow=follow))

    def _each(self, found: AsyncGenerator[T]) -> Generator[T, None, None]:
        """Yield what the client's loop yields."""
        try:
            while (each := self._run(_next(found))) is not None:
                yield each
        finally:
            self._run(_close(found))

    def cancel(self, task_id: str, reason: str = "cancelled by its producer") -> Task | None:
        """See :meth:`AsyncClient.cancel`."""
        return self._run(self._client.cancel(task_id, reason))

    def back_up(
        self,
        target: str,
        *,
        types: Collection[str] = (),
        **choice: Unpack[LetterOptions],
    ) -> int:
        """See :meth:`AsyncClient.back_up`."""
        return self._run(self._client.back_up(target, types=types, **choice))

    def redrive(
        self,
        *,
        types: Collection[str] = (),
        source: str = "",
        **choice: Unpack[LetterOptions],
    ) -> int:
        """See :meth:`AsyncClient.redrive`."""
        return self._run(self._client.redrive(types=types, source=source, **choice))

    def _begin(self, work: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        if self._pid != os.getpid():
            work.close()
            raise RuntimeError("the client was made before a fork; make one in each process")
        with self._lock:
            if self._closed:
                work.close()
                raise RuntimeError("the client is closed")
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
            self._calls.add(future)
        future.add_done_callback(self._calls.discard)
        return future

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        future = self._begin(work)
        try:
            return future.result()
        except concurrent.futures.CancelledError:
            raise RuntimeError("the client is closed") from None
        except BaseException:  # such as KeyboardInterrupt: the answer is not needed any more
            future.cancel()
            raise

    def _end(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _make(app: str | DeclaredApp, config: Path | None, settings: ClientSettings) -> AsyncClient:
    return AsyncClient(app, config=config, **settings)


async def _next(found: AsyncGenerator[T]) -> T | None:
    return await anext(found, None)


async def _close(found: AsyncGenerator[Any]) -> None:
    # Wait until the abandoned call has ended; there is no event for that.
    while getattr(found, "ag_running", False):  # noqa: ASYNC110
        await asyncio.sleep(0)
    await found.aclose()
