"""Bodies and results of tasks that are too large for a queue or the task store. They are put into an object
store, and what travels instead names the object."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

import msgspec

from holdfast.common.codec import RESULT_BYTES_MAX as VALUE_BYTES_MAX
from holdfast.common.exact_json import decode_plain
from holdfast.errors import ConfigError, InvalidMessage, TooLarge, ValueLost
from holdfast.ports.clock import Clock
from holdfast.ports.objects import Objects
from holdfast.tasks.body import Body, StoredValue
from holdfast.tasks.follow_ups import brief_of
from holdfast.tasks.outcome import ADVICE, RESULT_BYTES_MAX, Outcome
from holdfast.tasks.wire import SentTask, decode_brief

INLINE_BYTES_MAX = RESULT_BYTES_MAX
"""What is larger is stored. The result of a task travels in its brief, so the same limit fits both."""


class Values:
    """The values of one app in ``objects``; without an object store, nothing is stored. Names of objects have
    the day on which they were put, so that those that are old enough can be deleted."""

    def __init__(self, app: str, clock: Clock, objects: Objects | None = None) -> None:
        self.result_bytes_max = RESULT_BYTES_MAX if objects is None else VALUE_BYTES_MAX
        """The largest result that a task may have."""
        self._app = quote(app, safe="")
        self._clock = clock
        self._objects = objects

    @property
    def advice(self) -> str:
        """What to say to whoever sends something that is too large."""
        return ADVICE if self._objects is None else ""

    async def put(self, data: bytes) -> StoredValue:
        """Store a value. Raises TooLarge, and what the object store raises."""
        assert self._objects is not None
        if len(data) > VALUE_BYTES_MAX:
            raise TooLarge(f"a value of {len(data)} bytes is too large; it may have {VALUE_BYTES_MAX}")
        day = datetime.fromtimestamp(self._clock.wall(), UTC).strftime("%Y-%m-%d")
        digest = hashlib.sha256(data).hexdigest()
        return StoredValue(await self._objects.put(f"{self._app}/{day}/{digest}", data), len(data), digest)

    async def get(self, stored: StoredValue) -> bytes:
        """Return a value that was stored. Raises ValueLost, and what the object store raises."""
        if self._objects is None:
            raise ConfigError(f"a value is in {stored.url!r}: set values_url as those that put it there")
        if stored.size > VALUE_BYTES_MAX:
            raise ValueLost(f"a value of {stored.size} bytes is too large; it may have {VALUE_BYTES_MAX}")
        try:
            data = await self._objects.get(stored.url)
        except FileNotFoundError:
            raise ValueLost(f"the value in {stored.url!r} is gone: there is no such object") from None
        except (InvalidMessage, TooLarge) as error:
            raise ValueLost(f"the value in {stored.url!r} can't be read: {error}") from error
        if len(data) != stored.size or hashlib.sha256(data).hexdigest() != stored.sha256:
            raise ValueLost(f"the value in {stored.url!r} is damaged: it isn't what was stored")
        return data

    async def lightened(self, task: SentTask) -> SentTask:
        """Return a task whose body, and those of its follow-ups, are stored if they are large. Raises as
        ``put``."""
        if self._objects is None:
            return task
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
        if after and (outcome := decode_brief(after)).stored is not None:
            after = brief_of(await self.with_value(outcome))
        return msgspec.structs.replace(task, body=body, after=after)

    async def with_value(self, outcome: Outcome) -> Outcome:
        """Return an outcome with its value. Raises as ``get``."""
        if outcome.stored is None:
            return outcome
        data = await self.get(outcome.stored)
        value: Any = decode_plain(data)
        return msgspec.structs.replace(outcome, value=value, stored=None)


def is_light(task: SentTask) -> bool:
    """Return True if nothing of a task is stored, so that it can begin as it is."""
    return task.body.stored is None and not (task.after and decode_brief(task.after).stored is not None)
