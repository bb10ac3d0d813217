"""Tasks as a kind of work of a node: from the queues by fair queueing to the slots, and from there to outcome
and brief."""

from __future__ import annotations

import asyncio
import collections
import math
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec

from holdfast.cluster.deliverer import NO_TARGETS, Deliverer, Targets
from holdfast.cluster.host import Host
from holdfast.cluster.keeper import LOOKS_A_VISIBILITY, REISSUE_VISIBILITIES, Keeper, expire, free
from holdfast.cluster.pump import Pump, Seen
from holdfast.cluster.stats import BUSY, SLOTS_MAX, Numbers
from holdfast.cluster.tracer import OpenSpan, trace_of
from holdfast.common.acts import Send
from holdfast.common.held import Held, Receipt
from holdfast.common.message import Life, Place
from holdfast.common.progress import chunks
from holdfast.common.protocol import Done, LookAtTask, RunningTasks
from holdfast.common.redaction import redact
from holdfast.common.stored import StoredValue
from holdfast.common.trace import raised_at
from holdfast.errors import Fenced, HoldfastError, InvalidMessage, OutcomeUnknown, Retry, ValueLost
from holdfast.ports.coordinator import Load
from holdfast.ports.queue import Delivery, Outgoing
from holdfast.ports.slots import TaskSlotMaker
from holdfast.rules.cluster.placement import TASKS, WorkLoad
from holdfast.rules.tasks.fair_queue import FairQueue
from holdfast.rules.tasks.rates import Permits
from holdfast.rules.tasks.task import AttemptBeat, EndAttempt, ReturnAttempt, StartAttempt, State, Task
from holdfast.tasks.body import Body
from holdfast.tasks.completer import Completer
from holdfast.tasks.concurrency import ConcurrencyLimiter
from holdfast.tasks.delayed import DelayedTasks
from holdfast.tasks.discovery import Announcer
from holdfast.tasks.effects import effects_of
from holdfast.tasks.handler import PAUSES_MAX
from holdfast.tasks.held_tasks import HANDED_ON, InHand, Stop, TaskActivity, stands_here
from holdfast.tasks.names import brief_queue, task_queue
from holdfast.tasks.old_briefs import drop_old
from holdfast.tasks.periodic import Scheduler
from holdfast.tasks.producer import Producer
from holdfast.tasks.rates import RateKeeper
from holdfast.tasks.running import Ended, How, Running
from holdfast.tasks.schedule import ScheduleFollower
from holdfast.tasks.slots import TaskSlots
from holdfast.tasks.spec import TaskSpec
from holdfast.tasks.storage import TaskStorage
from holdfast.tasks.traces import begin_attempt, end_attempt
from holdfast.tasks.values import INLINE_BYTES_MAX
from holdfast.tasks.wire import Envelope, SentTask, Unreadable, decode_task, encode_follow_ups

STARTS_MAX = 200
"""The most attempts that one call to the store begins."""

AHEAD_S = 1.0
"""For how many seconds of work, at its recent rate, a node receives tasks ahead."""

NEWS_S = 1.0
"""How often the progress of a task is written to the store."""

BEATS_A_LEASE = 3

HEAR_S = 5.0
"""The longest pause between two calls for a task that runs. The answer says whether it is cancelled."""

HERE_FIRST = 2**32
"""The priority of tasks that were given to this node directly: above all priorities of messages."""

DISAGREEMENT_S = 1.0
"""After how long a task is received again whose pause is over by this host's clock and not by the store's."""

FETCH_AGAIN_S = 5.0
"""After about how long a task is delivered again whose body can't be read, as the object store is away."""

MAKE_WAY_S = 1.0
"""How often a node looks whether tasks that can't begin for now fill its hands."""

NEARLY_FULL = 0.9
"""The part of ``max_held`` from which on tasks of groups that are held back make way for others."""

AWAY_S = 60.0
"""For about how long those are given back. Queues deliver the oldest first, and these would come at once."""

GONE_MAX = 1000
"""How many dead members are remembered."""

GRANT_ENDS_S = 2.0
"""How long before others may use its grant an attempt is asked to end. It needs this time to notice and to
end."""


class TaskWork:
    """The tasks of one app on one node.

    At most ``task_slots`` tasks run at once, and no more than ``limiter`` grants. ``scheduler`` does what is
    due by the clock, ``producer`` sends follow-ups, and ``announcer`` writes this node's address to the
    registry. ``targets`` take effects."""

    def __init__(
        self,
        host: Host,
        specs: Mapping[str, TaskSpec],
        storage: TaskStorage,
        slots: TaskSlotMaker,
        limiter: ConcurrencyLimiter,
        producer: Producer,
        *,
        scheduler: Scheduler | ScheduleFollower | None = None,
        announcer: Announcer | None = None,
        targets: Targets = NO_TARGETS,
    ) -> None:
        self._host = host
        self._app, self._store, self._values = storage.app, storage.store, storage.values
        self._specs = specs
        self._queues, self._briefs = storage.queues
        self._limiter = limiter
        self._slots_max = host.limits.task_slots
        self._scheduler = scheduler
        self._announcer = announcer
        self._fetching = 0
        self._storing = 0
        self.hand: dict[str, InHand] = {}
        permits = Permits(self._rate_of)
        self._fair_queue: FairQueue[InHand] = FairQueue(
            {name: spec.share for name, spec in specs.items()}, permits
        )
        self._permits = permits
        self._rates = RateKeeper(
            storage.registry,
            storage.app,
            host,
            permits,
            per_s=self._rate_of,
            now=self._store.now,
            lacking=self._lacking,
            got=self._got_permits,
        )
        self._refused: list[InHand] = []
        self._keepers = {
            name: Keeper(
                name,
                queue,
                host,
                holding=self._holding,
                report=_nobody_waits,
                may_reissue=_may_reissue,
                visibility_s=specs[name].visibility_s,
            )
            for name, queue in self._queues.items()
        }
        self.slots = TaskSlots(slots, host, limit=self._slots_max)
        self._completer = Completer(
            host,
            storage,
            self._keepers,
            producer,
            Deliverer(host, targets, self._queues),
            self,
        )
        self._delayed: DelayedTasks | None = None
        if any(queue.delay_max_s < math.inf for queue in self._queues.values()):
            self._delayed = DelayedTasks(host, self._store, producer)
        self._pumps: list[Pump] = []
        self._pumping: list[asyncio.Task[Any]] = []
        self._wake = asyncio.Event()
        self._empty = asyncio.Event()
        self._gone: collections.OrderedDict[str, None] = collections.OrderedDict()
        self._took_wait = host.timings.task_wait_seconds.each(specs)
        self._took_run = host.timings.task_run_seconds.each(specs)
        self._rate = 0.0
        self._started = 0
        self._returned = 0
        self._returning = 0
        self._starting = 0
        self._stopping = False
        limiter.holder = self
        host.news.on_left.append(self._left)
        host.news.on_lost.append(self._lost)
        host.inquiries.add(LookAtTask, self._look_at)
        host.inquiries.add(RunningTasks, self._tell_running)

    async def prepare(self) -> None:
        await self.slots.start()

    def begin(self, address: str) -> None:
        host = self._host
        self._completer.start()
        self._limiter.start()
        for loop in (self._dispatch, self._beat, self._measure, self._make_way):
            host.tasks.repeat(loop, host.clock, host.log)
        host.tasks.repeat(self._rates.run, host.clock, host.log)
        if self._delayed is not None:
            host.tasks.repeat(self._delayed.run, host.clock, host.log)
        if self._scheduler is not None:
            host.tasks.repeat(self._scheduler.run, host.clock, host.log)
        if self._announcer is not None:
            host.tasks.repeat(partial(self._announcer.run, address), host.clock, host.log)
        for name, queue in self._queues.items():
            self._keepers[name].start()
            pump = Pump(
                name,
                queue,
                host,
                take=partial(self._take, name),
                room=partial(self._room_of, name),
                may=self._may_receive,
                hide_s=self._specs[name].visibility_s,
            )
            self._pumps.append(pump)
            task = host.tasks.repeat(pump.run, host.clock, host.log)
            if task is not None:
                self._pumping.append(task)

    def _may_receive(self) -> bool:
        return self._host.membership.alive

    def gauges(self) -> Iterable[tuple[str, str, float]]:
        """Yield what the node holds of tasks: the name of each number, what it means, and the number."""
        yield "tasks_held", "Tasks in hand (limit: max_held).", len(self.hand)
        yield "tasks_running", "Attempts that run (limit: task_slots).", len(self.slots.running)

    def numbers(self) -> Iterable[Numbers]:
        """Yield what the node holds of tasks, by names that the app or this code declares."""
        yield Numbers("gauge", "slots_busy", BUSY, "work", {TASKS: self.slots.busy})
        yield Numbers("gauge", "slots_max", SLOTS_MAX, "work", {TASKS: self._slots_max})

    # --- in

    def _room(self) -> int:
        """Return how many more tasks to receive: those that can begin at once, and those that will within
        ``AHEAD_S``. Tasks that a limit of their group holds back don't count, or they would block the tasks
        behind them."""
        ahead = self.slots.room - self._storing + round(self._rate * AHEAD_S) - self._fair_queue.ready
        # A grant depends on the work that waits, so receive tasks for twice the present grant.
        to_ask_for = min(self._slots_max, max(1, 2 * self._limiter.granted))
        ahead = max(ahead, to_ask_for - len(self.hand))
        return min(ahead, self._host.limits.max_held - len(self.hand))

    def _room_of(self, name: str) -> int:
        """Return how many more tasks of one type to receive. Of a type with a rate no more than soon begin:
        the others are for other nodes."""
        room, rate = self._room(), self._rate_of(name)
        if not rate:
            return room
        return min(room, math.ceil(max(1.0, rate * 2 * AHEAD_S)) - self._fair_queue.waiting(name))

    def _rate_of(self, name: str) -> float:
        """Return how many tasks of a type may begin per second on all nodes; 0: any number."""
        return self._limiter.limits.rates.get(name, self._specs[name].rate)

    def _lacking(self) -> dict[str, int]:
        """Return for how many tasks of each type a permit is lacking, of those that could begin."""
        room = self.slots.room - self._fetching - self._storing
        wanted = {
            name: min(self._fair_queue.waiting(name), room)
            for name in self._specs
            if self._rate_of(name) and self._permits.left(name) < 1
        }
        return {name: number for name, number in wanted.items() if number > 0}

    def _got_permits(self) -> None:
        self._wake.set()

    def run_here(self, queue: str, message: Outgoing) -> None:
        """Begin a task as soon as there is a slot, before all others that wait here. Its ``message`` is
        already in the queue, in case this node can't."""
        if not self._stopping:
            item = self._read(queue, Delivery("", message.key, message.body, message.attributes))
            item.here = True
            self._hold(item)

    def _take(self, queue: str, delivery: Delivery, receipt: Receipt, seen: Seen) -> None:
        item = self._read(queue, delivery)
        item.held.receipts.append(receipt)
        self._hold(item)

    def _read(self, queue: str, delivery: Delivery) -> InHand:
        spec = self._specs[queue]
        default = Envelope(
            app=self._app, trace_id=delivery.attributes.get("id", delivery.id), task_type=spec.name
        )
        held = Held(Place(0, 0, default.trace_id), delivery.body, delivery.attributes, [])
        held.receives = delivery.receives
        try:
            message = decode_task(delivery.body, default, text=spec.takes_text)
            refusal = ""
        except Unreadable as error:
            if error.envelope is None:
                raise
            message = SentTask(error.envelope, Body(b""), error.follow_ups, batch=error.batch)
            refusal = str(error)
        envelope = message.envelope
        if envelope.task_type not in self._specs and not refusal:
            known = ", ".join(sorted(self._specs))
            refusal = f"the app has no task type {envelope.task_type!r}; it has {known}"
        spec = self._specs.get(envelope.task_type, spec)
        if not envelope.group and not refusal and message.body.stored is None:
            try:
                group = spec.group_of(message.body)
                message = msgspec.structs.replace(
                    message, envelope=msgspec.structs.replace(envelope, group=group)
                )
            except InvalidMessage as error:
                refusal = str(error)
        held.place = Place(0, 0, envelope.trace_id)
        return InHand(queue, spec, message, held, refusal=refusal)

    def _hold(self, item: InHand) -> None:
        known = self.hand.get(item.trace)
        if known is not None:
            if known.queue == item.queue and not known.is_settled:
                known.held.receipts += item.held.receipts
            else:  # of a task that is settled it may be a new sending, which that would delete too
                self._give_back(item, self._host.limits.give_back_s)
            return
        self.hand[item.trace] = item
        self._line_up(item)

    def _line_up(self, item: InHand) -> None:
        if item.held.life is Life.RECEIVED:
            item.held.become(Life.WAITING)
        if item.refusal:
            self._refused.append(item)
        else:
            priority = item.message.envelope.priority + item.spec.priority
            self._fair_queue.add(item.spec.name, item.group, HERE_FIRST if item.here else priority, item)
        self._wake.set()

    # --- which task is next

    async def _dispatch(self) -> None:
        """Begin the tasks that may begin, many at a time."""
        while True:
            rests_until = self._fair_queue.rests_until()
            pause_s = None if rests_until is None else max(0.0, rests_until - self._host.clock.monotonic())
            await self._host.clock.wait(self._wake, pause_s)
            self._wake.clear()
            while batch := self._next():
                await self._start(batch)

    def _next(self) -> list[InHand]:
        """Return the next tasks, as many as there is room for. Tasks that can't run need no room."""
        batch, self._refused = self._refused, []
        now = self._host.clock.monotonic()
        # Also where nothing may begin: a rest that stays in the past would make the dispatcher spin.
        self._fair_queue.end_rests(now)
        if self._stopping:
            return batch
        self._heed_limits()
        in_slots = len(self.slots.running) + self._storing
        self._limiter.want(in_slots + self._fetching + self._fair_queue.soon)
        room = min(self.slots.refill - self._fetching - self._storing, STARTS_MAX)
        while len(batch) < room and (item := self._fair_queue.take(now)) is not None:
            if item.lapsed(now):
                self._fair_queue.done(item.spec.name, item.group)
                self.drop(item)
            elif self._has_waited_too_long(item, now):
                self._fair_queue.done(item.spec.name, item.group)
                self._give_back(item, 0.0)
            else:
                batch.append(item)
        if self._lacking():
            self._rates.wake()
        return batch

    @property
    def running(self) -> int:
        """The number of attempts that run here now, or are about to begin."""
        return self.slots.busy + self._fetching

    def limits_changed(self) -> None:
        """Apply the present grant at once: others may already use the rest."""
        self._heed_limits()
        self._wake.set()

    def _heed_limits(self) -> None:
        self.slots.limit = min(self._slots_max, self._limiter.granted)
        self.slots.until = self._limiter.until

    async def _start(self, batch: Sequence[InHand], instead_of: str = "") -> None:
        """Ask the store for each task whether it may begin. A node that stops waits for the answer, for the
        attempts that the store has counted by then."""
        self._starting += 1
        try:
            await self._ask_and_begin(batch, instead_of)
        finally:
            self._starting -= 1

    async def _ask_and_begin(self, batch: Sequence[InHand], instead_of: str) -> None:
        member = self._host.membership.id
        wishes = [
            StartAttempt(
                item.trace,
                item.spec.name,  # if the app lacks the type: that of its queue, which gets its dead letter
                member,
                self._host.name,
                item.tries,
                item.spec.visibility_s,
                item.group,
                instead_of,
                encode_follow_ups(item.message.follow_ups),
            )
            for item in batch
        ]
        asked_at, seen = self._host.clock.monotonic(), [len(item.held.receipts) for item in batch]
        tasks = await self._insist(lambda: self._store.start(wishes), give_up=True)
        if tasks is None:
            for item in batch:
                self._take_back(item)
                self._give_back(item, 0.0)
            return
        for item, task, receipts in zip(batch, tasks, seen, strict=True):
            now = self._host.clock.monotonic()  # for each, as one before it may have been asked for again
            if stands_here(task, member):
                item.attempt, item.beat_at = task, asked_at
                if item.lapsed(now) or now >= asked_at + item.spec.visibility_s:
                    self._return_unbegun(item, Stop.LAPSED, now)
                elif self._stopping and not item.refusal:
                    self._return_unbegun(item, Stop.DRAIN, now)
                else:
                    self._run(item, task, now)
            elif not instead_of and task.member in self._gone and not task.ended:
                await self._start([item], task.member)
            else:
                self._take_back(item)
                if task.ended:
                    self.give_back_later(item, receipts)
                    self._completer.tell(item, task)
                else:  # it pauses, or runs on another node, or did until a moment ago
                    wait_s = min(max(task.until - self._host.clock.wall(), 0.0), item.spec.visibility_s)
                    if task.state is State.QUEUED and not wait_s:
                        wait_s = DISAGREEMENT_S
                    self._give_back(item, wait_s + self._host.clock.random())

    async def _insist(self, call: Any, *, give_up: bool = False) -> Any:
        """Repeat a call to the store until it is answered, because nothing can begin without it. With
        ``give_up``, return None if the call failed and this node is cut off or stops."""
        failures = 0
        while True:
            try:
                return await call()
            except (HoldfastError, OSError) as error:
                give_up = give_up and not isinstance(error, OutcomeUnknown)
                if give_up and (self._stopping or not self._host.membership.alive):
                    return None
                failures += 1
                self._host.log.warning("the task store does not answer", error=str(error))
            await self._host.clock.sleep(self._host.limits.retry.delay_s(failures, self._host.clock.random()))

    def _take_back(self, item: InHand) -> None:
        """Note that a task that was taken from the fair queue no longer runs."""
        if not item.refusal:
            self._fair_queue.done(item.spec.name, item.group)
        self._wake.set()

    # --- attempts

    def _return_unbegun(self, item: InHand, why: Stop, now: float) -> None:
        """Return an attempt that the store has begun and that is not to run here: the node stops, or the
        answer took so long, or the node stood still for so long, that another node may have begun the task by
        now, or ended it."""
        self._take_back(item)
        item.stopping = why
        self._return(item, spent=False, delay_s=None if item.lapsed(now) else 0.0)

    def _run(self, item: InHand, task: Task, now: float) -> None:
        item.held.become(Life.RUNNING)
        self._host.stats.tasks_started += 1
        self._started += 1
        if task.epoch == 1 and task.queued_at < task.started_at:  # equal, if nobody has noted its sending
            self._took_wait[item.spec.name].note(task.started_at - task.queued_at)
        if item.refusal:
            self._fail(item, State.FAILED, f"malformed: {item.refusal}")
            return
        if item.message.is_light:
            self._run_in_slot(item, task, item.message)
        else:
            self._fetching += 1
            self._host.tasks.spawn(self._fetch(item, task))

    async def _fetch(self, item: InHand, task: Task) -> None:
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
            self._fetching -= 1
        if self.hand.get(item.trace) is not item or item.attempt is None or item.attempt.epoch != task.epoch:
            return  # the node has stopped
        if item.stopping:
            failure = Ended(How.CANCELLED, error=item.stopping.value, begun=False)
        if failure is None:
            self._run_in_slot(item, task, message)
        elif failure.begun or item.stopping:
            self._attempted(item, failure)
        else:
            self._host.log.warning("a stored body can't be read", task=item.trace, error=failure.error)
            self._take_back(item)
            delay_s = FETCH_AGAIN_S * (0.5 + self._host.clock.random())
            self._return(item, spent=False, delay_s=delay_s, detail=failure.error)

    def _run_in_slot(self, item: InHand, task: Task, message: SentTask) -> None:
        now = self._host.clock.monotonic()
        timeout_s = item.timeout_s
        if not item.spec.resumable and (holdable_s := self._holdable_s(item, now)) < timeout_s:
            self._host.log.warning(
                "the queue can't hold this task for all of its timeout; it ends earlier, as timed out",
                task=item.trace,
                type=item.type,
                timeout_s=timeout_s,
                holdable_s=holdable_s,
            )
            timeout_s = holdable_s
        attempt = item.spec.attempt(
            message.body, task, timeout_s, item.tries, message.after, self._values.result_bytes_max
        )
        span = None
        if self._host.tracer is not None:
            span = begin_attempt(self._host.tracer, item, task)
        if item.held.traceparent:
            attempt = msgspec.structs.replace(attempt, traceparent=item.held.traceparent)
        ended = self.slots.run(attempt, partial(self._progressed, item))
        if span is not None:
            ended.add_done_callback(partial(self._end_span, span))
        ended.add_done_callback(lambda future: self._attempted(item, future.result()))

    def _end_span(self, span: OpenSpan, ended: asyncio.Future[Ended]) -> None:
        if self._host.tracer is not None and not ended.cancelled():
            end_attempt(self._host.tracer, span, ended.result())

    def _has_waited_too_long(self, item: InHand, now: float) -> bool:
        """Return True if an attempt that begins now would have to end before its timeout, and one with a new
        delivery wouldn't."""
        if item.spec.resumable or item.here:
            return False
        return self._holdable_s(item, now) < item.timeout_s <= self._hold_max_s(item)

    def _holdable_s(self, item: InHand, now: float) -> float:
        """Return for how many more seconds the queue lets a delivery of the task be held, if it needs one."""
        if item.here:
            return math.inf
        received_at = max(receipt.received_at for receipt in item.held.receipts)
        return received_at + self._hold_max_s(item) - now

    def _hold_max_s(self, item: InHand) -> float:
        """Return for how many seconds the queue lets a new delivery of the task be held."""
        hold_max_s = self._queues[item.queue].hold_max_s
        return hold_max_s - min(REISSUE_VISIBILITIES * item.spec.visibility_s, hold_max_s / 2)

    def _progressed(self, item: InHand, running: Running) -> None:
        if running.progress.fraction is not None:
            item.progress = running.progress.fraction
        item.note = running.progress.note or item.note
        item.news = True

    def _attempted(self, item: InHand, ended: Ended) -> None:
        """Decide what follows the end of an attempt."""
        if self.hand.get(item.trace) is not item or item.attempt is None:
            return  # the node has stopped
        self._take_back(item)
        if ended.took_s:
            self._took_run[item.spec.name].note(ended.took_s)
        detail = "\n".join(text for text in (ended.error, ended.detail) if text)
        pause_s = ended.pause_s
        if pause_s and item.attempt.pauses >= PAUSES_MAX:
            pause_s, detail = 0.0, f"{ended.error}; it has had {PAUSES_MAX} pauses, and gets no more"
        if ended.how is How.DIED and self._limiter.until <= self._host.clock.monotonic():
            item.stopping = item.stopping or Stop.GRANT_ENDS
        handed_on = item.stopping in HANDED_ON and ended.how is not How.RETURNED
        if item.stopping is Stop.LAPSED:
            self._return(item, spent=False, delay_s=None)
        elif pause_s and (handed_on or not item.stopping):
            self._pause(item, ended, pause_s)
        elif handed_on or not ended.begun:
            self._return(item, spent=False, delay_s=ended.rest_s)
        elif ended.how is How.RETURNED:
            self._succeed(item, ended)
        elif item.stopping:  # it was asked to end
            self._fail(item, State.FAILED, f"cancelled: {item.cancel}")
        elif ended.permanent or item.attempt.attempts >= item.tries:
            state = State.TIMEOUT if ended.how is How.TIMED_OUT else State.FAILED
            self._tell_failure("task failed", item, ended)
            self._fail(item, state, detail)
        else:
            self._tell_failure("attempt failed", item, ended)
            self._host.stats.tasks_retried += 1
            delay_s = item.spec.backoff.delay_s(item.attempt.attempts, self._host.clock.random())
            self._return(item, spent=True, delay_s=delay_s, detail=detail)

    def _succeed(self, item: InHand, ended: Ended) -> None:
        if len(ended.result) > INLINE_BYTES_MAX:
            self._storing += 1
            self._host.tasks.spawn(self._store_result(item, ended))
        else:
            self._end_well(item, ended.sends, ended.result)

    async def _store_result(self, item: InHand, ended: Ended) -> None:
        """Put a large result into the object store, then end the task. Until then no other task begins in its
        place: while the object store is away, results would fill the memory."""
        try:
            await self._insist_on_storing(item, ended)
        finally:
            self._storing -= 1
            self._wake.set()

    async def _insist_on_storing(self, item: InHand, ended: Ended) -> None:
        """Put a large result into the object store, then end the task. While the object store is away this is
        repeated, unless the node stops or the task's delivery has lapsed."""
        stored: StoredValue | None = None
        failures = 0
        while stored is None and not (failures and item.stopping in (Stop.DRAIN, Stop.REISSUE, Stop.LAPSED)):
            if failures:
                pause_s = self._host.limits.retry.delay_s(failures, self._host.clock.random())
                await self._host.clock.sleep(pause_s)
            try:
                stored = await self._values.put(ended.result)
            except (HoldfastError, OSError) as error:
                if isinstance(error, HoldfastError) and error.retry is Retry.NEVER:
                    self._fail(item, State.FAILED, f"its result can't be stored: {error}")
                    return
                failures += 1
                self._host.log.warning("a result can't be stored", task=item.trace, error=str(error))
        if self.hand.get(item.trace) is not item:
            return  # the node has stopped
        if stored is None or item.stopping is Stop.LAPSED:
            self._return(item, spent=False, delay_s=None if item.stopping is Stop.LAPSED else 0.0)
        else:
            self._end_well(item, ended.sends, stored=msgspec.json.encode(stored))

    def _pause(self, item: InHand, ended: Ended, pause_s: float) -> None:
        """Have the task tried again after a pause. The store sees to it that it begins no sooner: a delivery
        can't be hidden as long as one likes, and may come twice."""
        self._host.stats.tasks_paused += 1
        self._host.log.info("attempt asked for a pause", task=item.trace, type=item.type, pause_s=pause_s)
        hidden_s = min(pause_s, self._queues[item.queue].hold_max_s / 2)
        self._return(item, spent=False, delay_s=hidden_s, detail=ended.error, pause_s=pause_s)

    def _tell_failure(self, event: str, item: InHand, ended: Ended) -> None:
        at = raised_at(ended.detail)
        self._host.log.warning(
            event,
            task=item.trace,
            type=item.type,
            error=ended.error,
            at=at,
            exception=ended.detail,
            **trace_of(item.held.traceparent),
        )

    def _end_well(
        self, item: InHand, sends: tuple[Send, ...], result: bytes = b"", stored: bytes = b""
    ) -> None:
        assert item.attempt is not None
        epoch = item.attempt.epoch
        effects = effects_of(item, epoch, sends, self._host.clock.wall()) if sends else b""
        end = EndAttempt(item.trace, epoch, State.SUCCEED, result, effects=effects, stored=stored)
        item.ending = True
        self._completer.end(item, end)

    def _fail(self, item: InHand, state: State, detail: str) -> None:
        assert item.attempt is not None
        item.ending = True
        self._completer.end(item, EndAttempt(item.trace, item.attempt.epoch, state, detail=redact(detail)))

    def _return(
        self,
        item: InHand,
        *,
        spent: bool,
        delay_s: float | None,
        detail: str = "",
        pause_s: float = 0.0,
    ) -> None:
        assert item.attempt is not None
        wish = ReturnAttempt(item.trace, item.attempt.epoch, spent, redact(detail), pause_s)
        item.ending = True
        self._returning += 1
        self._host.tasks.spawn(self._return_to_store(item, wish, delay_s))

    async def _return_to_store(self, item: InHand, wish: ReturnAttempt, delay_s: float | None) -> None:
        """Return the attempt to the store before the delivery to the queue, so that the next receiver may
        begin at once. If ``delay_s`` is None, there is no delivery to give back."""
        (answer,) = await self._insist(lambda: self._store.give_back([wish]))
        if isinstance(answer, Fenced):
            self._host.stats.fenced += 1
        reissue = item.stopping is Stop.REISSUE or (item.here and not item.held.receipts)
        item.come_back()
        if delay_s is None:
            self.drop(item)
        elif reissue:
            await self._reissue(item, delay_s)
        else:
            self._give_back(item, delay_s)
        self._returning -= 1

    async def _reissue(self, item: InHand, delay_s: float) -> None:
        """Reissue the task under its trace id, then delete the delivery that can't be held any longer."""
        self.forget(item)  # the copy may arrive before its sending is answered
        queue = self._queues[item.queue]
        names = [receipt.receipt for receipt in item.held.receipts if not receipt.stale]
        delay_s, priority = min(delay_s, queue.delay_max_s), max(0, item.message.envelope.priority)
        copy = Outgoing(item.held.body, item.held.again, delay_s, item.trace, priority=priority)
        await self._insist(lambda: queue.send([copy]))
        self._host.stats.reissued += 1
        await self._insist(lambda: queue.delete(names))

    # --- out

    def rest(self, item: InHand, rest_s: float) -> None:
        """Give back the message of a task that has ended, until its effects can be handed over. If there is
        no delivery, its message is in the queue."""
        self.forget(item)
        self._come_again(item, min(rest_s, self._queues[item.queue].hold_max_s / 2))

    def _give_back(self, item: InHand, delay_s: float) -> None:
        """Give the task back to the queue, which delivers it to any node after ``delay_s``."""
        self.forget(item)
        item.held.come_back()
        self._come_again(item, delay_s)

    def give_back_later(self, item: InHand, seen: int) -> None:
        """Give back the deliveries of a task that has ended, but for the first ``seen``: they came after the
        store was asked for it. It may have been sent again since, and they must not be deleted."""
        if later := item.held.receipts[seen:]:
            del item.held.receipts[seen:]
            held = msgspec.structs.replace(item.held, receipts=later, life=Life.RECEIVED)
            self._give_back(msgspec.structs.replace(item, held=held), self._host.limits.give_back_s)

    def _come_again(self, item: InHand, delay_s: float) -> None:
        item.held.become(Life.GIVEN_BACK)
        self._returned += 1
        self._host.stats.given_back += 1
        self._host.tasks.spawn(self._give_back_all(item.queue, [item], delay_s))

    async def _give_back_all(self, queue: str, items: Sequence[InHand], delay_s: float) -> None:
        names = [r.receipt for item in items for r in item.held.receipts if not r.stale]
        try:
            for some in chunks(names, self._queues[queue].max_batch):
                await self._queues[queue].give_back(some, delay_s)
        except HoldfastError as error:  # the queue shows them again when their visibility ends
            self._host.log.warning("could not give back", queue=queue, error=str(error))

    async def _hand_back(self) -> int:
        """Give all waiting tasks back at once; return how many. A node that is cut off begins nothing, so it
        must not keep tasks that others could run."""
        waiting = self._fair_queue.drain()
        for item in waiting:
            self.forget(item)
        for name in self._queues:
            await self._give_back_all(name, [item for item in waiting if item.queue == name], 0.0)
        return len(waiting)

    async def _make_way(self) -> None:
        """While the hand is nearly full and slots are free, give back tasks of groups that are held back,
        some at a time. Nothing else could be received, of any type."""
        while True:
            await self._host.clock.sleep(MAKE_WAY_S)
            max_held = self._host.limits.max_held
            in_slots = len(self.slots.running) + self._fetching + self._storing
            could_begin = in_slots + self._fair_queue.ready < self._slots_max
            if len(self.hand) < NEARLY_FULL * max_held or not could_begin or self._stopping:
                continue
            shed = self._fair_queue.shed(math.ceil((1.0 - NEARLY_FULL) * max_held))
            for item in shed:
                self.forget(item)
                item.held.come_back()
                item.held.become(Life.GIVEN_BACK)
            self._returned += len(shed)
            self._host.stats.given_back += len(shed)
            for name, queue in self._queues.items():
                if some := [item for item in shed if item.queue == name]:
                    away_s = min(AWAY_S * (0.5 + self._host.clock.random()), queue.hold_max_s / 2)
                    self._host.tasks.spawn(self._give_back_all(name, some, away_s))

    def drop(self, item: InHand) -> None:
        """Forget a task whose deliveries have lapsed, or whose outcome was refused; its next delivery
        decides. A delivery that came meanwhile gives the right to try again."""
        self.forget(item)
        item.held.receipts = [
            receipt
            for receipt in item.held.receipts
            if not receipt.stale and receipt.expires_at > self._host.clock.monotonic()
        ]
        if item.held.receipts:
            item.come_back()
            self._hold(item)
        else:
            self._host.stats.tasks_lapsed += 1

    def forget(self, item: InHand) -> None:
        """Hold a task no longer. If it has come again meanwhile, that one stays."""
        if self.hand.get(item.trace) is item:
            del self.hand[item.trace]

    # --- while they are in hand

    def _holding(self, queue: str) -> list[tuple[str, Held]]:
        """Return the tasks whose deliveries must be extended: those that wait, run or are being ended. A hung
        attempt is ended by its slot."""
        return [
            (item.trace, item.held)
            for item in self.hand.values()
            if item.queue == queue and item.stopping is not Stop.LAPSED
        ]

    async def _beat(self) -> None:
        """Write progress to the store, and stop attempts that must not go on."""
        shortest_s = min(spec.visibility_s for spec in self._specs.values())
        while True:
            await self._host.clock.sleep(min(NEWS_S, shortest_s / LOOKS_A_VISIBILITY))
            if self._fair_queue and not self._host.membership.alive:
                self._host.tasks.spawn(self._hand_back())
            await self._beat_once()

    async def _beat_once(self) -> None:
        now = self._host.clock.monotonic()
        running = self._running()
        for item in running:
            if item.lapsed(now):
                self._stop(item, Stop.LAPSED)
            elif now >= self._limiter.until - GRANT_ENDS_S:
                self._stop(item, Stop.GRANT_ENDS)
            elif item.spec.resumable and self._holdable_s(item, now) <= 0:
                self._stop(item, Stop.REISSUE)
        member = self._host.membership.id
        await self._tell([item for item in running if _is_due(item, member, now)], now)

    def _running(self) -> list[InHand]:
        return [item for item in self.hand.values() if item.held.life is Life.RUNNING]

    def _lost(self) -> None:
        self._host.tasks.spawn(self._tell_of_new_membership())

    async def _tell_of_new_membership(self) -> None:
        """Once this node has joined again, have the store know all attempts by the new membership. The old
        one is gone, and others needn't wait for its attempts to lapse."""
        await self._host.membership.joined.wait()
        await self._tell(self._running(), self._host.clock.monotonic())

    async def _tell(self, due: Sequence[InHand], now: float) -> None:
        member = self._host.membership.id
        beats = [
            AttemptBeat(
                item.trace,
                item.attempt.epoch,
                item.spec.visibility_s,
                item.progress,
                redact(item.note),
                member if item.attempt.member != member else "",
            )
            for item in due
            if item.attempt is not None
        ]
        if not beats:
            return
        try:
            answers = await self._store.beat(beats)
        except (HoldfastError, OSError) as error:
            self._host.log.warning("the task store does not answer", error=str(error))
            return  # the next round tries again
        for item, beat, answer in zip(due, beats, answers, strict=True):
            if item.attempt is None or item.attempt.epoch != beat.epoch or item.ending:
                continue  # it ended meanwhile, for which a beat is refused too
            if isinstance(answer, Fenced):
                self._stop(item, Stop.LAPSED)
                continue
            item.attempt = answer
            item.beat_at, item.news = now, False
            self.slots.renew(item.trace, item.spec.visibility_s)
            if answer.cancel:
                self._stop(item, Stop.CANCELLED, answer.cancel)

    def _stop(self, item: InHand, stop: Stop, cancel: str = "") -> None:
        """Ask an attempt to end. ``cancel`` is why its task is cancelled, if it is."""
        if item.stopping and stop is not Stop.LAPSED:
            return
        reason = cancel or stop.value
        self._host.log.warning("attempt asked to end", task=item.trace, type=item.type, reason=reason)
        item.stopping, item.cancel = stop, cancel
        self.slots.cancel(item.trace, reason)

    async def _measure(self) -> None:
        while True:
            await self._host.clock.sleep(AHEAD_S / 4)
            self._rate += (self._started * 4 / AHEAD_S - self._rate) / 2
            self._started = 0

    def cancel(self, trace: str, why: str) -> bool:
        """End a task that runs here now; return False if it doesn't run here."""
        item = self.hand.get(trace)
        if item is None or item.held.life is not Life.RUNNING:
            return False
        self._stop(item, Stop.CANCELLED, why)
        return True

    async def _look_at(self, request: LookAtTask) -> Done:
        """Answer where a task is that runs here."""
        found = await self.slots.look(request.trace)
        if found is None or found[1] == "":
            return Done(ok=False, text=f"task {request.trace!r} doesn't run here, or not any more")
        run, stacks = found
        now = self._host.clock.monotonic()
        told = {
            "stacks": stacks,
            "ran_s": now - run.begun_at if run.begun_at is not None else 0.0,
            "quiet_s": now - run.advanced_at,
            "progress": run.progress.fraction or 0.0,
            "note": redact(run.progress.note),
            "numbers": run.progress.numbers,
        }
        return Done(text=msgspec.json.encode(told).decode())

    # --- the node

    async def drain(self) -> None:
        """Begin nothing new, give back waiting tasks, and let running ones finish; after the time for that,
        end them."""
        self._stopping = True
        for pump in self._pumps:
            pump.stopping = True
        for queue in self._queues.values():
            queue.wake()
        if self._pumping:
            await asyncio.wait(self._pumping)
        given_back = await self._hand_back()
        await self._run_out()
        await self._completer.settled()
        for keeper in self._keepers.values():
            await keeper.settled()
        await self._limiter.leave()
        if self._announcer is not None:
            await self._announcer.leave()
        self._host.log.info("tasks drained", given_back=given_back + self._returned, left=len(self.hand))

    async def _run_out(self) -> None:
        clock = self._host.clock
        until = clock.monotonic() + self._host.limits.drain_timeout_s
        told = False
        while (
            self._running()
            or self._returning
            or (self._starting and clock.monotonic() < until)  # the store may be away for longer
        ):
            if clock.monotonic() >= until and not told:
                told = True
                for item in list(self.hand.values()):
                    if item.held.life is Life.RUNNING:
                        self._stop(item, Stop.DRAIN)
            await clock.sleep(AHEAD_S / 50)

    async def close(self) -> None:
        await self.slots.close()

    def load(self) -> Load:
        busy, stats = float(len(self.slots.running)), self._host.stats
        ended = stats.tasks_succeeded + stats.tasks_failed + stats.tasks_timed_out
        queues = tuple(task_queue(self._app, name) for name in self._queues)
        return Load(
            slots=self._slots_max,
            room=0,
            draining=self._host.draining,
            busy=busy,
            queues=(*queues, brief_queue(self._app)),
            works=(WorkLoad(TASKS, self._slots_max, busy, ended, queues),),
        )

    async def _tell_running(self, request: RunningTasks) -> Done:
        """Answer which attempts run here, the oldest first."""
        now = self._host.clock.monotonic()
        found = [
            TaskActivity(trace, item.type, item.group, now - run.begun_at, item.progress, redact(item.note))
            for trace, run in self.slots.running.items()
            if run.begun_at is not None and (item := self.hand.get(trace)) is not None
        ]
        found.sort(key=lambda each: -each.runs_s)
        return Done(text=msgspec.json.encode(found[: request.most]).decode())

    def _left(self, member: str) -> None:
        """Free the deliveries of a dead node, if the queue can do that, so that its tasks may begin at
        once."""
        self._gone[member] = None
        if len(self._gone) > GONE_MAX:
            self._gone.popitem(last=False)
        self._host.tasks.spawn(free(self._queues.values(), member, self._host.log))

    async def maintain(self) -> None:
        """Delete tasks, dead letters and unread briefs that were kept long enough, by the store's clock."""
        limits = self._host.limits
        try:
            now = await self._store.now()
            await self._store.expire(now - limits.results_keep_s)
        except HoldfastError as error:
            self._host.log.warning("could not clean up", error=str(error))
            return
        await expire((*self._queues.values(), self._briefs), now - limits.dead_keep_s, self._host.log)
        try:
            dropped = await drop_old(self._briefs, now - limits.results_keep_s, self._host.membership.id)
        except HoldfastError as error:
            self._host.log.warning("could not drop old briefs", error=str(error))
            return
        if dropped:
            self._host.log.info("dropped briefs that no program has read", app=self._app, briefs=dropped)


def _is_due(item: InHand, member: str, now: float) -> bool:
    since_s = now - item.beat_at
    has_news = item.news or (item.attempt is not None and item.attempt.member != member)
    return since_s >= min(NEWS_S if has_news else HEAR_S, item.spec.visibility_s / BEATS_A_LEASE)


def _may_reissue(held: Held) -> bool:
    return held.life is Life.WAITING


async def _nobody_waits(receipts: list[Receipt], done: bool) -> None:
    """Do nothing: tasks aren't forwarded, so no other node waits for a report."""
