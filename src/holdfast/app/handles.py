"""The decorators of streams: what they take, as type checkers see it, and what they make of it."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, NamedTuple, Protocol, TypeVar, overload

from holdfast.errors import ConfigError
from holdfast.streams.handler import Context, HandlerClass, StreamHandler
from holdfast.streams.typed.signature import UNTYPED, read_signature
from holdfast.streams.typed.state import TypedState, with_state
from holdfast.streams.typed.stream import AsyncStream, Stream, StreamClient, no_client

N = TypeVar("N")
H = TypeVar("H")
M = TypeVar("M")
S = TypeVar("S")
R = TypeVar("R")


class FromAnnotations:
    """Stands for the message type where the handler's annotations say it."""


class StreamDecorator(Protocol[N]):
    """The decorator that ``App.stream`` returns, for handlers of messages of type N. It returns a class
    unchanged, and makes a :class:`holdfast.Stream` of a function."""

    @overload
    def __call__(self: StreamDecorator[FromAnnotations], target: HandlerClass[H, Any], /) -> type[H]: ...
    @overload
    def __call__(
        self: StreamDecorator[FromAnnotations], target: Callable[[M, Context], Coroutine[Any, Any, R]], /
    ) -> AsyncStream[M, None, R]: ...
    @overload
    def __call__(  # type: ignore[overload-overlap]
        self: StreamDecorator[FromAnnotations], target: Callable[[M, Context], R], /
    ) -> Stream[M, None, R]: ...
    @overload
    def __call__(
        self: StreamDecorator[FromAnnotations], target: Callable[[M, S, Context], Coroutine[Any, Any, R]], /
    ) -> AsyncStream[M, S, R]: ...
    @overload
    def __call__(  # type: ignore[overload-overlap]
        self: StreamDecorator[FromAnnotations], target: Callable[[M, S, Context], R], /
    ) -> Stream[M, S, R]: ...
    @overload
    def __call__(  # type: ignore[overload-overlap]
        self: StreamDecorator[FromAnnotations], target: Callable[[M, S], Coroutine[Any, Any, R]], /
    ) -> AsyncStream[M, S, R]: ...
    @overload
    def __call__(  # type: ignore[overload-overlap]
        self: StreamDecorator[FromAnnotations], target: Callable[[M, S], R], /
    ) -> Stream[M, S, R]: ...
    @overload
    def __call__(
        self: StreamDecorator[FromAnnotations], target: Callable[[M], Coroutine[Any, Any, R]], /
    ) -> AsyncStream[M, None, R]: ...
    @overload
    def __call__(  # type: ignore[overload-overlap]
        self: StreamDecorator[FromAnnotations], target: Callable[[M], R], /
    ) -> Stream[M, None, R]: ...
    @overload
    def __call__(self: StreamDecorator[N], target: HandlerClass[H, N], /) -> type[H]: ...
    @overload
    def __call__(
        self: StreamDecorator[N], target: Callable[[N, Context], Coroutine[Any, Any, R]], /
    ) -> AsyncStream[N, None, R]: ...
    @overload
    def __call__(self: StreamDecorator[N], target: Callable[[N, Context], R], /) -> Stream[N, None, R]: ...
    @overload
    def __call__(
        self: StreamDecorator[N], target: Callable[[N, S, Context], Coroutine[Any, Any, R]], /
    ) -> AsyncStream[N, S, R]: ...
    @overload
    def __call__(self: StreamDecorator[N], target: Callable[[N, S, Context], R], /) -> Stream[N, S, R]: ...
    @overload
    def __call__(
        self: StreamDecorator[N], target: Callable[[N, S], Coroutine[Any, Any, R]], /
    ) -> AsyncStream[N, S, R]: ...
    @overload
    def __call__(self: StreamDecorator[N], target: Callable[[N, S], R], /) -> Stream[N, S, R]: ...
    @overload
    def __call__(
        self: StreamDecorator[N], target: Callable[[N], Coroutine[Any, Any, R]], /
    ) -> AsyncStream[N, None, R]: ...
    @overload
    def __call__(self: StreamDecorator[N], target: Callable[[N], R], /) -> Stream[N, None, R]: ...


class StateOptions(NamedTuple):
    """The options of ``App.stream`` that concern the state."""

    kind: Any
    initial: Callable[[str], Any] | None
    version: int | None


class Handling(NamedTuple):
    """A stream's handler: its class, the message type that it declares or None, and what the decorator
    returns."""

    handler: type[StreamHandler[Any]]
    message: Any
    declared: Any


def read_handler(
    stream: str,
    target: Any,
    message: Any,
    state: StateOptions,
    names: Mapping[str, Any],
    client: Callable[[], StreamClient] = no_client,
) -> Handling:
    """Return the handling that a decorated function or class declares. ``message`` is None if the declaration
    leaves it to annotations. ``names`` are the local names of the declaring function. Raises ConfigError for
    a value that isn't a handler."""
    if inspect.isclass(target):
        return _of_class(stream, target, message, state, names)
    if not callable(target):
        raise ConfigError(f"{target!r} is neither a StreamHandler class nor a function")
    signature = read_signature(target, message=message, state=state.kind, names=names)
    if signature.state is None:
        _refuse_state(stream, state)
        typed = None
    else:
        typed = TypedState(signature.state, state.initial, 1 if state.version is None else state.version)
    kind = AsyncStream if inspect.iscoroutinefunction(target) else Stream
    made: Stream[Any, Any, Any] = kind(stream, target, signature, typed, client)
    return Handling(made.handler, signature.message, made)


def _of_class(
    stream: str, target: type[Any], message: Any, state: StateOptions, names: Mapping[str, Any]
) -> Handling:
    if not issubclass(target, StreamHandler):
        raise ConfigError(f"{target.__name__} must be a subclass of StreamHandler")
    keeps_bytes = target.open is not StreamHandler.open or target.snapshot is not StreamHandler.snapshot
    kind = state.kind if keeps_bytes else state.kind or _annotated_state(target, names)
    if kind is None:
        _refuse_state(stream, state)
        return Handling(target, message or message_of(target), target)
    if keeps_bytes:
        raise ConfigError(
            f"{target.__name__} has open() or snapshot(), which keep its own bytes; leave state= out"
        )
    typed = TypedState(kind, state.initial, target.version if state.version is None else state.version)
    return Handling(with_state(target, typed), message or message_of(target), target)


def _refuse_state(stream: str, state: StateOptions) -> None:
    for option in ("initial", "version"):
        if getattr(state, option) is not None:
            raise ConfigError(
                f"stream {stream!r}: {option}= is for typed state, and the handler declares none; annotate"
                " its second parameter with the type of the state, or leave the option out"
            )


def _annotated_state(target: type[Any], names: Mapping[str, Any]) -> Any:
    """Return the type of a class's attribute ``state``; None if it has none."""
    try:
        found = typing.get_type_hints(target, localns=dict(names)).get("state")
    except NameError:
        return None
    return None if found in UNTYPED else found


def message_of(handler: type[StreamHandler[Any]]) -> Any:
    """Return the message type in the bases of a handler class, or in the annotations of its ``process``, or
    None."""
    for base in getattr(handler, "__orig_bases__", ()):
        arguments = typing.get_args(base)
        if arguments and not isinstance(arguments[0], typing.TypeVar | str | typing.ForwardRef):
            return None if arguments[0] is Any else arguments[0]
    try:
        hints = typing.get_type_hints(handler.process)
    except NameError:  # a type that is known only where the class was defined
        return None
    parameters = list(inspect.signature(handler.process).parameters)
    found = hints.get(parameters[1]) if len(parameters) > 1 else None
    return None if found in UNTYPED or isinstance(found, typing.TypeVar) else found
