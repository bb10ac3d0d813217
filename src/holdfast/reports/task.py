"""The task type ``report.publish``: an order in, files at the customer's server out.

An app gets it by :func:`holdfast.reports.publish_reports`, which knows the services.
"""

from __future__ import annotations

import contextlib
import datetime as dt
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, Unpack

import msgspec

from holdfast import App, Job
from holdfast.errors import AlreadyThere, ConfigError, InvalidMessage, TooLarge
from holdfast.extend.products import TaskSettings
from holdfast.extend.tools import Backoff, redact_url
from holdfast.reports.audit import TASK_TYPE, AuditedAttempt
from holdfast.reports.faults import TooManyRows, UnreadableSource, UnwritableColumn
from holdfast.reports.order import ReportOrder, from_plain, plain_json
from holdfast.reports.publish import Headway, Misread, Publisher, delivery_of
from holdfast.reports.wire import OrderMessage, plain_protobuf

PERMANENT = (
    AlreadyThere,
    ConfigError,
    InvalidMessage,
    TooLarge,
    TooManyRows,
    UnreadableSource,
    UnwritableColumn,
)
"""What no other attempt can help; a refused login is a ConfigError."""

SETTINGS: TaskSettings = {
    "permanent": PERMANENT,
    "timeout_s": 6 * 3600.0,
    "stall_s": 300.0,
    "tries": 5,
    "backoff": Backoff(5.0, 300.0),
    "hold": "lease",
    "lease_s": 60.0,
    "resumable": True,
    "group": "customer",
    "group_limit": 2,
}
"""Of ``App.task``, unless said otherwise. An attempt may take hours, as long as it advances."""

TOLD_CHARS_MAX = 128
"""Of what an order tells that can't be understood."""

Opened = Callable[[Job], AbstractAsyncContextManager[tuple[Publisher, float]]]
"""Gives a publisher for the length of an attempt, and when its task was ordered (wall time in seconds)."""


class OrderBody:
    """A body that is an order: JSON, or a ``holdfast.reports.v1.ReportOrder``."""

    @staticmethod
    def read_body(data: bytes, name: str) -> ReportOrder | Misread:
        """The order, checked. What is wrong with it is raised by its attempt, and told of in the audit."""
        plain: object = None
        try:
            plain = _plain(data, name)
            order = from_plain(plain)
            delivery_of(order)
        except InvalidMessage as error:
            return _misread(plain, error)
        return order


def _plain(data: bytes, name: str) -> object:
    if not name:
        return plain_json(data)
    if name != OrderMessage.DESCRIPTOR.full_name:
        raise InvalidMessage(
            f"the body is a protobuf message of type {name}; an order is JSON or"
            f" a {OrderMessage.DESCRIPTOR.full_name}"
        )
    return plain_protobuf(data)


def _misread(plain: object, error: InvalidMessage) -> Misread:
    order = plain if isinstance(plain, dict) else {}
    delivery, day = order.get("delivery"), None
    with contextlib.suppress(TypeError, ValueError):
        day = dt.date.fromisoformat(order.get("date"))  # type: ignore[arg-type]
    return Misread(
        error,
        customer=_told(order.get("customer")),
        report=_told(order.get("report")),
        date=day,
        destination=_told(delivery.get("destination") if isinstance(delivery, dict) else None),
    )


def _told(value: object) -> str:
    """A text, as far as it can be a key and be shown."""
    # What is cut within a password could no more be known to hold one.
    return redact_url(value)[:TOLD_CHARS_MAX] if isinstance(value, str) and value.isprintable() else ""


def declare(app: App, opened: Opened, *, name: str = TASK_TYPE, **settings: Unpack[TaskSettings]) -> None:
    """Declare the task type in an app, with ``settings`` of ``App.task`` in place of ``SETTINGS``. Its value
    is what ``Publisher.publish`` returns; its progress tells bytes, rows, bytes a second and seconds left."""

    async def publish(order: ReportOrder | Misread, job: Job) -> dict[str, Any]:
        def told(headway: Headway) -> None:
            left = {} if headway.left_s is None else {"left_s": headway.left_s}
            job.progress(
                headway.fraction,
                str(headway),
                bytes=headway.bytes,
                rows=headway.rows,
                rate=headway.rate,
                **left,
            )

        job.progress(0.0, "opens the sources")
        async with opened(job) as (publisher, ordered_at):
            attempt = AuditedAttempt(
                app=job.app,
                trace=job.task_id,
                ordered_at=ordered_at,
                attempt=job.attempt,
                tries=job.tries,
                epoch=job.epoch,
            )
            if isinstance(order, Misread):
                await publisher.refuse(order, attempt)
            published: dict[str, Any] = msgspec.to_builtins(await publisher.publish(order, attempt, told))
        return published

    body: Any = OrderBody  # reads bodies as what its method returns, which no checker knows
    chosen: TaskSettings = {**SETTINGS, **settings}
    app.task(name, body=body, **chosen)(publish)
