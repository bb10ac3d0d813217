"""The tasks that a node has received and not ended, and how it gives them back."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence

import msgspec

from holdfast.cluster.host import Host
from holdfast.common.held import Held
from holdfast.common.message import Life
from holdfast.common.progress import chunks
from holdfast.common.redaction import redact
from holdfast.errors import Fenced, HoldfastError
from holdfast.ports.queue import Outgoing, Queue
from holdfast.ports.tasks import TaskStore
from holdfast.rules.tasks.attempt import Stop
from holdfast.rules.tasks.fair_queue import FairQueue, Permits
from holdfast.rules.tasks.task import ReturnAttempt, State, Task
from holdfast.tasks.calls import STORE, retry_service
from holdfast.tasks.names import STAND_IN
from holdfast.tasks.spec import TaskSpec
from holdfast.tasks.wire import SentTask

EPOCH_DIGITS_MAX = 20
"""The most digits of an epoch in a message. Any program may have sent it, and Python converts no number of
thousands of digits."""

HERE_FIRST = 2**32
"""The priority of tasks that were given to this node directly: above all priorities of messages."""


class TaskActivity(msgspec.Struct):
    """An attempt that runs, and its seconds so far."""

    task: str
    type: str
    group: str
    runs_s: float
    progress: float
    note: str


class HeldTask(msgspec.Struct, eq=False):
    """A task with all its known deliveries.

    - ``queue`` is the queue that delivered it, which lets a new delivery be held for ``hold_max_s``, and
      hides it for ``visibility_s`` at a time.
    - ``refusal`` says why the task can't run.
    - ``attempt`` is the record in the store while the task runs here.
    - ``stopping`` is why the attempt was asked to end, and ``cancel`` why the task was cancelled.
    - ``ending``: the attempt has ended, and the store is about to know.
    - ``beat_at`` is the time of the last beat; ``news``: the attempt has advanced since.
    - ``here``: the task was given to this node directly, and needs no delivery to run.
    - ``timeout_s`` and ``tries`` are the sender's, or the type's."""

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
        """Type and id, which identify the dead letter."""
        return f"{self.type}/{self.task_id}"

    @property
    def is_settled(self) -> bool:
        """True if the store has the outcome. Deliveries that come now may belong to a new sending, so they
        must not be deleted with the earlier ones."""
        return self.held.life in (Life.COMMITTED, Life.BURIED)

    def is_stand_in(self, task: Task) -> bool:
        """Return True if the message is no longer needed: the task was also given to a node directly, and an
        attempt has ended it since."""
        sent_at = self.held.attributes.get(STAND_IN, "")
        is_epoch = sent_at.isdecimal() and len(sent_at) <= EPOCH_DIGITS_MAX
        return task.ended and is_epoch and task.epoch > int(sent_at)

    def lapsed(self, now: float) -> bool:
        """Return True if no delivery gives the right to run the task any more."""
        return not self.here and all(r.stale or r.expires_at <= now for r in self.held.receipts)

    def holdable_s(self, now: float) -> float:
        """Return for how many more seconds the queue lets a delivery be held, if the task needs one."""
        if self.here:
            return math.inf
        return max(receipt.received_at for receipt in self.held.receipts) + self.hold_max_s - now

    def come_back(self) -> None:
        """Reset the task to its state after the receive."""
        self.held.come_back()
        self.attempt = None
        self.stopping, self.cancel = None, ""
        self.ending = False

    def outcome_known(self) -> None:
        """Note that the store has the outcome. The outcome event and the dead letter are still to be sent."""
        if self.held.life is Life.RUNNING:
            self.held.become(Life.APPENDED)
        self.held.become(Life.COMMITTED)


class HeldTasks:
    """All tasks that a node holds, and the order in which waiting tasks begin.

    Attributes:
        host: the node.
        queues: the queues by the types of their tasks.
        by_id: the tasks by id, including tasks whose attempts have ended.
        waiting: the tasks that wait for their turn, and counts of running ones.
        fetching: how many attempts wait for a body from the object store.
        storing: how many attempts wait until the object store has their results.
        begun: how many attempts have begun.
        changed: set when a task may begin.
        given_back: how many tasks were given back.
        returning: how many attempts are being returned to the store.
    """

    def __init__(
        self,
        host: Host,
        specs: Mapping[str, TaskSpec],
        queues: Mapping[str, Queue],
        store: TaskStore,
        permits: Permits,
    ) -> None:
        self.host = host
        self.queues = queues
        self._store = store
        self.by_id: dict[str, HeldTask] = {}
        self.waiting: FairQueue[HeldTask] = FairQueue(
            {name: spec.share for name, spec in specs.items()}, permits
        )
        self.fetching = 0
        self.storing = 0
        self.begun = 0
        self.changed = asyncio.Event()
        self.given_back = 0
        self.returning = 0
        self._refused: list[HeldTask] = []

    def hold(self, item: HeldTask) -> None:
        """Hold a delivered task, which then waits for its turn. A further delivery joins the known ones. If
        the known task is settled, the delivery may be of a new sending, so it is given back."""
        known = self.by_id.get(item.task_id)
        if known is not None:
            if known.queue != item.queue or known.is_settled:
                self.give_back(item, self.host.limits.give_back_s)
            else:
                known.held.receipts += item.held.receipts
            return
        self.by_id[item.task_id] = item
        if item.held.life is Life.RECEIVED:
            item.held.become(Life.WAITING)
        if item.refusal:
            self._refused.append(item)
        else:
            priority = item.message.envelope.priority + item.spec.priority
            self.waiting.add(item.spec.name, item.group, HERE_FIRST if item.here else priority, item)
        self.changed.set()

    def take_refused(self) -> list[HeldTask]:
        """Return the waiting tasks that can't run; they need no slot, and wait no longer."""
        refused, self._refused = self._refused, []
        return refused

    def running(self) -> list[HeldTask]:
        """Return the tasks whose attempts run."""
        return [item for item in self.by_id.values() if item.held.life is Life.RUNNING]

    def runs_no_more(self, item: HeldTask) -> None:
        """Note that the task uses no slot any more."""
        if not item.refusal:
            self.waiting.done(item.spec.name, item.group)
        self.changed.set()

    def forget(self, item: HeldTask) -> None:
        """Hold a task no longer. A later delivery of the same task stays held."""
        if self.by_id.get(item.task_id) is item:
            del self.by_id[item.task_id]

    def has(self, item: HeldTask) -> bool:
        """Return True if this task is held, and not a later delivery of it."""
        return self.by_id.get(item.task_id) is item

    # --- attempts without an outcome

    def return_attempt(
        self,
        item: HeldTask,
        *,
        spent: bool,
        delay_s: float | None,
        detail: str = "",
        pause_s: float = 0.0,
    ) -> None:
        """Return an attempt to the store, and then its delivery, which comes again after ``delay_s``; None:
        it has no delivery. With ``pause_s``, the store lets no attempt begin before."""
        assert item.attempt is not None
        change = ReturnAttempt(item.task_id, item.attempt.epoch, spent, redact(detail), pause_s)
        item.ending = True
        self.returning += 1
        self.host.tasks.spawn(self._return_to_store(item, change, delay_s))

    async def _return_to_store(self, item: HeldTask, change: ReturnAttempt, delay_s: float | None) -> None:
        """Return the attempt to the store first, so that the next receiver may begin at once."""
        [answer] = await retry_service(self.host, STORE, lambda: self._store.give_back([change]))
        if isinstance(answer, Fenced):
            self.host.stats.fenced += 1
        reissue = item.stopping is Stop.REISSUE or (item.here and not item.held.receipts)
        item.come_back()
        if delay_s is None:
            self.drop(item)
        elif reissue:
            await self.reissue(item, delay_s)
        else:
            self.give_back(item, delay_s)
        self.returning -= 1

    async def reissue(self, item: HeldTask, delay_s: float) -> None:
        """Send the task again under its id, then delete the delivery that can't be held any longer."""
        self.forget(item)  # the copy may arrive before its sending is answered
        queue = self.queues[item.queue]
        receipts = [receipt.receipt for receipt in item.held.receipts if not receipt.stale]
        delay_s, priority = min(delay_s, queue.delay_max_s), max(0, item.message.envelope.priority)
        copy = Outgoing(item.held.body, item.held.again, delay_s, item.task_id, priority=priority)
        await retry_service(self.host, "the queue", lambda: queue.send([copy]))
        self.host.stats.reissued += 1
        await retry_service(self.host, "the queue", lambda: queue.delete(receipts))

    # --- deliveries

    def give_back(self, item: HeldTask, delay_s: float) -> None:
        """Give the task back to the queue, which delivers it to any node after ``delay_s``."""
        self.forget(item)
        item.held.come_back()
        self._give_back([item], delay_s)

    def rest(self, item: HeldTask, rest_s: float) -> None:
        """Give back the message of an ended task until its effects can be handed over. Without a delivery,
        the message is in the queue already."""
        self.forget(item)
        self._give_back([item], min(rest_s, self.queues[item.queue].hold_max_s / 2))

    def give_back_later(self, item: HeldTask, seen: int) -> None:
        """Give back the deliveries of an ended task except for the first ``seen``. The later ones came after
        the store was called, so they may be of a new sending, and must not be deleted."""
        if later := item.held.receipts[seen:]:
            del item.held.receipts[seen:]
            held = msgspec.structs.replace(item.held, receipts=later, life=Life.RECEIVED)
            self.give_back(msgspec.structs.replace(item, held=held), self.host.limits.give_back_s)

    def give_back_some(self, items: Sequence[HeldTask], away_s: float) -> None:
        """Give back waiting tasks for about ``away_s``."""
        for item in items:
            self.forget(item)
            item.held.come_back()
        for name, queue in self.queues.items():
            if some := [item for item in items if item.queue == name]:
                self._give_back(some, min(away_s * (0.5 + self.host.clock.random()), queue.hold_max_s / 2))

    async def give_back_waiting(self) -> int:
        """Give all waiting tasks back at once, and return their number. A node that is cut off begins
        nothing, so it must not keep tasks that others could run."""
        waiting = self.waiting.drain()
        for item in waiting:
            self.forget(item)
        for name in self.queues:
            await self._to_queue(name, [item for item in waiting if item.queue == name], 0.0)
        return len(waiting)

    def drop(self, item: HeldTask) -> None:
        """Forget a task whose deliveries have lapsed, or whose outcome was refused. A delivery that came
        meanwhile gives the right to try again."""
        self.forget(item)
        now = self.host.clock.monotonic()
        item.held.receipts = [r for r in item.held.receipts if not r.stale and r.expires_at > now]
        if item.held.receipts:
            item.come_back()
            self.hold(item)
        else:
            self.host.stats.tasks_lapsed += 1

    def _give_back(self, items: Sequence[HeldTask], delay_s: float) -> None:
        for item in items:
            item.held.become(Life.GIVEN_BACK)
        self.given_back += len(items)
        self.host.stats.given_back += len(items)
        self.host.tasks.spawn(self._to_queue(items[0].queue, items, delay_s))

    async def _to_queue(self, queue: str, items: Sequence[HeldTask], delay_s: float) -> None:
        receipts = [r.receipt for item in items for r in item.held.receipts if not r.stale]
        try:
            for some in chunks(receipts, self.queues[queue].max_batch):
                await self.queues[queue].give_back(some, delay_s)
        except HoldfastError as error:  # the queue shows them again when their visibility ends
            self.host.log.warning("cannot give tasks back", queue=queue, error=str(error))


def runs_on(task: Task, member: str) -> bool:
    """Return True if ``member`` runs the task's present attempt."""
    return task.state is State.RUNNING and task.member == member
