"""Holdfast keeps every stream on one node: keyed, ordered, stateful, at-least-once work."""

from typing import TYPE_CHECKING

from holdfast.common.lazy import exports

if TYPE_CHECKING:
    from holdfast.app.app import App
    from holdfast.client.async_client import AsyncClient, AsyncStreamSender
    from holdfast.client.client import Client, StreamSender
    from holdfast.common.retry import Backoff
    from holdfast.errors import (
        ConfigError,
        HandlerFailed,
        HoldfastError,
        InvalidMessage,
        NoQuery,
        OperationRefused,
        OutcomeUnknown,
        QueryFailed,
        StateRejected,
        TooLarge,
        Unavailable,
    )
    from holdfast.rules.tasks.task import Task
    from holdfast.streams.asking import QueryAnswer
    from holdfast.streams.handler import Context, StreamHandler
    from holdfast.streams.message import StreamMessage
    from holdfast.system.clock import SystemClock
    from holdfast.tasks.handler import Cancelled, Job, Retry
    from holdfast.tasks.order import Order
    from holdfast.tasks.outcome import Outcome
    from holdfast.tasks.producer import Brief
    from holdfast.tasks.proto import TaskMessage
    from holdfast.tasks.task_type import Signature, TaskType
else:  # Each is imported when it is first used: a command that prints its help needs none of them.
    __getattr__ = exports(
        __name__,
        {
            "App": "holdfast.app.app",
            "AsyncClient": "holdfast.client.async_client",
            "AsyncStreamSender": "holdfast.client.async_client",
            "Backoff": "holdfast.common.retry",
            "Brief": "holdfast.tasks.producer",
            "Cancelled": "holdfast.tasks.handler",
            "Client": "holdfast.client.client",
            "ConfigError": "holdfast.errors",
            "Context": "holdfast.streams.handler",
            "HandlerFailed": "holdfast.errors",
            "HoldfastError": "holdfast.errors",
            "InvalidMessage": "holdfast.errors",
            "Job": "holdfast.tasks.handler",
            "NoQuery": "holdfast.errors",
            "OperationRefused": "holdfast.errors",
            "Order": "holdfast.tasks.order",
            "Outcome": "holdfast.tasks.outcome",
            "OutcomeUnknown": "holdfast.errors",
            "QueryAnswer": "holdfast.streams.asking",
            "QueryFailed": "holdfast.errors",
            "Retry": "holdfast.tasks.handler",
            "Signature": "holdfast.tasks.task_type",
            "StateRejected": "holdfast.errors",
            "StreamHandler": "holdfast.streams.handler",
            "StreamMessage": "holdfast.streams.message",
            "StreamSender": "holdfast.client.client",
            "SystemClock": "holdfast.system.clock",
            "Task": "holdfast.rules.tasks.task",
            "TaskMessage": "holdfast.tasks.proto",
            "TaskType": "holdfast.tasks.task_type",
            "TooLarge": "holdfast.errors",
            "Unavailable": "holdfast.errors",
        },
    )

__version__ = "0.3.0.dev0"

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
    "NoQuery",
    "OperationRefused",
    "Order",
    "Outcome",
    "OutcomeUnknown",
    "QueryAnswer",
    "QueryFailed",
    "Retry",
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
