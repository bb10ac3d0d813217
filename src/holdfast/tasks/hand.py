"""The tasks in a node's hands."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from holdfast.common.held import Held
from holdfast.common.message import Life
from holdfast.ports.queue import Queue
from holdfast.tasks.names import STAND_IN
from holdfast.tasks.rules.task import State, Task
from holdfast.tasks.spec import TaskSpec
from holdfast.tasks.wire import SentTask


class TaskQueues(NamedTuple):
    """The queues of an app's tasks: one for each declared type, and ``briefs``, where outcomes go."""

    by_type: Mapping[str, Queue]
    briefs: Queue


class InHand(msgspec.Struct, eq=False):
    """A task with every delivery of it that is known.

    ``queue`` names the queue that delivered it. ``refusal`` says why it can't run. ``attempt`` is how its
    store stands while it runs here. ``stopping`` is why its attempt was told to stop. ``beat_at`` is when it
    was last told to advance, ``news`` that it has advanced since. ``here``: it was given to this node, and
    needs no delivery to run.
    """

    queue: str
    spec: TaskSpec
    message: SentTask
    held: Held
    refusal: str = ""
    attempt: Task | None = None
    stopping: str = ""
    progress: float = 0.0
    note: str = ""
    beat_at: float = -math.inf
    news: bool = False
    here: bool = False

    @property
    def trace(self) -> str:
        """The task's id."""
        return self.message.envelope.trace_id

    @property
    def full_key(self) -> str:
        """Type and trace, by which its dead letter is known."""
        return f"{self.type}/{self.trace}"

    @property
    def type(self) -> str:
        """The task's type."""
        return self.message.envelope.task_type

    @property
    def group(self) -> str:
        """Whose limits it counts against."""
        return self.message.envelope.group

    def is_stand_in(self, task: Task) -> bool:
        """True if its message has nothing to say any more: a node was given the task when it was sent, and an
        attempt has ended the task since."""
        sent_at = self.held.attributes.get(STAND_IN, "")
        return task.ended and sent_at.isdecimal() and task.epoch > int(sent_at)

    def lapsed(self, now: float) -> bool:
        """True if nothing gives the right to run any more."""
        return not self.here and all(r.stale or r.expires_at <= now for r in self.held.receipts)

    def come_back(self) -> None:
        """Be as if just received."""
        self.held.come_back()
        self.attempt = None
        self.stopping = ""

    def outcome_known(self) -> None:
        """Its store has its outcome: what is left is to say so."""
        if self.held.life is Life.RUNNING:
            self.held.become(Life.APPENDED)
        self.held.become(Life.COMMITTED)


def stands_here(task: Task, member: str) -> bool:
    """True if ``member`` may run the task, or go on with it."""
    return task.state is State.RUNNING and task.member == member
