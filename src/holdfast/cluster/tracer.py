"""The spans of one node. The node has the spans of its slots too, so that a killed slot still leaves a
span."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence

from holdfast.common.traceparent import (
    SPAN_ID_DIGITS,
    TRACE_ID_DIGITS,
    SampleRate,
    TraceContext,
    read_traceparent,
    says_sampled,
    write_traceparent,
)
from holdfast.ports.clock import Clock
from holdfast.ports.tracing import AttributeValue, SpanExporter, SpanKind, SpanRecord, TracedCall

LINKS_MAX = 128
"""The limit of the specification on the links of one span."""

_chance = random.SystemRandom()


class OpenSpan:
    """A span that has begun. It is exported when it ends."""

    __slots__ = ("_tracer", "record", "traceparent")

    def __init__(self, tracer: Tracer, record: SpanRecord) -> None:
        self._tracer = tracer
        self.record = record
        self.traceparent = write_traceparent(record.trace_id, record.span_id, sampled=True)
        """The context of later spans."""

    def end(self, error: str | None = None, *, at_ns: int = 0) -> None:
        """End the span, now or at the given wall time; with ``error`` it has failed."""
        self.record.end_ns = at_ns or self._tracer.now_ns()
        if error is not None:
            self.record.failed, self.record.error = True, error
        self._tracer.exporter.add(self.record)


class Tracer:
    """Makes the spans of a node. ``sample`` is the recorded share of traces."""

    def __init__(self, exporter: SpanExporter, sample: float, clock: Clock) -> None:
        self.exporter = exporter
        self.dropped = 0
        """The number of spans that slots have dropped."""
        self._rate = SampleRate(sample)
        self._clock = clock

    def now_ns(self) -> int:
        """Return the wall time."""
        return int(self._clock.wall() * 1e9)

    def refuses(self, traceparent: str) -> bool:
        """Return whether the trace of a ``traceparent``, valid or not, is certainly not recorded."""
        return self._rate.refuses(traceparent)

    def is_recorded(self, traceparent: str) -> bool:
        """Return whether a ``traceparent`` is valid and its trace is recorded."""
        return not self._rate.refuses(traceparent) and read_traceparent(traceparent) is not None

    def place(self, traceparent: str) -> TraceContext | None:
        """Return the place of a span under ``traceparent``, in a trace of its own without one; None if that
        trace isn't recorded."""
        return self.place_under(read_traceparent(traceparent) if traceparent else None)

    def place_under(self, context: TraceContext | None) -> TraceContext | None:
        """Return the place as ``place`` does, for a context that was read."""
        if context is not None:
            return context if self._rate.takes(context.trace_id) else None
        return TraceContext(self._new_trace_id()) if self._clock.random() < self._rate.ratio else None

    def begin(
        self,
        place: TraceContext,
        name: str,
        kind: SpanKind,
        attributes: Mapping[str, AttributeValue],
        *,
        links: Iterable[str] = (),
        start_ns: int = 0,
    ) -> OpenSpan:
        """Begin a span at a place from ``place``."""
        span_id = f"{_chance.getrandbits(4 * SPAN_ID_DIGITS) or 1:0{SPAN_ID_DIGITS}x}"
        record = SpanRecord(
            place.trace_id,
            span_id,
            place.span_id,
            name,
            kind,
            start_ns or self.now_ns(),
            attributes=dict(attributes),
            links=list(links)[:LINKS_MAX],
        )
        return OpenSpan(self, record)

    def begin_for(
        self,
        causes: Sequence[str],
        name: str,
        kind: SpanKind,
        attributes: Mapping[str, AttributeValue],
        *,
        start_ns: int = 0,
    ) -> OpenSpan:
        """Begin the span of common work for several causes, each the ``traceparent`` of a recorded trace:
        under a single cause, or in a trace of its own. It links to all causes."""
        context = read_traceparent(causes[0]) if len(causes) == 1 else None
        place = context or TraceContext(self._new_trace_id())
        return self.begin(place, name, kind, attributes, links=causes, start_ns=start_ns)

    def take(self, call: TracedCall) -> None:
        """Export the spans of user code in a slot."""
        self.dropped += call.dropped
        for span in call.spans:
            self.exporter.add(span)

    def _new_trace_id(self) -> str:
        """Return the id of a new trace that every node with the same rate records."""
        bits = 4 * TRACE_ID_DIGITS - 64
        low = _chance.randrange(self._rate.bound) if self._rate.bound else 0
        return f"{_chance.getrandbits(bits) << 64 | low or 1:0{TRACE_ID_DIGITS}x}"


def trace_of(traceparent: str) -> dict[str, str]:
    """Return the log fields for a message with this context; empty if its trace isn't recorded."""
    context = read_traceparent(traceparent) if says_sampled(traceparent) else None
    return {} if context is None else {"trace_id": context.trace_id, "span_id": context.span_id}
