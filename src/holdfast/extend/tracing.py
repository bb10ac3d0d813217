"""The public API of traces, for products and services.

In a program or a handler with OpenTelemetry, :func:`span` begins a span under the current one, which in a
slot is the message's span. :func:`sending` is the span of a send, and :func:`current_traceparent` is the
value of the header ``TRACEPARENT`` for a request to another service. All three cost next to nothing without
traces.

On a node, ``host.tracer`` (:class:`holdfast.extend.products.Host`) makes spans of events without a waiting
program, such as the answer of a device. It is None if traces are off. Check a sender's ``traceparent`` by
:func:`valid_traceparent` before it is kept or passed on. ``conventions`` has the names of spans and
attributes.
"""

from typing import TYPE_CHECKING

from holdfast.common import conventions
from holdfast.common.lazy import exports
from holdfast.common.traceparent import TRACEPARENT
from holdfast.common.traceparent import checked as valid_traceparent
from holdfast.system.spans import current_traceparent, sending, span

if TYPE_CHECKING:
    from holdfast.cluster.tracer import OpenSpan, Tracer, trace_of
else:  # A program that sends needs no node.
    __getattr__ = exports(
        __name__,
        {
            "holdfast.cluster.tracer": "OpenSpan Tracer trace_of",
        },
    )

__all__ = [
    "TRACEPARENT",
    "OpenSpan",
    "Tracer",
    "conventions",
    "current_traceparent",
    "sending",
    "span",
    "trace_of",
    "valid_traceparent",
]
