"""How simulated nodes bring tasks to their end: in what order, and whatever stops them between."""

import base64
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec
import pytest
from google.protobuf.wrappers_pb2 import StringValue
from structlog.testing import CapturingLogger

from holdfast.errors import ConfigError, InvalidMessage, LoginRefused, TooLarge, Unavailable
from holdfast.ports.queue import DeadLetter, Outgoing
from holdfast.rules.tasks.task import State, Task
from holdfast.services.memory.queue import MemoryQueue, QueueEvent
from holdfast.services.memory.tasks import Changed, MemoryTasks
from holdfast.tasks.body import Body
from holdfast.tasks.names import event_queue, task_queue
from holdfast.tasks.order import Order
from holdfast.tasks.producer import Producer
from holdfast.tasks.wire import (
    Envelope,
    FollowUp,
    SentTask,
    Unreadable,
    decode_event,
    decode_task,
    encode_task,
)
from simulator import tasks
from simulator.faults import Weather
from simulator.loop import run
from simulator.stage import SimNode
from simulator.tasks import (
    APP,
    BATCH,
    FOLLOWING,
    PICKY,
    QUICK,
    SLOTS,
    TRIES,
    Away,
    PlannedTask,
    TakenEffect,
    TaskScenario,
    TaskWorld,
    check,
)
from tests.tasks.plain import plain

FAILING = PlannedTask(at_s=0.1, name="t", type=QUICK, seconds=0.01, fails=-1)
FINE = PlannedTask(at_s=0.1, name="t", type=QUICK, seconds=0.01)
FOLLOWED = msgspec.structs.replace(FINE, follows=True)
FOLLOWED_IN_VAIN = msgspec.structs.replace(FAILING, follows=True)
LIMIT_BYTES = 3000
PATIENCE_S = 30.0


def scenario(*planned: PlannedTask, one_database: bool = False) -> TaskScenario:
    return TaskScenario(
        seed=1,
        nodes=1,
        weather=Weather(),
        drift=0.0,
        faults=(),
        frees_on_evict=False,
        hold_max_s=float("inf"),
        maximum=0,
        one_database=one_database,
        tasks=planned,
    )


class Stumbling(TaskWorld):
    """A world whose node dies at its first ``call`` to a service: before it has an effect, or ``after``."""

    def __init__(self, planned: PlannedTask, call: str, *, after: bool, one_database: bool = False) -> None:
        super().__init__(scenario(planned, one_database=one_database))
        self._call = call
        self._after = after

    def make_works(self, node: SimNode) -> Any:
        carry = node.line.carry

        async def stumble(service: str, name: str, call: Callable[[], Awaitable[Any]]) -> Any:
            if name != self._call or self.lives[node.index] > 1:
                return await carry(service, name, call)
            if self._after:
                await call()
            node.crash()
            self.restart_later(node.index, 0.3)
            return await carry(service, name, call)  # which a dead node never gets to

        node.line.carry = stumble  # type: ignore[method-assign]
        return super().make_works(node)


def lived(
    make: Callable[[], TaskWorld],
    meanwhile: Callable[[TaskWorld], Awaitable[None]] | None = None,
    wrong: Sequence[str] = (),
) -> TaskWorld:
    """A world at the end of its life, in which nothing is wrong but what is said."""

    async def live() -> TaskWorld:
        world = make()
        if meanwhile is not None:
            world.spawn(meanwhile(world))
        found = check(world, await world.live())
        assert [line.partition(",")[0] for line in found] == list(wrong)
        return world

    return run(live())


def effects(world: TaskWorld) -> list[str]:
    """What became of the task at its end, in order."""
    found = []
    for event in world.log:
        if isinstance(event, Changed) and event.call in ("end", "briefed"):
            found.append(event.call)
        elif isinstance(event, QueueEvent):
            found.append(f"{event.kind} {'brief' if is_brief(event) else 'task'}")
    return found


def followers(world: TaskWorld) -> list[SentTask]:
    """The follow-ups that were sent, each time that they were."""
    default = Envelope(app=APP, task_id="-", task_type=QUICK)
    messages = [
        decode_task(event.body, default)
        for event in world.log
        if isinstance(event, QueueEvent) and event.kind == "sent" and not is_brief(event)
    ]
    return [message for message in messages if message.after]


def is_brief(event: QueueEvent) -> bool:
    try:
        decode_event(event.body)
    except InvalidMessage:
        return False
    return True


def letters(world: TaskWorld) -> Sequence[Any]:
    return [letter for queue in world.queues.values() for letter in queue.letters.values()]


@pytest.mark.parametrize("one_database", [False, True], ids=["apart", "one_database"])
def test_a_failed_task_is_stored_then_buried_then_told_then_deleted(one_database: bool) -> None:
    world = lived(lambda: TaskWorld(scenario(FAILING, one_database=one_database)))
    done = effects(world)
    end = done.index("end")
    order = ["end", "buried task", "sent brief", "deleted task"]
    assert [step for step in done[end:] if step in order] == order
    assert done[end:].index("briefed") > done[end:].index("sent brief")
    assert [(o.state, o.attempts) for o in world.outcomes["t"]] == [(State.FAILED, TRIES)]
    assert [(letter.key, letter.reason) for letter in letters(world)] == [
        ("t", "failed: ValueError: told to fail")
    ]
    assert letters(world)[0].attributes["id"] == "t", "it is the same task when it is sent again"


def test_in_one_database_an_outcome_is_stored_with_its_brief() -> None:
    world = lived(lambda: TaskWorld(scenario(FINE, one_database=True)))
    done = effects(world)
    assert [step for step in done[done.index("end") :] if step != "received brief"][:4] == [
        "end",
        "sent brief",
        "briefed",
        "deleted task",
    ]
    assert [(o.state, o.value) for o in world.outcomes["t"]] == [(State.SUCCEEDED, {"by": 1})]


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("call", ["end_and_brief", "delete"])
def test_in_one_database_what_succeeded_is_told_once_whenever_a_node_dies(call: str, after: bool) -> None:
    world = lived(lambda: Stumbling(FINE, call, after=after, one_database=True))
    assert world.lives[0] == 2, "it died"
    assert not letters(world)
    first, *more = world.outcomes["t"]
    assert (first.state, first.attempts) == (State.SUCCEEDED, 1 if after or call == "delete" else 2)
    assert {o.state for o in more} <= {State.DUPLICATED}


def test_in_one_database_an_outcome_that_is_refused_is_so_once() -> None:
    """The store forgets the attempt while it runs; its end is refused, and the task runs again."""
    planned = msgspec.structs.replace(FINE, seconds=1.0)

    async def forgets(world: TaskWorld) -> None:
        while "t" not in world.store.standing or not world.store.standing["t"].epoch:
            await world.clock.sleep(0.05)
        del world.store.standing["t"]

    world = lived(lambda: TaskWorld(scenario(planned, one_database=True)), forgets)
    assert [o.state for o in world.outcomes["t"]] == [State.SUCCEEDED]
    (node,) = world.nodes.values()
    assert node.host.stats.fenced == 1


CALLS = ("end", "bury", "send", "briefed", "delete")


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("call", CALLS)
def test_whenever_a_node_dies_there_is_one_outcome_and_one_letter(call: str, after: bool) -> None:
    world = lived(lambda: Stumbling(FAILING, call, after=after))
    assert world.lives[0] == 2, "it died"
    assert len(letters(world)) == 1
    final = [o for o in world.outcomes["t"] if o.state is not State.DUPLICATED]
    assert {(o.state, o.attempts) for o in final} == {(State.FAILED, TRIES)}


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("call", [call for call in CALLS if call != "bury"])
def test_what_succeeded_succeeds_whenever_a_node_dies(call: str, after: bool) -> None:
    world = lived(lambda: Stumbling(FINE, call, after=after))
    assert world.lives[0] == 2
    assert not letters(world)
    assert {o.state for o in world.outcomes["t"]} <= {State.SUCCEEDED, State.DUPLICATED}
    if (call, after) == ("end", False):  # nobody knew that it had succeeded
        assert world.outcomes["t"][0].attempts == 2


def test_a_message_of_a_task_that_ended_is_told_as_a_duplicate() -> None:
    async def again(world: TaskWorld) -> None:
        await world.clock.sleep(20.0)
        events = [event for event in world.log if isinstance(event, QueueEvent) and event.kind == "sent"]
        (sent,) = (event for event in events if not is_brief(event))
        await world.queues[task_queue(APP, QUICK)].send([Outgoing(sent.body, key="t")])

    world = lived(lambda: TaskWorld(scenario(FINE)), again)
    assert [o.state for o in world.outcomes["t"]] == [State.SUCCEEDED, State.DUPLICATED]
    assert (world.tried["t"], world.outcomes["t"][1].value) == (1, None)


def test_a_brief_that_is_too_large_says_what_it_must(monkeypatch: pytest.MonkeyPatch) -> None:
    wordy = msgspec.structs.replace(tasks.SPECS[QUICK], handler=lambda body, job: "x" * LIMIT_BYTES)
    monkeypatch.setattr(tasks, "SPECS", {**tasks.SPECS, QUICK: wordy})

    def make() -> TaskWorld:
        world = TaskWorld(scenario(FINE, msgspec.structs.replace(FAILING, name="other")))
        world.queues[event_queue(APP)].max_bytes = LIMIT_BYTES
        return world

    world = lived(make, wrong=["t is succeed of epoch 1"])  # its brief has another detail
    (told,) = world.outcomes["t"]
    assert (told.state, told.value) == (State.SUCCEEDED, None)
    assert "the rest is left out" in told.detail
    assert world.store.standing["t"].result == msgspec.json.encode("x" * LIMIT_BYTES)
    assert [o.state for o in world.outcomes["other"]] == [State.FAILED]


@pytest.mark.parametrize("body_bytes", [0, LIMIT_BYTES])
def test_a_dead_letter_that_is_too_large_says_less_and_ends_no_node(body_bytes: int) -> None:
    async def narrow(world: TaskWorld) -> None:
        queue = world.queues[task_queue(APP, QUICK)]
        bury, body = queue.bury, {"x": "x" * body_bytes}

        async def bury_what_fits(letters: Sequence[DeadLetter]) -> None:
            if max(len(each.body) + len(each.reason) + len(each.detail) for each in letters) > 400:
                raise TooLarge("this leaves no room for what a dead letter says")
            await bury(letters)

        queue.bury = bury_what_fits  # type: ignore[method-assign]
        world.planned["said"] = FAILING
        await world.producer.send([Order(task_type=QUICK, body=body, task_id="said")])

    world = lived(lambda: TaskWorld(scenario(FINE)), narrow)
    (letter,) = letters(world)
    assert (letter.key, letter.reason) == ("said", "failed: ValueError: told to fail")
    default = Envelope(app=APP, task_id="-", task_type=QUICK)
    if body_bytes:
        assert letter.detail.startswith("the body is left out")
        with pytest.raises(Unreadable, match="and holds none") as refused:
            decode_task(letter.body, default)
        assert refused.value.envelope is not None
        assert refused.value.envelope.task_id == "said", "and is refused if it is sent again"
    else:
        assert letter.detail == ""
        assert decode_task(letter.body, default).body == Body(b'{"x":""}')


def refusing(service: Any, call: str, times: int) -> list[int]:
    """Have a service refuse a call for good so many times, as where a right is missing. Returns a list of the
    calls that were refused."""
    answers, refused = getattr(service, call), list[int]()

    async def refuse(given: Sequence[Any]) -> Any:
        if len(refused) < times:
            refused.append(len(given))
            raise ConfigError("access denied")
        return await answers(given)

    setattr(service, call, refuse)
    return refused


@pytest.mark.parametrize("call", ["bury", "send"], ids=["dead letter", "brief"])
def test_what_a_queue_refuses_for_good_is_sent_once_somebody_has_mended_that(call: str) -> None:
    refused: list[list[int]] = []

    async def refuse(world: TaskWorld) -> None:
        name = task_queue(APP, QUICK) if call == "bury" else event_queue(APP)
        refused.append(refusing(world.queues[name], call, 2))

    world = lived(lambda: TaskWorld(scenario(FAILING)), refuse)
    assert [len(calls) for calls in refused] == [2]
    assert len(letters(world)) == 1
    assert [(o.state, o.attempts) for o in world.outcomes["t"]] == [(State.FAILED, TRIES)]


def test_a_task_does_not_run_again_because_the_store_refuses_its_outcome() -> None:
    async def refuse(world: TaskWorld) -> None:
        refusing(world.store, "end", 2)

    world = lived(lambda: TaskWorld(scenario(FINE)), refuse)
    assert [o.state for o in world.outcomes["t"]] == [State.SUCCEEDED]
    assert world.tried["t"] == 1


def test_a_follow_up_that_is_too_large_even_as_a_dead_letter_ends_no_node() -> None:
    async def narrow(world: TaskWorld) -> None:
        queue = world.queues[task_queue(APP, QUICK)]

        async def bury_nothing(letters: Sequence[DeadLetter]) -> None:
            raise TooLarge("there is no room")

        queue.bury = bury_nothing  # type: ignore[method-assign]
        await world.clock.sleep(0.2)
        queue.max_bytes = 10

    planned = msgspec.structs.replace(FOLLOWED, seconds=1.0)
    world = lived(lambda: TaskWorld(scenario(planned)), narrow, wrong=["t is succeed"])
    assert letters(world) == []
    assert [o.state for o in world.outcomes["t"]] == [State.SUCCEEDED]


@pytest.mark.parametrize("number", [900, 3, 16], ids=["unknown", "TaskType", "Group"])
def test_an_envelope_that_fits_no_brief_stops_no_node(number: int) -> None:
    wire = plain().TaskMessage()
    wire.Envelop.App, wire.Envelop.TraceID, wire.Envelop.TaskType = APP, "odd", QUICK
    raw = wire.Envelop.SerializeToString()
    raw += _field(number, b"x" * LIMIT_BYTES)
    wire.Body.Pack(StringValue(value="{}"))
    message = _field(1, raw) + _field(2, wire.Body.SerializeToString())

    async def odd(world: TaskWorld) -> None:
        world.queues[event_queue(APP)].max_bytes = LIMIT_BYTES
        world.planned["odd"] = FINE if number == 900 else FAILING
        await world.queues[task_queue(APP, QUICK)].send([Outgoing(base64.b64encode(message))])

    state = State.SUCCEEDED if number == 900 else State.FAILED
    wrong = ["odd is succeed of epoch 1"] if number == 900 else []
    world = lived(lambda: TaskWorld(scenario(FINE)), odd, wrong)
    assert [o.state for o in world.outcomes["odd"]] == [state]
    assert {letter.key for letter in letters(world)} == (set() if state is State.SUCCEEDED else {"odd"})


def _field(number: int, value: bytes) -> bytes:
    """A field of bytes on protobuf's wire."""
    return _varint(number << 3 | 2) + _varint(len(value)) + value


def _varint(number: int) -> bytes:
    low, rest = number & 0x7F, number >> 7
    return bytes([low | 0x80]) + _varint(rest) if rest else bytes([low])


def test_a_queue_of_briefs_that_is_away_is_waited_for() -> None:
    async def away(world: TaskWorld) -> None:
        queue = world.queues[event_queue(APP)]
        send, calls, is_away = queue.send, 0, True

        async def refused(messages: Sequence[Outgoing]) -> list[str]:
            nonlocal calls
            calls += 1
            if is_away:
                raise Unavailable("the queue of briefs is away")
            return await send(messages)

        queue.send = refused  # type: ignore[method-assign]
        await world.clock.sleep(15.0)
        assert world.store.standing["t"].ended
        assert not world.outcomes["t"]
        assert world.queues[task_queue(APP, QUICK)].messages, "the task's message stands until it is told"
        assert 1 < calls < 30
        is_away = False

    world = lived(lambda: TaskWorld(scenario(FAILING)), away)
    assert [o.state for o in world.outcomes["t"]] == [State.FAILED]
    assert len(letters(world)) == 1
    assert world.tried["t"] == TRIES


@pytest.mark.parametrize("one_database", [False, True], ids=["apart", "one_database"])
def test_what_follows_is_sent_once_the_outcome_is_stored_and_before_it_is_told(one_database: bool) -> None:
    world = lived(lambda: TaskWorld(scenario(FOLLOWED, one_database=one_database)))
    done = effects(world)
    steps = ("end", "sent task", "sent brief", "deleted task")
    assert [step for step in done[done.index("end") :] if step in steps][:4] == list(steps)
    (followed,) = followers(world)
    outcome = decode_event(followed.after)
    assert (outcome.task_id, outcome.task_type, outcome.state) == ("t", QUICK, State.SUCCEEDED)
    assert outcome.value == {"by": 1}
    (node,) = world.nodes.values()
    assert node.host.stats.tasks_followed == 1


def test_what_follows_upon_a_failure_is_told_why() -> None:
    world = lived(lambda: TaskWorld(scenario(FOLLOWED_IN_VAIN)))
    (followed,) = followers(world)
    outcome = decode_event(followed.after)
    assert (outcome.state, outcome.value) == (State.FAILED, None)
    assert outcome.detail.startswith("ValueError: told to fail")


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("call", ["end", "queue", "send", "briefed", "delete"])
@pytest.mark.parametrize("planned", [FOLLOWED, FOLLOWED_IN_VAIN], ids=["then", "on_failure"])
def test_what_follows_is_one_task_whenever_a_node_dies(planned: PlannedTask, call: str, after: bool) -> None:
    world = lived(lambda: Stumbling(planned, call, after=after))
    assert world.lives[0] == 2, "it died"
    assert len({followed.envelope.task_id for followed in followers(world)}) == 1
    assert len(world.store.standing) == 2


def test_what_follows_upon_a_task_that_is_cancelled_before_it_begins_is_sent() -> None:
    async def cancelled(world: TaskWorld) -> None:
        late = Order(task_type=QUICK, body={}, task_id="late", delay_s=9.0)
        order = msgspec.structs.replace(late, then=FOLLOWING, on_failure=FOLLOWING)
        world.planned["late"] = FOLLOWED
        await world.producer.send([order])
        await world.producer.cancel("late", "not needed")

    world = lived(lambda: TaskWorld(scenario(FINE)), cancelled)
    (followed,) = followers(world)
    assert decode_event(followed.after).detail == "cancelled: not needed"


def test_of_two_messages_of_a_task_the_one_that_began_it_says_what_follows() -> None:
    async def others(world: TaskWorld) -> None:
        await world.clock.sleep(20.0)
        assert len(followers(world)) == 1
        more = Order(task_type=QUICK, body={}, task_id="t", then=[FOLLOWING, FOLLOWING])
        aside = MemoryQueue(world.clock)
        producer = Producer(APP, lambda name: aside, MemoryTasks(world.clock), world.clock, CapturingLogger())
        await producer.send([more])
        (message,) = aside.messages.values()
        await world.queues[task_queue(APP, QUICK)].send([Outgoing(message.body, key="t")])

    world = lived(lambda: TaskWorld(scenario(FOLLOWED)), others)
    assert len(followers(world)) == 1
    assert [o.state for o in world.outcomes["t"]] == [State.SUCCEEDED, State.DUPLICATED]


def test_a_follow_up_that_has_its_own_id_is_sent_by_it() -> None:
    async def named(world: TaskWorld) -> None:
        mine = Order(task_type=QUICK, body={}, task_id="mine")
        await world.producer.send([Order(task_type=QUICK, body={}, task_id="first", then=mine)])

    world = lived(lambda: TaskWorld(scenario(FINE)), named)
    assert world.store.standing["mine"].state is State.SUCCEEDED


def test_a_chain_of_three_tasks_runs_to_its_end() -> None:
    async def chain(world: TaskWorld) -> None:
        world.planned["first"] = FOLLOWED
        third = Order(task_type=QUICK, body={}, task_id="third")
        second = Order(task_type=QUICK, body={}, then=third)
        await world.producer.send([Order(task_type=QUICK, body={}, task_id="first", then=second)])

    world = lived(lambda: TaskWorld(scenario(FINE)), chain)
    second, third = followers(world)
    assert decode_event(second.after).task_id == "first"
    assert decode_event(third.after).task_id == second.envelope.task_id
    assert world.store.standing["third"].state is State.SUCCEEDED


def test_a_value_that_a_follow_up_has_no_room_for_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    wordy = msgspec.structs.replace(tasks.SPECS[QUICK], handler=lambda body, job: "x" * LIMIT_BYTES)
    monkeypatch.setattr(tasks, "SPECS", {**tasks.SPECS, QUICK: wordy})

    async def narrow(world: TaskWorld) -> None:
        await world.clock.sleep(0.2)
        world.queues[task_queue(APP, QUICK)].max_bytes = LIMIT_BYTES

    planned = msgspec.structs.replace(FOLLOWED, seconds=1.0)
    world = lived(lambda: TaskWorld(scenario(planned)), narrow)
    (followed,) = followers(world)
    outcome = decode_event(followed.after)
    assert outcome.value is None
    assert "its value is left out" in outcome.detail


def test_a_follow_up_that_its_queue_refuses_becomes_a_dead_letter() -> None:
    async def narrow(world: TaskWorld) -> None:
        await world.clock.sleep(0.2)
        world.queues[task_queue(APP, QUICK)].max_bytes = 10

    planned = msgspec.structs.replace(FOLLOWED, seconds=1.0)
    world = lived(lambda: TaskWorld(scenario(planned)), narrow, wrong=["t is succeed"])
    (letter,) = letters(world)
    assert letter.reason.startswith("a follow-up of task t can't be sent")
    assert "max_bytes" in letter.reason
    assert decode_task(letter.body, Envelope(app=APP, task_id="-", task_type=QUICK)).after
    assert [o.state for o in world.outcomes["t"]] == [State.SUCCEEDED]


def test_follow_ups_that_are_sent_though_their_queue_refuses_leave_no_letters() -> None:
    """It takes the first of a call, and refuses the others for a while: whoever sends can't tell which."""

    async def refusing(world: TaskWorld) -> None:
        queue = world.queues[task_queue(APP, QUICK)]
        send, refuses = queue.send, True

        async def partly(messages: Sequence[Outgoing]) -> list[str]:
            if not refuses:
                return await send(messages)
            await send(messages[:1])
            raise LoginRefused("nobody may send to this queue")

        await world.clock.sleep(0.2)
        queue.send = partly  # type: ignore[method-assign]
        await world.clock.sleep(5.0)
        refuses = False

    planned = [msgspec.structs.replace(FOLLOWED, name=f"t{n}", seconds=1.0) for n in range(3)]
    world = lived(lambda: TaskWorld(scenario(*planned)), refusing)
    assert letters(world) == []
    followed = {message.envelope.task_id for message in followers(world)}
    assert len(followed) == 3
    assert {world.store.standing[task_id].state for task_id in followed} == {State.SUCCEEDED}
    assert {outcome.state for told in world.outcomes.values() for outcome in told} == {State.SUCCEEDED}


def test_a_follow_up_of_a_type_that_no_queue_can_be_named_by_becomes_a_dead_letter() -> None:
    follow_up = FollowUp(SentTask(Envelope(app=APP, task_id="f", task_type="no name!"), Body(b"{}")))
    sent = Envelope(app=APP, task_id="odd", task_type=QUICK)

    async def send(world: TaskWorld) -> None:
        odd = Outgoing(encode_task(SentTask(sent, Body(b"{}"), (follow_up,))))
        await world.queues[task_queue(APP, QUICK)].send([odd])

    world = lived(lambda: TaskWorld(scenario(FINE)), send)
    (letter,) = letters(world)
    assert letter.reason.startswith("a follow-up of task odd can't be sent: field 'task_type'")


def test_the_message_of_a_task_stands_until_what_follows_is_sent() -> None:
    async def away(world: TaskWorld) -> None:
        queue, is_away = world.store.queue, True

        async def refused(tasks: Sequence[Task]) -> list[Task]:
            if is_away:
                raise Unavailable("the task store is away")
            return await queue(tasks)

        await world.clock.sleep(0.2)
        world.store.queue = refused  # type: ignore[method-assign]
        await world.clock.sleep(15.0)
        assert world.store.standing["t"].ended
        assert not world.outcomes["t"]
        assert world.queues[task_queue(APP, QUICK)].messages
        is_away = False

    planned = msgspec.structs.replace(FOLLOWED, seconds=1.0)
    world = lived(lambda: TaskWorld(scenario(planned)), away)
    assert len(followers(world)) == 1


def in_batch(*planned: PlannedTask) -> TaskScenario:
    named = [msgspec.structs.replace(each, name=f"{BATCH}-{place}") for place, each in enumerate(planned)]
    return msgspec.structs.replace(scenario(), batch=tuple(named))


@pytest.mark.parametrize("one_database", [False, True], ids=["apart", "one_database"])
def test_what_follows_a_batch_is_sent_once_when_all_its_tasks_have_ended(one_database: bool) -> None:
    planned = msgspec.structs.replace(in_batch(FINE, FAILING, FINE), one_database=one_database)
    world = lived(lambda: TaskWorld(planned))
    (followed,) = followers(world)
    outcome = decode_event(followed.after)
    assert (outcome.task_id, outcome.state) == (BATCH, State.FAILED)
    assert outcome.value == {"tasks": 3, "failed": 1}
    assert world.store.standing[BATCH].members == "121"
    assert world.store.standing[BATCH].briefed


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("call", ["end", "count", "queue", "send", "briefed", "delete"])
def test_a_batch_ends_whenever_a_node_dies(call: str, after: bool) -> None:
    class Batched(Stumbling):
        def __init__(self) -> None:
            super().__init__(FINE, call, after=after)
            self.scenario = in_batch(FINE, FINE, FINE)
            self.planned = {planned.name: planned for planned in self.scenario.batch}

    world = lived(Batched)
    assert world.lives[0] == 2, "it died"
    assert len({followed.envelope.task_id for followed in followers(world)}) == 1


def test_a_task_of_a_batch_that_is_cancelled_is_counted() -> None:
    async def cancelled(world: TaskWorld) -> None:
        while f"{BATCH}-1" not in world.store.standing:
            await world.clock.sleep(0.05)
        await world.producer.cancel(f"{BATCH}-1", "not needed")

    late = msgspec.structs.replace(FINE, seconds=3.0)
    world = lived(lambda: TaskWorld(in_batch(FINE, late)), cancelled)
    assert world.store.standing[BATCH].members == "12"


def test_a_batch_that_is_cancelled_ends_with_the_last_of_its_tasks() -> None:
    seen, size = list[State](), SLOTS + 2

    async def cancelled(world: TaskWorld) -> None:
        while not world.tried[f"{BATCH}-0"] or f"{BATCH}-{size - 1}" not in world.store.standing:
            await world.clock.sleep(0.05)
        batch = await world.producer.cancel(BATCH, "not needed")
        assert batch is not None
        assert not batch.ended, "one of its tasks runs"
        while not (await world.store.get(BATCH) or batch).ended:
            await world.clock.sleep(0.05)
        seen.extend(world.store.standing[f"{BATCH}-{place}"].state for place in range(size))

    long = msgspec.structs.replace(FINE, seconds=100.0)
    planned = in_batch(*[long] * size)
    world = lived(lambda: TaskWorld(planned), cancelled)
    assert seen == [State.FAILED] * size
    assert len(world.tried) < size, "some waited"
    (followed,) = followers(world)
    outcome = decode_event(followed.after)
    assert (outcome.state, outcome.value) == (State.FAILED, {"tasks": size, "failed": size})
    assert outcome.detail == f"cancelled: not needed; {size} of {size} tasks did not succeed"
    assert letters(world) == []


SENDING = msgspec.structs.replace(FINE, sends=4)


def sent(world: TaskWorld) -> list[tuple[int, str]]:
    """The effects that the target has taken, each time that it did: their numbers and ids."""
    events = [event.effect for event in world.log if isinstance(event, TakenEffect)]
    return [(msgspec.json.decode(effect.body)["n"], effect.id) for effect in events]


def test_effects_are_handed_over_once_the_outcome_is_stored_and_before_the_message_is_deleted() -> None:
    world = lived(lambda: TaskWorld(scenario(SENDING)))
    kinds = []
    for event in world.log:
        if isinstance(event, Changed) and event.call in ("end", "handed_over"):
            kinds.append(event.call)
        elif isinstance(event, TakenEffect):
            kinds.append(f"effect {msgspec.json.decode(event.effect.body)['n']}")
        elif isinstance(event, QueueEvent) and event.kind in ("buried", "deleted") and not is_brief(event):
            kinds.append(event.kind)
    assert kinds[0] == "end"
    assert kinds.index("effect 0") < kinds.index("effect 3")
    assert kinds.index("handed_over") < kinds.index("buried"), "a refusal is stored before it is told"
    assert kinds[-2:] == ["handed_over", "deleted"]
    (letter,) = letters(world)
    assert (letter.key, letter.attributes["target"], letter.attributes["target_key"]) == ("t", PICKY, "k")
    assert letter.reason == "it takes nothing, ever"
    (node,) = world.nodes.values()
    assert (node.host.stats.effects, node.host.stats.set_aside) == (3, 1)


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("call", ["end", "take", "handed_over", "bury", "give_back", "delete"])
def test_each_effect_has_one_id_whenever_a_node_dies(call: str, after: bool) -> None:
    world = lived(lambda: Stumbling(SENDING, call, after=after))
    assert world.lives[0] == 2 or call == "give_back", "it died"
    assert len(set(sent(world))) == 3


def test_an_attempt_that_fails_sends_nothing() -> None:
    world = lived(lambda: TaskWorld(scenario(msgspec.structs.replace(SENDING, fails=-1))))
    assert not sent(world)
    assert [letter.reason for letter in letters(world)] == ["failed: ValueError: told to fail"]


def test_while_a_target_is_away_the_message_waits_in_its_queue() -> None:
    async def look(world: TaskWorld) -> None:
        await world.clock.sleep(50.0)
        (work,) = world.works.values()
        assert not work.held.by_id, "the node has room for others"
        assert world.outcomes["t"], "the producer knows the outcome"
        assert world.queues[task_queue(APP, QUICK)].messages

    away = msgspec.structs.replace(scenario(SENDING), away=(Away(0.0, 100.0),))
    world = lived(lambda: TaskWorld(away), look)
    assert len(sent(world)) == 3
    assert world.counts["target away"] < 80, "it is asked less and less often"
    assert [o.state for o in world.outcomes["t"]] == [State.SUCCEEDED], (
        "a message that comes again tells nothing"
    )
