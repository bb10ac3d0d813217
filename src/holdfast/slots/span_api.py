"""OpenTelemetry's API inside a slot, without its SDK: makes the span of a message the current one, and
records the spans under it."""

from __future__ import annotations

import contextlib
import random
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from opentelemetry import context as contexts
from opentelemetry import trace
from opentelemetry.trace import (
    INVALID_SPAN,
    NonRecordingSpan,
    ProxyTracerProvider,
    SpanContext,
    StatusCode,
    TraceFlags,
)
from opentelemetry.util._decorator import _agnosticcontextmanager

from holdfast.common.redaction import redact
from holdfast.common.text import storable
from holdfast.common.traceparent import read_traceparent, says_sampled, write_traceparent
from holdfast.ports.tracing import AttributeValue, Plain, SpanEvent, SpanKind, SpanRecord, TracedCall
from holdfast.slots.traced import current_call

ATTRIBUTES_MAX = 64
EVENTS_MAX = 32
LINKS_MAX = 32
CHARS_MAX = 2000
ITEMS_MAX = 32

KINDS: dict[trace.SpanKind, SpanKind] = {
    trace.SpanKind.INTERNAL: "internal",
    trace.SpanKind.CLIENT: "client",
    trace.SpanKind.SERVER: "server",
    trace.SpanKind.PRODUCER: "producer",
    trace.SpanKind.CONSUMER: "consumer",
}

_chance = random.SystemRandom()


@contextlib.contextmanager
def under(traceparent: str) -> Iterator[None]:
    """Make the span with this context the current one."""
    place = read_traceparent(traceparent)
    if place is None:
        yield
        return
    flags = TraceFlags(TraceFlags.SAMPLED if says_sampled(traceparent) else TraceFlags.DEFAULT)
    span_context = SpanContext(int(place.trace_id, 16), int(place.span_id, 16), True, flags)
    token = contexts.attach(trace.set_span_in_context(NonRecordingSpan(span_context)))
    try:
        yield
    finally:
        contexts.detach(token)


def provide() -> None:
    """Record spans in this process, unless the app has its own provider."""
    if isinstance(trace.get_tracer_provider(), ProxyTracerProvider):
        trace.set_tracer_provider(SlotTracerProvider())


class SlotTracerProvider(trace.TracerProvider):
    """Makes tracers whose spans the node exports."""

    def get_tracer(
        self,
        instrumenting_module_name: str,
        instrumenting_library_version: str | None = None,
        schema_url: str | None = None,
        attributes: Any = None,
    ) -> trace.Tracer:
        return SlotTracer(instrumenting_module_name)


class SlotTracer(trace.Tracer):
    """Makes the spans of one library or of user code."""

    def __init__(self, scope: str) -> None:
        self._scope = scope

    def start_span(
        self,
        name: str,
        context: contexts.Context | None = None,
        kind: trace.SpanKind = trace.SpanKind.INTERNAL,
        attributes: Any = None,
        links: Sequence[trace.Link] | None = None,
        start_time: int | None = None,
        record_exception: bool = True,
        set_status_on_exception: bool = True,
    ) -> trace.Span:
        parent = trace.get_current_span(context).get_span_context()
        call = current_call.get()
        if not parent.is_valid:
            return INVALID_SPAN
        if call is None or not parent.trace_flags.sampled:
            return NonRecordingSpan(parent)
        record = SpanRecord(
            f"{parent.trace_id:032x}",
            f"{_chance.getrandbits(64) or 1:016x}",
            f"{parent.span_id:016x}",
            _cut(name),
            KINDS[kind],
            start_time or time.time_ns(),
            links=[_link(link.context) for link in (links or ())[:LINKS_MAX]],
            scope=_cut(self._scope),
        )
        span = SlotSpan(record, call)
        span.set_attributes(attributes or {})
        return span

    @_agnosticcontextmanager
    def start_as_current_span(
        self,
        name: str,
        context: contexts.Context | None = None,
        kind: trace.SpanKind = trace.SpanKind.INTERNAL,
        attributes: Any = None,
        links: Sequence[trace.Link] | None = None,
        start_time: int | None = None,
        record_exception: bool = True,
        set_status_on_exception: bool = True,
        end_on_exit: bool = True,
    ) -> Iterator[trace.Span]:
        span = self.start_span(name, context, kind, attributes, links, start_time)
        with trace.use_span(
            span,
            end_on_exit=end_on_exit,
            record_exception=record_exception,
            set_status_on_exception=set_status_on_exception,
        ):
            yield span


class SlotSpan(trace.Span):
    """A span that is sent to the node when it ends."""

    def __init__(self, record: SpanRecord, call: TracedCall) -> None:
        self._record = record
        self._call = call
        self._context = SpanContext(
            int(record.trace_id, 16), int(record.span_id, 16), False, TraceFlags(TraceFlags.SAMPLED)
        )

    def end(self, end_time: int | None = None) -> None:
        if self.is_recording():
            self._record.end_ns = end_time or time.time_ns()
            self._call.add(self._record)

    def get_span_context(self) -> SpanContext:
        return self._context

    def is_recording(self) -> bool:
        return not self._record.end_ns

    def set_attributes(self, attributes: Mapping[str, Any]) -> None:
        for name, value in attributes.items():
            self.set_attribute(name, value)

    def set_attribute(self, key: str, value: Any) -> None:
        kept = self._record.attributes
        if self.is_recording() and (len(kept) < ATTRIBUTES_MAX or key in kept):
            kept[_cut(key)] = _plain(value)

    def add_event(self, name: str, attributes: Any = None, timestamp: int | None = None) -> None:
        if self.is_recording() and len(self._record.events) < EVENTS_MAX:
            plain = {_cut(key): _plain(value) for key, value in (attributes or {}).items()}
            self._record.events.append(SpanEvent(_cut(name), timestamp or time.time_ns(), plain))

    def add_link(self, context: SpanContext, attributes: Any = None) -> None:
        if self.is_recording() and len(self._record.links) < LINKS_MAX:
            self._record.links.append(_link(context))

    def update_name(self, name: str) -> None:
        if self.is_recording():
            self._record.name = _cut(name)

    def set_status(self, status: trace.Status | StatusCode, description: str | None = None) -> None:
        code = status.status_code if isinstance(status, trace.Status) else status
        text = status.description if isinstance(status, trace.Status) else description
        if self.is_recording():
            self._record.failed = code is StatusCode.ERROR
            self._record.error = _cut(text or "") if self._record.failed else ""

    def record_exception(
        self,
        exception: BaseException,
        attributes: Any = None,
        timestamp: int | None = None,
        escaped: bool = False,
    ) -> None:
        known = {
            "exception.type": type(exception).__qualname__,
            "exception.message": str(exception),
            "exception.stacktrace": "".join(traceback.format_exception(exception)),
        }
        self.add_event("exception", {**known, **(attributes or {})}, timestamp)


def _link(context: SpanContext) -> str:
    return write_traceparent(f"{context.trace_id:032x}", f"{context.span_id:016x}", sampled=True)


def _cut(text: object) -> str:
    """Return a text without secrets, cut to a length that can be stored."""
    return storable(redact(str(text))[:CHARS_MAX])


def _plain(value: Any) -> AttributeValue:
    """Return a value that a span can have."""
    if isinstance(value, list | tuple):
        return [_scalar(each) for each in value[:ITEMS_MAX]]
    return _scalar(value)


def _scalar(value: Any) -> Plain:
    if isinstance(value, bool | float) or (isinstance(value, int) and -(2**63) <= value < 2**63):
        return value
    return _cut(value)
