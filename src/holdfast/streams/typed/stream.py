"""A stream whose handler is a function: what the decorator of ``App.stream`` returns for one."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import AsyncGenerator, Callable, Generator, Iterable
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypedDict, TypeVar

from holdfast.common.codec import decoder, encode
from holdfast.errors import ConfigError, OperationRefused
from holdfast.streams.handler import Context, StreamHandler
from holdfast.streams.typed.signature import Signature, read_signature
from holdfast.streams.typed.state import TypedHandler, TypedState
from holdfast.streams.typed.state_codec import name_of

if TYPE_CHECKING:
    from typing import Unpack

    from holdfast.streams.asking import QueryAnswer
    from holdfast.streams.message import StreamMessage
    from holdfast.streams.results import StreamResult

M = TypeVar("M")
S = TypeVar("S")
R = TypeVar("R")
F = TypeVar("F", bound=Callable[..., Any])

Call = Callable[[Any, Any, Context], Any]
"""A function of (message or request, state, context)."""


class MessageSender(Protocol):
    """The part of a :class:`holdfast.StreamSender` that a stream needs."""

    def send(self, message: Any, **options: Unpack[SendMessageOptions]) -> str: ...
    def send_many(self, messages: Iterable[Any], *, connection: Any = None) -> list[str]: ...
    async def asend_many(self, messages: Iterable[Any]) -> list[str]: ...


class StreamClient(Protocol):
    """The part of a :class:`holdfast.Client` that a stream needs."""

    def stream(self, name: str) -> MessageSender: ...
    def results(
        self, stream: str, *, after: int | None, reader: str, follow: bool
    ) -> Generator[StreamResult[Any], None, None]: ...
    def aresults(
        self, stream: str, *, after: int | None, reader: str, follow: bool
    ) -> AsyncGenerator[StreamResult[Any]]: ...
    def state(self, stream: str, key: str | int) -> Any: ...
    def query(self, stream: str, key: str | int, request: Any, *, timeout_s: float) -> QueryAnswer: ...


def no_client() -> StreamClient:
    """Refuse to send: the stream belongs to no app."""
    raise ConfigError("the stream belongs to no app, so it has no client")


class SendMessageOptions(TypedDict, total=False):
    """The options of ``send``."""

    key: str | int | None
    seq: int | None
    run: int | None
    message_id: str
    delay_s: float
    connection: Any


class Stream(Generic[M, S, R]):
    """A stream whose handler is a function of messages M with a state S and results R. Calling it calls the
    function, which helps tests.

    >>> from dataclasses import dataclass
    >>> from holdfast import App
    >>> from holdfast.testing import StreamTest
    >>> app = App("metering")
    >>> @dataclass
    ... class Meter:
    ...     kwh: float = 0.0
    >>> @app.stream("readings", key="meter")
    ... def add(reading: dict, meter: Meter) -> float:
    ...     meter.kwh += reading["kwh"]
    ...     return meter.kwh
    >>> test = StreamTest(add)
    >>> test.send({"kwh": 1.5}, {"kwh": 2.0})
    [1.5, 3.5]
    >>> test.state
    Meter(kwh=3.5)
    """

    def __init__(
        self,
        name: str,
        function: Callable[..., Any],
        signature: Signature,
        state: TypedState | None,
        client: Callable[[], StreamClient],
    ) -> None:
        self.name = name
        self.function = function
        self.message = signature.message
        self.typed = state
        self.handler = _handler_class(function, signature, state)
        self._client = client
        self._timers: dict[str, Callable[[Any, Context, Any], Any]] = {}
        functools.update_wrapper(self, function)

    def __call__(self, *args: Any) -> R:
        """Call the function."""
        result: R = self.function(*args)
        return result

    # -- its messages, results and state ----------------------------------------------------------------

    def send(self, message: M, **options: Unpack[SendMessageOptions]) -> str:
        """Send a message by the app's client; returns the queue's id for it. Options and errors are the same
        as at :meth:`holdfast.AsyncStreamSender.send`."""
        return self._client().stream(self.name).send(message, **options)

    def send_many(self, messages: Iterable[M | StreamMessage], *, connection: Any = None) -> list[str]:
        """Send messages in as few calls as the queue allows; returns the queue's ids for them, in order."""
        return self._client().stream(self.name).send_many(messages, connection=connection)

    async def asend_many(self, messages: Iterable[M | StreamMessage]) -> list[str]:
        """Like ``send_many``, for a caller with an event loop, which it doesn't block."""
        return await self._client().stream(self.name).asend_many(messages)

    def results(
        self, *, after: int | None = None, reader: str = "", follow: bool = False
    ) -> Generator[StreamResult[R], None, None]:
        """Yield the committed results, in the order of their commits, as :meth:`holdfast.AsyncClient.results`
        does."""
        return self._client().results(self.name, after=after, reader=reader, follow=follow)

    def aresults(
        self, *, after: int | None = None, reader: str = "", follow: bool = False
    ) -> AsyncGenerator[StreamResult[R]]:
        """Like ``results``, for a caller with an event loop."""
        return self._client().aresults(self.name, after=after, reader=reader, follow=follow)

    def state(self, key: str | int) -> S | None:
        """Return the state of a key as of its last commit; None if it has none. Raises StateRejected if it
        doesn't fit the type, and Unavailable."""
        state: S | None = self._client().state(self.name, key)
        return state

    def query(self, key: str | int, request: Any = None, *, timeout_s: float = 30.0) -> QueryAnswer:
        """Ask a question about a key, as :meth:`holdfast.AsyncClient.query` does."""
        return self._client().query(self.name, key, request, timeout_s=timeout_s)

    # -- functions beside the handler -------------------------------------------------------------------

    def on_timer(self, name: str) -> Callable[[F], F]:
        """Have a function handle the timer ``name``. It takes (state) or (state, context), or without a state
        () or (context); a further parameter ``body`` gets what was given when the timer was set. Raises
        ConfigError for another signature, and for a timer that is declared twice."""

        def declare(function: F) -> F:
            if name in self._timers:
                raise ConfigError(f"stream {self.name!r}: on_timer({name!r}) is declared twice")
            self._timers[name] = self._timer_caller(function)
            timers = self._timers

            def wake(handler: Any, name: str, body: Any, context: Context) -> Any:
                if name not in timers:
                    raise OperationRefused(
                        f"stream {self.name!r} has no on_timer({name!r}); it has {sorted(timers)}"
                    )
                return timers[name](getattr(handler, "state", None), context, body)

            setattr(self.handler, "wake", wake)  # noqa: B010 - a class of this stream's own
            return function

        return declare

    def on_query(self, function: F) -> F:
        """Have a function answer queries. It takes (request), (request, context), (request, state) or
        (request, state, context), and changes nothing. Raises ConfigError for another signature."""
        declared = None if self.typed is None else self.typed.kind
        signature = read_signature(function, first="request", names=sys._getframe(1).f_locals)
        if signature.state not in (None, declared):
            raise ConfigError(
                f"handler {function.__name__}: its state is {name_of(signature.state)}, and that of stream"
                f" {self.name!r} is {name_of(declared) if declared else 'none'}"
            )
        call = _caller(function, signature)
        read = None if signature.message in (None, dict) else decoder(signature.message)

        def query(handler: Any, request: Any, context: Context) -> Any:
            return call(
                request if read is None else read(encode(request)), getattr(handler, "state", None), context
            )

        setattr(self.handler, "query", query)  # noqa: B010 - a class of this stream's own
        return function

    def migrate(self, from_version: int) -> Callable[[F], F]:
        """Have a function convert state of a version to the next one. It takes plain dicts and lists, or the
        bytes that a handler without typed state wrote, and returns such dicts or a state. Raises ConfigError
        for a version that isn't below the stream's ``version``."""
        if self.typed is None:
            raise ConfigError(f"stream {self.name!r} keeps no state, so it has nothing to migrate")
        state = self.typed

        def declare(function: F) -> F:
            state.add_step(from_version, function)
            return function

        return declare

    def _timer_caller(self, function: Any) -> Callable[[Any, Context, Any], Any]:
        names = list(inspect.signature(function).parameters)
        takes_body = names[-1:] == ["body"]
        count = len(names) - takes_body
        has_state = self.typed is not None
        if not has_state <= count <= has_state + 1:
            expected = "(state) or (state, context)" if has_state else "() or (context)"
            raise ConfigError(
                f"handler {function.__name__} takes ({', '.join(names)}); a timer of stream {self.name!r}"
                f" takes {expected}, and body as the last if it wants it"
            )

        def call(state: Any, context: Context, body: Any) -> Any:
            given = (state, context)[not has_state :][:count]
            return function(*given, body) if takes_body else function(*given)

        return call


class AsyncStream(Stream[M, S, R]):
    """A stream whose handler is an async function."""

    async def __call__(self, *args: Any) -> R:  # type: ignore[override] # as the function that it calls
        """Call the function."""
        result: R = await self.function(*args)
        return result


def _handler_class(
    function: Callable[..., Any], signature: Signature, state: TypedState | None
) -> type[StreamHandler[Any]]:
    """Return the handler class that calls a function for each message."""
    call = _caller(function, signature)

    def process(self: Any, message: Any, context: Context) -> Any:
        return call(message, getattr(self, "state", None), context)

    name = getattr(function, "__name__", type(function).__name__)
    module = getattr(function, "__module__", __name__)
    names: dict[str, Any] = {"process": process, "__doc__": function.__doc__, "__module__": module}
    if state is None:
        return type(name, (StreamHandler,), names)
    return type(name, (TypedHandler,), {**names, "typed": state, "version": state.version})


def _caller(function: Callable[..., Any], signature: Signature) -> Call:
    """Return a function of (message, state, context) that calls one of ``signature``."""
    if signature.state is None:
        if signature.takes_context:
            return lambda message, state, context: function(message, context)
        return lambda message, state, context: function(message)
    if signature.takes_context:
        return function
    return lambda message, state, context: function(message, state)
