"""Sends tasks, receives their outcomes and reads their state, for producers."""

from __future__ import annotations

import asyncio
import collections
import math
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple, Unpack

import msgspec

from holdfast.common.acts import HOPS
from holdfast.common.message import check_key, check_text
from holdfast.common.progress import chunks
from holdfast.common.redaction import redact
from holdfast.common.retry import Backoff
from holdfast.common.traceparent import TRACEPARENT
from holdfast.errors import (
    ConfigError,
    HoldfastError,
    InvalidMessage,
    OperationRefused,
    OutcomeUnknown,
    Retry,
    TooLarge,
    ValueLost,
)
from holdfast.ports.clock import Clock
from holdfast.ports.dead_letters import Reads, at_once, batches, dead_letters
from holdfast.ports.queue import DeadLetter, Delivery, Outgoing, Queue
from holdfast.ports.tasks import TaskStore
from holdfast.rules.tasks.task import (
    BATCH,
    MEMBERS_MAX,
    CountMember,
    DelayTask,
    State,
    Task,
    failed_in,
    name_in_batch,
)
from holdfast.system.retrying import may_repeat, retry_call
from holdfast.system.spans import sending
from holdfast.tasks.body import Body, body_of
from holdfast.tasks.follow_ups import AFTER_BYTES_MAX, DueFollowUp, due
from holdfast.tasks.names import STAND_IN, deduplicated, event_queue, task_queue
from holdfast.tasks.order import BatchOptions, Order
from holdfast.tasks.outcome import Outcome, outcome_of
from holdfast.tasks.resending import divided, resend_effects
from holdfast.tasks.values import TaskValues
from holdfast.tasks.wire import (
    BatchPlace,
    Envelope,
    FollowUp,
    SentTask,
    decode_event,
    decode_task,
    encode_follow_ups,
    encode_task,
    with_attributes,
    without_attributes,
)

READ_AGAIN = Backoff(0.1, 2.0)
"""The pauses before outcome events are received again while their queue doesn't answer."""

EVENT_VISIBILITY_S = 60.0
"""Seconds after which an outcome event that isn't acknowledged comes again."""

DROPPED_MAX = 10_000
"""The most outcome events that are dropped in one round."""

TYPES_S = 60.0
"""The shortest seconds between two reads of the types that nodes run."""

CANCELS_MAX = 100
"""The most tasks of a batch that are cancelled at once."""

ACK_LINGER_S = 0.2
RECEIVE_WAIT_S = 20.0
POLL_FIRST_S, POLL_MAX_S = 0.005, 0.5

FAILED_NAMED = 10
"""The most failed tasks of a batch that an error names."""

STAND_IN_S = 5.0
"""Seconds for which the queue hides the message of a task that was given to a node directly. The task should
have begun by then."""


class Brief(msgspec.Struct, frozen=True):
    """An outcome event that has arrived. It comes again until ``ack`` is called."""

    outcome: Outcome
    ack: Callable[[], None]


class _Sending(NamedTuple):
    """A task that is ready to be sent, and its message. ``hops`` effects led to it."""

    envelope: Envelope
    body: bytes
    delay_s: float = 0.0
    hops: int = 0
    traceparent: str = ""

    @property
    def task_id(self) -> str:
        return self.envelope.task_id

    @property
    def type(self) -> str:
        return self.envelope.task_type

    @property
    def attributes(self) -> dict[str, str]:
        """The attributes of its message."""
        marks = {HOPS: str(self.hops)} if self.hops else {}
        return marks | ({TRACEPARENT: self.traceparent} if self.traceparent else {})


class Producer:
    """Sends the tasks of ``app`` and receives their outcomes. ``queue`` opens a queue by name. One receive
    waits up to ``receive_wait_s``, and ``close`` may have to wait for it. ``declared`` returns the types of
    tasks that nodes run now. ``values`` stores bodies that are too large for a queue."""

    def __init__(
        self,
        app: str,
        queue: Callable[[str], Queue],
        store: TaskStore,
        clock: Clock,
        log: Any,
        *,
        receive_wait_s: float = RECEIVE_WAIT_S,
        declared: Callable[[], Awaitable[Collection[str]]] | None = None,
        values: TaskValues | None = None,
    ) -> None:
        self._app = app
        self._queue = queue
        self._queues: dict[str, Queue] = {}  # by the type of their tasks
        self._store = store
        self._clock = clock
        self._log = log
        self._receive_wait_s = receive_wait_s
        self._declared = declared
        self._values = values or TaskValues(app, clock)
        self._known = set[str]()
        self._read_types_at = -math.inf
        self._acked: list[str] = []
        self._acking = asyncio.Event()
        self._unread: list[collections.deque[Delivery]] = []
        self._closes = 0

    async def send(
        self, orders: Sequence[Order], *, hops: Sequence[int] = (), traceparents: Sequence[str] = ()
    ) -> list[str]:
        """Send tasks; returns their task ids, in order. If the task of an order, by its task id or dedupe
        key, has already begun or ended, it isn't sent again. ``hops`` says of each how many effects led to
        it, and ``traceparents`` its place in a trace. Raises InvalidMessage and TooLarge before anything is
        sent. If a queue doesn't answer, some may have been sent. Sending the same again does no harm if the
        orders have task ids or dedupe keys."""
        sent = [await self._checked(order, self.delay_s(order)) for order in orders]
        if hops:
            sent = [each._replace(hops=count) for each, count in zip(sent, hops, strict=True)]
        await self._warn_of_unknown_types({name for order in orders for name in order.types})
        if traceparents:
            await self._send([s._replace(traceparent=t) for s, t in zip(sent, traceparents, strict=True)])
        else:
            await self._send_traced(sent)
        return [each.task_id for each in sent]

    async def send_batch(self, orders: Sequence[Order], **options: Unpack[BatchOptions]) -> str:
        """Send tasks together, and once all have ended what follows them; returns the id of the batch. A
        batch that is known by its ``task_id`` or ``dedupe`` is sent again as far as it hasn't ended. Raises
        as ``send``, before anything is sent."""
        if not 1 <= len(orders) <= MEMBERS_MAX:
            raise InvalidMessage(
                f"a batch has 1 to {MEMBERS_MAX} tasks; this one has {len(orders)}", "orders"
            )
        if any(order.task_id or order.dedupe for order in orders):
            raise InvalidMessage("a task of a batch has no task_id or dedupe; the batch may", "orders")
        whole = Order(task_type=BATCH, **options)
        batch = await self._lightened(whole)
        task_id = batch.envelope.task_id
        self._check_follow_ups(batch)
        sent = []
        for place, order in enumerate(orders):
            named = msgspec.structs.replace(order, task_id=name_in_batch(task_id, place))
            first = batch.follow_ups if place == 0 else ()
            sent.append(
                await self._checked(
                    named, self.delay_s(order), BatchPlace(task_id, place, len(orders), first)
                )
            )
        await self._warn_of_unknown_types(
            {name for order in (*orders, whole) for name in order.types} - {BATCH}
        )
        follow_ups = encode_follow_ups(batch.follow_ups)
        (known,) = await self._store.count([CountMember(task_id, len(orders), follow_ups=follow_ups)])
        if not known.ended:
            await self._send_traced(sent)
            if (now := await self._store.get(task_id)) is not None and now.cancel:  # while they were sent
                await self._cancel_all([each.task_id for each in sent], now.cancel)
        return task_id

    async def hand_over(self, follow_ups: Sequence[DueFollowUp]) -> None:
        """Send follow-ups. A follow-up that was sent before, and has begun or ended, isn't sent again. Raises
        as ``send``, and InvalidMessage before anything is sent for a type that can't name a queue."""
        for kind in {each.type for each in follow_ups}:
            try:
                task_queue(self._app, kind)
            except ConfigError as error:
                raise InvalidMessage(f"field 'task_type' is {kind!r}: {error}", "task_type") from None
        sent = [
            _Sending(each.task.envelope, encode_task(each.task), each.delay_s, traceparent=each.traceparent)
            for each in follow_ups
        ]
        for each in sent:
            self._check_fits(each.type, len(each.body))
        await self._send(sent)

    async def _send_traced(self, sent: Sequence[_Sending]) -> None:
        """Send what this program itself sends, under a span of its own where it has a tracer."""
        types = sorted({each.type for each in sent})
        destination = task_queue(self._app, types[0]) if len(types) == 1 else self._app
        with sending(destination, len(sent)) as traceparent:
            await self._send([each._replace(traceparent=traceparent) for each in sent])

    async def _send(self, sent: Sequence[_Sending]) -> None:
        if late := [each for each in sent if self._is_late(each)]:
            await self._store.delay([_delayed(each, _message_of(each)) for each in late])
            sent = [each for each in sent if not self._is_late(each)]
        soon, later = [each for each in sent if not each.delay_s], [each for each in sent if each.delay_s]
        at_once = [Task(each.task_id, each.type, group=each.envelope.group) for each in soon]
        record = await self._store.queue(at_once) if at_once else []
        if later:  # the store keeps their records until the queue delivers their messages
            record = [*record, *await self._store.delay([_delayed(each, b"") for each in later])]
        outgoing: dict[str, list[Outgoing]] = {}
        for each, task in zip([*soon, *later], record, strict=True):
            if not task.epoch and not task.ended and not task.message:  # else its message is there already
                priority = each.envelope.priority
                message = Outgoing(
                    each.body, each.attributes, each.delay_s, each.task_id, priority=max(0, priority)
                )
                outgoing.setdefault(each.type, []).append(message)
        for task_type, messages in outgoing.items():
            queue = self._queue_of(task_type)
            for start in range(0, len(messages), queue.max_batch):
                await queue.send(messages[start : start + queue.max_batch])

    async def send_delayed(self, tasks: Sequence[Task], ahead_s: float) -> None:
        """Send the messages of tasks of one type that the store has kept until now. By its clock, which this
        node's may differ from, they are due within ``ahead_s``. Raises as ``send``."""
        queue, wall = self._queue_of(tasks[0].type), self._clock.wall()
        messages = []
        for task in tasks:
            body, attributes = without_attributes(task.message)
            delay_s = min(max(task.until - wall, 0.0), ahead_s, queue.delay_max_s)
            messages.append(Outgoing(body, attributes, delay_s, task.task_id))
        for start in range(0, len(messages), queue.max_batch):
            some = slice(start, start + queue.max_batch)
            await queue.send(messages[some])
            await self._store.messages_sent([task.task_id for task in tasks[some]])

    async def send_ended(self, task: Task) -> None:
        """Send the message of a task that has ended while the store kept it, without the body, which its
        queue refuses. The receiver notifies the producer, sends follow-ups, and counts the task in its batch.
        Raises as ``send``."""
        body, attributes = without_attributes(task.message)
        known = Envelope(app=self._app, task_id=task.task_id, task_type=task.type)
        without_body = msgspec.structs.replace(decode_task(body, known), body=Body(b"null"))
        await self._queue_of(task.type).send(
            [Outgoing(encode_task(without_body), attributes, key=task.task_id)]
        )
        await self._store.messages_sent([task.task_id])

    def _is_late(self, sending: _Sending) -> bool:
        """Return True if a task's delay is longer than its queue's."""
        return sending.delay_s > self._queue_of(sending.type).delay_max_s

    def _queue_of(self, task_type: str) -> Queue:
        if task_type not in self._queues:
            self._queues[task_type] = self._queue(task_queue(self._app, task_type))
        return self._queues[task_type]

    async def _warn_of_unknown_types(self, types: set[str]) -> None:
        """Warn once about types that no node runs while nodes run others: most are misspelt."""
        now = self._clock.monotonic()
        if self._declared is None or types <= self._known or now < self._read_types_at:
            return
        try:
            declared = await self._declared()
        except HoldfastError as error:
            self._log.debug("task types unknown", app=self._app, error=str(error))
            declared = ()
        if not declared:
            self._read_types_at = now + TYPES_S
            return
        for name in sorted(types - self._known - {*declared}):
            self._log.warning(
                "unknown task type",
                app=self._app,
                type=name,
                run=sorted(declared),
            )
        self._known |= types

    async def status(self, task_id: str) -> Task | None:
        """Return a task's record; None for a task that isn't known, or is no longer kept."""
        return await self._store.get(check_text(task_id, "task_id"))

    async def wait(self, task_id: str, timeout_s: float | None = None, *, read: Reads = at_once) -> Outcome:
        """Wait until a task has ended, and return its outcome. With ``timeout_s`` a task that isn't known is
        waited for too: what follows upon others is sent once they have ended. ``read`` makes each call.
        Raises TimeoutError, OperationRefused for a task that isn't known where there is no ``timeout_s``,
        and ValueLost if its value is gone."""
        deadline = None if timeout_s is None else self._clock.monotonic() + timeout_s
        pause_s = POLL_FIRST_S
        while True:
            task = await read(partial(self.status, task_id))
            if task is None and deadline is None:
                raise OperationRefused(
                    f"no task {task_id!r} is known in app {self._app!r}; give timeout_s to wait for one that"
                    " is yet to be sent, such as a follow-up"
                )
            if task is not None and task.ended:
                return await read(partial(self._values.with_value, outcome_of(self._app, task)))
            if deadline is not None and self._clock.monotonic() >= deadline:
                record = "not known" if task is None else task.state.value
                raise TimeoutError(f"task {task_id!r} is {record} after {timeout_s:g} s")
            await self._clock.sleep(pause_s)
            pause_s = min(POLL_MAX_S, 2 * pause_s)

    async def briefs(self, *, follow: bool = True) -> AsyncGenerator[Brief]:
        """Yield the outcome events of the app: with ``follow`` for ever as they come, else all that wait now.
        Several readers share them. An outcome may come twice; all of one task are equal, except for
        DUPLICATED ones. With ``follow``, an outage of the queue is waited out; else it raises Unavailable."""
        queue = self._queue(event_queue(self._app))
        holder = f"briefs-{self._clock.new_id()}"
        acking = asyncio.ensure_future(self._acknowledge(queue))
        unread, closes = collections.deque[Delivery](), self._closes
        self._unread.append(unread)
        try:
            wait_s = self._receive_wait_s if follow else 0.0
            receive = partial(queue.receive, queue.max_batch, wait_s, EVENT_VISIBILITY_S, holder)
            while self._closes == closes and (
                (some := await (self._ride_out(receive, closes) if follow else receive())) or follow
            ):
                unread.extend(some)
                while unread:
                    delivery = unread.popleft()
                    outcome = await self._read(queue, delivery)
                    if outcome is not None:
                        yield Brief(outcome, lambda receipt=delivery.receipt: self._ack(queue, receipt))  # type: ignore[misc]
        finally:
            acking.cancel()
            await asyncio.wait((acking,))
            await self._delete_acked(queue)
            await self._give_back(queue, unread)
            self._unread.remove(unread)

    async def _ride_out(
        self, receive: Callable[[], Awaitable[list[Delivery]]], closes: int
    ) -> list[Delivery]:
        """Receive, and repeat that while the queue doesn't answer. Returns nothing once this is closed."""

        async def receive_unless_closed() -> list[Delivery]:
            return await receive() if self._closes == closes else []

        def failed(error: Exception) -> None:
            if not may_repeat(error):
                raise error
            self._log.warning("cannot receive outcome events", app=self._app, error=str(error))

        return await retry_call(receive_unless_closed, self._clock, READ_AGAIN, failed)

    async def close(self) -> None:
        """Finish reading: delete acknowledged outcome events and give unread ones back."""
        self._closes += 1
        if self._unread:
            queue = self._queue(event_queue(self._app))
            await self._delete_acked(queue)
            for unread in self._unread:
                await self._give_back(queue, unread)

    async def cancel(self, task_id: str, reason: str) -> Task | None:
        """Cancel a task: it ends at once if it waits, within seconds if it runs. Of a batch all tasks are
        cancelled that have not ended, and it ends with the last of them. Returns None for a task that isn't
        known."""
        why = check_text(reason, "reason") or "without a reason"
        task = await self._store.cancel(check_text(task_id, "task_id"), why)
        if task is not None and task.members and not task.ended:
            task = await self._cancel_members(task)
        return task

    async def _cancel_all(self, task_ids: Sequence[str], reason: str) -> list[Task | None]:
        found = list[Task | None]()
        for some in chunks(task_ids, CANCELS_MAX):
            found += await asyncio.gather(*(self._store.cancel(task_id, reason) for task_id in some))
        return found

    async def _cancel_members(self, batch: Task) -> Task:
        """Cancel the tasks of a batch that have not ended. A task that was never sent, because its sender is
        gone, counts as failed. Returns the record of the batch."""
        places = [place for place, mark in enumerate(batch.members) if mark == "0"]
        found = await self._cancel_all(
            [name_in_batch(batch.task_id, place) for place in places], batch.cancel
        )
        never = [place for place, task in zip(places, found, strict=True) if task is None]
        if never:
            size = len(batch.members)
            counted = await self._store.count(
                [CountMember(batch.task_id, size, n, failed=True) for n in never]
            )
            batch = counted[-1]
        if batch.ended and not batch.briefed:
            own = SentTask(Envelope(app=self._app, task_id=batch.task_id, task_type=BATCH), Body(b""))
            await self.hand_over(due(batch, outcome_of(self._app, batch), own))
            await self._store.briefed([(batch.task_id, batch.epoch)])
        return batch

    async def retry(self, task: Task) -> None:
        """Run a task again that is a dead letter. Raises OperationRefused if it isn't one."""
        refuse_batch(task)
        await self.redrive(task.type, [await self._dead_letter(task)])

    async def send_stand_in(self, order: Order, delay_s: float, traceparent: str = "") -> Outgoing | None:
        """Send the message of a task that a node begins at once without waiting for it, and return the
        message. With a delay, the node leaves it to the queue. If the node dies, the message is still in the
        queue. A failed task with the same task id gets all its tries again. If it has succeeded, nothing is
        sent, and this returns None. Raises as ``send``."""
        sent = (await self._checked(order, delay_s))._replace(traceparent=traceparent)
        if not self._is_late(sent):
            task = Task(sent.task_id, order.task_type, group=order.group)
            return await self.stand_in(task, sent.body, sent.attributes, delay_s)
        (record,) = await self._store.delay([_delayed(sent, _message_of(sent))])
        if record.state is State.SUCCEEDED:
            return None
        if record.ended:  # it is queued again only with its message
            _check_delay(self._queue_of(order.task_type), delay_s)
        return Outgoing(sent.body, {}, delay_s, sent.task_id)

    async def retry_stand_in(self, task: Task, delay_s: float) -> Outgoing | None:
        """Like ``send_stand_in``, with the body of a dead letter. Raises as ``retry``, and InvalidMessage."""
        _check_delay(self._queue_of(task.type), delay_s)
        letter = await self._dead_letter(task)
        message = await self.stand_in(task, letter.body, letter.attributes, delay_s)
        if message is not None:
            await self._queue_of(task.type).purge([letter.id])
        return message

    async def stand_in(
        self, task: Task, body: bytes, attributes: dict[str, str], delay_s: float
    ) -> Outgoing | None:
        """Record a task and send its message, as ``send_stand_in`` does."""
        queue = self._queue_of(task.type)
        if delay_s:
            change = DelayTask(task.task_id, task.type, delay_s, b"", task.group)
            (record,) = await self._store.delay([change])
        else:
            (record,) = await self._store.queue([task])
        if record.ended:
            (again,) = await self._store.reset([task.task_id])
            if again is not None and again.state is State.SUCCEEDED:
                return None
        marks = {**attributes, "id": task.task_id, STAND_IN: str(record.epoch)}
        message = Outgoing(body, marks, delay_s or min(STAND_IN_S, queue.delay_max_s), task.task_id)
        await queue.send([message])
        return message

    async def _dead_letter(self, task: Task) -> DeadLetter:
        if task.state is State.SUCCEEDED:
            raise OperationRefused(f"task {task.task_id!r} has succeeded; only a failed task runs again")
        letters = await self._queue_of(task.type).dead_letters(1, key=task.task_id)
        if not letters:
            raise OperationRefused(
                f"task {task.task_id!r} is {task.state.value}, and no dead letter holds it; send it with"
                " its body"
            )
        return letters[0]

    async def redrive(self, task_type: str, letters: Iterable[DeadLetter]) -> int:
        """Send dead letters of one type again; returns how many. Tasks go to their queue, each with all its
        tries; effects that their targets have refused go to these again. One that the queue refuses for good
        stays a dead letter, and so does an effect whose task isn't known any more. One that is no longer
        there is passed over."""
        queue = self._queue_of(task_type)
        of_tasks, of_effects = divided(task_type, letters)
        one = of_tasks[0].key if len(of_tasks) == 1 else ""
        present = {letter.id async for letter in dead_letters(queue, one or None)} if of_tasks else set[str]()
        sent = await self._redrive_all(queue, [letter for letter in of_tasks if letter.id in present])
        return sent + await self._resend_effects(queue, of_effects)

    async def _redrive_all(self, queue: Queue, letters: Sequence[DeadLetter]) -> int:
        return sum([await self._redrive(queue, some) for some in batches(queue, letters)])

    async def _redrive(self, queue: Queue, some: Sequence[DeadLetter]) -> int:
        task_ids = [letter.key for letter in some if letter.key]
        await self._store.reset(task_ids)
        try:
            return await queue.redrive([letter.id for letter in some])
        except HoldfastError as error:
            if error.retry is not Retry.NEVER:
                raise
            if len(some) > 1:
                return sum([await self._redrive(queue, [letter]) for letter in some])
            await self._end_again(task_ids, error)
            self._log.warning("cannot resend dead letter", letter=some[0].id, error=str(error))
            return 0

    async def _end_again(self, task_ids: Sequence[str], error: HoldfastError) -> None:
        """End tasks that were queued for a message that isn't sent after all: they shall not seem to wait."""
        for task_id in task_ids:
            await self._store.cancel(task_id, f"its message could not be sent again: {error}")

    async def _resend_effects(self, queue: Queue, letters: Sequence[DeadLetter]) -> int:
        return await resend_effects(self._app, self._store, queue, letters, self._log)

    async def redrive_kept(self, task_type: str, letters: Iterable[DeadLetter]) -> tuple[int, int]:
        """Send dead letters of one type from a back-up again, each with all its tries. Returns how many were
        sent, and how many were left out: their tasks wait, run or have succeeded since, or their effects
        can't be handed over again. Letters that are still in the dead-letter queue are removed from it."""
        queue = self._queue_of(task_type)
        again, unknown = list[DeadLetter](), set[str]()
        of_tasks, of_effects = divided(task_type, letters)
        for letter in of_tasks:
            task = await self._store.get(letter.key) if letter.key else None
            if task is None or task.state in (State.FAILED, State.TIMEOUT):
                again.append(letter)
            if task is None:
                unknown.add(letter.key)
        present = {letter.id async for letter in dead_letters(queue)} if again else set[str]()
        sent = await self._redrive_all(queue, [letter for letter in again if letter.id in present])
        gone = [letter for letter in again if letter.id not in present]
        for start in range(0, len(gone), queue.max_batch):
            sent += await self._send_kept(queue, task_type, gone[start : start + queue.max_batch], unknown)
        sent += await self._resend_effects(queue, of_effects)
        return sent, len(of_tasks) + len(of_effects) - sent

    async def _send_kept(
        self, queue: Queue, task_type: str, some: Sequence[DeadLetter], unknown: Collection[str]
    ) -> int:
        """Send dead letters that only a back-up has; return how many. A task that has ended is queued before
        its message comes, or that would be taken for a duplicate. If the message isn't sent after all, the
        task is cancelled, and one without a record gets none: neither shall seem to wait."""
        task_ids = [letter.key for letter in some if letter.key]
        if known := [task_id for task_id in task_ids if task_id not in unknown]:
            await self._store.reset(known)
        try:
            await queue.send([Outgoing(each.body, each.attributes, key=each.key) for each in some])
        except HoldfastError as error:
            if isinstance(error, OutcomeUnknown):
                raise
            if error.retry is Retry.NEVER and len(some) > 1:
                return sum([await self._send_kept(queue, task_type, [each], unknown) for each in some])
            await self._end_again(known, error)
            if error.retry is not Retry.NEVER:
                raise
            self._log.warning("cannot resend kept dead letter", letter=some[0].id, error=str(error))
            return 0
        if new := [Task(task_id, task_type) for task_id in task_ids if task_id in unknown]:
            await self._store.queue(new)
        return len(some)

    async def _checked(self, order: Order, delay_s: float, batch: BatchPlace | None = None) -> _Sending:
        """Return a task as it is sent, with large bodies stored. Raises an error if the queue of the task, or
        of one that follows, can't take it, and what the object store raises."""
        task = await self._lightened(order)
        task = msgspec.structs.replace(task, batch=batch)
        body = encode_task(task)
        self._check_fits(order.task_type, len(body))
        self._check_follow_ups(task)
        return _Sending(task.envelope, body, delay_s)

    async def _lightened(self, order: Order) -> SentTask:
        """Return a task with its task id, and with large bodies stored if there is an object store. Raises
        as that."""
        task = self._message(order, _task_id(order) or self._clock.new_id())
        return await self._values.lightened(task) if self._values.can_store else task

    def delay_s(self, order: Order) -> float:
        """Return after how many seconds a task may begin."""
        if order.at is None:
            return order.delay_s
        return max(0.0, order.at.timestamp() - self._clock.wall())

    def _check_follow_ups(self, task: SentTask) -> None:
        for each in task.follow_ups:
            size = len(encode_task(each.task)) + AFTER_BYTES_MAX
            self._check_fits(each.task.envelope.task_type, size, "a follow-up with an outcome")
            self._check_follow_ups(each.task)

    def _check_fits(self, task_type: str, size: int, what: str = "a task") -> None:
        queue = self._queue_of(task_type)
        if size > queue.max_bytes:
            advice = self._values.advice
            raise TooLarge(f"{what} of {size} bytes is over its queue's max_bytes, {queue.max_bytes}{advice}")

    def _message(self, order: Order, task_id: str) -> SentTask:
        """Return a task as a message holds it. A follow-up without an id of its own has none yet."""
        if order.group:
            check_key(order.group, "group")
        envelope = Envelope(
            app=self._app,
            task_id=task_id,
            task_type=order.task_type,
            group=order.group,
            priority=order.priority,
            sent_at=self._clock.wall(),
            timeout_s=order.timeout_s or 0.0,
            tries=order.tries or 0,
        )
        follow_ups = tuple(
            FollowUp(self._message(each, _task_id(each)), on_failure, each.delay_s)
            for each, on_failure in order.follow_ups
        )
        return SentTask(envelope, body_of(order.body), follow_ups)

    async def _read(self, queue: Queue, delivery: Delivery) -> Outcome | None:
        """Return the outcome in an event. An event that can't be read, or whose value is gone, is
        dead-lettered. Returns None for an event that comes again, because the object store doesn't answer."""
        try:
            return await self._values.with_value(decode_event(delivery.body))
        except (InvalidMessage, ValueLost) as error:
            self._log.warning("bad outcome event", message=delivery.id, error=str(error))
            letter = DeadLetter(
                id=f"{event_queue(self._app)}/{delivery.id}",
                body=delivery.body,
                reason=redact(f"malformed: {error}"),
                attributes=delivery.attributes,
            )
            await self._set_aside(queue, delivery, letter)
        except HoldfastError as error:
            self._log.warning("cannot read value of outcome event", message=delivery.id, error=str(error))
        return None

    async def _set_aside(self, queue: Queue, delivery: Delivery, letter: DeadLetter) -> None:
        """Dead-letter an outcome event. If the queue can't do so now, it comes again."""
        try:
            try:
                await queue.bury([letter])
            except TooLarge:  # with the reason
                await queue.bury([msgspec.structs.replace(letter, body=b"")])
            await queue.delete([delivery.receipt])
        except HoldfastError as error:
            self._log.warning("cannot dead-letter outcome event", message=delivery.id, error=str(error))

    async def _give_back(self, queue: Queue, unread: collections.deque[Delivery]) -> None:
        """Give back unread outcome events, so that others get them."""
        receipts = [delivery.receipt for delivery in unread]
        unread.clear()
        try:
            await queue.give_back(receipts, 0.0)
        except HoldfastError as error:  # the briefs come again
            self._log.warning("cannot give outcome events back", error=str(error))

    def _ack(self, queue: Queue, receipt: str) -> None:
        self._acked.append(receipt)
        self._acking.set()

    async def _acknowledge(self, queue: Queue) -> None:
        """Delete acknowledged outcome events, several per call."""
        while True:
            await self._acking.wait()
            if len(self._acked) < queue.max_batch:
                await self._clock.sleep(ACK_LINGER_S)
            self._acking.clear()
            await self._delete_acked(queue)

    async def _delete_acked(self, queue: Queue) -> None:
        taken, self._acked = self._acked, []
        for start in range(0, len(taken), queue.max_batch):
            try:
                await queue.delete(taken[start : start + queue.max_batch])
            except HoldfastError as error:  # the briefs come again
                self._log.warning("cannot acknowledge outcome events", error=str(error))


def refuse_batch(task: Task) -> None:
    """Raise OperationRefused for a batch, which can't be retried. The error names its failed tasks, which
    can."""
    if not task.members:
        return
    failed = failed_in(task)
    more = f" and {len(failed) - FAILED_NAMED} more" if len(failed) > FAILED_NAMED else ""
    advice = f"retry its failed tasks: {', '.join(failed[:FAILED_NAMED])}{more}"
    raise OperationRefused(
        f"{task.task_id!r} is a batch; {advice if failed else 'none of its tasks has failed'}"
    )


def _task_id(order: Order) -> str:
    """Return the task id that an order has or asks for; empty for none."""
    if order.task_id:
        return check_key(order.task_id, "task_id")
    return deduplicated(order.task_type, order.dedupe) if order.dedupe else ""


def _message_of(sending: _Sending) -> bytes:
    """Return a message as the store keeps it."""
    return with_attributes(sending.body, sending.attributes) if sending.attributes else sending.body


def _delayed(sending: _Sending, message: bytes) -> DelayTask:
    return DelayTask(sending.task_id, sending.type, sending.delay_s, message, sending.envelope.group)


def _check_delay(queue: Queue, delay_s: float) -> None:
    if not 0 <= delay_s <= queue.delay_max_s:
        most_s = queue.delay_max_s
        raise InvalidMessage(
            f"'delay_s' or 'at' asks for {delay_s:g} s from now; on this queue it is 0 to {most_s:g} s",
            "delay_s",
        )


async def drop_old_events(queue: Queue, before: float, holder: str) -> int:
    """Drop the events of outcomes before this wall time, and return their number. A queue that can't be read
    from its oldest message on, such as one of SQS, has a retention of its own."""
    dropped = 0
    while queue.by_key and dropped < DROPPED_MAX:
        deliveries = await queue.receive(queue.max_batch, 0.0, EVENT_VISIBILITY_S, holder)
        old = [delivery.receipt for delivery in deliveries if _ended_at(delivery.body) < before]
        others = [delivery.receipt for delivery in deliveries if delivery.receipt not in old]
        if others:
            await queue.give_back(others, 0.0)
        if old:
            await queue.delete(old)
        dropped += len(old)
        if others or not old:
            break
    return dropped


def _ended_at(event: bytes) -> float:
    """Return the wall time of an outcome; infinity if it is unknown. Readers dead-letter an event that can't
    be read."""
    try:
        return decode_event(event).ended_at or math.inf
    except InvalidMessage:
        return math.inf
