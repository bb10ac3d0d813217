"""The tasks that a node has received and not ended."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping

import msgspec

from holdfast.common.held import Held
from holdfast.common.message import Life
from holdfast.rules.tasks.attempt import Stop
from holdfast.rules.tasks.fair_queue import FairQueue, Permits
from holdfast.rules.tasks.task import State, Task
from holdfast.tasks.names import STAND_IN
from holdfast.tasks.spec import TaskSpec
from holdfast.tasks.wire import SentTask

EPOCH_DIGITS_MAX = 20
"""The most digits of an epoch that a message may name. Any program may have sent it, and Python makes no
number of thousands of digits."""

HERE_FIRST = 2**32
"""The priority of tasks that were given to this node directly: above all priorities of messages."""


class TaskActivity(msgspec.Struct):
    """An attempt that runs, and for how long."""

    task: str
    type: str
    group: str
    runs_s: float
    progress: float
    note: str


class HeldTask(msgspec.Struct, eq=False):
    """A task with all its known deliveries.

    ``queue`` names the queue that delivered it, which lets a new delivery be held for ``hold_max_s``.
    ``refusal`` says why it can't run. ``attempt`` is the task's record in the store while it runs here.
    ``stopping`` is why its attempt was asked to stop, and ``cancel`` why its task was cancelled, if that is
    why. ``ending`` is true once it has ended and the store is told so, which answers by itself if it refuses.
    ``beat_at`` is when its progress was last reported to the store, and ``news`` is true if it has advanced
    since. ``here``: it was given to this node directly, and needs no delivery to run.

    ``task_id`` is its id, ``type`` its type, and ``group`` the group whose limits it counts toward.
    ``timeout_s`` is the total time of one attempt, and ``tries`` the number of attempts that it gets if they
    fail: what the sender said, or that of the type. Its queue hides a delivery for ``visibility_s`` at once.
    """

    queue: str
    spec: TaskSpec
    message: SentTask
    held: Held
    refusal: str = ""
    hold_max_s: float = math.inf
    attempt: Task | None = None
    stopping: Stop | None = None
    cancel: str = ""
    ending: bool = False
    progress: float = 0.0
    note: str = ""
    beat_at: float = -math.inf
    news: bool = False
    here: bool = False
    task_id: str = ""
    type: str = ""
    group: str = ""
    timeout_s: float = 0.0
    tries: int = 0
    visibility_s: float = 0.0

    def __post_init__(self) -> None:
        envelope = self.message.envelope
        self.task_id, self.type, self.group = envelope.task_id, envelope.task_type, envelope.group
        self.timeout_s = envelope.timeout_s or self.spec.timeout_s
        self.tries = envelope.tries or self.spec.tries
        self.visibility_s = self.spec.visibility_s

    @property
    def full_key(self) -> str:
        """Type and task id, which identify its dead letter."""
        return f"{self.type}/{self.task_id}"

    @property
    def is_settled(self) -> bool:
        """True if the store has its outcome, which is told now. Its deliveries are deleted after that, and
        none that comes now may be among them: the task may have been sent again."""
        return self.held.life in (Life.COMMITTED, Life.BURIED)

    def is_stand_in(self, task: Task) -> bool:
        """Return True if its message is no longer needed: the task was also given to a node directly when it
        was sent, and an attempt has ended it since."""
        sent_at = self.held.attributes.get(STAND_IN, "")
        is_epoch = sent_at.isdecimal() and len(sent_at) <= EPOCH_DIGITS_MAX
        return task.ended and is_epoch and task.epoch > int(sent_at)

    def lapsed(self, now: float) -> bool:
        """Return True if no delivery gives the right to run the task any more."""
        return not self.here and all(r.stale or r.expires_at <= now for r in self.held.receipts)

    def holdable_s(self, now: float) -> float:
        """Return for how many more seconds the queue lets a delivery of the task be held, if it needs one."""
        if self.here:
            return math.inf
        return max(receipt.received_at for receipt in self.held.receipts) + self.hold_max_s - now

    # --- its phases, which only these methods change

    def wait(self) -> None:
        """Note that it waits for its turn."""
        if self.held.life is Life.RECEIVED:
            self.held.become(Life.WAITING)

    def note_attempt(self, record: Task, asked_at: float) -> None:
        """Note the record of its attempt, for which the store was asked at ``asked_at``."""
        self.attempt, self.beat_at = record, asked_at

    def run(self) -> None:
        """Note that its attempt runs here."""
        self.held.become(Life.RUNNING)

    def stop(self, why: Stop, cancel: str = "") -> None:
        """Note why its attempt is asked to end."""
        self.stopping, self.cancel = why, cancel

    def end(self) -> None:
        """Note that its attempt has ended, and that the store is told so."""
        self.ending = True

    def give_back(self) -> None:
        """Note that its deliveries go back to their queue."""
        self.held.become(Life.GIVEN_BACK)

    def come_back(self) -> None:
        """Reset the task to its state after the receive."""
        self.held.come_back()
        self.attempt = None
        self.stopping, self.cancel = None, ""
        self.ending = False

    def outcome_known(self) -> None:
        """Note that the store has the outcome. What is left is to send brief and dead letter."""
        if self.held.life is Life.RUNNING:
            self.held.become(Life.APPENDED)
        self.held.become(Life.COMMITTED)


class HeldTasks:
    """All tasks that a node holds, and in what order those begin that wait.

    Attributes:
        by_trace: the tasks by id, with those that are being ended.
        waiting: those that wait for their turn, and counts of those that run.
        fetching: how many attempts wait for a body from the object store.
        storing: how many wait until the object store has their results.
        begun: how many attempts have begun.
        changed: set when a task may begin.
    """

    def __init__(self, specs: Mapping[str, TaskSpec], permits: Permits) -> None:
        self.by_id: dict[str, HeldTask] = {}
        self.waiting: FairQueue[HeldTask] = FairQueue(
            {name: spec.share for name, spec in specs.items()}, permits
        )
        self.fetching = 0
        self.storing = 0
        self.begun = 0
        self.changed = asyncio.Event()
        self._refused: list[HeldTask] = []

    def add(self, item: HeldTask) -> bool:
        """Hold a task, which then waits for its turn. Its deliveries join those of the same task. Returns
        False for one that is settled: it may be a new sending, which would be deleted too."""
        known = self.by_id.get(item.task_id)
        if known is not None:
            if known.queue != item.queue or known.is_settled:
                return False
            known.held.receipts += item.held.receipts
            return True
        self.by_id[item.task_id] = item
        item.wait()
        if item.refusal:
            self._refused.append(item)
        else:
            priority = item.message.envelope.priority + item.spec.priority
            self.waiting.add(item.spec.name, item.group, HERE_FIRST if item.here else priority, item)
        self.changed.set()
        return True

    def take_refused(self) -> list[HeldTask]:
        """Return the tasks that can't run, which need no slot; none of them waits any longer."""
        refused, self._refused = self._refused, []
        return refused

    def running(self) -> list[HeldTask]:
        """Return the tasks whose attempts run."""
        return [item for item in self.by_id.values() if item.held.life is Life.RUNNING]

    def runs_no_more(self, item: HeldTask) -> None:
        """Note that a task whose turn it was no longer runs."""
        if not item.refusal:
            self.waiting.done(item.spec.name, item.group)
        self.changed.set()

    def forget(self, item: HeldTask) -> None:
        """Hold a task no longer. If it has come again meanwhile, that one stays."""
        if self.by_id.get(item.task_id) is item:
            del self.by_id[item.task_id]

    def has(self, item: HeldTask) -> bool:
        """Return True if just this task is held. It isn't if the node has stopped."""
        return self.by_id.get(item.task_id) is item


def stands_here(task: Task, member: str) -> bool:
    """Return True if ``member`` may run the task, or go on with it."""
    return task.state is State.RUNNING and task.member == member
