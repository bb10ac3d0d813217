"""The place of a message in a trace, as attributes and HTTP headers say it: the ``traceparent`` of W3C Trace
Context (https://www.w3.org/TR/trace-context/)."""

from __future__ import annotations

import re
from typing import NamedTuple

TRACEPARENT = "traceparent"
"""The name of the attribute, and of the header."""

TRACE_ID_DIGITS, SPAN_ID_DIGITS = 32, 16

_FORM = re.compile("(?!ff)([0-9a-f]{2})-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")

_SAMPLED = "-01"

_CHARS, _FLAGS_AT = 55, 53

_RANDOM_BITS = 64
"""Number of last bits of a trace id that decide whether a trace is recorded, as in OpenTelemetry's
samplers."""


class TraceContext(NamedTuple):
    """A place in a trace: the trace, and the parent of the next spans ("" for none)."""

    trace_id: str
    span_id: str = ""


def read_traceparent(text: str) -> TraceContext | None:
    """Return the context in a ``traceparent``; None for an invalid one. Flags are ignored:
    :class:`SampleRate` decides whether a trace is recorded."""
    found = _FORM.fullmatch(text)
    if found is None or (found[1] == "00" and found[5]):
        return None
    return TraceContext(found[2], found[3])


def write_traceparent(trace_id: str, span_id: str, *, sampled: bool) -> str:
    """Return the ``traceparent`` for work that follows a span."""
    return f"00-{trace_id}-{span_id}{_SAMPLED if sampled else '-00'}"


def says_sampled(traceparent: str) -> bool:
    """Return True if a ``traceparent`` that this process has written says that the trace is recorded."""
    return traceparent.endswith(_SAMPLED)


def passed_on(context: TraceContext | None) -> str:
    """Return the ``traceparent`` for work that follows a message whose trace isn't recorded; "" for none."""
    return "" if context is None else write_traceparent(*context, sampled=False)


def cut(traceparent: str) -> str:
    """Return a text, valid or not, with the flag of a trace that isn't recorded. ``checked`` validates it
    later, if it is passed on, because reading costs more and most messages lead to nothing."""
    return traceparent[:_FLAGS_AT] + "00"


def checked(traceparent: str) -> str:
    """Return a ``traceparent`` if it is valid, without additions of later versions; else ""."""
    return traceparent[:_CHARS] if traceparent and read_traceparent(traceparent) else ""


class SampleRate:
    """The share of traces that is recorded, from 0 to 1. The trace's id decides: processes with the same rate
    agree, and no sender can force a recording by a flag."""

    def __init__(self, ratio: float) -> None:
        self.ratio = ratio
        self.bound = round(ratio * (1 << _RANDOM_BITS))
        """The last 64 bits of the ids of recorded traces are below this."""

    def takes(self, trace_id: str) -> bool:
        """Return True if the trace with this id is recorded."""
        return int(trace_id[-_RANDOM_BITS // 4 :], 16) < self.bound

    def refuses(self, traceparent: str) -> bool:
        """Return True if a ``traceparent``, valid or not, surely belongs to no recorded trace. Most messages
        have such a one, and this costs far less than reading it."""
        try:
            return int(traceparent[19:35], 16) >= self.bound
        except ValueError:
            return False
