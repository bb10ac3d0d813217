"""Runs the attempts of a node's tasks in slots, and does what follows their ends."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial

import msgspec

from holdfast.cluster.host import Host
from holdfast.cluster.tracer import OpenSpan, trace_of
from holdfast.common.redaction import redact
from holdfast.common.user_code import raised_at
from holdfast.errors import HoldfastError, Retry, ValueLost
from holdfast.ports.queue import Queue
from holdfast.rules.tasks import attempt as rules
from holdfast.rules.tasks.attempt import How, NextStep, Stop
from holdfast.rules.tasks.task import EndAttempt, State, Task
from holdfast.tasks.calls import retry_service
from holdfast.tasks.completer import Completer
from holdfast.tasks.concurrency import ConcurrencyLimiter
from holdfast.tasks.effects import effects_of
from holdfast.tasks.held_tasks import HeldTask, HeldTasks
from holdfast.tasks.returns import TaskReturns
from holdfast.tasks.running import Ended, Running
from holdfast.tasks.slots import TaskSlots
from holdfast.tasks.spec import TaskSpec
from holdfast.tasks.traces import begin_attempt, end_attempt
from holdfast.tasks.values import INLINE_BYTES_MAX, TaskValues
from holdfast.tasks.wire import SentTask

FETCH_AGAIN_S = 5.0
"""After about how long a task is delivered again whose body can't be read, as the object store is away."""

NO_TIME_TO_STORE = frozenset({Stop.DRAIN, Stop.REISSUE, Stop.LAPSED})
"""The reasons for which an attempt doesn't wait for an object store that is away."""


class TaskAttempts:
    """Runs attempts of tasks in ``slots``. ``completer`` ends the tasks that have an outcome by that, and
    ``returns`` gives the others back."""

    def __init__(
        self,
        host: Host,
        specs: Mapping[str, TaskSpec],
        queues: Mapping[str, Queue],
        values: TaskValues,
        held: HeldTasks,
        slots: TaskSlots,
        limiter: ConcurrencyLimiter,
        returns: TaskReturns,
        completer: Completer,
    ) -> None:
        self._host = host
        self._queues = queues
        self._values = values
        self._held = held
        self._slots = slots
        self._limiter = limiter
        self._returns = returns
        self._completer = completer
        self._took_wait = host.timings.task_wait_seconds.each(specs)
        self._took_run = host.timings.task_run_seconds.each(specs)

    def run(self, item: HeldTask, task: Task, now: float) -> None:
        """Run the attempt that the store has begun."""
        item.run()
        self._host.stats.tasks_started += 1
        self._held.begun += 1
        if task.epoch == 1 and task.queued_at < task.started_at:  # equal, if nobody has noted its sending
            self._took_wait[item.spec.name].note(task.started_at - task.queued_at)
        if item.refusal:
            self._fail(item, State.FAILED, f"malformed: {item.refusal}")
        elif item.message.is_light:
            self._run_in_slot(item, task, item.message)
        else:
            self._held.fetching += 1
            self._host.tasks.spawn(self._fetch(item, task))

    async def _fetch(self, item: HeldTask, task: Task) -> None:
        """Begin the attempt of a task that is stored in part. If it can't be read for now, another attempt
        decides, and no try is spent."""
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
            self._attempted(item, failure)
        else:
            self._host.log.warning("a stored body can't be read", task_id=item.task_id, error=failure.error)
            self._held.runs_no_more(item)
            delay_s = FETCH_AGAIN_S * (0.5 + self._host.clock.random())
            self._returns.return_attempt(item, spent=False, delay_s=delay_s, detail=failure.error)

    def _run_in_slot(self, item: HeldTask, task: Task, message: SentTask) -> None:
        timeout_s = item.timeout_s
        holdable_s = item.holdable_s(self._host.clock.monotonic())
        if not item.spec.resumable and holdable_s < timeout_s:
            self._host.log.warning(
                "the queue can't hold this task for all of its timeout; it ends earlier, as timed out",
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
        span = begin_attempt(tracer, item, task) if tracer is not None else None
        if item.held.traceparent:
            attempt = msgspec.structs.replace(attempt, traceparent=item.held.traceparent)
        ended = self._slots.run(attempt, partial(_progressed, item))
        if span is not None:
            ended.add_done_callback(partial(self._end_span, span))
        ended.add_done_callback(lambda future: self._attempted(item, future.result()))

    def _end_span(self, span: OpenSpan, ended: asyncio.Future[Ended]) -> None:
        if self._host.tracer is not None and not ended.cancelled():
            end_attempt(self._host.tracer, span, ended.result())

    # --- its end

    def _attempted(self, item: HeldTask, ended: Ended) -> None:
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
            self._returns.return_attempt(item, spent=False, delay_s=None)
        elif step is NextStep.PAUSE:
            self._pause(item, ended, detail)
        elif step is NextStep.RETURN:
            self._returns.return_attempt(item, spent=False, delay_s=ended.rest_s)
        elif step is NextStep.SUCCEEDED:
            self._succeed(item, ended)
        elif step is NextStep.CANCEL:
            self._fail(item, state, f"cancelled: {item.cancel}")
        elif step is NextStep.FAIL:
            self._host.log.warning("task failed", **_failure(item, ended))
            self._fail(item, state, detail)
        else:
            self._host.log.warning("attempt failed", **_failure(item, ended))
            self._host.stats.tasks_retried += 1
            delay_s = item.spec.backoff.delay_s(item.attempt.attempts, self._host.clock.random())
            self._returns.return_attempt(item, spent=True, delay_s=delay_s, detail=detail)

    def _pause(self, item: HeldTask, ended: Ended, detail: str) -> None:
        """Have the task tried again after a pause. The store sees to it that it begins no sooner: a delivery
        can't be hidden as long as one likes, and may come twice."""
        pause_s = ended.pause_s
        self._host.stats.tasks_paused += 1
        self._host.log.info(
            "attempt asked for a pause", task_id=item.task_id, type=item.type, pause_s=pause_s
        )
        hidden_s = min(pause_s, self._queues[item.queue].hold_max_s / 2)
        self._returns.return_attempt(item, spent=False, delay_s=hidden_s, detail=detail, pause_s=pause_s)

    def _succeed(self, item: HeldTask, ended: Ended) -> None:
        if len(ended.result) > INLINE_BYTES_MAX:
            self._held.storing += 1
            self._host.tasks.spawn(self._store_result(item, ended))
        else:
            self._end_well(item, ended, result=ended.result)

    async def _store_result(self, item: HeldTask, ended: Ended) -> None:
        """Put a large result into the object store, then end the task. Until then no other task begins in its
        place: while the object store is away, results would fill the memory."""
        try:
            await self._insist_on_storing(item, ended)
        finally:
            self._held.storing -= 1
            self._held.changed.set()

    async def _insist_on_storing(self, item: HeldTask, ended: Ended) -> None:
        """Put a large result into the object store, then end the task. While the object store is away this is
        repeated, unless the node stops or the task's delivery has lapsed."""

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
            self._returns.return_attempt(item, spent=False, delay_s=delay_s)
        else:
            self._end_well(item, ended, stored=stored)

    def _end_well(self, item: HeldTask, ended: Ended, result: bytes = b"", stored: bytes = b"") -> None:
        assert item.attempt is not None
        epoch = item.attempt.epoch
        effects = effects_of(item, epoch, ended.sends, self._host.clock.wall()) if ended.sends else b""
        item.end()
        self._completer.end(
            item, EndAttempt(item.task_id, epoch, State.SUCCEEDED, result, effects=effects, stored=stored)
        )

    def _fail(self, item: HeldTask, state: State, detail: str) -> None:
        assert item.attempt is not None
        item.end()
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


def _is_unfit(error: Exception) -> bool:
    """Return True if no object store will ever take the result."""
    return isinstance(error, HoldfastError) and error.retry is Retry.NEVER


def _progressed(item: HeldTask, running: Running) -> None:
    if running.progress.fraction is not None:
        item.progress = running.progress.fraction
    item.note = running.progress.note or item.note
    item.news = True
