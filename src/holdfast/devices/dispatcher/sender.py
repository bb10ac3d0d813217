"""Sends the tries that a turn marked as published."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.devices.dispatcher.shared import Part, Shared
from holdfast.devices.ports.device import Command
from holdfast.devices.rules.device_turn import CommandAnswer, Sending, TurnResult, Unsent
from holdfast.devices.traces import CommandSpans
from holdfast.errors import InvalidMessage, TooLarge, Unavailable
from holdfast.extend.tools import redact
from holdfast.extend.tracing import valid_traceparent

if TYPE_CHECKING:
    from holdfast.extend.tracing import OpenSpan


class Sender(Part):
    """Sends tries on the connections of their shards."""

    def __init__(self, shared: Shared, spans: CommandSpans | None) -> None:
        super().__init__(shared)
        self._patience = shared.spec.patience
        self._spans = spans
        self._marked: tuple[list[Sending], float] | None = None

    def mark(self, result: TurnResult, began_at: float) -> None:
        """Keep the tries of a turn that began at this monotonic time."""
        self._marked = result.sendings, began_at

    def forget(self) -> None:
        """Drop the marked tries; the next owner sends them again."""
        self._marked = None

    def send_marked(self) -> None:
        """Send the tries of the last turn. A late one isn't sent, because its repetition would follow too
        soon."""
        if self._marked is None:
            return
        (sendings, began_at), self._marked = self._marked, None
        self._limits.spend(len(sendings), self._clock.monotonic())
        for sending in sendings:
            self._send(sending, began_at)

    def _send(self, sending: Sending, began_at: float) -> None:
        correlation, shard = sending.correlation, self._shards.get(sending.shard)
        self._register.sent(sending.device, correlation)
        span = None if self._spans is None else self._spans.publish(sending)
        monotonic = self._clock.monotonic()
        try:
            if shard is None or monotonic - began_at > self._patience.late_s:
                raise Unavailable("it is too late")
            command = self._command(sending, span)
            shard.devices.publish(command)
            shard.sent(command.id, began_at, sending, span)
            self._register.answer_times.sent(correlation, monotonic)
        except (Unavailable, TooLarge, InvalidMessage) as error:
            reason = storable_text(redact(str(error)))
            if span is not None:
                span.end(reason)
            if isinstance(error, Unavailable):
                self._pending.unsent.append(Unsent(correlation, spent=sending.counts))
            else:
                answer = CommandAnswer(sending.device, correlation, ok=False, reason=reason)
                self._pending.answers.append(answer)
            self._signals.wake.set()

    def _command(self, sending: Sending, span: OpenSpan | None) -> Command:
        return Command(
            sending.device,
            str(sending.correlation),
            sending.body,
            self._patience.retry_s,
            valid_traceparent(sending.traceparent) if span is None else span.traceparent,
        )


def storable_text(text: str) -> str:
    """Return a text that every database keeps. A dialect's error may contain NUL or half a character."""
    return text.encode(errors="replace").decode().replace("\0", "\N{REPLACEMENT CHARACTER}")
