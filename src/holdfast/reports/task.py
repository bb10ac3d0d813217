"""The task type ``report.publish``: an order in, files at the customer's server out.

:func:`holdfast.reports.publish_reports` declares it, and knows the services.
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
from holdfast.reports.publish import InvalidOrder, Publisher, PublishProgress, delivery_of
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
"""Errors that another attempt can't help. A refused login is a ConfigError."""

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
"""Default settings of ``App.task``. An attempt may take hours while it makes progress."""

FIELD_CHARS_MAX = 128
"""Characters of an invalid order's field in its audit row."""

Opened = Callable[[Job], AbstractAsyncContextManager[tuple[Publisher, float]]]
"""Opens a publisher for one attempt, and returns it with the wall time (s) when its task was ordered."""


class OrderBody:
    """A body that is an order: JSON, or a ``holdfast.reports.v1.ReportOrder``."""

    @staticmethod
    def read_body(data: bytes, name: str) -> ReportOrder | InvalidOrder:
        """Return the checked order. The error of an invalid one is raised by its attempt, and audited."""
        plain: object = None
        try:
            plain = _plain(data, name)
            order = from_plain(plain)
            delivery_of(order)
        except InvalidMessage as error:
            return _invalid(plain, error)
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


def _invalid(plain: object, error: InvalidMessage) -> InvalidOrder:
    order = plain if isinstance(plain, dict) else {}
    delivery, day = order.get("delivery"), None
    with contextlib.suppress(TypeError, ValueError):
        day = dt.date.fromisoformat(order.get("date"))  # type: ignore[arg-type]
    return InvalidOrder(
        error,
        customer=_field(order.get("customer")),
        report=_field(order.get("report")),
        date=day,
        destination=_field(delivery.get("destination") if isinstance(delivery, dict) else None),
    )


def _field(value: object) -> str:
    """Return a text that can be a key and be shown; empty for another value."""
    # Redacted first: a cut password can't be recognized.
    return redact_url(value)[:FIELD_CHARS_MAX] if isinstance(value, str) and value.isprintable() else ""


def declare(app: App, opened: Opened, *, name: str = TASK_TYPE, **settings: Unpack[TaskSettings]) -> None:
    """Declare the task type in an app, with ``settings`` of ``App.task`` in place of ``SETTINGS``. Its value
    is a ``Published``; its progress has bytes, rows, bytes a second and seconds left."""

    async def publish(order: ReportOrder | InvalidOrder, job: Job) -> dict[str, Any]:
        def on_progress(now: PublishProgress) -> None:
            left = {} if now.left_s is None else {"left_s": now.left_s}
            job.progress(now.fraction, str(now), bytes=now.bytes, rows=now.rows, rate=now.rate, **left)

        job.progress(0.0, "opening the sources")
        async with opened(job) as (publisher, ordered_at):
            attempt = AuditedAttempt(
                app=job.app,
                task_id=job.task_id,
                ordered_at=ordered_at,
                attempt=job.attempt,
                tries=job.tries,
                epoch=job.epoch,
            )
            if isinstance(order, InvalidOrder):
                await publisher.refuse(order, attempt)
            published: dict[str, Any] = msgspec.to_builtins(
                await publisher.publish(order, attempt, on_progress)
            )
        return published

    body: Any = OrderBody  # bodies have the type that its method returns, which no type checker knows
    chosen: TaskSettings = {**SETTINGS, **settings}
    app.task(name, body=body, **chosen)(publish)
