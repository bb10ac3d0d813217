"""Tests a handler of a stream without queue, node or process."""

from __future__ import annotations

import math
import sys
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from holdfast.app.app import App
from holdfast.app.handles import StateOptions, read_handler
from holdfast.common.codec import encode_result
from holdfast.common.message import Place
from holdfast.errors import (
    ConfigError,
    InvalidMessage,
    OperationRefused,
    StateRejected,
)
from holdfast.ports.slots import MessageWork
from holdfast.rules.streams.ledger import Timer
from holdfast.slots.sends import AnyName
from holdfast.streams.addressing import address
from holdfast.streams.handler import StreamHandler
from holdfast.streams.models import ModelSpec
from holdfast.streams.offline import Handled, OfflineStream
from holdfast.streams.spec import StreamSpec
from holdfast.streams.typed.state import typed_state_of
from holdfast.streams.typed.state_codec import StateCodec
from holdfast.streams.typed.stream import Stream
from holdfast.testing.in_process import HandlerDriver
from holdfast.testing.sent import SentEffect, decoded, sent_effect


class SetTimer(NamedTuple):
    """A timer that a handler has set: the wall time at which it is due, and its body."""

    at: float
    body: Any = None


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

    What a handler sends is collected, and its timers fire as the test moves the time:

    >>> class Watch(StreamHandler[dict]):
    ...     def process(self, message, context):
    ...         context.wake("silent", after_s=30)
    ...     def wake(self, name, body, context):
    ...         context.send("alerts", {"camera": context.key})
    ...         return name
    >>> test = StreamTest(Watch, key="cam-1")
    >>> test.send({})
    [None]
    >>> test.timers
    {'silent': SetTimer(at=30.0, body=None)}
    >>> test.advance(29), test.advance(1)
    ([], ['silent'])
    >>> test.sent
    [SentEffect(target='alerts', body={'camera': 'cam-1'}, key='cam-1', delay_s=0.0)]

    Args:
        handler: a handler class, a function, or an App; ``stream`` then names its stream.
        message: the message type (default: from the handler's annotations, or the type of the first message).
            A stream of an App has its own.
        key: the stream's key. For a stream of an App, key and place are read from the messages.
        state, version: a snapshot to begin with, and the handler version that wrote it.
        restart_every: the messages and timers after which the handler restarts; 0 for never.
        objects: the objects for ``context.fetch``, by URL.
        models: the models for ``context.model``, by name, instead of the App's own.
        targets: the names that effects may be sent to (default: the App's own; for a handler
            without App, any).

    Attributes:
        results: all results so far, also of timers, as ``send`` returns them.
        notes: what the handler reported with ``context.progress``.
        sent: all effects so far. Effects of a failed message or timer aren't among them.
        wall_s: the wall time that timers see, in seconds since 1970. A test may set it.
    """

    __test__ = False  # pytest must not collect this class

    def __init__(
        self,
        handler: type[StreamHandler[Any]] | Stream[Any, Any, Any] | Callable[..., Any] | App,
        stream: str = "",
        *,
        message: Any = None,
        key: str = "test",
        state: Any = None,
        version: int | None = None,
        restart_every: int = 0,
        objects: Mapping[str, bytes] | None = None,
        models: Mapping[str, Any] | None = None,
        targets: Collection[str] | None = None,
    ) -> None:
        self.results: list[Any] = []
        self.notes: list[str] = []
        self.sent: list[SentEffect] = []
        self._spec = _checked(_find(handler, stream)) if isinstance(handler, App) else None
        self._handler = handler
        self._message = message
        self._names = sys._getframe(1).f_locals
        self._key = key
        self._first = (_encoded(state), version)
        self._restart_every = restart_every
        self._objects = _Given(objects or {})
        declared = handler.models if isinstance(handler, App) else {}
        given = {name: _given(name, model) for name, model in (models or {}).items()}
        self._models: dict[str, ModelSpec] = {**declared, **given}
        if targets is None:
            targets = handler.targets if isinstance(handler, App) else AnyName()
        self._targets = targets
        self._wall_s = 0.0
        self._sent = 0
        self._handled = 0
        self._driver = HandlerDriver()
        self._stream: OfflineStream | None = None

    @property
    def wall_s(self) -> float:
        return self._wall_s

    @wall_s.setter
    def wall_s(self, wall_s: float) -> None:
        self._wall_s = wall_s
        if self._stream is not None:
            self._stream.wall_s = wall_s

    @property
    def state(self) -> Any:
        """The state as of the last message: of the declared type, or the bytes of ``snapshot``. None without
        one."""
        state = self._first[0] if self._stream is None else self._stream.state_of(self._key)[0]
        typed = typed_state_of(self._declare(None).handler)
        return state if state is None or typed is None else typed.codec.decode(state)

    @property
    def timers(self) -> dict[str, SetTimer]:
        """The timers that are set for the key of the last message, by name."""
        return {timer.name: SetTimer(timer.at, _body(timer)) for timer in self._standing_timers()}

    def send(self, *messages: Any) -> list[Any]:
        """Handle messages in order; returns their results. Timers that are due wait for ``advance``.

        A message is a dict, dataclass, pydantic model or msgspec Struct, which is sent as JSON, or bytes,
        which are the raw body. A result that is JSON is returned decoded, other bytes unchanged. Raises what
        the handler raises; the handler is then opened again from the last snapshot before the next message,
        and what the message sent and the timers that it set or cleared don't count.
        """
        return [self._send(message) for message in messages]

    def advance(self, seconds: float) -> list[Any]:
        """Let time pass, and run the timers of all keys that come due, in order of time; returns their
        results. Each sees the time at which it is due. With 0, those run that are due already.

        Raises what ``wake`` of the handler raises; the time is then that of the timer, which is still set.
        """
        if not 0 <= seconds < math.inf:
            raise InvalidMessage(f"seconds is {seconds!r:.100}; it is a number, 0 or more", "seconds")
        until = self.wall_s + seconds
        results = []
        while self._stream is not None and (due := self._stream.next_due(until)) is not None:
            key, timer = due
            self.wall_s = max(self.wall_s, timer.at)
            results.append(self._fire(key, timer))
        self.wall_s = until
        return results

    def wake(self, name: str) -> Any:
        """Run a timer of the last message's key now, whenever it is due; returns its result. Raises
        OperationRefused if it isn't set, and what ``wake`` of the handler raises."""
        for timer in self._standing_timers():
            if timer.name == name:
                return self._fire(self._key, timer)
        raise OperationRefused(f"timer {name!r} of {self._key!r} is not set; set are: {sorted(self.timers)}")

    def query(self, request: Any = None, *, key: str | None = None) -> Any:
        """Return the answer of the handler's ``query`` from the last snapshot. ``key`` is that of the last
        message unless given. Raises what ``query`` raises, and HandlerFailed if it changes the state: if the
        snapshot after it isn't the one before it."""
        stream = self._running()
        key = self._key if key is None else key
        queried = self._driver.drive(stream.query(key, encode_result(request) or b"null"))
        if queried.fault == "state":
            raise StateRejected(queried.error)
        if queried.error:
            assert stream.error is not None
            raise stream.error
        return decoded(queried.answer)

    def restart(self) -> None:
        """Continue with a new instance from the last snapshot, and load its models again."""
        if self._stream is not None and (error := self._driver.drive(self._stream.restart())) is not None:
            raise error

    def _send(self, message: Any) -> Any:
        body = encode_result(message) or b""
        spec = self._declare(message)
        place = Place(0, self._sent)
        if isinstance(self._handler, App):
            self._key, place = address(spec, body, {}, str(self._sent), self._sent)
        self._sent += 1
        work = MessageWork(max(0, place.run), place.seq, body)
        return self._take(self._driver.drive(self._running().handle(self._key, work)))

    def _fire(self, key: str, timer: Timer) -> Any:
        return self._take(self._driver.drive(self._running().fire(key, timer)))

    def _take(self, handled: Handled) -> Any:
        if handled.error is not None:
            raise handled.error
        for send in handled.acts.sends:
            self.sent.append(sent_effect(send))
        self.results.append(decoded(handled.result))
        self._handled += 1
        if self._restart_every and self._handled % self._restart_every == 0:
            self.restart()
        return self.results[-1]

    def _standing_timers(self) -> Sequence[Timer]:
        return () if self._stream is None else self._stream.timers_of(self._key).all

    def _declare(self, message: Any) -> StreamSpec:
        if self._spec is None:
            handler: Any = self._handler
            if isinstance(handler, Stream):
                self._spec = StreamSpec(name="test", handler=handler.handler, message=handler.message or dict)
            else:
                options = StateOptions(None, None, None)
                found = read_handler("test", handler, self._message, options, self._names)
                kind = found.message or (dict if message is None else type(message))
                self._spec = StreamSpec(name="test", handler=found.handler, message=kind)
            self._spec = _checked(self._spec)
        return self._spec

    def _running(self) -> OfflineStream:
        if self._stream is None:
            self._stream = OfflineStream(
                self._declare(None),
                self._objects,
                models=self._models,
                targets=self._targets,
                first=self._first,
                on_progress=self.notes.append,
            )
            self._stream.wall_s = self._wall_s
        return self._stream


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

    def url(self, name: str) -> str:
        raise NotImplementedError("handlers only get objects")

    def urls(self, under: str) -> AsyncIterator[str]:
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


def _encoded(state: Any) -> bytes | None:
    return state if state is None or isinstance(state, bytes) else StateCodec(type(state)).encode(state)


def _checked(spec: StreamSpec) -> StreamSpec:
    """Return a stream whose typed state is checked at each snapshot: that it comes back as it is."""
    if typed_state_of(spec.handler) is None:
        return spec
    base: Any = spec.handler

    class Checked(base):  # type: ignore[misc]
        def snapshot(self) -> bytes:
            self.typed.codec.check(self.state)
            snapshot: bytes = super().snapshot()
            return snapshot

    Checked.__name__ = base.__name__
    return msgspec.structs.replace(spec, handler=Checked)


def _body(timer: Timer) -> Any:
    return msgspec.json.decode(timer.body) if timer.body else None
