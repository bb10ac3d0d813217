"""The spans of tasks: one for each attempt."""

from __future__ import annotations

from holdfast.cluster.tracer import OpenSpan, Tracer
from holdfast.common import conventions
from holdfast.common.redaction import redact
from holdfast.common.traceparent import TRACEPARENT, passed_on, read_traceparent
from holdfast.ports.tracing import AttributeValue
from holdfast.rules.tasks.attempt import How
from holdfast.rules.tasks.task import Task
from holdfast.tasks.held_tasks import HeldTask
from holdfast.tasks.running import Ended


def begin_attempt(tracer: Tracer, item: HeldTask, task: Task) -> OpenSpan | None:
    """Begin the span of an attempt, under which stands what it leads to; None if its trace isn't recorded."""
    cause = item.held.attributes.get(TRACEPARENT, "")
    context = read_traceparent(cause) if cause else None
    place = tracer.place_under(context)
    if place is None:
        item.held.traceparent = passed_on(context)
        return None
    attributes: dict[str, AttributeValue] = {
        **conventions.operation(conventions.PROCESS, item.queue),
        conventions.MESSAGE_ID: item.task_id,
        conventions.BODY_SIZE: len(item.held.body),
        conventions.ATTEMPT: task.attempts,
    }
    span = tracer.begin(place, f"{conventions.PROCESS} {item.type}", "consumer", attributes)
    item.held.traceparent = span.traceparent
    return span


def end_attempt(tracer: Tracer, span: OpenSpan, ended: Ended) -> None:
    """End the span of an attempt, unless its handler never began."""
    ended_ns = 0
    if ended.traced is not None:
        tracer.take(ended.traced)
        span.record.start_ns, ended_ns = ended.traced.times.get(0, (span.record.start_ns, 0))
    if ended.begun:
        error = None if ended.how is How.RETURNED else redact(ended.error or str(ended.how))
        span.end(error, at_ns=ended_ns)
