"""The tasks that a node has received and not ended."""

from __future__ import annotations

import enum
import math

import msgspec

from holdfast.common.held import Held
from holdfast.common.message import Life
from holdfast.rules.tasks.task import State, Task
from holdfast.tasks.names import STAND_IN
from holdfast.tasks.spec import TaskSpec
from holdfast.tasks.wire import SentTask

EPOCH_DIGITS_MAX = 20
"""The most digits of an epoch that a message may name. Any program may have sent it, and Python makes no
number of thousands of digits."""


class Stop(enum.Enum):
    """The reason why an attempt is asked to end, which decides what follows for its task. The value is for
    people."""

    CANCELLED = "its task is cancelled"
    DRAIN = "the node is stopping"
    LAPSED = "its delivery lapsed"
    REISSUE = "its delivery can't be held any longer"
    GRANT_ENDS = "the node couldn't renew its share of the app's maximum"


HANDED_ON = frozenset({Stop.DRAIN, Stop.REISSUE, Stop.GRANT_ENDS})
"""The reasons for which another attempt follows."""


class TaskActivity(msgspec.Struct):
    """An attempt that runs, and for how long."""

    task: str
    type: str
    group: str
    runs_s: float
    progress: float
    note: str


class InHand(msgspec.Struct, eq=False):
    """A task with all its known deliveries.

    ``queue`` names the queue that delivered it. ``refusal`` says why it can't run. ``attempt`` is the task's
    record in the store while it runs here. ``stopping`` is why its attempt was asked to stop, and ``cancel``
    why its task was cancelled, if that is why. ``ending`` is true once it has ended and the store is told so,
    which answers by itself if it refuses. ``beat_at`` is when its progress was last reported to the store,
    and ``news`` is true if it has advanced since. ``here``: it was given to this node directly, and needs no
    delivery to run.
    """

    queue: str
    spec: TaskSpec
    message: SentTask
    held: Held
    refusal: str = ""
    attempt: Task | None = None
    stopping: Stop | None = None
    cancel: str = ""
    ending: bool = False
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
        """Type and trace id, which identify its dead letter."""
        return f"{self.type}/{self.trace}"

    @property
    def type(self) -> str:
        """The task's type."""
        return self.message.envelope.task_type

    @property
    def group(self) -> str:
        """The group whose limits it counts toward."""
        return self.message.envelope.group

    @property
    def timeout_s(self) -> float:
        """The total time of one attempt: what the sender said, or that of the type."""
        return self.message.envelope.timeout_s or self.spec.timeout_s

    @property
    def tries(self) -> int:
        """The number of attempts that it gets if they fail: what the sender said, or that of the type."""
        return self.message.envelope.tries or self.spec.tries

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


def stands_here(task: Task, member: str) -> bool:
    """Return True if ``member`` may run the task, or go on with it."""
    return task.state is State.RUNNING and task.member == member
