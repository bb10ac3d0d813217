"""The spans of one node. The node owns them, also those of what runs in slots, so that a slot that is killed
still leaves a span."""

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
"""The most links of one span, as the specification limits them."""

_chance = random.SystemRandom()


class OpenSpan:
    """A span that has begun. It is exported once it has ended, and never if nobody ends it."""

    __slots__ = ("_tracer", "record", "traceparent")

    def __init__(self, tracer: Tracer, record: SpanRecord) -> None:
        self._tracer = tracer
        self.record = record
        self.traceparent = write_traceparent(record.trace_id, record.span_id, sampled=True)
        """The context of what follows the span."""

    def end(self, error: str | None = None, *, at_ns: int = 0) -> None:
        """End the span, now if no wall time is given; with ``error`` it has failed."""
        self.record.end_ns = at_ns or self._tracer.now_ns()
        if error is not None:
            self.record.failed, self.record.error = True, error
        self._tracer.exporter.add(self.record)


class Tracer:
    """Makes the spans of a node, of the share ``sample`` of all traces."""

    def __init__(self, exporter: SpanExporter, sample: float, clock: Clock) -> None:
        self.exporter = exporter
        self.dropped = 0
        """How many spans slots have dropped."""
        self._rate = SampleRate(sample)
        self._clock = clock

    def now_ns(self) -> int:
        """Return the wall time."""
        return int(self._clock.wall() * 1e9)

    def refuses(self, traceparent: str) -> bool:
        """Return True if ``traceparent``, valid or not, surely leads to no trace that is recorded."""
        return self._rate.refuses(traceparent)

    def is_recorded(self, traceparent: str) -> bool:
        """Return True if ``traceparent`` is one in a trace that is recorded."""
        return not self._rate.refuses(traceparent) and read_traceparent(traceparent) is not None

    def place(self, traceparent: str) -> TraceContext | None:
        """Return where a span under ``traceparent`` stands, in a trace of its own if there is none; None if
        that trace isn't recorded."""
        context = read_traceparent(traceparent) if traceparent else None
        return self.place_under(context)

    def place_under(self, context: TraceContext | None) -> TraceContext | None:
        """As ``place``, for a ``traceparent`` that was read."""
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
        """Begin a span at a place that ``place`` has returned."""
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
        """Begin the span of what is done at once for several, each with its ``traceparent`` in a recorded
        trace: under the only one, or else in a trace of its own. It links to all of them."""
        context = read_traceparent(causes[0]) if len(causes) == 1 else None
        place = context or TraceContext(self._new_trace_id())
        return self.begin(place, name, kind, attributes, links=causes, start_ns=start_ns)

    def take(self, call: TracedCall) -> None:
        """Export the spans that user code has made in a slot."""
        self.dropped += call.dropped
        for span in call.spans:
            self.exporter.add(span)

    def _new_trace_id(self) -> str:
        """Return the id of a new trace that is recorded wherever the same rate is set."""
        bits = 4 * TRACE_ID_DIGITS - 64
        low = _chance.randrange(self._rate.bound) if self._rate.bound else 0
        return f"{_chance.getrandbits(bits) << 64 | low or 1:0{TRACE_ID_DIGITS}x}"


def trace_of(traceparent: str) -> dict[str, str]:
    """Return what a line of the log says of a message with this context, if its trace is recorded."""
    context = read_traceparent(traceparent) if says_sampled(traceparent) else None
    return {} if context is None else {"trace_id": context.trace_id, "span_id": context.span_id}
