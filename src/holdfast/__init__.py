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
        ReaderLost,
        ResultsExpired,
        StateRejected,
        TaskFailed,
        TooLarge,
        Unavailable,
    )
    from holdfast.rules.tasks.task import Task
    from holdfast.streams.asking import QueryAnswer
    from holdfast.streams.handler import Context, StreamHandler
    from holdfast.streams.message import StreamMessage
    from holdfast.streams.results import StreamResult
    from holdfast.streams.typed.stream import Stream
    from holdfast.system.clock import SystemClock
    from holdfast.tasks.handler import Cancelled, Job, Retry
    from holdfast.tasks.order import Order
    from holdfast.tasks.outcome import Outcome
    from holdfast.tasks.producer import Brief
    from holdfast.tasks.sent import SentTask
    from holdfast.tasks.task_type import Signature, TaskType
    from holdfast.tasks.wire import TaskMessage
else:  # Each is imported when it is first used: a command that prints its help needs none of them.
    __getattr__ = exports(
        __name__,
        {
            "holdfast.app.app": "App",
            "holdfast.client.async_client": "AsyncClient AsyncStreamSender",
            "holdfast.client.client": "Client StreamSender",
            "holdfast.common.retry": "Backoff",
            "holdfast.errors": (
                "ConfigError HandlerFailed HoldfastError InvalidMessage NoQuery OperationRefused "
                "OutcomeUnknown QueryFailed ReaderLost ResultsExpired StateRejected TaskFailed "
                "TooLarge Unavailable"
            ),
            "holdfast.rules.tasks.task": "Task",
            "holdfast.streams.asking": "QueryAnswer",
            "holdfast.streams.handler": "Context StreamHandler",
            "holdfast.streams.message": "StreamMessage",
            "holdfast.streams.results": "StreamResult",
            "holdfast.streams.typed.stream": "Stream",
            "holdfast.system.clock": "SystemClock",
            "holdfast.tasks.handler": "Cancelled Job Retry",
            "holdfast.tasks.order": "Order",
            "holdfast.tasks.outcome": "Outcome",
            "holdfast.tasks.producer": "Brief",
            "holdfast.tasks.wire": "TaskMessage",
            "holdfast.tasks.sent": "SentTask",
            "holdfast.tasks.task_type": "Signature TaskType",
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
    "ReaderLost",
    "ResultsExpired",
    "Retry",
    "SentTask",
    "Signature",
    "StateRejected",
    "Stream",
    "StreamHandler",
    "StreamMessage",
    "StreamResult",
    "StreamSender",
    "SystemClock",
    "Task",
    "TaskFailed",
    "TaskMessage",
    "TaskType",
    "TooLarge",
    "Unavailable",
]
