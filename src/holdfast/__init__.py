"""Holdfast keeps every stream on one node: keyed, ordered, stateful, at-least-once work."""

from typing import TYPE_CHECKING, Any

from holdfast.app import App
from holdfast.core.retry import Backoff
from holdfast.core.task import Task
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
from holdfast.tasks.task_type import Signature, TaskType

if TYPE_CHECKING:
    from holdfast.client import AsyncClient, AsyncStreamSender, Client, StreamSender
    from holdfast.tasks.producer import Brief

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
    "Task",
    "TaskType",
    "TooLarge",
    "Unavailable",
]


def __getattr__(name: str) -> Any:
    """The clients, with all the services that they may be asked for: only where they are wanted."""
    if name in ("AsyncClient", "AsyncStreamSender", "Brief", "Client", "StreamSender"):
        from holdfast import client  # noqa: PLC0415

        return getattr(client, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
