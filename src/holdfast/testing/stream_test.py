"""Tests a handler of a stream without queue, node or process."""

from __future__ import annotations

import inspect
import math
import typing
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from holdfast.app import App
from holdfast.common.acts import Acts
from holdfast.common.codec import encode_result
from holdfast.common.held import Held
from holdfast.common.message import Place
from holdfast.errors import (
    ConfigError,
    HandlerFailed,
    InvalidMessage,
    OperationRefused,
    StateRejected,
    TooLarge,
)
from holdfast.ports.slots import MessageWork
from holdfast.streams.codec import address
from holdfast.streams.handler import StreamHandler
from holdfast.streams.models import ModelSpec
from holdfast.streams.rules.ledger import Timer
from holdfast.streams.rules.timers import REARM_S, TIMERS_MAX, Timers, place_of
from holdfast.streams.spec import StreamSpec
from holdfast.streams.worker import StreamWorker
from holdfast.testing.in_process import HandlerDriver


class SentEffect(NamedTuple):
    """An effect that a handler sent: what it gave to ``context.send``, with the key that counts."""

    target: str
    body: Any
    key: str
    delay_s: float = 0.0


class SetTimer(NamedTuple):
    """A timer that a handler has set: the wall time at which it is due, and its body."""

    at: float
    body: Any = None


class AnyName(Collection[str]):
    """The targets of a handler that is tested without its app: every name."""

    def __contains__(self, name: object) -> bool:
        return True

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0


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
        restart_every: restart after so many messages and timers; 0 for never.
        objects: the objects for ``context.fetch``, by URL.
        models: the models for ``context.model``, by name, instead of those that an App declares.
        targets: the names that effects may be sent to (default: those that the App declares; for a handler
            without App, any).

    Attributes:
        results: all results so far, those of timers included, as ``send`` returns them.
        notes: what the handler reported with ``context.progress``.
        sent: all effects so far. Those of a message or timer that failed aren't among them.
        wall_s: the wall time that timers see, in seconds since 1970. A test may set it.
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
        targets: Collection[str] | None = None,
    ) -> None:
        self.results: list[Any] = []
        self.notes: list[str] = []
        self.sent: list[SentEffect] = []
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
        if targets is None:
            targets = handler.targets if isinstance(handler, App) else AnyName()
        self._targets = targets
        self._timers: dict[str, Timers] = {}
        self._sent = 0
        self._handled = 0
        self._driver = HandlerDriver()
        self._worker: StreamWorker | None = None
        self._error: BaseException | None = None

    @property
    def state(self) -> bytes | None:
        """The last snapshot; None if there is none."""
        return self._states[self._key][0] if self._key in self._states else self._first[0]

    @property
    def timers(self) -> dict[str, SetTimer]:
        """The timers that are set, by name: those of the key of the last message."""
        standing = self._timers_of(self._key).all
        return {timer.name: SetTimer(timer.at, _body(timer)) for timer in standing}

    def send(self, *messages: Any) -> list[Any]:
        """Handle messages in order; returns their results. Timers that are due wait for ``advance``.

        A message is a dict, dataclass, pydantic model or msgspec Struct, which is sent as JSON, or bytes,
        which are the raw body. A result that is JSON is returned decoded, other bytes unchanged. Raises what
        the handler raises; the handler is then opened again from the last snapshot before the next message,
        and what the message sent and the timers that it set or cleared don't count.
        """
        return [self._send(message) for message in messages]

    def advance(self, seconds: float) -> list[Any]:
        """Let so much time pass, and run the timers that come due, of all keys, in order of time; returns
        their results. Each sees the time at which it is due. With 0, those run that are due already.

        Raises what ``wake`` of the handler raises; the time is then that of the timer, which is still set.
        """
        if not 0 <= seconds < math.inf:
            raise InvalidMessage(f"seconds is {seconds!r:.100}; it is a number, 0 or more", "seconds")
        until = self.wall_s + seconds
        results = []
        while (due := self._next_due(until)) is not None:
            key, timer = due
            self.wall_s = max(self.wall_s, timer.at)
            results.append(self._fire(key, timer))
        self.wall_s = until
        return results

    def wake(self, name: str) -> Any:
        """Run a timer of the last message's key now, whenever it is due; returns its result. Raises
        OperationRefused if it isn't set, and what ``wake`` of the handler raises."""
        for timer in self._timers_of(self._key).all:
            if timer.name == name:
                return self._fire(self._key, timer)
        raise OperationRefused(f"timer {name!r} of {self._key!r} is not set; set are: {sorted(self.timers)}")

    def query(self, request: Any = None, *, key: str | None = None) -> Any:
        """Return the answer of the handler's ``query`` from the last snapshot. ``key`` is that of the last
        message unless given. Raises what ``query`` raises, and HandlerFailed if it changes the state: if the
        snapshot after it isn't the one before it."""
        if self._spec is None:
            self._declare(None)
        key = self._key if key is None else key
        state, version = self._standing(key)
        body = encode_result(request) or b"null"
        assert self._spec is not None
        queried = self._driver.drive(
            self._running().query(self._spec.name, key, state, version, body, check=True)
        )
        if queried.fault == "state":
            raise StateRejected(queried.error)
        if queried.error:
            assert self._error is not None
            raise self._error
        return _decoded(queried.answer)

    def restart(self) -> None:
        """Continue with a new instance from the last snapshot, and load its models again."""
        if self._worker is not None:
            self._driver.drive(self._worker.stop())
            self._worker = None
        for key in sorted(self._opened):
            self._open(key)

    def _send(self, message: Any) -> Any:
        body = encode_result(message) or b""
        spec = self._declare(message)
        place = Place(0, self._sent)
        if isinstance(self._handler, App):
            self._key, place = address(spec, body, {}, str(self._sent), self._sent)
        self._sent += 1
        return self._run(self._key, MessageWork(max(0, place.run), place.seq, body))

    def _fire(self, key: str, timer: Timer) -> Any:
        place = place_of(timer)
        return self._run(key, MessageWork(place.run, place.seq, timer.body, wake=timer.name), timer)

    def _run(self, key: str, work: MessageWork, timer: Timer | None = None) -> Any:
        assert self._spec is not None
        if key not in self._opened:
            self._open(key)
        ran = self._driver.drive(self._running().run(self._spec.name, key, [work], 1, float("inf")))
        acts = ran.acts[0] if ran.acts else None
        if ran.error:
            self._opened.discard(key)
            assert self._error is not None
            raise self._error
        self._take(key, acts or Acts(), timer)
        self._states[key] = (ran.state, ran.version)
        self.results.append(_decoded(ran.results[0]))
        self._handled += 1
        if self._restart_every and self._handled % self._restart_every == 0:
            self.restart()
        return self.results[-1]

    def _take(self, key: str, acts: Acts, timer: Timer | None) -> None:
        """Take what the handler asked for, as a commit does."""
        timers = self._timers_of(key)
        if (count := timers.would_be(acts.timers)) > TIMERS_MAX:
            self._opened.discard(key)
            raise TooLarge(f"the stream would have {count} timers; it can have {TIMERS_MAX}")
        rearmed_at = 0.0
        if timer is not None:
            timers.fired(Held(place_of(timer), timer.body, {}, []))
            rearmed_at = self.wall_s + REARM_S
        timers.change(acts.timers, rearmed_at)
        for send in acts.sends:
            self.sent.append(SentEffect(send.target, _decoded(send.body), send.key, send.delay_s))

    def _timers_of(self, key: str) -> Timers:
        return self._timers.setdefault(key, Timers())

    def _next_due(self, until: float) -> tuple[str, Timer] | None:
        """Return the timer that is due first, with its key."""
        due = [(key, timers.due(until)) for key, timers in self._timers.items()]
        found = [(key, timer) for key, timer in due if timer is not None]
        return min(found, key=lambda each: (each[1].at, each[0]), default=None)

    def _declare(self, message: Any) -> StreamSpec:
        if self._spec is None:
            app = App("test")
            handler: Any = self._handler  # its message type isn't known here
            kind = dict if message is None else type(message)
            app.stream("test", message=self._message or kind)(handler)
            self._spec = app.streams["test"]
        return self._spec

    def _running(self) -> StreamWorker:
        assert self._spec is not None
        if self._worker is None:
            self._worker = StreamWorker(
                {self._spec.name: self._spec},
                self._objects,
                self,
                models=self._models,
                targets=self._targets,
            )
        return self._worker

    def _open(self, key: str) -> None:
        assert self._spec is not None
        state, version = self._standing(key)
        self._opened.discard(key)
        try:
            self._driver.drive(self._running().open(self._spec.name, key, state, version))
        except HandlerFailed as failure:
            raise failure.__cause__ or failure  # noqa: B904 - as the handler raised it
        self._opened.add(key)

    def _standing(self, key: str) -> tuple[bytes | None, int]:
        """Return the last snapshot of a key, and its version."""
        assert self._spec is not None
        state, version = self._states.get(key, self._first)
        return state, self._spec.handler.version if version is None else version

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


def _body(timer: Timer) -> Any:
    return msgspec.json.decode(timer.body) if timer.body else None
