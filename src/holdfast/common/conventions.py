"""The names of spans, and of their attributes, by the semantic conventions of OpenTelemetry for messaging.

The conventions are still in development, so the names are pinned here as of version 1.38
(https://opentelemetry.io/docs/specs/semconv/messaging/messaging-spans/). Names of Holdfast's own begin with
``holdfast.``.
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
"""The types of operations. Each is also an operation's name; ``COMMIT`` and ``PUBLISH`` are further names."""

COMMIT = "commit"

PUBLISH = "publish"
"""The name of a node's send of an outbox's command to a broker."""


def operation(name: str, destination: str, type_: str = "") -> dict[str, str | int | float | bool]:
    """Return the attributes that every span of messaging has."""
    return {
        SYSTEM: HOLDFAST,
        OPERATION_NAME: name,
        OPERATION_TYPE: type_ or name,
        DESTINATION: destination,
    }
