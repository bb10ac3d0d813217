"""The traces of handlers, inside a slot: the spans of user code join the span of the message.

No SDK of OpenTelemetry runs in a slot. Where its API is installed, the span of the message is the current one
while a handler runs. What is begun under it, unless the app has set a provider of its own, is recorded here
and goes to the node with the answer to the call.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from types import ModuleType

from holdfast.ports.tracing import TracedCall

current_call: ContextVar[TracedCall | None] = ContextVar("holdfast_traced_call", default=None)
"""What takes the spans that user code makes now."""

_api: list[ModuleType | None] = []


def span_api() -> ModuleType | None:
    """Return the module that speaks with the API of OpenTelemetry; None where that isn't installed."""
    if not _api:
        try:
            from holdfast.slots import span_api as module  # noqa: PLC0415 - only where something is traced
        except ImportError:
            _api.append(None)
        else:
            _api.append(module)
    return _api[0]


@contextlib.contextmanager
def handling(call: TracedCall, place: int, traceparent: str, wall: Callable[[], float]) -> Iterator[None]:
    """Have user code run under the span of a message, which is the one at ``place`` in its call."""
    token = current_call.set(call)
    module = span_api()
    began_ns = int(wall() * 1e9)
    try:
        with contextlib.nullcontext() if module is None else module.under(traceparent):
            yield
    finally:
        current_call.reset(token)
        call.times[place] = (began_ns, int(wall() * 1e9))


def provide_spans() -> None:
    """Record what user code in this process traces, unless it has a provider of its own."""
    if (module := span_api()) is not None:
        module.provide()
