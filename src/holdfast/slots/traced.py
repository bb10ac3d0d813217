"""The traces of handlers inside a slot: the spans of user code join the span of the message.

No SDK of OpenTelemetry runs in a slot. If its API is installed, the span of the message is the current one
while a handler runs. Spans under it are recorded here and sent to the node with the answer, unless the app
has its own provider.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from types import ModuleType

from holdfast.common.traceparent import says_sampled
from holdfast.ports.tracing import TracedCall

current_call: ContextVar[TracedCall | None] = ContextVar("holdfast_traced_call", default=None)
"""The call that takes the spans of user code."""

NOT_OF_APPS = ("opentelemetry.trace", "holdfast.slots.span_api")
"""Modules of the default tracer providers. Any other provider was set by an app."""

_api: list[ModuleType | None] = []


def span_api() -> ModuleType | None:
    """Return the module that uses OpenTelemetry's API; None if the API isn't installed."""
    if not _api:
        try:
            from holdfast.slots import span_api as module  # noqa: PLC0415 - only for traces
        except ImportError:
            _api.append(None)
        else:
            _api.append(module)
    return _api[0]


def joins(traceparent: str) -> bool:
    """Return whether spans of user code must join this place: its trace is recorded, or the app's own
    provider must know that it isn't."""
    if says_sampled(traceparent):
        return True
    api = sys.modules.get("opentelemetry.trace")
    return api is not None and type(api.get_tracer_provider()).__module__ not in NOT_OF_APPS


@contextlib.contextmanager
def handling(call: TracedCall, place: int, traceparent: str, wall: Callable[[], float]) -> Iterator[None]:
    """Run user code under the span of a message, the one at ``place`` in its call."""
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
    """Record the spans of user code in this process, unless it has its own provider."""
    if (module := span_api()) is not None:
        module.provide()
