"""Bodies and results of tasks that are too large for a queue or the task store."""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.common.codec import decode_plain
from holdfast.errors import ValueLost
from holdfast.ports.clock import Clock
from holdfast.ports.objects import Objects
from holdfast.system.values import VALUE_BYTES_MAX, Values
from holdfast.tasks.body import Body
from holdfast.tasks.follow_ups import event_of
from holdfast.tasks.outcome import RESULT_BYTES_MAX, Outcome
from holdfast.tasks.wire import SentTask, decode_event

INLINE_BYTES_MAX = RESULT_BYTES_MAX
"""The largest body or result that isn't stored. A result travels in its outcome event."""


class TaskValues(Values):
    """The values of one app's tasks."""

    def __init__(self, app: str, clock: Clock, objects: Objects | None = None) -> None:
        super().__init__(app, clock, objects)
        self.result_bytes_max = RESULT_BYTES_MAX if objects is None else VALUE_BYTES_MAX
        """The largest result that a task may have."""

    async def lightened(self, task: SentTask) -> SentTask:
        """Return a task with large bodies stored, also of its follow-ups. Raises as ``put``."""
        follow_ups = [
            msgspec.structs.replace(each, task=await self.lightened(each.task)) for each in task.follow_ups
        ]
        body = task.body
        if len(body.data) > INLINE_BYTES_MAX:
            body = Body(b"", body.name, await self.put(body.data))
        return msgspec.structs.replace(task, body=body, follow_ups=tuple(follow_ups))

    async def whole(self, task: SentTask) -> SentTask:
        """Return a task with its body, and with the value of the task that it follows upon. Raises as
        ``get``."""
        body, after = task.body, task.after
        if body.stored is not None:
            body = Body(await self.get(body.stored), body.name)
        if after and (outcome := decode_event(after)).stored is not None:
            after = event_of(await self.with_value(outcome))
        return msgspec.structs.replace(task, body=body, after=after)

    async def with_value(self, outcome: Outcome) -> Outcome:
        """Return an outcome with its value. Raises as ``get``, and ValueLost if that isn't JSON."""
        if outcome.stored is None:
            return outcome
        data = await self.get(outcome.stored)
        try:
            value: Any = decode_plain(data)
        except ValueError as error:
            raise ValueLost(f"the value in {outcome.stored.url!r} can't be read: {error}") from None
        return msgspec.structs.replace(outcome, value=value, stored=None)
