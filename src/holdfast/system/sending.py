"""The span of a send, in the program that sends: by OpenTelemetry, where the program has it."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator

from holdfast.common import conventions
from holdfast.common.traceparent import write_traceparent

API = "opentelemetry.trace"


@contextlib.contextmanager
def sending(destination: str, count: int) -> Iterator[str]:
    """Have the program's own tracer begin a span for sending ``count`` messages, and yield its
    ``traceparent``; "" for a program that traces nothing. A program that has not imported OpenTelemetry's API
    has no span to continue."""
    api = sys.modules.get(API)
    if api is None:
        yield ""
        return
    attributes = {**conventions.operation(conventions.SEND, destination), conventions.BATCH_COUNT: count}
    with api.get_tracer(conventions.HOLDFAST).start_as_current_span(
        f"{conventions.SEND} {destination}", kind=api.SpanKind.PRODUCER, attributes=attributes
    ) as span:
        context = span.get_span_context()
        yield (
            write_traceparent(
                f"{context.trace_id:032x}",
                f"{context.span_id:016x}",
                sampled=context.trace_flags.sampled,
            )
            if context.is_valid
            else ""
        )
