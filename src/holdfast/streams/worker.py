"""The worker inside a slot for streams: it runs their handlers, one message at a time.

A coroutine throughout, so that a simulator can run it in its loop; but it suspends only where a handler
is async *and* a loop is running already. In a slot's own process no loop runs: there ``drive`` steps the
coroutine like a function, and async handlers get a loop of the worker's, so that synchronous ones
may start a loop themselves.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping, Sequence
from datetime import datetime
from typing import Any, TypeVar

import msgspec

from holdfast.common.acts import Acts
from holdfast.common.codec import decode_plain, decoder, encode_result
from holdfast.common.traceparent import checked
from holdfast.common.user_code import describe, explain, raised_at, resolve
from holdfast.errors import (
    ConfigError,
    HandlerFailed,
    HoldfastError,
    InvalidMessage,
    ModelFailed,
    OperationRefused,
    Retry,
    StateRejected,
)
from holdfast.ports.meter import Meter
from holdfast.ports.objects import Objects
from holdfast.ports.slots import MessageWork, QueryFault, QueryResult, RunResult, SlotHost
from holdfast.ports.tracing import TracedCall
from holdfast.slots.sends import EFFECTS_BYTES_MAX
from holdfast.slots.thread import drive
from holdfast.slots.traced import handling, joins
from holdfast.streams.addressing import unwrap
from holdfast.streams.handler import StreamHandler
from holdfast.streams.models import Models, ModelSpec, label, takes_arguments
from holdfast.streams.recorder import ActRecorder
from holdfast.streams.spec import StreamSpec

T = TypeVar("T")

QUERY = "\0query"
"""Is appended to a key to name the queries of a stream as users of models. No key has such a character."""


class StreamContext:
    """The Context of one open stream."""

    __slots__ = ("_stream", "_worker", "attempt", "has_asked", "key", "parent", "recorder", "run", "seq")

    def __init__(self, worker: StreamWorker, stream: str, key: str) -> None:
        self._worker = worker
        self.recorder = ActRecorder(worker.targets)
        self._stream = stream
        self.key = key
        self.run = 0
        self.seq = 0
        self.attempt = 1
        self.parent = ""
        self.has_asked = False
        """True while ``recorder`` may hold effects or timers."""

    @property
    def traceparent(self) -> str:
        """See Context.traceparent."""
        return checked(self.parent)

    def model(self, wanted: str | Callable[[], Any]) -> Any:
        """See Context.model. A model that doesn't load is never blamed on the stream's state."""
        return self._worker.model(wanted, self._stream, self.key)

    def fetch(self, url: str) -> bytes:
        """See Context.fetch."""
        return self._worker.block(self._worker.fetch(url))

    async def fetch_async(self, url: str) -> bytes:
        """See Context.fetch_async."""
        return await self._worker.fetch(url)

    def progress(self, note: str = "") -> None:
        """See Context.progress."""
        self._worker.host.progress(self._stream, self.key, str(note))

    def send(self, target: str, body: Any, *, key: str | None = None, delay_s: float = 0.0) -> None:
        """See Context.send."""
        self.has_asked = True
        self.recorder.send(target, body, self.key if key is None else key, delay_s)

    def wake(
        self,
        name: str,
        *,
        at: float | datetime | None = None,
        after_s: float | None = None,
        body: Any = None,
    ) -> None:
        """See Context.wake."""
        self._worker.check_wakes(self._stream)
        self.has_asked = True
        self.recorder.wake(name, at, after_s, body, self._worker.host.wall())

    def unwake(self, name: str) -> None:
        """See Context.unwake."""
        self.has_asked = True
        self.recorder.unwake(name)

    def take_acts(self) -> Acts | None:
        """Return what the handler asked for since the last call; None for nothing."""
        if not self.has_asked:
            return None
        self.has_asked = False
        return self.recorder.take()


class QueryContext(StreamContext):
    """The Context of one query. ``is_open``: its handler is open, and can ask for nothing more."""

    __slots__ = ("is_open",)

    def __init__(self, worker: StreamWorker, stream: str, key: str) -> None:
        super().__init__(worker, stream, key)
        self.is_open = False

    def model(self, wanted: str | Callable[[], Any]) -> Any:
        """See Context.model."""
        return self._worker.model(wanted, self._stream, self.key + QUERY)

    def send(self, target: str, body: Any, *, key: str | None = None, delay_s: float = 0.0) -> None:
        """Refuse it."""
        self._refuse("send")

    def wake(
        self,
        name: str,
        *,
        at: float | datetime | None = None,
        after_s: float | None = None,
        body: Any = None,
    ) -> None:
        """Refuse it."""
        self._refuse("wake")

    def unwake(self, name: str) -> None:
        """Refuse it."""
        self._refuse("unwake")

    def _refuse(self, method: str) -> None:
        if self.is_open:  # else open() asks, which has no effect for messages either
            raise OperationRefused(
                f"query() only reads, so it can't call context.{method}(); do that in process() or wake()"
            )


class _KeyLane:
    """The lane of one key among ``lanes``: only one call is in it, and the others wait. It is kept while
    there are any."""

    __slots__ = ("_calls", "_key", "_turn", "lanes")

    def __init__(self, lanes: dict[tuple[str, str], _KeyLane], key: tuple[str, str]) -> None:
        self.lanes = lanes
        self._key = key
        self._calls = 0
        self._turn = asyncio.Lock()

    async def __aenter__(self) -> None:
        self._calls += 1
        self.lanes[self._key] = self
        try:
            await self._turn.acquire()
        except BaseException:
            self._left()
            raise

    async def __aexit__(self, *_: object) -> None:
        self._turn.release()
        self._left()

    def _left(self) -> None:
        self._calls -= 1
        if not self._calls:
            del self.lanes[self._key]


class _Open:
    """One open stream. ``over``: it is to be closed or opened again, and handles no further message."""

    __slots__ = ("context", "handler", "keeps_state", "over")

    def __init__(self, handler: StreamHandler[Any], context: StreamContext) -> None:
        self.handler = handler
        self.context = context
        self.over = False
        self.keeps_state = type(handler).snapshot is not StreamHandler.snapshot


class StreamWorker:
    """Runs the handlers of ``streams``. The calls of each key go one after another, in the order in which
    they were made, even where calls of different keys overlap.

    ``objects`` serves ``context.fetch``; None where there is no object store. ``meter`` counts its calls.
    ``models`` are the declared ones, which may take ``model_memory_mb`` (see :class:`Models`). Handlers may
    send effects to ``targets``. Raises ConfigError for a message type that can't be read."""

    def __init__(
        self,
        streams: Mapping[str, StreamSpec],
        objects: Objects | None,
        host: SlotHost,
        meter: Meter | None = None,
        *,
        models: Mapping[str, ModelSpec] | None = None,
        model_memory_mb: int = 0,
        targets: Collection[str] = (),
    ) -> None:
        self.host = host
        self.targets = targets
        self._meter = meter or Meter()
        self._streams = streams
        self._objects = objects
        self._decoders = {name: decoder(spec.message) for name, spec in streams.items()}
        self._open: dict[tuple[str, str], _Open] = {}
        self.lanes: dict[tuple[str, str], _KeyLane] = {}
        self._models = Models(models or {}, self._report_models, model_memory_mb)
        self._loop: asyncio.AbstractEventLoop | None = None

    def check_wakes(self, stream: str) -> None:
        """Raise OperationRefused if the handler of a stream has no ``wake`` that a timer could call."""
        if not (spec := self._streams[stream]).wakes:
            raise OperationRefused(
                f"{spec.handler.__name__} has no wake(), which timers call; write one, or declare a"
                " function with on_timer() of the stream"
            )

    async def load(self, stream: str, key: str, models: Sequence[str]) -> None:
        """See Slot.load."""
        async with self._lane(stream, key):
            for name in models:
                if name in self._models.declared:
                    self.model(name, stream, key)

    async def open(self, stream: str, key: str, state: bytes | None, version: int) -> None:
        """See Slot.open. Models that the stream declares are loaded first; state of an older version goes
        through ``migrate``."""
        self._mark_over(stream, key)
        async with self._lane(stream, key):
            await self._open_anew(stream, key, state, version)

    async def _open_anew(self, stream: str, key: str, state: bytes | None, version: int) -> None:
        await self._drop(stream, key)  # its models are not left: it needs them again
        context = StreamContext(self, stream, key)
        handler = await self._made(stream, key, key, context, state, version)
        self._open[stream, key] = _Open(handler, context)

    async def _made(
        self,
        stream: str,
        key: str,
        user: str,
        context: StreamContext,
        state: bytes | None,
        version: int,
    ) -> StreamHandler[Any]:
        """Make and open a handler. ``user`` is the key under which it uses models."""
        if stream not in self._streams:
            raise HandlerFailed(f"the app declares no stream {stream!r}; it has {sorted(self._streams)}")
        made = self._streams[stream].handler
        if state is not None and version > made.version:
            raise StateRejected(
                f"state of {stream}/{key} has version {version}, newer than version {made.version} of"
                f" {made.__name__}; deploy the handler that wrote it"
            )
        doing = "start"
        try:
            for name in self._streams[stream].models:
                self.model(name, stream, user)
            handler = made()
            if state is not None and version < made.version:
                doing = f"migrate state from version {version}"
                state = await self._call(made.migrate, state, version)
            if state is not None:
                doing = "load its state"
            await self._call(handler.open, context, state)
        except BaseException as error:
            self._models.leave((stream, user))
            text = f"{made.__name__} could not {doing} for {stream}/{key}: {self._failure(error)}"
            if (failed := _failed_model(error)) is not None:
                raise ModelFailed(str(failed), failed.model, detail=explain(error)) from error
            if state is None or isinstance(error, MemoryError) or _is_passing(error):
                raise HandlerFailed(text, detail=explain(error)) from error
            raise StateRejected(f"{text} ({raised_at(explain(error))})") from error
        return handler

    async def query(
        self,
        stream: str,
        key: str,
        state: bytes | None,
        version: int,
        request: bytes,
        *,
        check: bool = False,
    ) -> QueryResult:
        """See Slot.query. With ``check``, a query that changes what ``snapshot`` returns is an error."""
        async with self._lane(stream, key):
            queried = await self._query(stream, key, state, version, request, check)
            self._models.leave((stream, key + QUERY))
        if self._meter.calls:
            queried = msgspec.structs.replace(queried, calls=self._meter.drain())
        return queried

    async def _query(
        self, stream: str, key: str, state: bytes | None, version: int, request: bytes, check: bool
    ) -> QueryResult:
        context = QueryContext(self, stream, key)
        try:
            handler = await self._made(stream, key, key + QUERY, context, state, version)
        except ModelFailed as error:
            return QueryResult(error=str(error), detail=error.detail, fault="model", model=error.model)
        except HandlerFailed as error:
            return QueryResult(error=str(error), detail=error.detail, fault="handler")
        except StateRejected as error:
            return QueryResult(error=str(error), fault="state")
        context.is_open = True
        try:
            await self.host.begin(stream, key, MessageWork(0, 0, request))
            before = await self._call(handler.snapshot) if check else None
            answer = encode_result(await self._call(handler.query, decode_plain(request), context))
            if check and await self._call(handler.snapshot) != before:
                raise HandlerFailed(
                    f"{type(handler).__name__}.query() changed the state: snapshot() returns something else"
                    " after it than before; it may only read"
                )
            return QueryResult(answer)
        except BaseException as error:  # noqa: BLE001 - nor may sys.exit() end the slot
            failed, text = _failed_model(error), self._failure(error)
            fault: QueryFault = "request" if isinstance(error, InvalidMessage) else "handler"
            return QueryResult(
                error=str(failed) if failed is not None else text,
                detail=explain(error),
                fault="model" if failed is not None else fault,
                model=failed.model if failed is not None else "",
            )
        finally:
            await self._close(handler)

    async def run(
        self, stream: str, key: str, work: Sequence[MessageWork], limit: int, after_s: float
    ) -> RunResult:
        """See Slot.run. A failing snapshot is the failure of the last message."""
        async with self._lane(stream, key):
            ran = await self._run(stream, key, work, limit, after_s)
        return msgspec.structs.replace(ran, calls=self._meter.drain()) if self._meter.calls else ran

    async def _run(
        self, stream: str, key: str, work: Sequence[MessageWork], limit: int, after_s: float
    ) -> RunResult:
        opened = self._standing(stream, key)
        if opened is None:
            return RunResult([], error=f"{stream}/{key} is not open in this slot")
        handler, context, decode = opened.handler, opened.context, self._decoders[stream]
        results_to = self._streams[stream].results_to
        results: list[bytes | None] = []
        acts: list[Acts | None] = []
        room = EFFECTS_BYTES_MAX  # a commit shall not gather effects without limit
        context.take_acts()  # drop what a handler asked for in open() or in another thread
        state = None
        traced: TracedCall | None = None
        try:
            end_at = self.host.now() + after_s
            for item in work[:limit]:
                context.run, context.seq, context.attempt = item.run, item.seq, item.attempt
                context.parent = item.traceparent
                await self.host.begin(stream, key, item)
                if item.traceparent and joins(item.traceparent):
                    traced = traced or TracedCall()
                    with handling(traced, len(results), item.traceparent, self.host.wall):
                        result = await self._handle(handler, item, context, decode)
                else:
                    result = await self._handle(handler, item, context, decode)
                encoded = encode_result(result)
                if results_to and encoded is not None:
                    context.send(results_to, encoded)
                results.append(encoded)  # from here on the message is handled
                acts.append(asked := context.take_acts())
                if asked is not None:
                    room -= sum(len(send.body) for send in asked.sends)
                if self._standing(stream, key) is None:
                    return RunResult([], error=f"{stream}/{key} was closed or opened again meanwhile")
                if self.host.now() >= end_at or room <= 0:
                    break
            if opened.keeps_state:
                state = await self._snapshot(handler, results)
        except BaseException as error:  # noqa: BLE001 - nor may sys.exit() end the slot
            del self._open[stream, key]
            failed, text = _failed_model(error), self._failure(error)
            ran = RunResult(
                results,
                error=str(failed) if failed is not None else text,
                detail=explain(error),
                permanent=isinstance(error, InvalidMessage) or getattr(error, "permanent", False) is True,
                model=failed.model if failed is not None else "",
                traced=traced,
            )
            await self._close(handler)
            return ran
        version = handler.version if opened.keeps_state else 0
        return RunResult(results, state, version, acts=acts if any(acts) else [], traced=traced)

    async def _handle(
        self,
        handler: StreamHandler[Any],
        item: MessageWork,
        context: StreamContext,
        decode: Callable[[bytes], Any],
    ) -> Any:
        if item.wake:
            body = decode_plain(item.body) if item.body else None
            return await self._call(handler.wake, item.wake, body, context)
        return await self._call(handler.process, decode(item.body), context)

    async def close(self, stream: str, key: str) -> None:
        """See Slot.close."""
        self._mark_over(stream, key)
        async with self._lane(stream, key):
            await self._drop(stream, key)
            self._models.leave((stream, key))

    def _mark_over(self, stream: str, key: str) -> None:
        """Mark what stands open as over: a call that is at work for it ends after the message at hand."""
        if (opened := self._open.get((stream, key))) is not None:
            opened.over = True

    def _standing(self, stream: str, key: str) -> _Open | None:
        opened = self._open.get((stream, key))
        return None if opened is None or opened.over else opened

    def _lane(self, stream: str, key: str) -> _KeyLane:
        """Return the lane of a key, in which one call works at a time."""
        return self.lanes.get((stream, key)) or _KeyLane(self.lanes, (stream, key))

    async def _drop(self, stream: str, key: str) -> None:
        opened = self._open.pop((stream, key), None)
        if opened is not None:
            await self._close(opened.handler)

    async def stop(self) -> None:
        """Close every handler, the object store, and the loop that they ran in."""
        for stream, key in list(self._open):
            await self.close(stream, key)
        if self._objects is not None:
            await self._call(self._objects.close)
        if self._loop is not None:
            self._loop.close()
            self._loop = None

    def model(self, wanted: str | Callable[[], Any], stream: str, key: str) -> Any:
        """A model for one stream, loaded if it is not yet. Raises ModelFailed; HandlerFailed where what the
        function was given may have come from the message in hand."""
        try:
            return self._models.get(wanted, (stream, key))
        except HandlerFailed:
            raise
        except (Exception, SystemExit) as error:
            name = wanted if isinstance(wanted, str) else label(wanted)
            text, detail = f"model {name!r} did not load: {describe(error)}", explain(error)
            if (stream, key) in self._open and takes_arguments(wanted):
                raise HandlerFailed(text, detail=detail) from error
            raise ModelFailed(text, name, detail=detail) from error

    def _report_models(self, user: tuple[str, str], loading: str, loaded: Sequence[str]) -> None:
        stream, key = user
        self.host.report_models(stream, key.removesuffix(QUERY), loading, loaded)

    async def fetch(self, url: str) -> bytes:
        """An object's bytes."""
        if url.startswith("data:"):
            return unwrap(url)
        if self._objects is None:
            raise ConfigError(f"can't fetch {url}: no object store is configured; set objects")
        return await self._objects.get(url)

    def block(self, work: Coroutine[Any, Any, T]) -> T:
        """The outcome of a coroutine, for synchronous callers."""
        if _running():
            return drive(work)
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            weakref.finalize(self, self._loop.close)
        return self._loop.run_until_complete(work)

    async def _snapshot(self, handler: StreamHandler[Any], results: list[bytes | None]) -> bytes:
        try:
            state: object = await self._call(handler.snapshot)
            if not isinstance(state, bytes):
                raise HandlerFailed(
                    f"{type(handler).__name__}.snapshot() must return bytes, not {type(state).__name__}"
                )
        except BaseException:
            del results[-1:]
            raise
        return state

    async def _call(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call user code, which may be async."""
        value = function(*args)
        if not hasattr(value, "__await__"):
            return value
        if _running():
            return await value
        return self.block(_awaited(value))

    async def _close(self, handler: StreamHandler[Any]) -> None:
        try:
            await self._call(handler.close)
        except BaseException as error:  # noqa: BLE001 - the stream is closed either way
            self._failure(error)

    def _failure(self, error: BaseException) -> str:
        """An error of user code in words. Lets pass what isn't one: the end of the whole task."""
        if isinstance(error, asyncio.CancelledError) and _cancelled():
            raise error
        self.host.failed(error)
        return describe(error)


def load(
    host: SlotHost, app: str, objects: str = "", objects_url: str = "", model_memory_mb: str = "0"
) -> StreamWorker:
    """A worker for the app at ``module:name``; ``objects`` names the service that opens the object store
    at ``objects_url``. Raises ConfigError if either can't be loaded."""
    meter = Meter()
    store: Objects | None = resolve(objects).slot_objects(objects_url, meter) if objects else None
    found = resolve(app)
    streams = getattr(found, "streams", None)
    if not isinstance(streams, Mapping):
        raise ConfigError(f"{app} isn't a holdfast.App; name the variable that holds one")
    return StreamWorker(
        streams,
        store,
        host,
        meter,
        models=found.models,
        model_memory_mb=int(model_memory_mb),
        targets=found.targets,
    )


async def _awaited(value: Awaitable[T]) -> T:
    return await value


def _running() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _cancelled() -> bool:
    """Return True if this task is being cancelled from outside, and not by its user code."""
    task = asyncio.current_task() if _running() else None
    return task is not None and task.cancelling() > 0


def _failed_model(error: BaseException) -> ModelFailed | None:
    """The failed load that an error of user code comes from, if it does."""
    found: BaseException | None = error
    while found is not None and not isinstance(found, ModelFailed):
        found = found.__cause__ or (None if found.__suppress_context__ else found.__context__)
    return found


def _is_passing(error: BaseException) -> bool:
    return isinstance(error, HoldfastError) and error.retry is Retry.SAFE
