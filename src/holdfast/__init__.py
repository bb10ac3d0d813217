"""Holdfast keeps every stream on one node: keyed, ordered, stateful, at-least-once work."""

from typing import TYPE_CHECKING

from holdfast.app import App
from holdfast.common.lazy import exports
from holdfast.common.retry import Backoff
from holdfast.errors import (
    ConfigError,
    HandlerFailed,
    HoldfastError,
    InvalidMessage,
    OperationRefused,
    OutcomeUnknown,
    StateRejected,
    TooLarge,
    Unavailable,
)
from holdfast.streams.handler import Context, StreamHandler
from holdfast.streams.message import StreamMessage
from holdfast.tasks.handler import Cancelled, Job
from holdfast.tasks.order import Order
from holdfast.tasks.outcome import Outcome
from holdfast.tasks.rules.task import Task
from holdfast.tasks.task_type import Signature, TaskType

if TYPE_CHECKING:
    from holdfast.client import AsyncClient, AsyncStreamSender, Client, StreamSender
    from holdfast.system.clock import SystemClock
    from holdfast.tasks.producer import Brief
    from holdfast.tasks.proto import TaskMessage
else:  # These import every service, so they are imported only when they are first used.
    __getattr__ = exports(
        __name__,
        {
            "AsyncClient": "holdfast.client",
            "AsyncStreamSender": "holdfast.client",
            "Brief": "holdfast.tasks.producer",
            "Client": "holdfast.client",
            "StreamSender": "holdfast.client",
            "SystemClock": "holdfast.system.clock",
            "TaskMessage": "holdfast.tasks.proto",
        },
    )

__version__ = "0.1.0"

__all__ = [
    "App",
    "AsyncClient",
    "AsyncStreamSender",
    "Backoff",
    "Brief",
    "Cancelled",
    "Client",
    "ConfigError",
    "Context",
    "HandlerFailed",
    "HoldfastError",
    "InvalidMessage",
    "Job",
    "OperationRefused",
    "Order",
    "Outcome",
    "OutcomeUnknown",
    "Signature",
    "StateRejected",
    "StreamHandler",
    "StreamMessage",
    "StreamSender",
    "SystemClock",
    "Task",
    "TaskMessage",
    "TaskType",
    "TooLarge",
    "Unavailable",
]
