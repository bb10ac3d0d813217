"""A task to send. It is apart from what sends it, because every program that declares an app imports this
module."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

import msgspec

from holdfast.common.settings import Delay, Int32, faults
from holdfast.errors import InvalidMessage


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """A task to send.

    ``body`` is a protobuf message, a text, or any value that JSON can hold. Without a ``trace_id``, the task
    gets a random one, or one made from ``dedupe``. Of all orders of one type with the same ``dedupe``, only
    the first is run. The task may begin after ``delay_s`` seconds. ``group`` names the group whose limits it
    counts toward, such as a customer. Raises InvalidMessage, which names the field, for a value of a wrong
    type or out of range.
    """

    task_type: str
    body: Any = None
    trace_id: str = ""
    dedupe: str = ""
    group: str = ""
    priority: Int32 = 0
    delay_s: Delay = 0.0

    def __post_init__(self) -> None:
        for field, text in faults(self):
            raise InvalidMessage(f"field {field!r} {text}", field)


Orders = Callable[[datetime], Sequence[Order]]
"""What ``App.periodic`` decorates: a function that gets the due time and returns the tasks to send."""
