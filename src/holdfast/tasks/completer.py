"""Brings tasks to their end, many at once, in this order: store the outcome, send the follow-ups, the dead
letter of a failed task and the outcome event, hand over the effects, delete the message.

Where store and queues are one database, the event is stored with the outcome, if nothing has to be sent
before it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple, TypeVar

import msgspec

from holdfast.cluster.deliverer import Deliverer
from holdfast.cluster.deliveries import DELETE_LINGER_FACTOR, DeliveryTracker, Settlement, dead_letter
from holdfast.cluster.host import Host
from holdfast.common.held import PendingDeadLetter
from holdfast.common.redaction import redact
from holdfast.common.traceparent import TRACEPARENT
from holdfast.errors import Fenced, HoldfastError, InvalidMessage, TooLarge
from holdfast.ports.queue import DeadLetter, Outgoing
from holdfast.rules.tasks.task import CountMember, EndAttempt, State, Task
from holdfast.tasks.calls import STORE, is_refusal, retry_service, retry_unless_refused
from holdfast.tasks.effects import EffectSender
from holdfast.tasks.follow_ups import DETAIL_CHARS, DueFollowUp, due, without_value
from holdfast.tasks.held_tasks import HeldTask, HeldTasks
from holdfast.tasks.names import event_queue
from holdfast.tasks.outcome import Outcome, outcome_of
from holdfast.tasks.producer import Producer
from holdfast.tasks.storage import TaskStorage
from holdfast.tasks.wire import Envelope, encode_event, encode_follow_ups, encode_task, encode_without_body

T = TypeVar("T")
End = Callable[[Sequence[EndAttempt]], Awaitable[list[Task | Fenced]]]

ENDS_MAX = 500
"""The most outcomes in one call to the store."""

REFUSED_S = 30.0
"""Seconds until a refused call is tried again. An operator has to solve the cause, such as a missing
right."""

RATE_WAITS = 10
"""The longest waits over which the rate of outcomes is averaged."""

ALONE = 8
"""Divisor of the longest wait while no other task of the node may join the call."""


class Ending(NamedTuple):
    """A task, and the end of its attempt."""

    item: HeldTask
    end: EndAttempt

    @property
    def is_plain(self) -> bool:
        """True if nothing has to be sent or counted before its event."""
        attempt, message = self.item.attempt, self.item.message
        follows = attempt is None or attempt.follow_ups
        return not (follows or message.batch or self.end.state is not State.SUCCEEDED)


class Finished(msgspec.Struct, frozen=True):
    """A task whose outcome is stored, with the messages to send. ``first``: no event was sent before."""

    item: HeldTask
    task: Task
    outcome: Outcome
    first: bool
    letter: PendingDeadLetter | None = None
    follow_ups: Sequence[DueFollowUp] = ()


class Batcher:
    """Decides how long things wait to share a call, where a call takes ``batch`` of them at most, and none
    waits longer than ``linger_s``."""

    def __init__(self, batch: int, linger_s: float) -> None:
        self._batch = batch
        self._linger_s = linger_s
        self._rate = 0.0
        self._at = 0.0

    def came(self, now: float) -> None:
        """Note that one thing is ready."""
        memory_s = RATE_WAITS * self._linger_s
        seconds = max(0.0, now - self._at)
        self._rate = (self._rate * memory_s + 1) / (memory_s + seconds)
        self._at = now

    def patience_s(self, waiting: int, others: int) -> float:
        """Return how long the first of the ``waiting`` things may wait in total, while ``others`` are yet to
        be ready."""
        linger_s = self._linger_s if others else self._linger_s / ALONE
        return linger_s if 0 < self._batch - waiting <= self._rate * linger_s else 0.0


class Completer:
    """Brings the tasks of ``held`` to their end. ``producer`` sends follow-ups, ``deliverer`` hands over
    effects, and ``deliveries`` deletes messages, by queue."""

    def __init__(
        self,
        host: Host,
        storage: TaskStorage,
        deliveries: Mapping[str, DeliveryTracker],
        producer: Producer,
        deliverer: Deliverer,
        held: HeldTasks,
    ) -> None:
        self._host = host
        self._clock, self._tasks, self._stats, self._log = host.clock, host.tasks, host.stats, host.log
        self._app, self._store, self._briefing = storage.app, storage.store, storage.briefing
        self._queues, self._events = storage.queues, storage.events
        self._deliveries = deliveries
        self._producer = producer
        self._effects = EffectSender(host, storage.store, deliverer)
        self._held = held
        self._ends: list[Ending] = []
        self._finished: list[Finished] = []
        self._ended = asyncio.Event()
        self._ready = asyncio.Event()
        linger_s = DELETE_LINGER_FACTOR * self._events.linger_s
        self._batcher = Batcher(self._events.max_batch, linger_s) if linger_s else None
        self._patient = True
        self._busy = 0
        self._at_end = 0
        self._idle = asyncio.Event()
        self._idle.set()

    def start(self) -> None:
        """Start to work."""
        self._tasks.repeat(self._store_loop, self._clock, self._log)
        self._tasks.repeat(self._send_loop, self._clock, self._log)

    def end(self, item: HeldTask, end: EndAttempt) -> None:
        """Take the outcome of an attempt. It counts once it is stored."""
        self._ends.append(Ending(item, end))
        self._begin(1)
        self._ended.set()

    def take_ended(self, item: HeldTask, task: Task) -> None:
        """Take a message of a task that has ended. If its outcome event was never sent, this
        sends it, with the dead letter and the follow-up tasks.
        Otherwise the message is a duplicate, or a stand-in that isn't needed any more."""
        letter = None if task.briefed else dead_letter_of(item, task)
        outcome = outcome_of(self._app, task)
        follow_ups = _following(item, task, outcome)
        if task.briefed:
            detail = f"the task had ended before: {task.state.value}"
            outcome = msgspec.structs.replace(
                outcome, state=State.DUPLICATED, value=None, stored=None, detail=detail
            )
        item.outcome_known()
        self._begin(1)
        if task.briefed and (task.effects or item.is_stand_in(task)):
            self._at_end += 1
            self._settle(item, task)
        else:
            self._queue(Finished(item, task, outcome, not task.briefed, letter, follow_ups))

    async def settled(self) -> None:
        """Wait until all these tasks have ended. From now on calls don't wait for each other, and no target
        that is away is waited for."""
        self._patient = False
        self._effects.hurry()
        self._ready.set()
        await self._idle.wait()
        self._patient = True

    def _begin(self, count: int) -> None:
        self._busy += count
        self._idle.clear()

    def _done(self, count: int) -> None:
        self._busy -= count
        if not self._busy:
            self._idle.set()

    # --- to the store

    async def _store_loop(self) -> None:
        while True:
            await self._ended.wait()
            await self._store_next()

    async def _store_next(self) -> None:
        # Apart from the loop, which would keep the last tasks in memory while it waits.
        taken, self._ends = self._ends[:ENDS_MAX], self._ends[ENDS_MAX:]
        if not self._ends:
            self._ended.clear()
        if self._briefing is None:
            await self._store_some(taken, self._store.end)
            return
        plain = [each for each in taken if each.is_plain]
        others = [each for each in taken if not each.is_plain]
        event = partial(self._event_from, {each.end.task_id: each.item for each in plain})
        end_and_brief = partial(self._briefing.end_and_brief, queue=event_queue(self._app), brief=event)
        halves = ((plain, end_and_brief), (others, self._store.end))
        # At once, as each is a durable transaction.
        await asyncio.gather(*(self._store_some(half, end) for half, end in halves if half))

    async def _store_some(self, taken: Sequence[Ending], end: End) -> None:
        seen = list[int]()

        def ask() -> Awaitable[list[Task | Fenced]]:
            seen[:] = [len(each.item.held.receipts) for each in taken]
            return end([each.end for each in taken])

        answers = await retry_unless_refused(self._host, STORE, ask)
        if answers is None:
            for each in taken:
                self._tasks.spawn(self._store_alone(each, end))
            return
        for (item, _), answer, receipts in zip(taken, answers, seen, strict=True):
            if isinstance(answer, Task):
                self._held.give_back_later(item, receipts)
                item.outcome_known()
                self._stats.tasks_succeeded += answer.state is State.SUCCEEDED
                self._stats.tasks_failed += answer.state is State.FAILED
                self._stats.tasks_timed_out += answer.state is State.TIMEOUT
                if answer.briefed:
                    self._at_end += 1
                    self._settle(item, answer)
                    continue
                outcome = outcome_of(self._app, answer)
                letter, follow_ups = dead_letter_of(item, answer), _following(item, answer, outcome)
                self._queue(Finished(item, answer, outcome, True, letter, follow_ups))
                continue
            self._stats.fenced += 1
            self._log.info("outcome refused", task_id=item.task_id, error=str(answer))
            self._held.drop(item)
            self._done(1)

    async def _store_alone(self, ending: Ending, end: End) -> None:
        """Store an outcome that was refused again, perhaps because of another outcome in the same call. Until
        it is stored, the task isn't run again here."""
        await self._clock.sleep(REFUSED_S)
        await self._store_some([ending], end)

    def _event_from(self, items: Mapping[str, HeldTask], task: Task) -> Outgoing:
        item = items[task.task_id]
        return _event_of(item, outcome_of(self._app, task))

    # --- to the producer

    def _queue(self, finished: Finished) -> None:
        self._at_end += 1
        self._finished.append(finished)
        if self._batcher is not None:
            self._batcher.came(self._clock.monotonic())
        self._ready.set()

    async def _send_loop(self) -> None:
        while True:
            await self._ready.wait()
            if not self._finished:
                self._ready.clear()
                continue
            await self._wait_for_others()
            await self._send_all()

    async def _send_all(self) -> None:
        size = self._events.max_batch
        taken, self._finished = self._finished, []
        self._ready.clear()
        await asyncio.gather(
            *(self._send_some(taken[start : start + size]) for start in range(0, len(taken), size))
        )

    async def _wait_for_others(self) -> None:
        """Wait for other outcomes to share the call, where calls cost money and if some will come soon."""
        began_at = self._clock.monotonic()
        while self._patient and self._batcher is not None:
            others = len(self._held.by_id) - self._at_end
            patience_s = self._batcher.patience_s(len(self._finished), others)
            left_s = began_at + patience_s - self._clock.monotonic()
            if left_s <= 0:
                return
            self._ready.clear()
            await self._clock.wait(self._ready, left_s)

    async def _send_some(self, taken: Sequence[Finished]) -> None:
        """Send dead letters and follow-ups before events: after a task's event, no node checks whether they
        were sent. If a service refuses one of these, the task's message goes back to its queue, and its next
        receiver goes on."""
        refused = await asyncio.gather(
            self.hand_over(taken),
            self.count_members([done for done in taken if done.first and done.item.message.batch]),
            *(self._dead_letter(done) for done in taken if done.letter),
        )
        later = set[str]().union(*refused)
        ready = [done for done in taken if done.item.task_id not in later]
        if ready and not await self._send_events(ready):
            ready, later = [], {done.item.task_id for done in taken}
        for done in taken:
            if done.item.task_id in later:
                self._rest(done.item, REFUSED_S)
        for done in ready:
            self._stats.tasks_duplicated += done.outcome.state is State.DUPLICATED
            self._settle(done.item, done.task)
        sent = [(done.item.task_id, done.outcome.epoch) for done in ready if done.first]
        if sent:
            await retry_unless_refused(self._host, STORE, lambda: self._store.briefed(sent))

    async def _send_events(self, ready: Sequence[Finished], *, short: bool = False) -> bool:
        """Send outcome events. An event that the queue calls too large is sent without what isn't needed.
        Returns False if the queue refuses one for another reason."""
        events = [_event_of(done.item, done.outcome, short) for done in ready]
        try:
            sent = await retry_unless_refused(
                self._host, "the queue of outcome events", partial(_answered, self._events.send, events)
            )
        except TooLarge as error:
            if len(ready) > 1:
                return all([await self._send_events([one]) for one in ready])
            done = ready[0]
            if not short:
                detail = f"{done.outcome.detail[:DETAIL_CHARS]}\nthe rest is left out: {error}".strip()
                outcome = msgspec.structs.replace(done.outcome, value=None, stored=None, detail=detail)
                return await self._send_events([msgspec.structs.replace(done, outcome=outcome)], short=True)
            self._log.error(
                "outcome event too large",
                fix="raise the queue's limit of a message",
                task_id=done.outcome.task_id,
                error=str(error),
            )
            return True
        return sent is not None

    async def _dead_letter(self, done: Finished) -> set[str]:
        """Send the dead letter of a task. Returns its id if that is refused."""
        assert done.letter is not None
        letter = dead_letter(done.item.queue, done.item.full_key, done.letter, self._clock.wall())
        # A repeated send is the same task, even with another message id.
        letter = msgspec.structs.replace(letter, attributes=done.item.held.again)
        is_sent = await self._send_dead_letter(done.item.queue, letter, done.item.message.envelope)
        return set() if is_sent else {done.item.task_id}

    async def _send_dead_letter(self, queue: str, letter: DeadLetter, envelope: Envelope) -> bool:
        """Send a dead letter. If the queue calls it too large, it is sent with a short reason, then without
        the body, so that it doesn't end every node that has its task. Returns False if the queue refuses it
        for another reason."""
        for each in (letter, _terse(letter), _without_body(letter, envelope)):
            try:
                sent = await retry_unless_refused(
                    self._host, "the queue", partial(_answered, self._queues[queue].bury, [each])
                )
            except TooLarge as error:
                self._log.error(
                    "dead letter too large",
                    fix="raise the queue's limit of a message, or send smaller bodies",
                    task_id=envelope.task_id,
                    error=str(error),
                )
            else:
                self._stats.set_aside += sent is not None
                return sent is not None
        return True  # the queue would take none

    # --- follow-ups

    async def hand_over(self, taken: Sequence[Finished]) -> set[str]:
        """Send the follow-ups of these outcomes. Returns the ids of tasks that still have one to send."""
        every = [follow_up for done in taken for follow_up in done.follow_ups]
        if not every:
            return set()
        refused: list[set[str]] = []
        try:
            await self.send_follow_ups(every)
        except HoldfastError:  # of one of them, so each goes by itself
            refused = await asyncio.gather(
                *(self._hand_over_one(done, each) for done in taken for each in done.follow_ups)
            )
        else:
            self._stats.tasks_followed += len(every)
        return set[str]().union(*refused)

    async def count_members(self, taken: Sequence[Finished]) -> set[str]:
        """Count tasks as ended in their batches, and send the follow-ups of batches that end by that. Returns
        the ids of tasks for which that is refused."""
        changes = [
            CountMember(
                batch.task_id,
                batch.size,
                batch.place,
                not done.outcome.ok,
                encode_follow_ups(batch.follow_ups),
            )
            for done in taken
            if (batch := done.item.message.batch) is not None
        ]
        if not changes:
            return set()
        counted = await retry_unless_refused(self._host, STORE, lambda: self._store.count(changes))
        if counted is None:
            return {done.item.task_id for done in taken}
        ended = {
            task.task_id: (done.item, task)
            for done, task in zip(taken, counted, strict=True)
            if task.ended and not task.briefed
        }
        finished = []
        for item, task in ended.values():
            outcome = outcome_of(self._app, task)
            finished.append(Finished(item, task, outcome, True, None, _following(item, task, outcome)))
        refused = await self.hand_over(finished)
        sent = [(task.task_id, task.epoch) for item, task in ended.values() if item.task_id not in refused]
        if sent:
            await retry_unless_refused(self._host, STORE, lambda: self._store.briefed(sent))
        return refused

    async def _hand_over_one(self, done: Finished, follow_up: DueFollowUp) -> set[str]:
        """Send a follow-up, or its dead letter if no queue would ever take it. Returns the task's id if the
        dead letter is refused, or the follow-up for a reason that an operator can solve. In that case the
        follow-up may have been sent, so it gets no dead letter."""
        try:
            try:
                await self.send_follow_ups([follow_up])
            except TooLarge as error:
                await self.send_follow_ups([without_value(follow_up, done.outcome, error)])
            self._stats.tasks_followed += 1
        except HoldfastError as error:
            self._log.error("cannot send follow-up", task_id=done.outcome.task_id, error=str(error))
            if not isinstance(error, TooLarge | InvalidMessage):
                return {done.item.task_id}
            letter = DeadLetter(
                id=f"{follow_up.type}/{follow_up.task_id}",
                body=encode_task(follow_up.task),
                reason=redact(f"a follow-up of task {done.outcome.task_id} can't be sent: {error}"),
                stream=done.item.queue,
                key=follow_up.task_id,
                at=self._clock.wall(),
            )
            if not await self._send_dead_letter(done.item.queue, letter, follow_up.task.envelope):
                return {done.item.task_id}
        return set()

    async def send_follow_ups(self, follow_ups: Sequence[DueFollowUp]) -> None:
        """Send follow-ups, and repeat that until it is answered. Raises a refusal."""
        send = partial(self._producer.hand_over, follow_ups)
        await retry_service(self._host, "the queue of a follow-up", send, raises=is_refusal)

    # --- effects, then the message

    def _settle(self, item: HeldTask, task: Task) -> None:
        """Delete the task's message, once its effects are handed over."""
        if task.effects:
            self._tasks.spawn(self._settle_with_effects(item, task))
        else:
            self._delete(item)

    async def _settle_with_effects(self, item: HeldTask, task: Task) -> None:
        rest_s = await self._effects.send(item, task)
        if rest_s:
            self._rest(item, rest_s)
        else:
            self._delete(item)

    def _rest(self, item: HeldTask, rest_s: float) -> None:
        """Give back an ended task that has something left to do."""
        self._at_end -= 1
        self._done(1)
        self._held.rest(item, rest_s)

    def _delete(self, item: HeldTask) -> None:
        settlement = Settlement(item.full_key, (), (item.held,), partial(self._gone, item))
        self._deliveries[item.queue].settle(settlement)

    def _gone(self, item: HeldTask) -> None:
        self._held.forget(item)
        self._at_end -= 1
        self._done(1)


async def _answered(call: Callable[[Sequence[T]], Awaitable[object]], given: Sequence[T]) -> bool:
    await call(given)
    return True


def _event_of(item: HeldTask, outcome: Outcome, short: bool = False) -> Outgoing:
    """Return an outcome event as its queue takes it; ``short`` leaves out unknown fields of the envelope."""
    envelope, traceparent = item.message.envelope, item.held.context
    if short:
        envelope = msgspec.structs.replace(envelope, raw=b"")
    return Outgoing(encode_event(envelope, outcome), {TRACEPARENT: traceparent} if traceparent else {})


def _following(item: HeldTask, task: Task, outcome: Outcome) -> list[DueFollowUp]:
    if not task.follow_ups and not item.message.follow_ups:
        return []
    return due(task, outcome, item.message, item.held.context)


def _terse(letter: DeadLetter) -> DeadLetter:
    """Return a dead letter with the beginning of its reason."""
    return msgspec.structs.replace(letter, reason=letter.reason[:DETAIL_CHARS], detail="")


def _without_body(letter: DeadLetter, envelope: Envelope) -> DeadLetter:
    """Return a dead letter that only names its task. Sent again, the task is refused."""
    return msgspec.structs.replace(
        _terse(letter),
        body=encode_without_body(envelope),
        attributes={"id": letter.attributes["id"]} if "id" in letter.attributes else {},
        detail=f"the body is left out: of {len(letter.body)} bytes, it is too large for a dead letter",
    )


def dead_letter_of(item: HeldTask, task: Task) -> PendingDeadLetter | None:
    """Return the dead letter of an ended task; None if it succeeded or was cancelled."""
    if task.state is State.SUCCEEDED or task.cancelled:
        return None
    reason, _, detail = task.detail.partition("\n")
    return PendingDeadLetter(f"{task.state.value}: {reason}", item.held, detail=detail)
