"""The decorator of streams, and the handlers that it takes."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Protocol, TypeVar, overload

from holdfast.errors import ConfigError
from holdfast.streams.handler import Context, HandlerClass, StreamHandler

N = TypeVar("N")
H = TypeVar("H")
R = TypeVar("R")


class StreamDecorator(Protocol[N]):
    """The decorator that ``App.stream`` returns. It takes a handler of messages of type N, and returns it
    unchanged."""

    @overload
    def __call__(self, target: HandlerClass[H, N], /) -> type[H]: ...
    @overload
    def __call__(self, target: Callable[[N, Context], R], /) -> Callable[[N, Context], R]: ...


def handler_class(target: Any) -> type[StreamHandler[Any]]:
    """Return a stream's handler as a class. Raises ConfigError for what is no handler."""
    if inspect.isclass(target):
        if not issubclass(target, StreamHandler):
            raise ConfigError(f"{target.__name__} must be a subclass of StreamHandler")
        return target
    if not callable(target):
        raise ConfigError(f"{target!r} is neither a StreamHandler class nor a function")
    function = target

    class Stateless(StreamHandler[Any]):
        __doc__ = function.__doc__

        def process(self, message: Any, context: Context) -> Any:
            return function(message, context)

    Stateless.__name__ = Stateless.__qualname__ = function.__name__
    return Stateless
