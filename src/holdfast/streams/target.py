"""A stream as a target of effects."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from holdfast.common.acts import HOPS
from holdfast.common.traceparent import TRACEPARENT
from holdfast.ports.queue import Outgoing, Queue
from holdfast.ports.target import OutgoingEffect
from holdfast.streams.message import StreamMessage
from holdfast.streams.producer import StreamProducer
from holdfast.streams.spec import StreamSpec
from holdfast.system.values import Values


class StreamTarget:
    """A stream, which takes effects as messages in its queue. An effect's id is the message's. ``values``
    stores bodies that are too large for the queue."""

    def __init__(self, spec: StreamSpec, queue: Queue, values: Values | None = None) -> None:
        self.max_batch, self.ordered = queue.max_batch, queue.sends_in_order
        self._producer = StreamProducer(spec.name, queue, spec, values)

    async def take(self, effects: Sequence[OutgoingEffect]) -> None:
        await self._producer.send_outgoing([self._outgoing(effect) for effect in effects])

    def _outgoing(self, effect: OutgoingEffect) -> Outgoing:
        message = StreamMessage(effect.body, key=effect.key or None, message_id=effect.id)
        made = self._producer.outgoing(message)
        attributes = {**made.attributes, HOPS: str(effect.hops)}
        if effect.traceparent:
            attributes[TRACEPARENT] = effect.traceparent
        return msgspec.structs.replace(made, attributes=attributes, dedupe_id=effect.id)
