"""Starts tasks whose turn it is: the store says for each whether its attempt may begin."""

from __future__ import annotations

import collections
from collections.abc import Callable, Mapping, Sequence

from holdfast.cluster.host import Host
from holdfast.errors import HoldfastError, OutcomeUnknown
from holdfast.rules.tasks.attempt import Stop
from holdfast.rules.tasks.fair_queue import Permits
from holdfast.rules.tasks.task import StartAttempt, State, Task
from holdfast.tasks.attempts import TaskAttempts
from holdfast.tasks.calls import STORE, retry_service
from holdfast.tasks.completer import Completer
from holdfast.tasks.concurrency import ConcurrencyLimiter
from holdfast.tasks.held_tasks import HeldTask, HeldTasks, stands_here
from holdfast.tasks.rates import RateKeeper
from holdfast.tasks.returns import TaskReturns
from holdfast.tasks.slots import TaskSlots
from holdfast.tasks.spec import TaskSpec
from holdfast.tasks.storage import TaskStorage
from holdfast.tasks.wire import encode_follow_ups

STARTS_MAX = 200
"""The most attempts that one call to the store begins."""

DISAGREEMENT_S = 1.0
"""After how long a task is received again whose pause is over by this host's clock and not by the store's."""

GONE_MAX = 1000
"""How many dead members are remembered."""


class TaskStarter:
    """Begins attempts of tasks in ``held``: no more at once than there are ``slots``, and than ``limiter``
    grants, and of a type with a rate no more than there are ``permits``.

    Attributes:
        rates: takes the permits.
        asking: how many calls to the store are under way.
        stopping: true once nothing new begins.
    """

    def __init__(
        self,
        host: Host,
        specs: Mapping[str, TaskSpec],
        storage: TaskStorage,
        held: HeldTasks,
        slots: TaskSlots,
        limiter: ConcurrencyLimiter,
        returns: TaskReturns,
        attempts: TaskAttempts,
        completer: Completer,
        permits: Permits,
        rate_of: Callable[[str], float],
    ) -> None:
        self._host = host
        self._specs = specs
        self._store = storage.store
        self._held = held
        self._slots = slots
        self._slots_max = host.limits.task_slots
        self._limiter = limiter
        self._returns = returns
        self._attempts = attempts
        self._completer = completer
        self._permits = permits
        self._rate_of = rate_of
        self.rates = RateKeeper(
            storage.registry,
            storage.app,
            host,
            permits,
            per_s=rate_of,
            now=storage.store.now,
            lacking=self._lacking,
            got=held.changed.set,
        )
        self._gone: collections.OrderedDict[str, None] = collections.OrderedDict()
        self.asking = 0
        self.stopping = False

    async def run(self) -> None:
        """Begin the tasks that may begin, many at a time, for ever."""
        clock, changed = self._host.clock, self._held.changed
        while True:
            rests_until = self._held.waiting.rests_until()
            await clock.wait(
                changed, None if rests_until is None else max(0.0, rests_until - clock.monotonic())
            )
            changed.clear()
            while batch := self._next():
                await self._start(batch)

    def member_left(self, member: str) -> None:
        """Note that a membership has ended: its attempts need not lapse first."""
        self._gone[member] = None
        if len(self._gone) > GONE_MAX:
            self._gone.popitem(last=False)

    # --- as the holder of the node's grant

    @property
    def running(self) -> int:
        """The number of attempts that run here now, or are about to begin."""
        return self._slots.busy + self._held.fetching

    def limits_changed(self) -> None:
        """Apply the present grant at once: others may already use the rest."""
        self._heed_limits()
        self._held.changed.set()

    def _heed_limits(self) -> None:
        self._slots.limit = min(self._slots_max, self._limiter.granted)
        self._slots.until = self._limiter.until

    # --- which task is next

    def _next(self) -> list[HeldTask]:
        """Return the next tasks, as many as there is room for. Tasks that can't run need no room."""
        held, batch = self._held, self._held.take_refused()
        now = self._host.clock.monotonic()
        # Also where nothing may begin: a rest that stays in the past would make the dispatcher spin.
        held.waiting.end_rests(now)
        if self.stopping:
            return batch
        self._heed_limits()
        in_slots = len(self._slots.running) + held.storing
        self._limiter.want(in_slots + held.fetching + held.waiting.soon)
        room = min(self._slots.refill - held.fetching - held.storing, STARTS_MAX)
        while len(batch) < room and (item := held.waiting.take(now)) is not None:
            if item.lapsed(now):
                held.waiting.done(item.spec.name, item.group)
                self._returns.drop(item)
            elif _has_waited_too_long(item, now):
                held.waiting.done(item.spec.name, item.group)
                self._returns.give_back(item, 0.0)
            else:
                batch.append(item)
        if self._lacking():
            self.rates.wake()
        return batch

    def _lacking(self) -> dict[str, int]:
        """Return for how many tasks of each type a permit is lacking, of those that could begin."""
        held = self._held
        room = self._slots.room - held.fetching - held.storing
        wanted = {
            name: min(held.waiting.waiting(name), room)
            for name in self._specs
            if self._rate_of(name) and self._permits.left(name) < 1
        }
        return {name: number for name, number in wanted.items() if number > 0}

    # --- to the store

    async def _start(self, batch: Sequence[HeldTask], instead_of: str = "") -> None:
        """Ask the store for each task whether it may begin. A node that stops waits for the answer, for the
        attempts that the store has counted by then."""
        self.asking += 1
        try:
            await self._ask_and_begin(batch, instead_of)
        finally:
            self.asking -= 1

    async def _ask_and_begin(self, batch: Sequence[HeldTask], instead_of: str) -> None:
        member = self._host.membership.id
        wishes = [
            StartAttempt(
                item.task_id,
                item.spec.name,  # if the app lacks the type: that of its queue, which gets its dead letter
                member,
                self._host.name,
                item.tries,
                item.visibility_s,
                item.group,
                instead_of,
                encode_follow_ups(item.message.follow_ups),
            )
            for item in batch
        ]
        asked_at, seen = self._host.clock.monotonic(), [len(item.held.receipts) for item in batch]
        tasks = await self._ask(wishes)
        if tasks is None:
            for item in batch:
                self._held.runs_no_more(item)
                self._returns.give_back(item, 0.0)
            return
        for item, task, receipts in zip(batch, tasks, seen, strict=True):
            now = self._host.clock.monotonic()  # for each, as one before it may have been asked for again
            if stands_here(task, member):
                item.note_attempt(task, asked_at)
                if item.lapsed(now) or now >= asked_at + item.visibility_s:
                    self._return_unbegun(item, Stop.LAPSED, now)
                elif self.stopping and not item.refusal:
                    self._return_unbegun(item, Stop.DRAIN, now)
                else:
                    self._attempts.run(item, task, now)
            elif not instead_of and task.member in self._gone and not task.ended:
                await self._start([item], task.member)
            else:
                self._held.runs_no_more(item)
                if task.ended:
                    self._returns.give_back_later(item, receipts)
                    self._completer.tell(item, task)
                else:
                    self._returns.give_back(item, self._wait_s(item, task))

    async def _ask(self, wishes: Sequence[StartAttempt]) -> list[Task] | None:
        """Ask the store to begin attempts. Returns None if it begins none, and this node is cut off or
        stops."""
        may_have_begun = False

        def gives_up(error: Exception) -> bool:
            nonlocal may_have_begun
            may_have_begun |= isinstance(error, OutcomeUnknown)
            return not may_have_begun and (self.stopping or not self._host.membership.alive)

        try:
            return await retry_service(self._host, STORE, lambda: self._store.start(wishes), raises=gives_up)
        except (HoldfastError, OSError):
            return None

    def _wait_s(self, item: HeldTask, task: Task) -> float:
        """Return for how long a task is given back that pauses, or runs on another node, or did until a
        moment ago."""
        wait_s = min(max(task.until - self._host.clock.wall(), 0.0), item.visibility_s)
        if task.state is State.QUEUED and not wait_s:
            wait_s = DISAGREEMENT_S
        return wait_s + self._host.clock.random()

    def _return_unbegun(self, item: HeldTask, why: Stop, now: float) -> None:
        """Return an attempt that the store has begun and that is not to run here: the node stops, or the
        answer took so long, or the node stood still for so long, that another node may have begun the task by
        now, or ended it."""
        self._held.runs_no_more(item)
        item.stop(why)
        self._returns.return_attempt(item, spent=False, delay_s=None if item.lapsed(now) else 0.0)


def _has_waited_too_long(item: HeldTask, now: float) -> bool:
    """Return True if an attempt that begins now would have to end before its timeout, and one with a new
    delivery wouldn't."""
    if item.spec.resumable or item.here:
        return False
    return item.holdable_s(now) < item.timeout_s <= item.hold_max_s
