"""The public API of traces, for products and services.

Where a program or a handler makes spans, :func:`span` begins one by OpenTelemetry's API, under the current
one: in a slot that is the span of the message. :func:`sending` is the span of a send, and
:func:`current_traceparent` is what a request to another service carries as the header ``TRACEPARENT``. All
three cost next to nothing where nothing is traced.

On a node, ``host.tracer`` (:class:`holdfast.extend.products.Host`) makes spans of what no program waits for,
such as the answer of a device. It is None if traces are off. What a sender says of its place is to be checked
by :func:`valid_traceparent` before it is kept or passed on. The names of spans and attributes are those of
``conventions``.
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
