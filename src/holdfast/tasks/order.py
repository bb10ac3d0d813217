"""A task to send. The module is apart from the producer, because every program that declares an app imports
it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypedDict

import msgspec

from holdfast.common.message import check_text
from holdfast.common.settings import Count, Delay, Int32, Seconds, faults
from holdfast.errors import InvalidMessage

FOLLOW_UPS_MAX = 16
"""The most tasks that follow one outcome, and the longest chain of them."""

if TYPE_CHECKING:
    FollowUps: TypeAlias = "Order | Sequence[Order]"
else:
    FollowUps = Any  # msgspec would refuse what is made from Order


class SendOptions(TypedDict, total=False):
    """The options of one send; :meth:`holdfast.TaskType.send` describes each."""

    task_id: str
    trace_id: str
    dedupe: str
    group: str
    priority: int
    delay_s: float
    at: datetime | None
    timeout_s: float | None
    tries: int | None
    then: FollowUps
    on_failure: FollowUps


class BatchOptions(TypedDict, total=False):
    """The options of a batch; :meth:`holdfast.AsyncClient.send_batch` describes each."""

    then: FollowUps
    on_failure: FollowUps
    task_id: str
    dedupe: str


class TimesOptions(TypedDict, total=False):
    """The options of times; :meth:`holdfast.App.periodic` describes each."""

    zone: str
    missed: Literal["all", "last", "skip"]
    window_s: float


class LetterOptions(TypedDict, total=False):
    """The options that choose dead letters; :meth:`holdfast.AsyncClient.back_up` describes each."""

    task_id: str
    since: float
    until: float
    error: str


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """A task to send.

    ``body`` is a protobuf message, a text, or any value that JSON can hold. Without a ``task_id``, the task
    gets a random one, or one made from ``dedupe``. Of all orders of one type with the same ``dedupe``, only
    the first is run. The task may begin after ``delay_s`` seconds, or at the time ``at``. ``group`` names the
    group whose limits it counts toward, such as a customer. ``timeout_s`` and ``tries`` replace the type's.
    ``then`` is sent once the task has succeeded, ``on_failure`` if it ends otherwise. Raises InvalidMessage,
    which names the field, for a value of a wrong type or out of range."""

    task_type: str
    body: Any = None
    task_id: str = ""
    trace_id: str = ""
    dedupe: str = ""
    group: str = ""
    priority: Int32 = 0
    delay_s: Delay = 0.0
    at: datetime | None = None
    timeout_s: Seconds | None = None
    tries: Count | None = None
    then: FollowUps = ()
    on_failure: FollowUps = ()

    def __post_init__(self) -> None:
        for field, text in faults(self):
            raise InvalidMessage(f"field {field!r} {text}", field)
        for field in ("task_type", "task_id", "trace_id", "group", "dedupe"):
            msgspec.structs.force_setattr(self, field, check_text(getattr(self, field), field))
        msgspec.structs.force_setattr(self, "task_id", self.task_id or self.trace_id)
        msgspec.structs.force_setattr(self, "trace_id", self.task_id)
        if self.at is not None and self.at.tzinfo is None:
            raise InvalidMessage("field 'at' has no time zone; give an aware datetime", "at")
        if self.at is not None and self.delay_s:
            raise InvalidMessage("fields 'at' and 'delay_s' are both given; give one of them", "at")
        for field in ("then", "on_failure"):
            msgspec.structs.force_setattr(self, field, _checked(field, getattr(self, field)))
        if _longest_chain(self) > FOLLOW_UPS_MAX:
            raise InvalidMessage(f"more than {FOLLOW_UPS_MAX} tasks follow each other", "then")

    @property
    def types(self) -> set[str]:
        """Return the types of this task and of all its follow-ups."""
        return {self.task_type}.union(*(each.types for each, _ in self.follow_ups))

    @property
    def follow_ups(self) -> list[tuple[Order, bool]]:
        """Return the tasks that follow, each with whether it follows upon a failure."""
        return [(each, False) for each in _listed(self.then)] + [
            (each, True) for each in _listed(self.on_failure)
        ]


def _listed(orders: Order | Sequence[Order]) -> Sequence[Order]:
    return (orders,) if isinstance(orders, Order) else orders


def _checked(field: str, orders: Any) -> tuple[Order, ...]:
    listed = tuple(_listed(orders)) if isinstance(orders, Order | list | tuple) else (orders,)
    for order in listed:
        if not isinstance(order, Order):
            said = (
                f"is a {type(order).__name__}; it must be a task to send, as TaskType.s makes it, or several"
            )
            raise InvalidMessage(f"field {field!r} {said}", field)
        if not order.task_type:
            raise InvalidMessage(f"field {field!r} has a task without a task_type", field)
        if order.at is not None:
            raise InvalidMessage(f"field {field!r} has a task with 'at'; what follows has a 'delay_s'", field)
    if len(listed) > FOLLOW_UPS_MAX:
        raise InvalidMessage(f"field {field!r} has {len(listed)} tasks; it may have {FOLLOW_UPS_MAX}", field)
    return listed


def _longest_chain(order: Order) -> int:
    return max((1 + _longest_chain(each) for each, _ in order.follow_ups), default=0)


Orders = Callable[[datetime], Sequence[Order]]
"""The function that ``App.periodic`` decorates: it gets the due time and returns the tasks to send."""
