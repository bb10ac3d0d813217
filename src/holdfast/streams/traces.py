"""The spans of a stream's messages: one for each handling of a message, and one for each commit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import structlog

from holdfast.cluster.tracer import OpenSpan, Tracer, trace_of
from holdfast.common import conventions
from holdfast.common.held import Held
from holdfast.common.traceparent import TRACEPARENT, cut, passed_on, read_traceparent
from holdfast.ports.slots import RunResult
from holdfast.ports.tracing import AttributeValue


class HandlingSpans:
    """The spans of messages that are handled together. From the start of this, what the messages lead to
    stands under them, and lines of the log name the trace."""

    def __init__(self, tracer: Tracer, stream: str, key: str, messages: Sequence[Held]) -> None:
        self._tracer = tracer
        self._open: dict[int, OpenSpan] = {}
        for number, held in enumerate(messages):
            cause = held.attributes.get(TRACEPARENT, "")
            if cause and tracer.refuses(cause):
                held.traceparent = cut(cause)
                continue
            context = read_traceparent(cause) if cause else None
            place = tracer.place_under(context)
            if place is None:
                held.traceparent = passed_on(context)
                continue
            name = f"{conventions.PROCESS} {stream}"
            attributes: dict[str, AttributeValue] = {
                **conventions.operation(conventions.PROCESS, stream),
                conventions.MESSAGE_ID: f"{stream}/{key}:{held.place.name}",
                conventions.BODY_SIZE: len(held.body),
                conventions.KEY: key,
                conventions.ATTEMPT: held.tries + 1,
            }
            if timer := held.place.timer:
                attributes[conventions.TIMER] = timer
            span = self._open[number] = tracer.begin(place, name, "consumer", attributes)
            held.traceparent = span.traceparent
        if self._open:
            bind_trace(next(iter(self._open.values())))

    def ran(self, ran: RunResult) -> list[str]:
        """End the spans of what was handled. Returns the contexts of what a commit can cover."""
        times: Mapping[int, tuple[int, int]] = {}
        if ran.traced is not None:
            times = ran.traced.times
            self._tracer.take(ran.traced)
        done = []
        for number, span in self._open.items():
            span.record.start_ns, ended_ns = times.get(number, (span.record.start_ns, 0))
            if number < len(ran.results):
                span.end(at_ns=ended_ns)
                done.append(span.traceparent)
            elif number == len(ran.results) and ran.error:
                span.end(ran.error, at_ns=ended_ns)
        self._open.clear()
        return done

    def failed(self, error: str) -> None:
        """End what has no result, because the handler could not begin or its slot has died."""
        for span in self._open.values():
            span.end(error)
        self._open.clear()

    def unread(self, error: str) -> None:
        """End the span of the first message, whose body can't be read; the others were not begun."""
        if (span := self._open.get(0)) is not None:
            span.end(error)
        self._open.clear()


def bind_trace(span: OpenSpan) -> None:
    """Have the lines that the present task of the event loop logs name the trace."""
    structlog.contextvars.bind_contextvars(**trace_of(span.traceparent))


def begin_commit(tracer: Tracer, stream: str, key: str, causes: Sequence[str]) -> OpenSpan:
    """Begin the span of a commit that covers messages with these contexts."""
    attributes: dict[str, AttributeValue] = {
        **conventions.operation(conventions.COMMIT, stream, conventions.SETTLE),
        conventions.KEY: key,
    }
    return tracer.begin_for(causes, f"{conventions.COMMIT} {stream}", "client", attributes)
