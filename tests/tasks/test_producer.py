"""Sending tasks, and hearing of their outcomes."""

import asyncio
import base64
import functools
import json
from collections.abc import Sequence
from random import Random
from typing import Any

import msgspec
import pytest

from holdfast.errors import HoldfastError, InvalidMessage, OperationRefused, Retry, TooLarge, Unavailable
from holdfast.ports.queue import DeadLetter, Outgoing
from holdfast.rules.tasks.task import CountMember, EndAttempt, StartAttempt, State, Task
from holdfast.services.memory.queue import MemoryQueue
from holdfast.services.memory.tasks import MemoryTasks
from holdfast.tasks.body import body_of
from holdfast.tasks.follow_ups import DueFollowUp
from holdfast.tasks.names import event_queue, task_queue
from holdfast.tasks.order import Order
from holdfast.tasks.outcome import outcome_of
from holdfast.tasks.producer import Producer
from holdfast.tasks.wire import Envelope, SentTask, decode_event, decode_task, encode_event
from simulator.loop import SimClock
from tests.tasks.plain import plain

VIRTUAL = True
APP, TYPE = "reports", "report.publish"
ORDER = Order(task_type=TYPE, body={"rows": 3})


def followed_by(then: Order, order: Order) -> Order:
    return msgspec.structs.replace(order, then=then)


class Log:
    """A log that keeps what it was told."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def _say(self, text: str, **fields: object) -> None:
        self.lines.append(text)

    debug = info = warning = error = _say


class Rig:
    """A producer over services in memory."""

    def __init__(self, clock: SimClock) -> None:
        self.queues: dict[str, MemoryQueue] = {}
        self.clock = clock
        self.store = MemoryTasks(clock)
        self.log = Log()
        self.producer = Producer(APP, self.queue, self.store, clock, self.log)

    def queue(self, name: str) -> MemoryQueue:
        if name not in self.queues:
            self.queues[name] = MemoryQueue(self.clock)
        return self.queues[name]

    @property
    def tasks(self) -> MemoryQueue:
        return self.queue(task_queue(APP, TYPE))

    async def received(self) -> list[str]:
        """The task ids of the tasks that wait, as they are received."""
        known, task_ids = Envelope(app=APP, task_id="", task_type=TYPE), []
        while some := await self.tasks.receive(1, 0.0, 60.0, "node"):
            task_ids += [decode_task(delivery.body, known).envelope.task_id for delivery in some]
        return task_ids

    async def start(self, task_id: str) -> int:
        (task,) = await self.store.start([StartAttempt(task_id, TYPE, "m", "n", 3, 30.0)])
        return task.epoch

    async def end(self, task_id: str, state: State = State.SUCCEEDED) -> None:
        epoch = await self.start(task_id)
        (task,) = await self.store.end([EndAttempt(task_id, epoch, state, b'"done"')])
        await self.queue(event_queue(APP)).send([Outgoing(event_of(task))])


def event_of(task: object) -> bytes:
    outcome = outcome_of(APP, task)  # type: ignore[arg-type]
    return encode_event(Envelope(app=APP, task_id=outcome.task_id, task_type=TYPE), outcome)


@pytest.fixture
async def rig() -> Rig:
    return Rig(SimClock(Random(0), "test"))


async def sent(rig: Rig) -> list[bytes]:
    return [message.body for message in rig.tasks.messages.values()]


async def test_a_task_is_noted_and_lies_in_its_queue(rig: Rig) -> None:
    (task_id,) = await rig.producer.send([ORDER])
    status = await rig.producer.status(task_id)
    assert status is not None
    assert (status.state, status.type) == (State.QUEUED, TYPE)
    (body,) = await sent(rig)
    message = decode_task(body, Envelope(app=APP, task_id="", task_type=""))
    assert (message.envelope.task_id, json.loads(message.body.data)) == (task_id, {"rows": 3})
    assert plain().TaskMessage.FromString(base64.b64decode(body)).Envelop.TraceID == task_id


async def test_many_tasks_go_in_few_calls_and_keep_their_order(rig: Rig) -> None:
    task_ids = await rig.producer.send([ORDER] * 25)
    assert len(set(task_ids)) == 25
    assert len(await sent(rig)) == 25


async def test_a_dedupe_key_stands_for_one_task(rig: Rig) -> None:
    order = Order(task_type=TYPE, dedupe="acme-2026-11-21")
    (first,) = await rig.producer.send([order])
    await rig.end(first)
    assert await rig.producer.send([order]) == [first]
    assert len(await sent(rig)) == 1, "it had ended: nothing is sent again"


async def test_a_task_whose_sending_was_cut_short_is_sent_again(rig: Rig) -> None:
    order = Order(task_type=TYPE, task_id="t")
    await rig.producer.send([order])
    rig.tasks.messages.clear()
    await rig.producer.send([order])
    assert len(await sent(rig)) == 1


@pytest.mark.parametrize(
    "order, field",
    [
        (Order(task_type=TYPE, task_id="a\nb"), "task_id"),
        (Order(task_type=TYPE, task_id="x" * 600), "task_id"),
        (Order(task_type=TYPE, body={1, object()}), "body"),
        (Order(task_type=TYPE, body=b"\xff"), "body"),
    ],
)
async def test_what_can_not_be_sent_is_refused_before_anything_is(rig: Rig, order: Order, field: str) -> None:
    with pytest.raises(InvalidMessage, match=field):
        await rig.producer.send([ORDER, order])
    assert not rig.store.standing


async def test_waiting_for_a_task_returns_its_outcome(rig: Rig) -> None:
    (task_id,) = await rig.producer.send([ORDER])
    waiting = asyncio.ensure_future(rig.producer.wait(task_id, 60))
    await rig.clock.sleep(3)
    await rig.end(task_id)
    outcome = await waiting
    assert (outcome.ok, outcome.value, outcome.attempts) == (True, "done", 1)


async def test_waiting_for_a_task_ends_after_its_timeout(rig: Rig) -> None:
    (task_id,) = await rig.producer.send([ORDER])
    with pytest.raises(TimeoutError, match="queued"):
        await rig.producer.wait(task_id, 1)
    with pytest.raises(OperationRefused, match="nobody"):
        await rig.producer.wait("nobody")


async def test_an_acknowledged_brief_does_not_come_again(rig: Rig) -> None:
    for task_id in await rig.producer.send([ORDER] * 3):
        await rig.end(task_id)
    seen = [brief async for brief in rig.producer.briefs(follow=False)]
    assert [brief.outcome.state for brief in seen] == [State.SUCCEEDED] * 3
    await rig.clock.sleep(100)
    again: list[str] = []
    briefs = rig.producer.briefs()
    async for brief in briefs:
        brief.ack()
        again.append(brief.outcome.task_id)
        if len(again) == 3:
            break
    await briefs.aclose()
    assert sorted(again) == sorted(brief.outcome.task_id for brief in seen)
    assert not rig.queue(event_queue(APP)).messages


async def test_what_is_no_brief_is_set_aside_and_stops_nobody(rig: Rig) -> None:
    queue = rig.queue(event_queue(APP))
    await queue.send([Outgoing(b"junk")])
    (task_id,) = await rig.producer.send([ORDER])
    await rig.end(task_id)
    assert [brief.outcome.task_id async for brief in rig.producer.briefs(follow=False)] == [task_id]
    assert [letter.body for letter in queue.letters.values()] == [b"junk"]


async def test_a_brief_that_can_t_be_set_aside_now_ends_no_reader_and_comes_again(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = rig.queue(event_queue(APP))
    await queue.send([Outgoing(b"junk")])
    (task_id,) = await rig.producer.send([ORDER])
    await rig.end(task_id)
    bury, errors = queue.bury, [Unavailable("away")]

    async def fail(letters: Sequence[DeadLetter]) -> None:
        if errors:
            raise errors.pop()
        await bury(letters)

    monkeypatch.setattr(queue, "bury", fail)
    briefs = rig.producer.briefs()
    brief = await anext(briefs)
    brief.ack()
    assert brief.outcome.task_id == task_id
    waiting = asyncio.ensure_future(anext(briefs))
    while not queue.letters:
        await rig.clock.sleep(1.0)
    waiting.cancel()
    assert [letter.body for letter in queue.letters.values()] == [b"junk"]


async def test_a_brief_whose_letter_is_too_large_is_set_aside_without_its_body(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = rig.queue(event_queue(APP))
    await queue.send([Outgoing(b"junk")])
    bury = queue.bury

    async def tight(letters: Sequence[DeadLetter]) -> None:
        if any(letter.body for letter in letters):
            raise TooLarge("with its reason")
        await bury(letters)

    monkeypatch.setattr(queue, "bury", tight)
    assert [brief async for brief in rig.producer.briefs(follow=False)] == []
    [letter] = queue.letters.values()
    assert (letter.body, letter.reason.partition(":")[0]) == (b"", "malformed")
    assert not queue.messages


async def test_a_redriven_task_has_all_its_tries_again(rig: Rig) -> None:
    (task_id,) = await rig.producer.send([ORDER])
    await rig.end(task_id, State.FAILED)
    letter = DeadLetter(id="l", body=b"{}", reason="failed", key=task_id)
    await rig.tasks.bury([letter])
    standing = await rig.producer.status(task_id)
    assert standing is not None
    await rig.producer.retry(standing)
    status = await rig.producer.status(task_id)
    assert status is not None
    assert (status.state, status.attempts) == (State.QUEUED, 0)
    assert not rig.tasks.letters
    with pytest.raises(OperationRefused, match="no dead letter"):
        await rig.producer.retry(status)


async def test_a_letter_that_is_no_longer_there_queues_no_task(rig: Rig) -> None:
    (task_id,) = await rig.producer.send([ORDER])
    await rig.end(task_id, State.FAILED)
    purged = DeadLetter(id="l", body=b"{}", reason="failed", key=task_id)
    assert await rig.producer.redrive(TYPE, [purged]) == 0
    task = await rig.producer.status(task_id)
    assert task is not None
    assert task.state is State.FAILED


async def test_a_letter_that_its_queue_refuses_leaves_its_task_failed(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused, fine = await rig.producer.send([ORDER] * 2)
    for task_id in (refused, fine):
        await rig.end(task_id, State.FAILED)
        await rig.tasks.bury([DeadLetter(id=task_id, body=b"{}", reason="failed", key=task_id)])
    redrive = rig.tasks.redrive

    async def refuse(ids: Sequence[str]) -> int:
        if refused in ids:
            raise TooLarge("over the limit")
        return await redrive(ids)

    monkeypatch.setattr(rig.tasks, "redrive", refuse)
    assert await rig.producer.redrive(TYPE, list(rig.tasks.letters.values())) == 1
    standing = [await rig.producer.status(task_id) for task_id in (refused, fine)]
    assert [task.state for task in standing if task is not None] == [State.FAILED, State.QUEUED]


async def test_letters_that_were_kept_elsewhere_are_sent_again(rig: Rig) -> None:
    task_ids = await rig.producer.send([ORDER] * 4)
    lying, gone, succeeded, waiting = task_ids
    for task_id in (lying, gone):
        await rig.end(task_id, State.FAILED)
    await rig.end(succeeded)
    for message in await rig.tasks.receive(10, 0.0, 30.0, "m"):
        await rig.tasks.delete([message.receipt])
    kept = [
        DeadLetter(id=task_id, body=b"{}", reason="failed", key=task_id) for task_id in [*task_ids, "unheard"]
    ]
    await rig.tasks.bury([kept[0]])
    unread = DeadLetter(id="odd", body=b"{ no json", reason="malformed")
    assert await rig.producer.redrive_kept(TYPE, [*kept, unread]) == (4, 2)
    assert not rig.tasks.letters
    messages = await rig.tasks.receive(10, 0.0, 30.0, "m")
    assert sorted(message.body for message in messages) == [b"{ no json", b"{}", b"{}", b"{}"]
    standing = [
        await rig.producer.status(task_id) for task_id in (lying, gone, succeeded, waiting, "unheard")
    ]
    again = (State.QUEUED, 0)
    assert [(task.state, task.attempts) for task in standing if task is not None] == [
        again,
        again,
        (State.SUCCEEDED, 1),
        again,
        again,
    ]


@pytest.mark.parametrize("error", [Unavailable("away"), TooLarge("over the limit")])
async def test_letters_that_were_kept_elsewhere_are_sent_again_though_it_failed_before(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, error: HoldfastError
) -> None:
    task_ids = await rig.producer.send([ORDER] * 2)
    for task_id in task_ids:
        await rig.end(task_id, State.FAILED)
    for message in await rig.tasks.receive(10, 0.0, 30.0, "m"):
        await rig.tasks.delete([message.receipt])
    kept = [
        DeadLetter(id=task_id, body=b"{}", reason="failed", key=task_id) for task_id in [*task_ids, "unheard"]
    ]
    send, refused = rig.tasks.send, {task_ids[0], "unheard"}

    async def fail(messages: Sequence[Outgoing]) -> None:
        if refused & {message.key for message in messages}:
            raise error
        await send(messages)

    monkeypatch.setattr(rig.tasks, "send", fail)
    stops = error.retry is not Retry.NEVER
    if stops:
        with pytest.raises(Unavailable):
            await rig.producer.redrive_kept(TYPE, kept)
    else:
        assert await rig.producer.redrive_kept(TYPE, kept) == (1, 2), "one that is refused stops no other"
    assert await rig.producer.status("unheard") is None, "it would seem to wait"
    refused.clear()
    assert await rig.producer.redrive_kept(TYPE, kept) == ((3, 0) if stops else (2, 1))
    sent = {message.attributes.get("id") or message.key for message in rig.tasks.messages.values()}
    assert sent == {*task_ids, "unheard"}


async def test_who_follows_briefs_rides_out_a_queue_that_is_away(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = rig.queue(event_queue(APP))
    (task_id,) = await rig.producer.send([ORDER])
    await rig.end(task_id)
    receive, left = queue.receive, [10]

    async def fail(*args: Any) -> Any:
        left[0] -= 1
        if left[0] >= 0:
            raise Unavailable("away")
        return await receive(*args)

    monkeypatch.setattr(queue, "receive", fail)
    with pytest.raises(Unavailable):
        await anext(rig.producer.briefs(follow=False))
    briefs = rig.producer.briefs()
    assert (await anext(briefs)).outcome.task_id == task_id
    await briefs.aclose()


async def test_who_reads_briefs_of_a_closed_producer_hears_no_more(rig: Rig) -> None:
    (task_id,) = await rig.producer.send([ORDER])
    await rig.end(task_id)
    heard = []
    async for brief in rig.producer.briefs():
        heard.append(brief.outcome.task_id)
        await rig.producer.close()
    assert heard == [task_id]


@pytest.mark.parametrize("field", ["task_type", "task_id", "group", "dedupe"])
def test_an_order_with_text_that_utf_8_can_not_carry_is_refused(field: str) -> None:
    options: dict[str, Any] = {"task_type": TYPE, field: "\ud800"}
    with pytest.raises(InvalidMessage, match=f"field '{field}' holds text that UTF-8 can't carry"):
        Order(**options)


async def test_what_names_a_task_or_says_why_it_is_cancelled_is_a_text_that_utf_8_carries(rig: Rig) -> None:
    [task_id] = await rig.producer.send([ORDER])
    for wrong, says in (("\ud800", "UTF-8 can't carry"), (5, "is 5; it must be a text")):
        reason: Any = wrong
        with pytest.raises(InvalidMessage, match=f"field 'reason' .*{says}"):
            await rig.producer.cancel(task_id, reason)
        for ask in (rig.producer.status, rig.producer.wait):
            with pytest.raises(InvalidMessage, match=f"field 'task_id' .*{says}"):
                await ask(reason)
    standing = await rig.producer.status(task_id)
    assert standing is not None
    assert not standing.ended


async def test_a_running_task_that_is_cancelled_without_a_reason_hears_that_it_is(rig: Rig) -> None:
    [task_id] = await rig.producer.send([ORDER])
    await rig.store.start([StartAttempt(task_id, TYPE, "m", "n", 1, 60.0)])
    task = await rig.producer.cancel(task_id, "")
    assert task is not None
    assert task.cancel == "without a reason"


async def test_a_batch_whose_sender_has_gone_ends_when_it_is_cancelled(rig: Rig) -> None:
    """Of its three tasks one has ended, one waits, and one was never sent."""
    batch = await rig.producer.send_batch([ORDER], on_failure=Order(task_type=TYPE, task_id="after"))
    record = await rig.producer.status(batch)
    assert record is not None
    await rig.store.count([CountMember("b", 3, 0, follow_ups=record.follow_ups)])
    await rig.store.queue([Task("b-1", TYPE)])
    assert await rig.producer.status("b-2") is None
    cancelled = await rig.producer.cancel("b", "not needed")
    assert cancelled is not None
    assert (cancelled.members, cancelled.ended) == ("102", False), "the message of one is yet to be received"
    await rig.store.count([CountMember("b", 3, 1, failed=True)])
    assert await rig.producer.status("after") is None, "the node that received that message sends it"


async def test_a_batch_of_which_nothing_was_sent_ends_when_it_is_cancelled(rig: Rig) -> None:
    sent_one = await rig.producer.send_batch([ORDER], on_failure=Order(task_type=TYPE, task_id="after"))
    record = await rig.producer.status(sent_one)
    assert record is not None
    await rig.store.count([CountMember("b", 2, follow_ups=record.follow_ups)])
    ended = await rig.producer.cancel("b", "not needed")
    assert ended is not None
    assert (ended.state, ended.members) == (State.FAILED, "22")
    assert ended.detail == "cancelled: not needed; 2 of 2 tasks did not succeed"
    after = await rig.producer.status("after")
    assert after is not None, "what follows is sent"
    briefed = await rig.producer.status("b")
    assert briefed is not None
    assert briefed.briefed


async def test_a_batch_that_is_cancelled_while_it_is_sent_has_no_task_that_waits(rig: Rig) -> None:
    queue, counted = rig.store.queue, asyncio.Event()

    async def slow(tasks: Sequence[Task]) -> list[Task]:
        counted.set()
        await rig.clock.sleep(1.0)
        return await queue(tasks)

    rig.store.queue = slow  # type: ignore[method-assign]
    sending = asyncio.ensure_future(rig.producer.send_batch([ORDER, ORDER], task_id="b"))
    await counted.wait()
    await rig.producer.cancel("b", "not needed")
    await sending
    states = [task.state for place in range(2) if (task := await rig.producer.status(f"b-{place}"))]
    assert states == [State.FAILED, State.FAILED]


async def test_a_waiting_task_is_cancelled_at_once(rig: Rig) -> None:
    (task_id,) = await rig.producer.send([ORDER])
    task = await rig.producer.cancel(task_id, "ordered twice")
    assert task is not None
    assert (task.state, task.detail) == (State.FAILED, "cancelled: ordered twice")


@pytest.mark.parametrize(
    "options, error, said",
    [
        ({"body": "x" * 300_000}, TooLarge, "max_bytes"),
        ({"delay_s": -1.0}, InvalidMessage, "delay_s"),
        ({"delay_s": float("nan")}, InvalidMessage, "delay_s"),
        ({"delay_s": 1e10}, InvalidMessage, "delay_s"),
        ({"priority": 2**31}, InvalidMessage, "priority"),
        ({"timeout_s": 0}, InvalidMessage, "timeout_s"),
        ({"timeout_s": 1e10}, InvalidMessage, "timeout_s"),
        ({"tries": 0}, InvalidMessage, "tries"),
        ({"tries": 2.5}, InvalidMessage, "tries"),
        ({"then": "mail"}, InvalidMessage, "field 'then' is a str"),
        ({"on_failure": [ORDER, 7]}, InvalidMessage, "field 'on_failure' is a int"),
        ({"then": [ORDER] * 17}, InvalidMessage, "'then' has 17 tasks; it may have 16"),
        ({"then": functools.reduce(followed_by, [ORDER] * 17)}, InvalidMessage, "more than 16 tasks follow"),
        ({"then": Order(task_type=TYPE, body="x" * 150_000)}, TooLarge, "a follow-up with an outcome"),
        ({"then": Order(task_type=TYPE, task_id="a\x07b")}, InvalidMessage, "task_id"),
        ({"then": Order(task_type=TYPE, body=float("nan"))}, InvalidMessage, "body"),
        ({"group": "g" * 600}, InvalidMessage, "group"),
        ({"task_id": "a\x07b"}, InvalidMessage, "task_id"),
    ],
)
async def test_what_can_t_be_sent_leaves_no_trace(
    rig: Rig, options: dict[str, Any], error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said):
        await rig.producer.send([ORDER, Order(task_type=TYPE, **options)])
    assert not rig.store.standing
    assert not rig.tasks.messages


async def test_a_task_given_to_a_node_does_not_run_again_once_it_has_succeeded(rig: Rig) -> None:
    await rig.end("t", State.SUCCEEDED)
    before = await rig.store.get("t")
    assert before is not None
    assert await rig.producer.send_stand_in(Order(task_type=TYPE, task_id="t", body=8), 0.0) is None
    assert await rig.store.get("t") == before
    assert not rig.tasks.messages
    with pytest.raises(OperationRefused, match="'t' has succeeded; only a failed task runs again"):
        await rig.producer.retry(before)


async def test_a_batch_is_not_retried_but_tells_which_of_its_tasks_failed(rig: Rig) -> None:
    batch = await rig.producer.send_batch([ORDER] * 14, task_id="b")
    standing = await rig.producer.status(batch)
    assert standing is not None
    with pytest.raises(OperationRefused, match="'b' is a batch; none of its tasks has failed"):
        await rig.producer.retry(standing)
    ended = [CountMember("b", 14, place, failed=place != 1) for place in range(14)]
    failed = (await rig.store.count(ended))[-1]
    told = "'b' is a batch; retry its failed tasks: b-0, b-2, .*, b-10 and 3 more$"
    with pytest.raises(OperationRefused, match=told):
        await rig.producer.retry(failed)


@pytest.mark.parametrize("state", [None, State.FAILED, State.TIMEOUT])
async def test_a_task_given_to_a_node_runs_unless_it_has_succeeded(rig: Rig, state: State | None) -> None:
    if state is not None:
        await rig.end("t", state)
    given = await rig.producer.send_stand_in(Order(task_type=TYPE, task_id="t", body=8), 0.0)
    assert given is not None
    (message,) = rig.tasks.messages.values()
    assert (message.body, given.key) == (given.body, "t")
    assert decode_task(message.body, Envelope(app=APP, task_id="-", task_type=TYPE)).body.data == b"8"
    (task,) = await rig.store.start([StartAttempt("t", TYPE, "m", "n", 3, 30.0)])
    assert (task.state, task.attempts) == (State.RUNNING, 1)


@pytest.mark.parametrize("result", [b"[" * 900 + b"]" * 900, b"{", b"\xff"])
def test_a_result_that_can_t_be_read_is_told_as_text(result: bytes) -> None:
    outcome = outcome_of(APP, Task("t", TYPE, State.SUCCEEDED, result=result))
    assert outcome.value == result.decode(errors="replace")
    envelope = Envelope(app=APP, task_id="t", task_type=TYPE)
    assert decode_event(encode_event(envelope, outcome)).value == outcome.value


async def test_briefs_that_nobody_looked_at_are_there_for_others_at_once(rig: Rig) -> None:
    for task_id in ("a", "b", "c"):
        await rig.end(task_id)
    briefs = rig.producer.briefs()
    first = await anext(briefs)
    first.ack()
    await rig.producer.close()  # in the midst of it
    others = [brief.outcome.task_id async for brief in rig.producer.briefs(follow=False)]
    assert sorted([first.outcome.task_id, *others]) == ["a", "b", "c"]
    await briefs.aclose()


async def test_a_type_that_no_node_runs_is_warned_of_once(rig: Rig) -> None:
    run, looks = list[str](), list[int]()

    async def declared() -> list[str]:
        looks.append(1)
        if len(looks) == 2:
            raise Unavailable("away")
        return run

    producer = Producer(APP, rig.queue, rig.store, rig.clock, rig.log, declared=declared)
    await producer.send([Order(task_type=TYPE), Order(task_type="pubish")])
    await producer.send([Order(task_type="pubish")])
    assert (len(looks), rig.log.lines) == (1, []), "nobody knows while no node runs"
    await rig.clock.sleep(61.0)
    await producer.send([Order(task_type="pubish")])
    assert len(looks) == 2
    rig.log.lines.clear()
    await rig.clock.sleep(61.0)
    run.append(TYPE)
    for _ in range(3):
        await producer.send([Order(task_type=TYPE), Order(task_type="pubish")])
    assert (len(looks), rig.log.lines) == (3, ["unknown task type"])
    await producer.send([Order(task_type="other")])
    assert len(rig.log.lines) == 2
    assert len(rig.queue(task_queue(APP, "pubish")).messages) == 6, "they were sent all the same"


async def test_types_of_follow_ups_that_no_node_runs_are_told_of() -> None:
    async def declared() -> list[str]:
        return [TYPE]

    clock = SimClock(Random(0), "test")
    rig = Rig(clock)
    rig.producer = Producer(APP, rig.queue, rig.store, clock, rig.log, declared=declared)
    await rig.producer.send([Order(task_type=TYPE, then=Order(task_type="misspelt"))])
    assert rig.log.lines == ["unknown task type"]


async def test_what_follows_can_be_waited_for_before_it_is_sent(rig: Rig) -> None:
    async def follow() -> None:
        await rig.clock.sleep(5.0)
        task = SentTask(Envelope(app=APP, task_id="f", task_type=TYPE), body_of({}))
        await rig.producer.hand_over([DueFollowUp(task)])
        epoch = await rig.start("f")
        await rig.store.end([EndAttempt("f", epoch, State.SUCCEEDED, b'"closed"')])

    outcome, _ = await asyncio.gather(rig.producer.wait("f", 60.0), follow())
    assert outcome.value == "closed"


async def test_a_follow_up_is_known_by_its_id_when_it_is_sent_again(rig: Rig) -> None:
    task = SentTask(Envelope(app=APP, task_id="f", task_type=TYPE), body_of({}))
    for _ in range(2):
        await rig.producer.hand_over([DueFollowUp(task)])
    assert len(await sent(rig)) == 2, "the first may not have come to its queue"
    await rig.start("f")
    await rig.producer.hand_over([DueFollowUp(task)])
    assert len(await sent(rig)) == 2, "it has begun, so its message had come"


async def test_the_tasks_of_a_batch_are_known_by_it(rig: Rig) -> None:
    batch = await rig.producer.send_batch([ORDER, ORDER], then=ORDER, dedupe="monday")
    default = Envelope(app=APP, task_id="", task_type="")
    tasks = [decode_task(body, default) for body in await sent(rig)]
    assert [task.envelope.task_id for task in tasks] == [f"{batch}-0", f"{batch}-1"]
    places = [(task.batch.task_id, task.batch.place, task.batch.size) for task in tasks if task.batch]
    assert places == [(batch, 0, 2), (batch, 1, 2)]
    record = await rig.producer.status(batch)
    assert record is not None
    assert (record.state, record.members, bool(record.follow_ups)) == (State.QUEUED, "00", True)


async def test_a_batch_that_is_sent_again_is_the_same(rig: Rig) -> None:
    batch = await rig.producer.send_batch([ORDER, ORDER], task_id="b")
    await rig.start("b-0")
    assert await rig.producer.send_batch([ORDER, ORDER], task_id="b") == batch
    assert len(await sent(rig)) == 3, "the first has begun; whether the other's message came isn't known"
    await rig.store.count([CountMember("b", 2, place) for place in (0, 1)])
    await rig.producer.send_batch([ORDER, ORDER], task_id="b")
    assert len(await sent(rig)) == 3
    assert (await rig.producer.wait("b")).value == {"tasks": 2, "failed": 0}


@pytest.mark.parametrize(
    "orders,options,said",
    [
        ([], {}, "1 to 10000 tasks; this one has 0"),
        ([ORDER] * 10_001, {}, "this one has 10001"),
        ([ORDER, Order(task_type=TYPE, task_id="t")], {}, "no task_id or dedupe"),
        ([ORDER, Order(task_type=TYPE, dedupe="t")], {}, "no task_id or dedupe"),
        ([ORDER], {"task_id": "x" * 511}, "task_id"),
        ([ORDER], {"then": "mail"}, "field 'then' is a str"),
    ],
)
async def test_a_batch_that_can_t_be_sent_leaves_no_trace(
    rig: Rig, orders: list[Order], options: dict[str, Any], said: str
) -> None:
    with pytest.raises(InvalidMessage, match=said):
        await rig.producer.send_batch(orders, **options)
    assert not rig.store.standing
    assert not await sent(rig)


async def test_a_task_with_a_priority_is_received_before_all_that_wait(rig: Rig) -> None:
    orders = [
        msgspec.structs.replace(ORDER, task_id=name, priority=priority)
        for name, priority in {"a": 0, "b": -1, "c": 9, "d": 1, "e": 9}.items()
    ]
    await rig.producer.send(orders)
    assert await rig.received() == ["c", "e", "d", "a", "b"]
