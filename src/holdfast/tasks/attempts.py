"""The attempts at a node's tasks: which begin, and what follows when they end."""

from __future__ import annotations

import asyncio
import collections
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import msgspec

from holdfast.cluster.host import Host
from holdfast.cluster.tracer import OpenSpan, Tracer, trace_of
from holdfast.common import conventions
from holdfast.common.message import Life
from holdfast.common.redaction import redact
from holdfast.common.traceparent import TRACEPARENT, passed_on, read_traceparent
from holdfast.common.user_code import raised_at
from holdfast.errors import HoldfastError, OutcomeUnknown, Retry, ValueLost
from holdfast.ports.tracing import AttributeValue
from holdfast.rules.tasks import attempt as rules
from holdfast.rules.tasks.attempt import How, NextStep, Stop
from holdfast.rules.tasks.fair_queue import Permits
from holdfast.rules.tasks.task import EndAttempt, StartAttempt, State, Task
from holdfast.tasks.calls import STORE, retry_service
from holdfast.tasks.completer import Completer
from holdfast.tasks.concurrency import ConcurrencyLimiter
from holdfast.tasks.effects import effects_of
from holdfast.tasks.held_tasks import HeldTask, HeldTasks, runs_on
from holdfast.tasks.rates import RateKeeper
from holdfast.tasks.slots import Ended, Running, TaskSlots
from holdfast.tasks.spec import TaskSpec
from holdfast.tasks.storage import TaskStorage
from holdfast.tasks.values import INLINE_BYTES_MAX
from holdfast.tasks.wire import SentTask, encode_follow_ups

STARTS_MAX = 200
"""The most attempts that one call to the store begins."""

DISAGREEMENT_S = 1.0
"""Seconds for which a task is given back whose pause is over by this host's clock and not by the store's."""

GONE_MAX = 1000
"""The most dead members that are remembered."""

FETCH_AGAIN_S = 5.0
"""Mean seconds until a task is delivered again whose stored body can't be read now."""

NO_TIME_TO_STORE = frozenset({Stop.DRAIN, Stop.REISSUE, Stop.LAPSED})
"""The reasons to stop for which an attempt doesn't wait for an object store that is away."""


class TaskAttempts:
    """Begins attempts at the tasks of ``held`` in ``slots``. ``limiter`` grants how many may run, and a type
    with a rate needs ``permits``. ``completer`` ends the tasks that have an outcome.

    Attributes:
        rates: takes the permits.
        starting: how many calls to the store begin attempts now.
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
        completer: Completer,
        permits: Permits,
        rate_of: Callable[[str], float],
    ) -> None:
        self._host = host
        self._specs = specs
        self._store, self._values = storage.store, storage.values
        self._held = held
        self._slots = slots
        self._limiter = limiter
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
        self.starting = 0
        self.stopping = False
        self._took_wait = host.timings.task_wait_seconds.each(specs)
        self._took_run = host.timings.task_run_seconds.each(specs)

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

    @property
    def running(self) -> int:
        """The number of attempts that run here now, or are about to begin."""
        return self._slots.busy + self._held.fetching

    def limits_changed(self) -> None:
        """Apply the present grant at once: others may already use the rest."""
        self._apply_grant()
        self._held.changed.set()

    def _apply_grant(self) -> None:
        limiter = self._limiter
        self._slots.set_limits(min(self._host.limits.task_slots, limiter.granted), limiter.until)

    # --- which tasks begin

    def _next(self) -> list[HeldTask]:
        """Return the next tasks, as many as there is room for. Tasks that can't run need no room."""
        held, batch = self._held, self._held.take_refused()
        now = self._host.clock.monotonic()
        # Also where nothing may begin: run() would spin on a rest that is over.
        held.waiting.end_rests(now)
        if self.stopping:
            return batch
        soon = held.waiting.soon
        self._apply_grant()
        self._limiter.want(len(self._slots.running) + held.storing + held.fetching + soon)
        if not soon:
            return batch
        room = min(self._slots.refill - held.fetching - held.storing, STARTS_MAX)
        while len(batch) < room and (item := held.waiting.take(now)) is not None:
            if item.lapsed(now):
                held.waiting.done(item.spec.name, item.group)
                held.drop(item)
            elif _has_waited_too_long(item, now):
                held.waiting.done(item.spec.name, item.group)
                held.give_back(item, 0.0)
            else:
                batch.append(item)
        if self._lacking():
            self.rates.wake()
        return batch

    def _lacking(self) -> dict[str, int]:
        """Return how many permits are lacking of each type, for tasks that could begin."""
        names = [name for name in self._specs if self._rate_of(name) and self._permits.left(name) < 1]
        if not names:
            return {}
        held = self._held
        room = self._slots.room - held.fetching - held.storing
        wanted = {name: min(held.waiting.waiting(name), room) for name in names}
        return {name: number for name, number in wanted.items() if number > 0}

    # --- started at the store

    async def _start(self, batch: Sequence[HeldTask], instead_of: str = "") -> None:
        """Begin attempts at the store. A node that stops waits for the answer, for the attempts that the
        store has counted by then."""
        self.starting += 1
        try:
            await self._start_and_run(batch, instead_of)
        finally:
            self.starting -= 1

    async def _start_and_run(self, batch: Sequence[HeldTask], instead_of: str) -> None:
        member = self._host.membership.id
        changes = [
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
        called_at, seen = self._host.clock.monotonic(), [len(item.held.receipts) for item in batch]
        tasks = await self._ask(changes)
        if tasks is None:
            for item in batch:
                self._held.runs_no_more(item)
                self._held.give_back(item, 0.0)
            return
        for item, task, receipts in zip(batch, tasks, seen, strict=True):
            now = self._host.clock.monotonic()  # for each, as the store may have been called for one before
            if runs_on(task, member):
                item.attempt, item.beat_at = task, called_at
                if item.lapsed(now) or now >= called_at + item.visibility_s:
                    self._return_unbegun(item, Stop.LAPSED, now)
                elif self.stopping and not item.refusal:
                    self._return_unbegun(item, Stop.DRAIN, now)
                else:
                    self._run(item, task, now)
            elif not instead_of and task.member in self._gone and not task.ended:
                await self._start([item], task.member)
            else:
                self._held.runs_no_more(item)
                if task.ended:
                    self._held.give_back_later(item, receipts)
                    self._completer.take_ended(item, task)
                else:
                    self._held.give_back(item, self._wait_s(item, task))

    async def _ask(self, changes: Sequence[StartAttempt]) -> list[Task] | None:
        """Return the answers of the store; None if it has begun no attempt, and this node is cut off or
        stops."""
        may_have_begun = False

        def gives_up(error: Exception) -> bool:
            nonlocal may_have_begun
            may_have_begun |= isinstance(error, OutcomeUnknown)
            return not may_have_begun and (self.stopping or not self._host.membership.alive)

        try:
            return await retry_service(self._host, STORE, lambda: self._store.start(changes), raises=gives_up)
        except (HoldfastError, OSError):
            return None

    def _wait_s(self, item: HeldTask, task: Task) -> float:
        """Return for how long a task is given back that pauses, or runs on another node, or did until just
        now."""
        wait_s = min(max(task.until - self._host.clock.wall(), 0.0), item.visibility_s)
        if task.state is State.QUEUED and not wait_s:
            wait_s = DISAGREEMENT_S
        return wait_s + self._host.clock.random()

    def _return_unbegun(self, item: HeldTask, why: Stop, now: float) -> None:
        """Return an attempt that the store has begun and that can't run here. The node stops, or it waited so
        long for the answer that another node may have the task by now."""
        self._held.runs_no_more(item)
        item.stopping = why
        self._held.return_attempt(item, spent=False, delay_s=None if item.lapsed(now) else 0.0)

    # --- run in slots

    def _run(self, item: HeldTask, task: Task, now: float) -> None:
        """Run the attempt that the store has begun."""
        item.held.become(Life.RUNNING)
        self._host.stats.tasks_started += 1
        self._held.begun += 1
        if task.epoch == 1 and task.queued_at < task.started_at:  # equal, if its sending wasn't recorded
            self._took_wait[item.spec.name].note(task.started_at - task.queued_at)
        if item.refusal:
            self._fail(item, State.FAILED, f"malformed: {item.refusal}")
        elif item.message.is_light:
            self._run_in_slot(item, task, item.message)
        else:
            self._held.fetching += 1
            self._host.tasks.spawn(self._fetch(item, task))

    async def _fetch(self, item: HeldTask, task: Task) -> None:
        """Run the attempt of a task that is stored in part. If it can't be read now, another attempt decides,
        and no try is spent."""
        failure: Ended | None = None
        message = item.message
        try:
            message = await self._values.whole(message)
        except ValueLost as error:
            failure = Ended(How.RAISED, error=str(error), permanent=True)
        except (HoldfastError, OSError) as error:
            failure = Ended(How.RAISED, error=str(error), begun=False)
        finally:
            self._held.fetching -= 1
        if not self._held.has(item) or item.attempt is None or item.attempt.epoch != task.epoch:
            return
        if item.stopping:
            failure = Ended(How.CANCELLED, error=item.stopping.value, begun=False)
        if failure is None:
            self._run_in_slot(item, task, message)
        elif failure.begun or item.stopping:
            self._ended(item, failure)
        else:
            self._host.log.warning("cannot read stored body", task_id=item.task_id, error=failure.error)
            self._held.runs_no_more(item)
            delay_s = FETCH_AGAIN_S * (0.5 + self._host.clock.random())
            self._held.return_attempt(item, spent=False, delay_s=delay_s, detail=failure.error)

    def _run_in_slot(self, item: HeldTask, task: Task, message: SentTask) -> None:
        timeout_s = item.timeout_s
        holdable_s = item.holdable_s(self._host.clock.monotonic())
        if not item.spec.resumable and holdable_s < timeout_s:
            self._host.log.warning(
                "timeout shortened",
                fix="lower timeout_s to what the queue can hold, or set resumable=True",
                task_id=item.task_id,
                type=item.type,
                timeout_s=timeout_s,
                holdable_s=holdable_s,
            )
            timeout_s = holdable_s
        attempt = item.spec.attempt(
            message.body, task, timeout_s, item.tries, message.after, self._values.result_bytes_max
        )
        tracer = self._host.tracer
        span = begin_span(tracer, item, task) if tracer is not None else None
        if item.held.traceparent:
            attempt = msgspec.structs.replace(attempt, traceparent=item.held.traceparent)
        ended = self._slots.run(attempt, partial(_progressed, item))
        if tracer is not None and span is not None:
            ended.add_done_callback(partial(_end_span, tracer, span))
        ended.add_done_callback(lambda future: self._ended(item, future.result()))

    # --- ended

    def _ended(self, item: HeldTask, ended: Ended) -> None:
        """Do what follows the end of an attempt."""
        if not self._held.has(item) or item.attempt is None:
            return
        self._held.runs_no_more(item)
        if ended.took_s:
            self._took_run[item.spec.name].note(ended.took_s)
        stop = item.stopping
        if stop is None and ended.how is How.DIED and self._limiter.until <= self._host.clock.monotonic():
            stop = Stop.GRANT_ENDS
        step, state, detail = rules.judge(ended, item.attempt, item.tries, stop)
        if step is NextStep.LAPSE:
            self._held.return_attempt(item, spent=False, delay_s=None)
        elif step is NextStep.PAUSE:
            self._pause(item, ended, detail)
        elif step is NextStep.RETURN:
            self._held.return_attempt(item, spent=False, delay_s=ended.rest_s)
        elif step is NextStep.SUCCEEDED:
            if len(ended.result) > INLINE_BYTES_MAX:
                self._held.storing += 1
                self._host.tasks.spawn(self._store_result(item, ended))
            else:
                self._succeed(item, ended, result=ended.result)
        elif step is NextStep.CANCEL:
            self._fail(item, state, f"cancelled: {item.cancel}")
        elif step is NextStep.FAIL:
            self._host.log.warning("task failed", **_failure(item, ended))
            self._fail(item, state, detail)
        else:
            self._host.log.warning("attempt failed", **_failure(item, ended))
            self._host.stats.tasks_retried += 1
            delay_s = item.spec.backoff.delay_s(item.attempt.attempts, self._host.clock.random())
            self._held.return_attempt(item, spent=True, delay_s=delay_s, detail=detail)

    def _pause(self, item: HeldTask, ended: Ended, detail: str) -> None:
        """Return the attempt for the pause that it asked for. The store keeps to the pause: a delivery can't
        be hidden for any time, and may come twice."""
        pause_s = ended.pause_s
        self._host.stats.tasks_paused += 1
        self._host.log.info("attempt paused", task_id=item.task_id, type=item.type, pause_s=pause_s)
        hidden_s = min(pause_s, self._held.queues[item.queue].hold_max_s / 2)
        self._held.return_attempt(item, spent=False, delay_s=hidden_s, detail=detail, pause_s=pause_s)

    async def _store_result(self, item: HeldTask, ended: Ended) -> None:
        """Put a large result into the object store, then end the task. While the object store is away, this
        is repeated, unless the node stops or the delivery lapses. Until then no other task begins in its
        place: waiting results would fill the memory."""
        try:
            await self._put_result(item, ended)
        finally:
            self._held.storing -= 1
            self._held.changed.set()

    async def _put_result(self, item: HeldTask, ended: Ended) -> None:
        def gives_up(error: Exception) -> bool:
            return _is_unfit(error) or item.stopping in NO_TIME_TO_STORE

        put = partial(self._values.put, ended.result)
        stored: bytes | None = None
        try:
            stored = msgspec.json.encode(
                await retry_service(self._host, "the object store", put, raises=gives_up)
            )
        except (HoldfastError, OSError) as error:
            if _is_unfit(error):
                self._fail(item, State.FAILED, f"its result can't be stored: {error}")
                return
        if not self._held.has(item):
            return
        if stored is None or item.stopping is Stop.LAPSED:
            delay_s = None if item.stopping is Stop.LAPSED else 0.0
            self._held.return_attempt(item, spent=False, delay_s=delay_s)
        else:
            self._succeed(item, ended, stored=stored)

    def _succeed(self, item: HeldTask, ended: Ended, result: bytes = b"", stored: bytes = b"") -> None:
        assert item.attempt is not None
        epoch = item.attempt.epoch
        effects = effects_of(item, epoch, ended.sends, self._host.clock.wall()) if ended.sends else b""
        item.ending = True
        self._completer.end(
            item, EndAttempt(item.task_id, epoch, State.SUCCEEDED, result, effects=effects, stored=stored)
        )

    def _fail(self, item: HeldTask, state: State, detail: str) -> None:
        assert item.attempt is not None
        item.ending = True
        self._completer.end(item, EndAttempt(item.task_id, item.attempt.epoch, state, detail=redact(detail)))


def _failure(item: HeldTask, ended: Ended) -> dict[str, str]:
    """Return the fields of the log event of a failed attempt."""
    return {
        "task_id": item.task_id,
        "type": item.type,
        "error": ended.error,
        "at": raised_at(ended.detail),
        "exception": ended.detail,
        **trace_of(item.held.traceparent),
    }


def _has_waited_too_long(item: HeldTask, now: float) -> bool:
    """Return True if an attempt that begins now would have to end before its timeout, and an attempt by a new
    delivery wouldn't."""
    if item.spec.resumable or item.here:
        return False
    return item.holdable_s(now) < item.timeout_s <= item.hold_max_s


def _is_unfit(error: Exception) -> bool:
    """Return True if no object store will ever take the result."""
    return isinstance(error, HoldfastError) and error.retry is Retry.NEVER


def _progressed(item: HeldTask, running: Running) -> None:
    if running.progress.fraction is not None:
        item.progress = running.progress.fraction
    item.note = running.progress.note or item.note
    item.news = True


def begin_span(tracer: Tracer, item: HeldTask, task: Task) -> OpenSpan | None:
    """Begin the span of an attempt, the parent of all that it leads to; None if its trace isn't recorded."""
    cause = item.held.attributes.get(TRACEPARENT, "")
    context = read_traceparent(cause) if cause else None
    place = tracer.place_under(context)
    if place is None:
        item.held.traceparent = passed_on(context)
        return None
    attributes: dict[str, AttributeValue] = {
        **conventions.operation(conventions.PROCESS, item.queue),
        conventions.MESSAGE_ID: item.task_id,
        conventions.BODY_SIZE: len(item.held.body),
        conventions.ATTEMPT: task.attempts,
    }
    span = tracer.begin(place, f"{conventions.PROCESS} {item.type}", "consumer", attributes)
    item.held.traceparent = span.traceparent
    return span


def end_span(tracer: Tracer, span: OpenSpan, ended: Ended) -> None:
    """End the span of an attempt, unless its handler never began."""
    ended_ns = 0
    if ended.traced is not None:
        tracer.take(ended.traced)
        span.record.start_ns, ended_ns = ended.traced.times.get(0, (span.record.start_ns, 0))
    if ended.begun:
        error = None if ended.how is How.RETURNED else redact(ended.error or str(ended.how))
        span.end(error, at_ns=ended_ns)


def _end_span(tracer: Tracer, span: OpenSpan, ended: asyncio.Future[Ended]) -> None:
    if not ended.cancelled():
        end_span(tracer, span, ended.result())
