"""A task to send. Apart from what sends it, for every program that declares an app imports it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

import msgspec

from holdfast.common.settings import Delay, Int32, faults
from holdfast.errors import InvalidMessage


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """A task to send.

    ``body`` is a protobuf message, a text, or what JSON can hold. ``trace_id`` is made up if left out, or
    follows from ``dedupe``: of the orders of one type with the same, only the first is run. It may begin
    after ``delay_s``. ``group`` is whose limits it counts against, such as a customer. Raises InvalidMessage,
    which names the field, for a value of another type or out of range.
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
"""What ``App.periodic`` decorates: told the time that has come, it returns the tasks to send."""
