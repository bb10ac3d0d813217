"""The completer brings tasks to their end. It stores the outcome, sends the tasks that follow, sends a dead
letter if the task failed and the brief to the producer, hands over the effects, and only then deletes the
message. Each step takes many tasks at once.

Where store and queues are one database, the brief is stored with the outcome, if nothing has to be sent
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
from holdfast.tasks.batching import Batcher
from holdfast.tasks.calls import STORE, is_refusal, retry_service, retry_unless_refused
from holdfast.tasks.effects import EffectSender
from holdfast.tasks.follow_ups import DETAIL_CHARS, DueFollowUp, due, without_value
from holdfast.tasks.held_tasks import HeldTask, HeldTasks
from holdfast.tasks.names import brief_queue
from holdfast.tasks.outcome import Outcome, outcome_of
from holdfast.tasks.producer import Producer
from holdfast.tasks.returns import TaskReturns
from holdfast.tasks.storage import TaskStorage
from holdfast.tasks.wire import Envelope, encode_brief, encode_follow_ups, encode_task, encode_without_body

T = TypeVar("T")

ENDS_MAX = 500
"""The most outcomes in one call to the store."""

REFUSED_S = 30.0
"""After how long a call is tried again that a service has refused for good: people have to mend that, such as
a right that is missing."""


class Ending(NamedTuple):
    """The end of an attempt."""

    item: HeldTask
    end: EndAttempt

    @property
    def is_plain(self) -> bool:
        """True if nothing has to be sent or counted before its brief."""
        attempt, message = self.item.attempt, self.item.message
        follows = attempt is None or attempt.follow_ups
        return not (follows or message.batch or self.end.state is not State.SUCCEEDED)


class Finished(msgspec.Struct, frozen=True):
    """A task whose outcome is stored, and its record. ``outcome`` is what the producer gets; ``first`` is
    true if no brief was sent before. ``follow_ups`` are to be sent."""

    item: HeldTask
    task: Task
    outcome: Outcome
    first: bool
    letter: PendingDeadLetter | None = None
    follow_ups: Sequence[DueFollowUp] = ()


class OutgoingBrief(NamedTuple):
    """A brief to send, and its task's place in a trace."""

    envelope: Envelope
    outcome: Outcome
    traceparent: str


class Completer:
    """Brings tasks of ``held`` to their end. ``producer`` sends what follows them, ``deliverer`` hands over
    their effects, and ``returns`` gives those back that can't end now."""

    def __init__(
        self,
        host: Host,
        storage: TaskStorage,
        deliveries: Mapping[str, DeliveryTracker],
        producer: Producer,
        deliverer: Deliverer,
        held: HeldTasks,
        returns: TaskReturns,
    ) -> None:
        self._host = host
        self._clock, self._tasks, self._stats, self._log = host.clock, host.tasks, host.stats, host.log
        self._app, self._store, self._briefing = storage.app, storage.store, storage.briefing
        self._queues, self._briefs = storage.queues
        self._deliveries = deliveries
        self._producer = producer
        self._effects = EffectSender(host, storage.store, deliverer)
        self._held = held
        self._returns = returns
        self._ends: list[Ending] = []
        self._finished: list[Finished] = []
        self._ended = asyncio.Event()
        self._to_tell = asyncio.Event()
        linger_s = DELETE_LINGER_FACTOR * self._briefs.linger_s
        self._batcher = Batcher(self._briefs.max_batch, linger_s) if linger_s else None
        self._patient = True
        self._busy = 0
        self._at_end = 0
        self._idle = asyncio.Event()
        self._idle.set()

    def start(self) -> None:
        """Start to work."""
        self._tasks.repeat(self._store_loop, self._clock, self._log)
        self._tasks.repeat(self._tell_loop, self._clock, self._log)

    def end(self, item: HeldTask, end: EndAttempt) -> None:
        """Take the outcome of an attempt. It counts once it is stored."""
        self._ends.append(Ending(item, end))
        self._begin(1)
        self._ended.set()

    def tell(self, item: HeldTask, task: Task) -> None:
        """Take a message whose task already has its outcome. If the task's brief was never sent, it is sent
        now, and so are effects that are left. Otherwise the message is a duplicate, or a stand-in that is no
        longer needed."""
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
        """Wait until all these tasks have ended. From now on, calls are made at once instead of when they are
        full, and no target that is away is waited for."""
        self._patient = False
        self._effects.hurry()
        self._to_tell.set()
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
        taken, self._ends = self._ends[:ENDS_MAX], self._ends[ENDS_MAX:]
        if not self._ends:
            self._ended.clear()
        await self._store_all(taken)

    async def _store_all(self, taken: Sequence[Ending]) -> None:
        briefing = self._briefing
        if briefing is None:
            await self._store_some(taken, self._store.end)
            return
        plain = [each for each in taken if each.is_plain]
        others = [each for each in taken if not each.is_plain]
        brief = partial(self._brief_from, {each.end.task_id: each.item for each in plain})
        end_and_brief = partial(briefing.end_and_brief, queue=brief_queue(self._app), brief=brief)
        halves = ((plain, end_and_brief), (others, self._store.end))
        # At once, as each is a durable transaction.
        await asyncio.gather(*(self._store_some(half, end) for half, end in halves if half))

    async def _store_some(
        self, taken: Sequence[Ending], end: Callable[[Sequence[EndAttempt]], Awaitable[list[Task | Fenced]]]
    ) -> None:
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
                self._returns.give_back_later(item, receipts)
                item.outcome_known()
                self._count(answer)
                if answer.briefed:
                    self._at_end += 1
                    self._settle(item, answer)
                    continue
                outcome = outcome_of(self._app, answer)
                letter, follow_ups = dead_letter_of(item, answer), _following(item, answer, outcome)
                self._queue(Finished(item, answer, outcome, True, letter, follow_ups))
                continue
            if isinstance(answer, Fenced):
                self._stats.fenced += 1
                self._log.info("an outcome came too late", task_id=item.task_id, error=str(answer))
            self._returns.drop(item)
            self._done(1)

    async def _store_alone(
        self, ending: Ending, end: Callable[[Sequence[EndAttempt]], Awaitable[list[Task | Fenced]]]
    ) -> None:
        """Store an outcome once more that was refused for good, perhaps because of another one beside it.
        Until somebody has mended what refuses it, its task isn't run again here."""
        await self._clock.sleep(REFUSED_S)
        await self._store_some([ending], end)

    def _brief_from(self, items: Mapping[str, HeldTask], task: Task) -> Outgoing:
        """The brief of one of these tasks."""
        item = items[task.task_id]
        return _outgoing(item.message.envelope, outcome_of(self._app, task), item.held.context)

    def _count(self, task: Task) -> None:
        self._stats.tasks_succeeded += task.state is State.SUCCEEDED
        self._stats.tasks_failed += task.state is State.FAILED
        self._stats.tasks_timed_out += task.state is State.TIMEOUT

    # --- to the producer

    def _queue(self, finished: Finished) -> None:
        self._at_end += 1
        self._finished.append(finished)
        if self._batcher is not None:
            self._batcher.came(self._clock.monotonic())
        self._to_tell.set()

    async def _tell_loop(self) -> None:
        while True:
            await self._to_tell.wait()
            if not self._finished:
                self._to_tell.clear()
                continue
            await self._meet()
            await self._tell_all()

    async def _tell_all(self) -> None:
        size = self._briefs.max_batch
        taken, self._finished = self._finished, []
        self._to_tell.clear()
        await asyncio.gather(
            *(self._tell(taken[start : start + size]) for start in range(0, len(taken), size))
        )

    async def _meet(self) -> None:
        """Wait for other outcomes to share the call, where calls cost money and if some will come soon."""
        began_at = self._clock.monotonic()
        while self._patient and self._batcher is not None:
            others = len(self._held.by_id) - self._at_end
            patience_s = self._batcher.patience_s(len(self._finished), others)
            left_s = began_at + patience_s - self._clock.monotonic()
            if left_s <= 0:
                return
            self._to_tell.clear()
            await self._clock.wait(self._to_tell, left_s)

    async def _tell(self, taken: Sequence[Finished]) -> None:
        """Send dead letters and follow-ups before briefs: once a task's brief was sent, nothing checks
        whether they were. If a service refuses one of these, the task's message goes back to its queue, and
        somebody tells of the task later."""
        refused = await asyncio.gather(
            self.hand_over(taken),
            self.count_members([done for done in taken if done.first and done.item.message.batch]),
            *(self._bury(done) for done in taken if done.letter),
        )
        later = set[str]().union(*refused)
        ready = [done for done in taken if done.item.task_id not in later]
        briefs = [
            OutgoingBrief(done.item.message.envelope, done.outcome, done.item.held.context) for done in ready
        ]
        if briefs and not await self._send(briefs):
            ready, later = [], {done.item.task_id for done in taken}
        for done in taken:
            if done.item.task_id in later:
                self._rest(done.item, REFUSED_S)
        for done in ready:
            self._stats.tasks_duplicated += done.outcome.state is State.DUPLICATED
            self._settle(done.item, done.task)
        told = [(done.item.task_id, done.outcome.epoch) for done in ready if done.first]
        if told:
            await retry_unless_refused(self._host, STORE, lambda: self._store.briefed(told))

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
        """Give back a task that has ended, of which something is left to be done."""
        self._at_end -= 1
        self._done(1)
        self._returns.rest(item, rest_s)

    def _delete(self, item: HeldTask) -> None:
        settlement = Settlement(item.full_key, (), (item.held,), partial(self._gone, item))
        self._deliveries[item.queue].settle(settlement)

    async def _bury(self, done: Finished) -> set[str]:
        """Send the dead letter of a task. Returns its task id if that is refused."""
        assert done.letter is not None
        letter = dead_letter(done.item.queue, done.item.full_key, done.letter, self._clock.wall())
        # A repeated send is the same task, even with another message id.
        letter = msgspec.structs.replace(letter, attributes=done.item.held.again)
        is_sent = await self._set_aside(done.item.queue, letter, done.item.message.envelope)
        return set() if is_sent else {done.item.task_id}

    async def _set_aside(self, queue: str, letter: DeadLetter, envelope: Envelope) -> bool:
        """Send a dead letter. If the queue calls it too large, it says less: a letter without a body still
        tells of the outcome, and refused as it is, it would end every node that has its task. Returns False
        if the queue refuses it for another reason."""
        for each in (letter, _terse(letter), _without_body(letter, envelope)):
            try:
                sent = await retry_unless_refused(
                    self._host, "the queue", partial(_answered, self._queues[queue].bury, [each])
                )
            except TooLarge as error:
                self._log.error(
                    "a dead letter is too large for its queue", task_id=envelope.task_id, error=str(error)
                )
            else:
                self._stats.set_aside += sent is not None
                return sent is not None
        return True  # there is nothing that its queue would take

    async def hand_over(self, taken: Sequence[Finished]) -> set[str]:
        """Send what follows upon these outcomes. Returns the task ids of tasks of which a follow-up is still
        to be sent."""
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
        """Have tasks counted in their batches, and send what follows a batch that has ended by that. Returns
        the task ids of tasks for which that is refused."""
        if not taken:
            return set()
        counted = await retry_unless_refused(
            self._host,
            STORE,
            lambda: self._store.count(
                [
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
            ),
        )
        if counted is None:
            return {done.item.task_id for done in taken}
        ended = {
            batch.task_id: (done.item, batch)
            for done, batch in zip(taken, counted, strict=True)
            if batch.ended and not batch.briefed
        }
        if not ended:
            return set()
        finished = []
        for item, batch in ended.values():
            outcome = outcome_of(self._app, batch)
            finished.append(Finished(item, batch, outcome, True, None, _following(item, batch, outcome)))
        refused = await self.hand_over(finished)
        told = [(batch.task_id, batch.epoch) for item, batch in ended.values() if item.task_id not in refused]
        if told:
            await retry_unless_refused(self._host, STORE, lambda: self._store.briefed(told))
        return refused

    async def _hand_over_one(self, done: Finished, follow_up: DueFollowUp) -> set[str]:
        """Send a follow-up, or its dead letter if no queue would ever take it. Returns the task's task id if
        that is refused, or if the follow-up is for another reason: people have to mend that, such as a right
        that is missing. It may have been sent all the same, so it gets no letter."""
        try:
            try:
                await self.send_follow_ups([follow_up])
            except TooLarge as error:
                await self.send_follow_ups([without_value(follow_up, done.outcome, error)])
            self._stats.tasks_followed += 1
        except HoldfastError as error:
            self._log.error("a follow-up can't be sent", task_id=done.outcome.task_id, error=str(error))
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
            if not await self._set_aside(done.item.queue, letter, follow_up.task.envelope):
                return {done.item.task_id}
        return set()

    async def send_follow_ups(self, follow_ups: Sequence[DueFollowUp]) -> None:
        """Send follow-ups, and repeat that until it is answered. Raises what is refused for good."""
        send = partial(self._producer.hand_over, follow_ups)
        await retry_service(self._host, "the queue of a follow-up", send, raises=is_refusal)

    def _gone(self, item: HeldTask) -> None:
        self._held.forget(item)
        self._at_end -= 1
        self._done(1)

    async def _send(self, briefs: Sequence[OutgoingBrief], *, short: bool = False) -> bool:
        """Send briefs. If the queue calls one too large, it says less. Returns False if the queue refuses one
        for another reason."""
        outgoing = [_outgoing(*each) for each in briefs]
        try:
            sent = await retry_unless_refused(
                self._host, "the queue of briefs", partial(_answered, self._briefs.send, outgoing)
            )
        except TooLarge as error:
            if len(briefs) > 1:
                return all([await self._send([one]) for one in briefs])
            if not short:
                return await self._send([_short(briefs[0], error)], short=True)
            self._log.error(
                "even the shortest brief is too large for its queue",
                task_id=briefs[0].outcome.task_id,
                error=str(error),
            )
            return True
        return sent is not None


async def _answered(call: Callable[[Sequence[T]], Awaitable[object]], given: Sequence[T]) -> bool:
    """Make a call whose answer doesn't matter, and return True once it is answered."""
    await call(given)
    return True


def _outgoing(envelope: Envelope, outcome: Outcome, traceparent: str) -> Outgoing:
    """A brief as its queue takes it."""
    return Outgoing(encode_brief(envelope, outcome), {TRACEPARENT: traceparent} if traceparent else {})


def _following(item: HeldTask, task: Task, outcome: Outcome) -> list[DueFollowUp]:
    """Return what follows upon an outcome: for most tasks, nothing."""
    if not task.follow_ups and not item.message.follow_ups:
        return []
    return due(task, outcome, item.message, item.held.context)


def _short(brief: OutgoingBrief, error: TooLarge) -> OutgoingBrief:
    """Return a brief without what isn't needed."""
    detail = f"{brief.outcome.detail[:DETAIL_CHARS]}\nthe rest is left out: {error}".strip()
    told = msgspec.structs.replace(brief.outcome, value=None, stored=None, detail=detail)
    return brief._replace(envelope=msgspec.structs.replace(brief.envelope, raw=b""), outcome=told)


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
    """Return the dead letter of a task that has ended; None if it succeeded or was cancelled."""
    if task.state is State.SUCCEEDED or task.cancelled:
        return None
    reason, _, detail = task.detail.partition("\n")
    return PendingDeadLetter(f"{task.state.value}: {reason}", item.held, detail=detail)
