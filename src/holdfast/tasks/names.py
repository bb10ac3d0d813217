"""Names of an app's queues. They follow from app and type, so that nobody has to be told them."""

from __future__ import annotations

import hashlib
import re

from holdfast.errors import ConfigError

QUEUE_CHARS_MAX = 76
"""Leaves room for ``-dlq`` in what SQS takes."""

BRIEFS = "briefs"

STAND_IN = "stand-in"
"""Attribute of a message whose task was given to a node as well: the epoch at which the task stood then."""


def task_queue(app: str, task_type: str) -> str:
    """The queue of one type of task. Raises ConfigError for a name that no queue can have."""
    plain = re.sub(r"[._]", "-", task_type)
    if plain == BRIEFS:
        raise ConfigError(f"task type {task_type!r}: that is the name of the queue of outcomes; take another")
    return _checked(f"{app}-{plain}")


def brief_queue(app: str) -> str:
    """The queue of an app's outcomes."""
    return _checked(f"{app}-{BRIEFS}")


def deduplicated(task_type: str, key: str) -> str:
    """The trace of the one task of its type that is sent under a dedupe key."""
    return f"{task_type}-{hashlib.sha256(key.encode()).hexdigest()[:32]}"


def _checked(name: str) -> str:
    if len(name) > QUEUE_CHARS_MAX or not re.fullmatch(r"[A-Za-z0-9_-]+", name):
        raise ConfigError(
            f"queue name {name!r} is made of app and task type: they need letters, digits, '.', '-' and '_',"
            f" {QUEUE_CHARS_MAX} together at most"
        )
    return name
