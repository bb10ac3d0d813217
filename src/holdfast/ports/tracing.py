"""Spans, and what takes them to where traces are kept."""

from __future__ import annotations

from typing import Literal, Protocol

import msgspec

SpanKind = Literal["internal", "client", "producer", "consumer", "server"]

Plain = str | int | float | bool
AttributeValue = Plain | list[Plain]


class SpanEvent(msgspec.Struct, frozen=True, array_like=True):
    """Something that happened during a span, at a wall time in nanoseconds."""

    name: str
    at_ns: int
    attributes: dict[str, AttributeValue] = {}


class SpanRecord(msgspec.Struct, array_like=True):
    """A span that has ended, in nanoseconds of wall time.

    ``parent_id`` is "" for the first span of a trace. ``links`` are the ``traceparent`` of other spans. With
    ``failed`` it ended with the error in ``error``. ``scope`` is what made it: Holdfast, or a library within
    a handler.
    """

    trace_id: str
    span_id: str
    parent_id: str
    name: str
    kind: SpanKind
    start_ns: int
    end_ns: int = 0
    attributes: dict[str, AttributeValue] = {}
    events: list[SpanEvent] = []
    links: list[str] = []
    failed: bool = False
    error: str = ""
    scope: str = "holdfast"


SPANS_MAX = 256
"""The most spans that one call to a slot gives the node. Further ones are dropped, and counted."""


class TracedCall(msgspec.Struct, array_like=True):
    """The records of a slot about one call: spans that user code has made, how many of them were dropped, and
    when each handled message of a recorded trace began and ended, in nanoseconds of wall time, by its place
    in the call."""

    spans: list[SpanRecord] = []
    dropped: int = 0
    times: dict[int, tuple[int, int]] = {}

    def add(self, span: SpanRecord) -> None:
        """Add a span, unless there are too many."""
        if len(self.spans) < SPANS_MAX:
            self.spans.append(span)
        else:
            self.dropped += 1


class SpanExporter(Protocol):
    """Takes spans to where traces are kept. No call waits for that place, or fails because of it."""

    def add(self, span: SpanRecord) -> None:
        """Take a span, or drop it if too many wait."""

    @property
    def exported(self) -> int:
        """The number of spans that were taken there."""

    @property
    def dropped(self) -> int:
        """The number of spans that were lost."""

    async def close(self) -> None:
        """Take what waits there, for two seconds at most."""
