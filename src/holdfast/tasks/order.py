"""A task to send. It is apart from what sends it, because every program that declares an app imports this
module."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, TypedDict

import msgspec

from holdfast.common.settings import Count, Delay, Int32, Seconds, faults
from holdfast.errors import InvalidMessage


class SendOptions(TypedDict, total=False):
    """The options of one send; :meth:`holdfast.TaskType.send` describes each."""

    trace_id: str
    dedupe: str
    group: str
    priority: int
    delay_s: float
    timeout_s: float | None
    tries: int | None


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """A task to send.

    ``body`` is a protobuf message, a text, or any value that JSON can hold. Without a ``trace_id``, the task
    gets a random one, or one made from ``dedupe``. Of all orders of one type with the same ``dedupe``, only
    the first is run. The task may begin after ``delay_s`` seconds. ``group`` names the group whose limits it
    counts toward, such as a customer. ``timeout_s`` and ``tries`` are instead of those of its type. Raises
    InvalidMessage, which names the field, for a value of a wrong type or out of range.
    """

    task_type: str
    body: Any = None
    trace_id: str = ""
    dedupe: str = ""
    group: str = ""
    priority: Int32 = 0
    delay_s: Delay = 0.0
    timeout_s: Seconds | None = None
    tries: Count | None = None

    def __post_init__(self) -> None:
        for field, text in faults(self):
            raise InvalidMessage(f"field {field!r} {text}", field)


Orders = Callable[[datetime], Sequence[Order]]
"""What ``App.periodic`` decorates: a function that gets the due time and returns the tasks to send."""
