"""The spans of a program, by OpenTelemetry's API if the program has imported it. Without it, a call only
checks the imported modules."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from typing import Any

from holdfast.common import conventions
from holdfast.common.traceparent import write_traceparent
from holdfast.ports.tracing import AttributeValue, SpanKind

API = "opentelemetry.trace"

_caller: ContextVar[str] = ContextVar("caller", default="")
"""The ``traceparent`` of the caller whose request this program handles."""


@contextlib.contextmanager
def called_from(traceparent: str) -> Iterator[None]:
    """Put sends in the block under the caller's span, unless the program has a span."""
    token = _caller.set(traceparent)
    try:
        yield
    finally:
        _caller.reset(token)


@contextlib.contextmanager
def span(
    name: str, *, kind: SpanKind = "internal", attributes: Mapping[str, AttributeValue] | None = None
) -> Iterator[str]:
    """Begin a span with the program's own tracer. It ends with the block and fails with it. Yields its
    ``traceparent``; without a tracer the caller's, or ""."""
    api = sys.modules.get(API)
    if api is None:
        yield _caller.get()
        return
    with api.get_tracer(conventions.HOLDFAST).start_as_current_span(
        name, kind=api.SpanKind[kind.upper()], attributes=attributes
    ) as begun:
        yield _place_of(begun)


def sending(destination: str, count: int) -> contextlib.AbstractContextManager[str]:
    """Return a span for sending ``count`` messages."""
    if API not in sys.modules:
        return contextlib.nullcontext(_caller.get())
    attributes = {**conventions.operation(conventions.SEND, destination), conventions.BATCH_COUNT: count}
    return span(f"{conventions.SEND} {destination}", kind="producer", attributes=attributes)


def current_traceparent() -> str:
    """Return the ``traceparent`` of the current span, else of the caller, else ""."""
    api = sys.modules.get(API)
    return _caller.get() if api is None else _place_of(api.get_current_span())


def _place_of(begun: Any) -> str:
    context = begun.get_span_context()
    if not context.is_valid:
        return _caller.get()
    return write_traceparent(
        f"{context.trace_id:032x}", f"{context.span_id:016x}", sampled=context.trace_flags.sampled
    )
