"""The spans of an outbox's commands: one for each try, until the broker has it, and one for each closed
command."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.devices.rules.device_queue import CommandState, StoredCommand
from holdfast.devices.rules.device_turn import Sending
from holdfast.extend.tracing import conventions

if TYPE_CHECKING:
    from holdfast.extend.tracing import OpenSpan, Tracer

COMMAND = "holdfast.command"
DEVICE = "holdfast.device"
STATE = "holdfast.state"

ENDED_WELL = (CommandState.ACKNOWLEDGED, CommandState.SUPERSEDED)


class CommandSpans:
    """Makes the spans of one outbox. Commands without a place in a trace have none."""

    def __init__(self, tracer: Tracer, outbox: str) -> None:
        self._tracer = tracer
        self._outbox = outbox

    def publish(self, sending: Sending) -> OpenSpan | None:
        """Begin the span of a try; None if its trace isn't recorded."""
        place = self._tracer.place(sending.traceparent) if sending.traceparent else None
        if place is None:
            return None
        attributes = {
            **conventions.operation(conventions.PUBLISH, self._outbox, conventions.SEND),
            conventions.MESSAGE_ID: str(sending.correlation),
            conventions.BODY_SIZE: len(sending.body),
            conventions.ATTEMPT: sending.correlation.tries,
            DEVICE: sending.device,
        }
        return self._tracer.begin(place, f"{conventions.PUBLISH} {self._outbox}", "producer", attributes)

    def closed(self, entry: StoredCommand) -> None:
        """Make the span of a closed command, from its last try if there was one."""
        place = self._tracer.place(entry.traceparent) if entry.traceparent else None
        if place is None:
            return
        ended_at = entry.closed_at or 0.0
        attributes = {
            **conventions.operation(conventions.PROCESS, self._outbox),
            conventions.ATTEMPT: entry.tries,
            COMMAND: entry.id,
            DEVICE: entry.device,
            STATE: entry.state.value,
        }
        span = self._tracer.begin(
            place,
            f"{conventions.PROCESS} {self._outbox}",
            "consumer",
            attributes,
            start_ns=int((entry.published_at or ended_at) * 1e9),
        )
        error = None if entry.state in ENDED_WELL else entry.reason or entry.state.value
        span.end(error, at_ns=int(ended_at * 1e9))
