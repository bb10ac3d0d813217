"""Tests a handler of a stream without queue, node or process."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from holdfast.app import App
from holdfast.common.codec import encode_result
from holdfast.common.message import Place
from holdfast.errors import ConfigError, HandlerFailed
from holdfast.ports.slots import MessageWork
from holdfast.streams.codec import address
from holdfast.streams.handler import StreamHandler
from holdfast.streams.models import ModelSpec
from holdfast.streams.spec import StreamSpec
from holdfast.streams.worker import StreamWorker
from holdfast.testing.in_process import HandlerDriver


class StreamTest:
    """Runs a handler on messages as a slot does, and restarts it from its snapshots.

    >>> from holdfast import StreamHandler
    >>> class Count(StreamHandler[dict]):
    ...     def open(self, context, state):
    ...         self.count = int(state or 0)
    ...     def process(self, message, context):
    ...         self.count += message["by"]
    ...         return {"count": self.count}
    ...     def snapshot(self):
    ...         return str(self.count).encode()
    >>> test = StreamTest(Count)
    >>> test.send({"by": 2}, {"by": 3})
    [{'count': 2}, {'count': 5}]
    >>> test.restart()
    >>> test.send({"by": 1})
    [{'count': 6}]
    >>> test.state
    b'6'

    To show that a restart changes nothing, send the same messages twice::

        whole, broken = StreamTest(Tracking), StreamTest(Tracking, restart_every=1)
        assert whole.send(*frames) == broken.send(*frames)

    Args:
        handler: a handler class, a function, or an App; ``stream`` then names its stream.
        message: the message type (default: from the handler's annotations, or the type of the first message).
            A stream of an App has its own.
        key: the stream's key. For a stream of an App, key and place are read from the messages.
        state, version: a snapshot to begin with, and the handler version that wrote it.
        restart_every: restart after so many messages; 0 for never.
        objects: the objects for ``context.fetch``, by URL.
        models: the models for ``context.model``, by name, instead of those that an App declares.

    Attributes:
        results: all results so far, as ``send`` returns them.
        notes: what the handler reported with ``context.progress``.
        wall_s: the wall time that timers see, in seconds since 1970.
    """

    __test__ = False  # pytest must not collect this class

    def __init__(
        self,
        handler: type[StreamHandler[Any]] | Callable[..., Any] | App,
        stream: str = "",
        *,
        message: Any = None,
        key: str = "test",
        state: bytes | None = None,
        version: int | None = None,
        restart_every: int = 0,
        objects: Mapping[str, bytes] | None = None,
        models: Mapping[str, Any] | None = None,
    ) -> None:
        self.results: list[Any] = []
        self.notes: list[str] = []
        self.wall_s = 0.0
        self._spec = _find(handler, stream) if isinstance(handler, App) else None
        self._handler = handler
        self._message = message or _annotated(handler)
        self._key = key
        self._first = (state, version)
        self._states: dict[str, tuple[bytes | None, int]] = {}
        self._opened: set[str] = set()
        self._restart_every = restart_every
        self._objects = _Given(objects or {})
        declared = handler.models if isinstance(handler, App) else {}
        given = {name: _given(name, model) for name, model in (models or {}).items()}
        self._models: dict[str, ModelSpec] = {**declared, **given}
        self._sent = 0
        self._driver = HandlerDriver()
        self._worker: StreamWorker | None = None
        self._error: BaseException | None = None

    @property
    def state(self) -> bytes | None:
        """The last snapshot; None if there is none."""
        return self._states[self._key][0] if self._key in self._states else self._first[0]

    def send(self, *messages: Any) -> list[Any]:
        """Handle messages in order; returns their results.

        A message is a dict, dataclass, pydantic model or msgspec Struct, which is sent as JSON, or bytes,
        which are the raw body. A result that is JSON is returned decoded, other bytes unchanged. Raises what
        the handler raises; the handler is then opened again from the last snapshot before the next message.
        """
        results = []
        for message in messages:
            results.append(self._handle(message))
            self.results.append(results[-1])
            if self._restart_every and self._sent % self._restart_every == 0:
                self.restart()
        return results

    def restart(self) -> None:
        """Continue with a new instance from the last snapshot, and load its models again."""
        if self._worker is not None:
            self._driver.drive(self._worker.stop())
            self._worker = None
        for key in sorted(self._opened):
            self._open(key)

    def _handle(self, message: Any) -> Any:
        body = encode_result(message) or b""
        spec = self._declare(message)
        place = Place(0, self._sent)
        if isinstance(self._handler, App):
            self._key, place = address(spec, body, {}, str(self._sent), self._sent)
        if self._key not in self._opened:
            self._open(self._key)
        self._sent += 1
        work = [MessageWork(max(0, place.run), place.seq, body)]
        ran = self._driver.drive(self._running().run(spec.name, self._key, work, 1, float("inf")))
        if ran.error:
            self._opened.discard(self._key)
            assert self._error is not None
            raise self._error
        self._states[self._key] = (ran.state, ran.version)
        return _decoded(ran.results[0])

    def _declare(self, message: Any) -> StreamSpec:
        if self._spec is None:
            app = App("test")
            handler: Any = self._handler  # its message type isn't known here
            app.stream("test", message=self._message or type(message))(handler)
            self._spec = app.streams["test"]
        return self._spec

    def _running(self) -> StreamWorker:
        assert self._spec is not None
        if self._worker is None:
            self._worker = StreamWorker(
                {self._spec.name: self._spec}, self._objects, self, models=self._models
            )
        return self._worker

    def _open(self, key: str) -> None:
        assert self._spec is not None
        state, version = self._states.get(key, self._first)
        if version is None:
            version = self._spec.handler.version
        self._opened.discard(key)
        try:
            self._driver.drive(self._running().open(self._spec.name, key, state, version))
        except HandlerFailed as failure:
            raise failure.__cause__ or failure  # noqa: B904 - as the handler raised it
        self._opened.add(key)

    # The methods of the worker's host.

    def now(self) -> float:
        return 0.0

    def wall(self) -> float:
        return self.wall_s

    def progress(self, stream: str, key: str, note: str = "") -> None:
        self.notes.append(note)

    async def begin(self, stream: str, key: str, work: MessageWork) -> None:
        pass

    def failed(self, error: BaseException) -> None:
        self._error = error

    def tell_models(self, stream: str, key: str, loading: str, loaded: Sequence[str]) -> None:
        pass


class _Given:
    """The objects of a test."""

    def __init__(self, objects: Mapping[str, bytes]) -> None:
        self._objects = objects

    async def get(self, url: str) -> bytes:
        if url not in self._objects:
            raise FileNotFoundError(url)
        return self._objects[url]

    async def put(self, name: str, data: bytes) -> str:
        raise NotImplementedError("handlers only get objects")

    async def close(self) -> None:
        pass


def _given(name: str, model: Any) -> ModelSpec:
    return ModelSpec(name=name, load=lambda: model)


def _find(app: App, stream: str) -> StreamSpec:
    names = sorted(app.streams)
    name = stream or (names[0] if len(names) == 1 else "")
    if name not in app.streams:
        raise ConfigError(f"app {app.name!r} has no stream {stream!r}; name one of {names}")
    return app.streams[name]


def _annotated(handler: Any) -> Any:
    """Return the message type in a handler's annotations, if there is one."""
    if isinstance(handler, App):
        return None
    for base in getattr(handler, "__orig_bases__", ()):
        arguments = typing.get_args(base)
        if arguments and not isinstance(arguments[0], typing.TypeVar):
            return arguments[0]
    function = getattr(handler, "process", handler)
    try:
        hints = typing.get_type_hints(function)
    except NameError:  # a type that is known only where the function was defined
        return None
    parameters = [name for name in inspect.signature(function).parameters if name != "self"]
    found = hints.get(parameters[0]) if parameters else None
    return None if found is Any or isinstance(found, typing.TypeVar) else found


def _decoded(result: bytes | None) -> Any:
    try:
        return None if result is None else msgspec.json.decode(result)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return result
