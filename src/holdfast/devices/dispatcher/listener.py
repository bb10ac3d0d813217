"""Reads the events of brokers and devices."""

from __future__ import annotations

from collections.abc import Callable

from holdfast.devices.dispatcher.sender import storable_text
from holdfast.devices.dispatcher.shard import ServedShard, Unconfirmed
from holdfast.devices.dispatcher.shared import Part, Shared
from holdfast.devices.ports.device import (
    Accepted,
    CommandRefused,
    Connected,
    DeviceAnswer,
    Disconnected,
    Event,
    Lost,
    Seen,
)
from holdfast.devices.rules.device_queue import Correlation, shard_of
from holdfast.devices.rules.device_turn import CommandAnswer, Unsent
from holdfast.errors import InvalidMessage
from holdfast.extend.tools import Once, redact
from holdfast.extend.tracing import trace_of

RETURN_S = 1.0
"""Seconds within which a shard begins to send again, at a random time, after the broker was away."""

NO_RECEIVER_REASON = "the broker has no receiver for it"


class Listener(Part):
    """Takes in the events of shards.

    Args:
        on_connection: called when a shard was connected or disconnected.
        on_taken_over: called with a shard under whose identity another has connected.
    """

    def __init__(
        self, shared: Shared, *, on_connection: Callable[[], None], on_taken_over: Callable[[int], None]
    ) -> None:
        super().__init__(shared)
        self._on_connection = on_connection
        self._on_taken_over = on_taken_over
        self._logged = Once()

    async def read(self, shard: ServedShard) -> None:
        """Take in the events of a shard until its connection is closed."""
        while events := await shard.devices.events():
            for event in events:
                self._take(shard, event)
            # ``Accepted`` alone needs no turn: the answer would have to wait for that.
            if self._pending.needs_turn or not shard.connected:
                self._signals.wake.set()

    async def read_last(self, shard: ServedShard) -> None:
        """Take in the answers that came before the shard's connection was closed."""
        for event in await shard.devices.events():
            if isinstance(event, DeviceAnswer):
                self._answer(shard, event)

    def log_unmatched(self, device: str, id_: str, why: str) -> None:
        """Log an answer that changes nothing, once for each device and reason."""
        if self._logged.first((device, why)):
            self._log.warning(
                "unmatched answer ignored", outbox=self._spec.name, device=device, id=id_[:60], error=why
            )

    def _take(self, shard: ServedShard, event: Event) -> None:
        match event:
            case DeviceAnswer():
                self._answer(shard, event)
            case Seen():
                self._seen(event.device)
            case Accepted():
                self._accepted(shard, event)
            case CommandRefused():
                self._refused(shard, event)
            case Lost():
                unconfirmed = shard.lose(event.id)
                if not event.suspect:  # a suspect uses up a try, or it would break each new connection
                    self._not_taken(event.id, unconfirmed, certain=False)
            case Connected():
                self._connected(shard)
            case Disconnected():
                self._disconnected(shard, event)

    def _answer(self, shard: ServedShard, answer: DeviceAnswer) -> None:
        if shard_of(answer.device, self._spec.shards) != shard.number:
            return  # the device's own shard receives it too
        was_away = answer.device in self._register.away
        if not self._seen(answer.device):
            return
        try:
            correlation = Correlation.parse(answer.id)
        except InvalidMessage:
            self.log_unmatched(answer.device, answer.id, "no command was sent with this id")
            return
        shard.confirmed(answer.id)  # the broker's confirmation may come later, or not at all
        self._register.answer_times.answered(answer.device, correlation, was_away=was_away)
        self._pending.answers.append(CommandAnswer(answer.device, correlation, answer.payload, answer.ok))

    def _seen(self, device: str) -> bool:
        """Take in a sign of life. Return False for a device that never had a command."""
        known, may_go = self._register.seen(device)
        if may_go:
            self._pending.back[device] = None
        return known

    def _accepted(self, shard: ServedShard, event: Accepted) -> None:
        unconfirmed = shard.confirmed(event.id, NO_RECEIVER_REASON if event.no_receiver else None)
        if event.no_receiver:
            self._register.mark_away(event.device)
            self._not_taken(event.id, unconfirmed)
        elif unconfirmed and self._clock.monotonic() - unconfirmed.at > self._spec.patience.late_s:
            self._pending.still_out.append(unconfirmed.sending)

    def _refused(self, shard: ServedShard, event: CommandRefused) -> None:
        reason = storable_text(redact(event.reason))
        unconfirmed = shard.confirmed(event.id, reason)
        self._log_refusal(event.device, reason, unconfirmed)
        self._register.mark_refused(event.device)
        if event.final:
            correlation = Correlation.parse(event.id)
            answer = CommandAnswer(event.device, correlation, ok=False, reason=reason)
            self._pending.answers.append(answer)
        else:
            self._not_taken(event.id, unconfirmed, refusal=reason if event.counts else "")

    def _not_taken(
        self, id_: str, unconfirmed: Unconfirmed | None, *, certain: bool = True, refusal: str = ""
    ) -> None:
        spent = unconfirmed is None or unconfirmed.sending.counts
        self._pending.unsent.append(Unsent(Correlation.parse(id_), certain, spent, refusal))

    def _connected(self, shard: ServedShard) -> None:
        self._log_limit(shard.devices.max_payload)
        is_first = shard.connect()
        self._signals.wake.set()
        self._on_connection()
        self._pending.still_out += shard.take_lost()
        if is_first:
            self._pending.fresh[shard.number] = None
        else:
            shard.sends_from = self._clock.monotonic() + RETURN_S * self._clock.random()

    def _disconnected(self, shard: ServedShard, event: Disconnected) -> None:
        shard.disconnect(event.reason)
        self._on_connection()
        self._log.warning(
            "broker disconnected", outbox=self._spec.name, shard=shard.number, error=event.reason
        )
        if event.taken_over:
            self._on_taken_over(shard.number)

    def _log_limit(self, max_payload: int) -> None:
        if max_payload < self._spec.max_body and self._logged.first(("max_payload", max_payload)):
            self._log.warning(
                "broker limit below max_body",
                outbox=self._spec.name,
                max_payload=max_payload,
                max_body=self._spec.max_body,
                fix="lower max_body, so that larger commands are refused where they are added",
            )

    def _log_refusal(self, device: str, reason: str, unconfirmed: Unconfirmed | None) -> None:
        if self._logged.first(("refused", device)):
            traced = trace_of(unconfirmed.span.traceparent) if unconfirmed and unconfirmed.span else {}
            self._log.warning(
                "command refused by the broker",
                outbox=self._spec.name,
                device=device,
                error=reason,
                **traced,
            )
