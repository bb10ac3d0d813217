"""The names of spans, and of their attributes, by the semantic conventions of OpenTelemetry for messaging.

They are still in development, so what is used is pinned here, as of version 1.38 of the conventions
(https://opentelemetry.io/docs/specs/semconv/messaging/messaging-spans/). What they have no name for begins
with ``holdfast.``.
"""

from __future__ import annotations

SCHEMA_URL = "https://opentelemetry.io/schemas/1.38.0"

SYSTEM = "messaging.system"
OPERATION_NAME = "messaging.operation.name"
OPERATION_TYPE = "messaging.operation.type"
DESTINATION = "messaging.destination.name"
MESSAGE_ID = "messaging.message.id"
BODY_SIZE = "messaging.message.body.size"
BATCH_COUNT = "messaging.batch.message_count"
ERROR_TYPE = "error.type"

ATTEMPT = "holdfast.attempt"
KEY = "holdfast.key"
SENDER = "holdfast.sender"
TIMER = "holdfast.timer"

HOLDFAST = "holdfast"
"""The messaging system, and the scope of the spans."""

SEND, RECEIVE, PROCESS, SETTLE = "send", "receive", "process", "settle"
"""The types of operations. They are the operations' names too, but for ``COMMIT`` and ``PUBLISH``."""

COMMIT = "commit"

PUBLISH = "publish"
"""The name of a send to a broker, by a node, of what a program has sent to an outbox."""


def operation(name: str, destination: str, type_: str = "") -> dict[str, str | int | float | bool]:
    """Return the attributes that every span of messaging has."""
    return {
        SYSTEM: HOLDFAST,
        OPERATION_NAME: name,
        OPERATION_TYPE: type_ or name,
        DESTINATION: destination,
    }
