"""A type of task as a target of effects."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.common.codec import decode_plain
from holdfast.errors import InvalidMessage
from holdfast.ports.target import OutgoingEffect
from holdfast.tasks.order import Order
from holdfast.tasks.producer import Producer

EFFECTS_A_CALL = 10


class TaskTarget:
    """Takes effects as tasks. An effect's id is the task's task id, so that a repeat is known; its key is
    the task's group."""

    def __init__(self, task_type: str, producer: Producer) -> None:
        self.max_batch = EFFECTS_A_CALL
        self.ordered = False
        self._task_type = task_type
        self._producer = producer

    async def take(self, effects: Sequence[OutgoingEffect]) -> None:
        orders = [self._order(effect) for effect in effects]
        await self._producer.send(
            orders,
            hops=[effect.hops for effect in effects],
            traceparents=[effect.traceparent for effect in effects],
        )

    def _order(self, effect: OutgoingEffect) -> Order:
        try:
            body = decode_plain(effect.body)
        except ValueError as error:
            raise InvalidMessage(f"the body of a task must be a value that JSON can hold: {error}") from None
        return Order(task_type=self._task_type, body=body, task_id=effect.id, group=effect.key)
