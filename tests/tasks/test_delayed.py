"""Tasks whose delay is longer than their queue's: where they wait, and who sends them."""

from __future__ import annotations

from datetime import UTC, datetime
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import CapturingLogger

from holdfast.common.acts import HOPS
from holdfast.common.due import AHEAD_S, LEASE_S
from holdfast.errors import InvalidMessage, TooLarge, Unavailable
from holdfast.rules.tasks.task import StartAttempt, State
from holdfast.services.memory.queue import MemoryQueue
from holdfast.services.memory.tasks import MemoryTasks
from holdfast.tasks.body import Body, body_of
from holdfast.tasks.delayed import TASKS_A_CALL, DelayedTasks
from holdfast.tasks.names import task_queue
from holdfast.tasks.order import Order
from holdfast.tasks.producer import Producer
from holdfast.tasks.wire import Envelope, decode_task
from simulator.faults import Weather
from simulator.loop import SimClock
from simulator.tasks import APP, QUICK, PlannedTask, TaskScenario, TaskWorld, check
from tests.tasks.simulated import simulated

TYPE = "report.publish"
DAY_S = 86_400.0
DEFAULT = Envelope(app="app", task_id="t", task_type=TYPE)


class StoreClock(SimClock):
    """The clock of a store, which shows as much more than a node's."""

    def __init__(self, clock: SimClock) -> None:
        super().__init__(Random(0), "store")
        self._clock = clock
        self.ahead_s = 0.0

    def wall(self) -> float:
        return self._clock.wall() + self.ahead_s


class Bench:
    """A producer and a node over a queue that delays for 900 s at most. ``wall_s`` moves the wall clock."""

    def __init__(self, delay_max_s: float = 900.0) -> None:
        self.clock = SimClock(Random(0), "test")
        self.store_clock = StoreClock(self.clock)
        self.store = MemoryTasks(self.store_clock)
        self.queue = MemoryQueue(self.clock, delay_max_s=delay_max_s)
        self.log = CapturingLogger()
        self.producer = Producer("app", lambda name: self.queue, self.store, self.clock, self.log)
        membership = SimpleNamespace(alive=True)
        self.host: Any = SimpleNamespace(
            clock=self.clock, membership=membership, draining=False, log=self.log
        )
        self.delayed = DelayedTasks(self.host, self.store, self.producer)  # type: ignore[arg-type]

    async def send(self, **options: Any) -> str:
        (task_id,) = await self.producer.send([Order(task_type=TYPE, body={"pages": 3}, **options)])
        return task_id

    def delays(self) -> list[tuple[str, Any]]:
        """The messages in the queue: traces, and for how long each is hidden."""
        now = self.clock.monotonic()
        return [(m.key, pytest.approx(m.visible_at - now, abs=0.01)) for m in self.queue.messages.values()]


def fair(*tasks: PlannedTask) -> TaskScenario:
    """One node, whose queues delay for 2 s at most, and no faults."""
    return TaskScenario(
        seed=1,
        nodes=1,
        weather=Weather(),
        drift=0.0,
        faults=(),
        frees_on_evict=False,
        hold_max_s=float("inf"),
        maximum=0,
        delay_max_s=2.0,
        tasks=tasks,
    )


@pytest.fixture
async def bench() -> Bench:
    return Bench()


async def test_a_delay_that_the_queue_can_take_is_the_queue_s(bench: Bench) -> None:
    await bench.send(task_id="t", delay_s=900.0)
    assert bench.delays() == [("t", 900.0)]
    assert await bench.delayed.ask() == 0


@pytest.mark.parametrize("stand_in", [False, True])
async def test_a_delayed_task_stays_known_until_its_queue_delivers_it_and_cancelled_if_it_was(
    stand_in: bool,
) -> None:
    bench = Bench(delay_max_s=1e9)
    for task_id in ("waits", "cancelled"):
        if stand_in:
            order = Order(task_type=TYPE, body={}, task_id=task_id)
            await bench.producer.send_stand_in(order, 30 * DAY_S)
        else:
            await bench.send(task_id=task_id, delay_s=30 * DAY_S)
    await bench.send(task_id="now")
    await bench.store.cancel("cancelled", "not wanted")
    assert await bench.store.expire(bench.clock.wall() + 29 * DAY_S) == 1, "only the one without a delay"
    waits, cancelled = [await bench.producer.status(task_id) for task_id in ("waits", "cancelled")]
    assert waits is not None
    assert waits.state is State.QUEUED
    assert cancelled is not None
    assert cancelled.state is State.FAILED, "it would run after all"
    assert [key for key, _ in bench.delays()] == ["waits", "cancelled", "now"]
    assert await bench.store.expire(bench.clock.wall() + 31 * DAY_S) == 2


async def test_a_longer_delay_waits_in_the_store_and_then_for_the_rest_in_the_queue(bench: Bench) -> None:
    await bench.send(task_id="t", delay_s=DAY_S)
    assert await bench.delayed.ask() == 0
    assert not bench.queue.messages
    bench.clock.set_by_s += DAY_S - AHEAD_S + 0.5
    assert await bench.delayed.ask() == 1
    assert bench.delays() == [("t", AHEAD_S - 0.5)]
    task = bench.store.standing["t"]
    assert (task.state, task.message) == (State.QUEUED, b"")
    assert await bench.delayed.ask() == 0
    begin = StartAttempt("t", TYPE, "m", "n", 3, 30.0)
    assert (await bench.store.start([begin]))[0].state is State.QUEUED, "it begins no sooner"
    bench.clock.set_by_s += AHEAD_S
    assert (await bench.store.start([begin]))[0].state is State.RUNNING


async def test_a_node_whose_clock_is_behind_hides_what_is_due_for_no_longer_than_it_may_be(
    bench: Bench,
) -> None:
    """It hid it for as long as its clock was behind, and a queue of SQS for 900 s at most."""
    await bench.send(task_id="t", delay_s=DAY_S)
    bench.store_clock.ahead_s = DAY_S - 1.0
    assert await bench.delayed.ask() == 1
    assert bench.delays() == [("t", AHEAD_S)]


async def test_a_queue_without_delays_gets_the_message_when_it_is_due() -> None:
    bench = Bench(delay_max_s=0.0)
    await bench.send(task_id="t", delay_s=2 * AHEAD_S)
    assert await bench.delayed.ask() == 0
    bench.clock.set_by_s += 2 * AHEAD_S
    assert await bench.delayed.ask() == 1
    assert bench.delays() == [("t", 0.0)]


async def test_a_task_may_be_sent_for_a_time(bench: Bench) -> None:
    wall = bench.clock.wall()
    await bench.send(task_id="t", at=datetime.fromtimestamp(wall + DAY_S, UTC))
    assert bench.store.standing["t"].until == pytest.approx(wall + DAY_S)
    await bench.send(task_id="past", at=datetime.fromtimestamp(wall - DAY_S, UTC))
    assert bench.delays() == [("past", 0.0)]


@pytest.mark.parametrize(
    "options,says",
    [
        ({"at": datetime.fromisoformat("2026-01-01T00:00")}, "field 'at' has no time zone"),
        ({"at": datetime(2026, 1, 1, tzinfo=UTC), "delay_s": 1.0}, "'at' and 'delay_s' are both given"),
        ({"delay_s": 2e9}, "delay_s"),
        ({"at": 17}, "at"),
        (
            {"then": Order(task_type=TYPE, at=datetime(2026, 1, 1, tzinfo=UTC))},
            "field 'then' has a task with 'at'; what follows has a 'delay_s'",
        ),
    ],
)
async def test_a_task_with_an_impossible_time_is_refused(
    bench: Bench, options: dict[str, Any], says: str
) -> None:
    with pytest.raises(InvalidMessage, match=says):
        await bench.send(**options)
    assert not bench.store.standing


async def test_a_task_that_waits_in_the_store_is_sent_once_however_often_it_is_sent(bench: Bench) -> None:
    for delay_s in (DAY_S, DAY_S, 0.0):
        await bench.send(task_id="t", delay_s=delay_s)
    assert not bench.queue.messages
    bench.clock.set_by_s += DAY_S
    assert await bench.delayed.ask() == 1
    assert len(bench.queue.messages) == 1


async def test_what_could_not_be_sent_is_handed_out_again_after_its_lease(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    await bench.send(task_id="t", delay_s=DAY_S)
    bench.clock.set_by_s += DAY_S
    send = bench.queue.send

    async def away(messages: Any) -> Any:
        raise Unavailable("the queue is away")

    monkeypatch.setattr(bench.queue, "send", away)
    assert await bench.delayed.ask() == 1
    assert await bench.delayed.ask() == 0
    monkeypatch.setattr(bench.queue, "send", send)
    bench.clock.set_by_s += LEASE_S
    assert await bench.delayed.ask() == 1
    assert bench.delays() == [("t", 0.0)]


async def test_what_its_queue_refuses_by_then_fails_and_stops_no_other(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    for task_id in ("small", "large"):
        await bench.send(task_id=task_id, delay_s=DAY_S)
    bench.clock.set_by_s += DAY_S
    send = bench.queue.send

    async def refusing(messages: Any) -> Any:
        if any(message.key == "large" for message in messages):
            raise TooLarge("over max_bytes")
        return await send(messages)

    monkeypatch.setattr(bench.queue, "send", refusing)
    assert await bench.delayed.ask() == 2
    assert bench.delays() == [("small", 0.0)]
    task = bench.store.standing["large"]
    assert (task.state, task.message) == (State.FAILED, b"")
    assert "its queue refuses it: over max_bytes" in task.detail


async def test_of_a_task_that_its_queue_refuses_by_then_all_but_the_body_is_sent(bench: Bench) -> None:
    """Whoever receives it tells of its end, to its batch and to what follows too."""
    order = Order(
        task_type=TYPE, body={"text": "x" * 2000}, delay_s=DAY_S, on_failure=[Order(task_type=TYPE)]
    )
    await bench.producer.send_batch([order], task_id="batch")
    bench.clock.set_by_s += DAY_S
    bench.queue.max_bytes = 1000
    assert await bench.delayed.ask() == 1
    [message] = bench.queue.messages.values()
    told = decode_task(message.body, DEFAULT)
    task = bench.store.standing[told.envelope.task_id]
    assert (task.state, task.message, task.briefed) == (State.FAILED, b"", False)
    assert told.body == Body(b"null")
    assert told.batch is not None
    assert told.batch.task_id == "batch"
    assert [each.on_failure for each in told.follow_ups] == [True]


@simulated
async def test_the_producer_hears_of_a_task_that_its_queue_refuses_by_then() -> None:
    short = PlannedTask(0.1, "t", QUICK, 0.1)
    world = TaskWorld(fair(short))

    async def refuse_late() -> None:
        world.planned["late"] = PlannedTask(0.1, "late", QUICK, 0.1, fails=-1)
        large = Order(task_type=QUICK, body={"text": "x" * 2000}, task_id="late", delay_s=60.0)
        await world.producer.send([large])
        world.queues[task_queue(APP, QUICK)].max_bytes = 1000

    world.spawn(refuse_late())
    assert check(world, await world.live()) == []
    [told] = world.outcomes["late"]
    assert (told.state, told.attempts) == (State.FAILED, 0)
    assert "its queue refuses it" in told.detail


async def test_a_node_that_leaves_or_is_cut_off_asks_for_nothing(bench: Bench) -> None:
    await bench.send(delay_s=DAY_S)
    bench.clock.set_by_s += DAY_S
    bench.host.draining = True
    assert await bench.delayed.ask() == 0
    bench.host.draining, bench.host.membership.alive = False, False
    assert await bench.delayed.ask() == 0


async def test_many_that_are_due_come_in_several_calls(bench: Bench) -> None:
    orders = [Order(task_type=TYPE, delay_s=DAY_S) for _ in range(TASKS_A_CALL + 1)]
    await bench.producer.send(orders)
    bench.clock.set_by_s += DAY_S
    assert [await bench.delayed.ask() for _ in range(3)] == [TASKS_A_CALL, 1, 0]
    assert len(bench.queue.messages) == TASKS_A_CALL + 1


async def test_a_stand_in_may_have_a_long_delay_too(bench: Bench) -> None:
    order = Order(task_type=TYPE, task_id="t", delay_s=DAY_S)
    message = await bench.producer.send_stand_in(order, order.delay_s)
    assert message is not None
    assert message.key == "t"
    assert not bench.queue.messages
    assert bench.store.standing["t"].message == message.body


async def test_its_place_in_a_trace_and_the_hops_before_it_outlast_a_long_delay(bench: Bench) -> None:
    place = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    late, prompt = (Order(task_type=TYPE, body={"pages": 3}, delay_s=delay_s) for delay_s in (DAY_S, 0.0))
    await bench.producer.send([late, prompt], hops=[7, 7], traceparents=[place, place])
    bench.clock.set_by_s += DAY_S
    assert await bench.delayed.ask() == 1
    sent = bench.queue.messages.values()
    assert [message.attributes for message in sent] == 2 * [{HOPS: "7", "traceparent": place}]
    assert {decode_task(message.body, DEFAULT).body for message in sent} == {body_of({"pages": 3})}
