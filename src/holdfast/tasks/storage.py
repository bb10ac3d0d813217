"""The storage of an app's tasks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from holdfast.ports.queue import Queue
from holdfast.ports.registry import Registry
from holdfast.ports.tasks import BriefingTasks, TaskStore
from holdfast.tasks.values import TaskValues


class TaskStorage(NamedTuple):
    """The storage of one app's tasks, as a node reaches it: a queue for each type, the queue of outcome
    events, the records, the permits of rates, and the values that are too large for the others. ``briefing``
    is the store too, if it can send outcome events together with outcomes."""

    app: str
    queues: Mapping[str, Queue]
    events: Queue
    store: TaskStore
    registry: Registry
    values: TaskValues
    briefing: BriefingTasks | None = None
