"""The names of an app's queues, made of the names of app and type."""

from __future__ import annotations

import hashlib
import re

from holdfast.errors import ConfigError

QUEUE_CHARS_MAX = 76
"""The longest name of a queue. It leaves room for ``-dlq`` in the names of SQS."""

EVENTS = "briefs"
"""The name of the queue of outcome events, after the app's."""

STAND_IN = "stand-in"
"""The attribute of a message whose task was also given to a node directly: the task's epoch at that time."""


def task_queue(app: str, task_type: str) -> str:
    """Return the name of the queue of one type of task. Raises ConfigError for a name that no queue can
    have."""
    plain = re.sub(r"[._]", "-", task_type)
    if plain == EVENTS:
        raise ConfigError(f"task type {task_type!r} is the name of the queue of outcome events; take another")
    return _checked(f"{app}-{plain}")


def event_queue(app: str) -> str:
    """Return the name of the queue of an app's outcome events."""
    return _checked(f"{app}-{EVENTS}")


def deduplicated(task_type: str, key: str) -> str:
    """Return the task id of the task that is sent with a dedupe key."""
    return f"{task_type}-{hashlib.sha256(key.encode()).hexdigest()[:32]}"


def follow_up_id(task_type: str, task_id: str, epoch: int, place: int) -> str:
    """Return the id of a follow-up: the one at ``place`` of the task ``task_id`` that ended at ``epoch``.
    Sent again, it is the same task."""
    return deduplicated(task_type, f"{task_id}\0{epoch}\0{place}")


def _checked(name: str) -> str:
    if len(name) > QUEUE_CHARS_MAX or not re.fullmatch(r"[A-Za-z0-9_-]+", name):
        raise ConfigError(
            f"queue name {name!r} is made of app and task type: they need letters, digits, '.', '-' and '_',"
            f" {QUEUE_CHARS_MAX} together at most"
        )
    return name
