"""The storage of an app's tasks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from holdfast.ports.queue import Queue
from holdfast.ports.registry import Registry
from holdfast.ports.tasks import BriefingTasks, TaskStore
from holdfast.tasks.values import TaskValues


class TaskQueues(NamedTuple):
    """The queues of an app's tasks: one for each declared type, and ``briefs`` for outcomes."""

    by_type: Mapping[str, Queue]
    briefs: Queue


class TaskStorage(NamedTuple):
    """The storage of one app's tasks, as a node reaches it: their messages in ``queues``, their records in
    ``store``, the permits of their rates in ``registry``, and in ``values`` what is too large for the others.
    ``app`` is the name under which each has them. ``briefing`` is the store too, if it sends briefs together
    with outcomes."""

    app: str
    queues: TaskQueues
    store: TaskStore
    registry: Registry
    values: TaskValues
    briefing: BriefingTasks | None = None
