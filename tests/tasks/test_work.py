"""What a node does with the tasks in its hands: when it is cut off, and with those that it can't run."""

import asyncio
import base64
import errno
import gc
import re
from collections.abc import Sequence
from random import Random
from typing import Any

import msgspec
import pytest

from holdfast.cluster.deliveries import expire
from holdfast.common.stored import StoredValue
from holdfast.errors import Fenced, HoldfastError, InvalidMessage, OutcomeUnknown, Unavailable
from holdfast.ports.queue import DeadLetter, Outgoing, Queue
from holdfast.ports.slots import Attempt
from holdfast.ports.target import OutgoingEffect
from holdfast.rules.tasks.task import AttemptBeat, EffectsLeft, EndAttempt, StartAttempt, State, Task
from holdfast.services.memory.queue import MemoryQueue
from holdfast.services.memory.task_slots import MemoryTaskSlot
from holdfast.system.values import Values
from holdfast.tasks.body import Body
from holdfast.tasks.held_tasks import HeldTask
from holdfast.tasks.names import task_queue
from holdfast.tasks.wire import BatchPlace, Envelope, FollowUp, SentTask, TaskMessage, encode_task
from simulator.faults import Weather
from simulator.loop import SimClock, run
from simulator.scenario import TROUBLE_S, Fault
from simulator.stage import Quiet
from simulator.tasks import (
    APP,
    HOLD_MAX_S,
    LONG,
    PICKY,
    QUICK,
    SLOTS,
    SPECS,
    TIMEOUT_S,
    TRIES,
    PlannedTask,
    RanAttempt,
    Sink,
    TaskScenario,
    TaskWorld,
    check,
)
from tests.cluster.fakes import Log
from tests.tasks.simulated import simulated

CUT = [Fault(3.0, "cut", 0, TROUBLE_S, service) for service in ("coordinator", "state", "registry")]


def calm(*tasks: PlannedTask) -> TaskScenario:
    return TaskScenario(
        seed=1,
        nodes=1,
        weather=Weather(),
        drift=0.0,
        faults=(),
        frees_on_evict=False,
        hold_max_s=float("inf"),
        maximum=0,
        tasks=tasks,
    )


@simulated
async def test_what_waits_on_a_node_that_is_cut_off_runs_elsewhere() -> None:
    planned = [PlannedTask(0.1, f"t{n}", LONG, 2.0) for n in range(40)]
    scenario = msgspec.structs.replace(calm(*planned), nodes=2, faults=tuple(CUT))
    world = TaskWorld(scenario)
    held: list[set[str]] = []

    async def look() -> None:
        (cut, _) = world.nodes.values()
        await world.clock.sleep(2.9)
        held.append({name for name, item in world.works[cut].held.by_id.items() if item.attempt is None})
        await world.clock.sleep(TROUBLE_S - 5.0)
        done = {name for name, told in world.outcomes.items() if told}
        held.append(held[0] - done)

    world.spawn(look())
    assert check(world, await world.live()) == []
    waiting, late = held
    assert waiting, "some waited there when it was cut off"
    assert not late, "and had to wait until it wasn't"
    assert {o.state for told in world.outcomes.values() for o in told} == {State.SUCCEEDED}


@simulated
async def test_a_node_that_joined_again_keeps_the_attempts_that_it_runs() -> None:
    """The coordinator has forgotten all members. Another node that has a delivery of the task holds its node
    for dead, unless the store knows the attempt by the node's new membership."""
    forgets = (Fault(2.0, "forget", 0, 0.0),)
    scenario = msgspec.structs.replace(calm(PlannedTask(0.1, "t", LONG, 9.0)), nodes=2, faults=forgets)
    envelope = Envelope(app=APP, task_id="t", task_type=LONG)
    copy = Outgoing(encode_task(SentTask(envelope, Body(b"{}"))))
    world = TaskWorld(scenario)

    async def give_to_the_other() -> None:
        await world.clock.sleep(4.0)
        [other] = [work for work in world.works.values() if "t" not in work.held.by_id]
        other.run_here(LONG, copy)

    world.spawn(give_to_the_other())
    assert check(world, await world.live()) == []
    assert [event.epoch for event in world.log if isinstance(event, RanAttempt)] == [1, 1]


@pytest.mark.slow
def test_a_node_keeps_no_task_that_is_done() -> None:
    """Bodies are large: a loop that waits for the next task is not to hold the last one."""
    left: list[list[HeldTask]] = []

    async def live() -> None:
        world = TaskWorld(calm(PlannedTask(0.1, "kept", LONG, 9.0)))

        async def look() -> None:
            await world.clock.sleep(TROUBLE_S)
            gc.collect()
            left.append(
                [each for each in gc.get_objects() if type(each) is HeldTask and each.task_id == "kept"]
            )

        world.spawn(look())
        assert check(world, await world.live()) == []

    run(live())
    assert left == [[]]


async def sent_as(task_type: str, task_id: str, queue: Queue) -> None:
    envelope = Envelope(app=APP, task_id=task_id, task_type=task_type)
    await queue.send([Outgoing(encode_task(SentTask(envelope, Body(b"{}"))))])


@pytest.mark.parametrize("here", [False, True])
@simulated
async def test_an_attempt_whose_lease_is_over_when_its_answer_comes_does_not_begin(here: bool) -> None:
    """Another node may have begun the task by then, or ended it."""
    scenario = calm(PlannedTask(0.1, "t", QUICK, 1.0, here=here))
    world = TaskWorld(scenario)
    start, late_s = world.store.start, [2 * SPECS[QUICK].visibility_s]

    async def answer_late(wishes: Any) -> Any:
        tasks = await start(wishes)
        await world.clock.sleep(late_s.pop() if late_s else 0.0)
        return tasks

    world.store.start = answer_late  # type: ignore[method-assign]
    assert check(world, await world.live()) == []
    assert [event.epoch for event in world.log if isinstance(event, RanAttempt) and event.end] == [2]
    task = await world.store.get("t")
    assert task is not None
    assert (task.state, task.attempts) == (State.SUCCEEDED, 1), "it has spent no try"


@simulated
async def test_an_attempt_whose_lease_ended_while_another_was_asked_for_again_does_not_begin() -> None:
    """The other is that of a node that is gone, so the store is asked for it a second time."""
    scenario = calm(
        *(PlannedTask(at_s, name, QUICK, 1.0) for at_s, name in ((0.1, "a"), (0.2, "b"), (0.3, "c")))
    )
    world = TaskWorld(scenario)
    start, asked = world.store.start, list[list[str]]()

    async def answer_late(wishes: Sequence[StartAttempt]) -> list[Task]:
        [node] = world.nodes.values()
        node.host.news.left("gone")
        asked.append([wish.task_id for wish in wishes])
        tasks = await start(wishes)
        if len(asked) == 1:
            await world.clock.sleep(1.0)  # until both others wait
            await start([StartAttempt("b", QUICK, "gone", "n", TRIES, 60.0)])
        if wishes[0].instead_of:
            await world.clock.sleep(2 * SPECS[QUICK].visibility_s)
        return tasks

    world.store.start = answer_late  # type: ignore[method-assign]
    assert check(world, await world.live()) == []
    assert asked[:3] == [["a"], ["b", "c"], ["b"]]
    ran = [event for event in world.log if isinstance(event, RanAttempt) and event.end]
    assert [event.epoch for event in ran if event.task_id == "c"] == [2]
    assert world.store.standing["c"].attempts == 1, "it has spent no try"


@simulated
async def test_a_task_that_waited_until_its_delivery_can_hardly_be_held_begins_with_a_new_one() -> None:
    """With the old one it would end at once, as timed out."""
    in_its_way = [PlannedTask(0.1, f"l{n}", LONG, 34.5) for n in range(8)]
    planned = [*in_its_way, *(PlannedTask(1.0, f"t{n}", QUICK, 3.0) for n in range(4))]
    scenario = msgspec.structs.replace(calm(*planned), hold_max_s=HOLD_MAX_S)
    world = TaskWorld(scenario)
    assert check(world, await world.live()) == []
    assert {(task.state, task.attempts) for task in world.store.standing.values()} == {(State.SUCCEEDED, 1)}


@simulated
async def test_a_task_of_a_type_that_the_app_lacks_is_known_by_the_queue_where_its_letter_lies() -> None:
    world = TaskWorld(calm(PlannedTask(0.1, "t", QUICK, 0.1)))
    world.spawn(sent_as("no.such", "odd", world.queues[task_queue(APP, QUICK)]))
    assert check(world, await world.live()) == []
    task = world.store.standing["odd"]
    assert (task.state, task.type) == (State.FAILED, QUICK)
    assert "the app has no task type 'no.such'" in task.detail
    assert [letter.key for letter in world.queues[task_queue(APP, QUICK)].letters.values()] == ["odd"]
    (told,) = world.outcomes["odd"]
    assert (told.state, told.task_type) == (State.FAILED, "no.such"), "its producer knows it as it was sent"


@simulated
async def test_a_task_that_follows_upon_no_outcome_fails_and_ends_no_node() -> None:
    wire = TaskMessage()
    wire.Envelop.App, wire.Envelop.TraceID, wire.Envelop.TaskType = APP, "odd", QUICK
    wire.After.Envelop.TraceID = "before"  # and no Result
    world = TaskWorld(calm(PlannedTask(0.1, "t", QUICK, 0.1)))
    odd = Outgoing(base64.b64encode(wire.SerializeToString()))
    world.spawn(world.queues[task_queue(APP, QUICK)].send([odd]))
    assert check(world, await world.live()) == []
    (told,) = world.outcomes["odd"]
    assert (told.state, told.attempts) == (State.FAILED, 1)
    assert told.detail.startswith("malformed: field 'After'")


@simulated
async def test_what_follows_upon_a_task_that_can_not_be_read_is_sent_and_its_batch_ends() -> None:
    mail = FollowUp(SentTask(Envelope(app=APP, task_id="mail", task_type=QUICK), Body(b"{}")), True)
    sent = Envelope(app=APP, task_id="odd", task_type=QUICK)
    made = encode_task(SentTask(sent, Body(b"{}"), (mail,), batch=BatchPlace("b", 0, 1)))
    wire = TaskMessage.FromString(base64.b64decode(made))
    wire.Body.value = b"\xff"
    world = TaskWorld(calm(PlannedTask(0.1, "t", QUICK, 0.1)))
    odd = Outgoing(base64.b64encode(wire.SerializeToString()))
    world.spawn(world.queues[task_queue(APP, QUICK)].send([odd]))
    await world.live()
    assert world.failures == []
    states = {task_id: task.state for task_id, task in world.store.standing.items()}
    assert states["odd"] is State.FAILED
    assert states["mail"] is State.SUCCEEDED
    assert states["b"] is State.FAILED, "a batch would wait for ever"


@simulated
async def test_a_task_that_no_slot_can_be_given_comes_again_and_spends_no_try(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """For a large body a file descriptor is needed, and there may be none left."""
    offer, failures = MemoryTaskSlot.offer, [OSError(errno.EMFILE, "Too many open files")]

    def offer_in_vain(self: MemoryTaskSlot, number: int, attempt: Attempt) -> bool:
        if failures:
            raise failures.pop()
        return offer(self, number, attempt)

    monkeypatch.setattr(MemoryTaskSlot, "offer", offer_in_vain)
    world = TaskWorld(calm(*(PlannedTask(0.1, f"t{n}", QUICK, 0.1, tries=1) for n in range(3))))
    assert check(world, await world.live()) == []
    found = [(task.state, task.attempts, task.epoch) for task in world.store.standing.values()]
    assert sorted(found) == [(State.SUCCEEDED, 1, 1), (State.SUCCEEDED, 1, 1), (State.SUCCEEDED, 1, 2)]
    ended_at = [task.ended_at for task in world.store.standing.values()]
    assert 1.0 < max(ended_at) - min(ended_at) < 10.0, "it waits, but not for its lease to end"


@simulated
async def test_a_queue_that_does_not_answer_keeps_no_letters_of_others_from_being_dropped() -> None:
    async def away(dead_before: float) -> int:
        raise Unavailable("timed out")

    clock = SimClock(Random(1), "c")
    first, second, log = MemoryQueue(clock), MemoryQueue(clock), Log()
    first.expire = away  # type: ignore[method-assign]
    await second.bury([DeadLetter("a", b"", "old")])
    await expire((first, second), clock.wall() + 1.0, log)
    assert not second.letters
    assert log.events("warning") == ["cannot delete old dead letters"]


def test_a_failure_is_logged_with_its_place_the_last_one_too(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[tuple[str, dict[str, Any]]] = []
    monkeypatch.setattr(Quiet, "warning", lambda self, text, **fields: said.append((text, fields)))

    async def live() -> None:
        world = TaskWorld(calm(PlannedTask(0.1, "t", QUICK, 0.1, fails=-1)))
        assert check(world, await world.live()) == []

    run(live())
    told = [(text, fields) for text, fields in said if fields.get("task_id") == "t"]
    assert [text for text, _ in told[-2:]] == ["attempt failed", "task failed"]
    for _, fields in told:
        assert re.search(r"\.py:\d+$", fields["at"])


def test_a_beat_that_the_end_of_its_own_attempt_overtakes_asks_nothing_to_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said: list[str] = []
    monkeypatch.setattr(Quiet, "warning", lambda self, text, **fields: said.append(text))
    overtaken: list[Any] = []

    async def live() -> None:
        world = TaskWorld(calm(PlannedTask(0.1, "t", LONG, 2.0)))
        beat = world.store.beat

        async def be_overtaken(beats: Sequence[AttemptBeat]) -> list[Task | Fenced]:
            while world.store.standing["t"].state is State.RUNNING:
                await world.clock.sleep(0.01)
            answers = await beat(beats)
            overtaken.extend(answers)
            return answers

        world.store.beat = be_overtaken  # type: ignore[method-assign]
        assert check(world, await world.live()) == []

    run(live())
    assert [answer for answer in overtaken if isinstance(answer, Fenced)]
    assert "attempt stopped" not in said


@simulated
async def test_a_node_whose_clock_is_ahead_drops_nothing_that_is_fresh() -> None:
    world = TaskWorld(calm(PlannedTask(0.1, "t", QUICK, 0.1)))
    assert check(world, await world.live()) == []
    assert len(world.store.standing) == 1
    letters = world.queues[task_queue(APP, QUICK)]
    await letters.bury([DeadLetter("a", b"", "fresh")])
    [(node, work)] = world.works.items()
    ahead = SimClock(Random(1), "ahead")
    ahead.set_by_s = 10 * max(node.host.limits.results_keep_s, node.host.limits.dead_keep_s)
    node.host.clock = ahead
    await work.maintain()
    assert len(world.store.standing) == len(letters.letters) == 1


@simulated
async def test_a_task_that_asks_for_more_pauses_than_there_are_has_failed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("holdfast.rules.tasks.attempt.PAUSES_MAX", 4)
    world = TaskWorld(calm(PlannedTask(0.1, "t", QUICK, 0.1, asks=99, pause_s=30.0)))
    assert await world.live() == ""
    task = world.store.standing["t"]
    assert (task.state, task.pauses, world.paused["t"]) == (State.FAILED, 4, 4 + TRIES)
    assert "it has used all its 4 pauses" in task.detail
    (node,) = world.nodes.values()
    assert node.host.stats.tasks_paused == 4


@simulated
async def test_a_task_has_the_tries_and_the_timeout_that_its_sender_said() -> None:
    longer = PlannedTask(0.1, "longer", QUICK, 0.0, hangs=-1, tries=1, timeout_s=TIMEOUT_S * 3)
    more = PlannedTask(0.1, "more", QUICK, 0.1, fails=4, tries=5)
    world = TaskWorld(calm(PlannedTask(0.1, "one", QUICK, 0.1, fails=1, tries=1), longer, more))
    assert await world.live() == ""
    one, hung, told = (world.store.standing[name] for name in ("one", "longer", "more"))
    assert (one.state, one.attempts, world.tried["one"]) == (State.FAILED, 1, 1)
    assert (hung.state, hung.attempts) == (State.TIMEOUT, 1)
    assert hung.ended_at - hung.started_at == pytest.approx(TIMEOUT_S * 3, abs=1.0)
    assert (told.state, told.attempts) == (State.SUCCEEDED, 5)


@simulated
async def test_an_effect_that_was_refused_goes_to_its_target_again_from_its_dead_letter(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    taken, willing = list[OutgoingEffect](), asyncio.Event()

    async def take(self: Sink, effects: Sequence[OutgoingEffect]) -> None:
        if self._picky and not willing.is_set():
            raise InvalidMessage("it takes nothing yet")
        taken.extend(effects)

    monkeypatch.setattr(Sink, "take", take)
    world = TaskWorld(calm(PlannedTask(0.1, "t", QUICK, 0.1, sends=2)))
    queue = world.queues[task_queue(APP, QUICK)]
    sent = list[DeadLetter]()

    async def send_again() -> None:
        while not queue.letters or queue.messages:
            await world.clock.sleep(1.0)
        sent.extend(queue.letters.values())
        taken.clear()
        willing.set()
        assert await world.producer.redrive(QUICK, sent) == 1
        while not taken or queue.messages:
            await world.clock.sleep(1.0)

    world.spawn(send_again())
    await world.live()
    assert world.failures == []
    [letter] = sent
    assert [(each.id, each.target, each.body) for each in taken] == [
        (letter.attributes["effect"], PICKY, letter.body)
    ]
    assert not queue.letters
    task = world.store.standing["t"]
    assert (task.state, task.attempts, task.effects) == (State.SUCCEEDED, 1, b""), "nothing ran again"
    assert [outcome.state for outcome in world.outcomes["t"]] == [State.SUCCEEDED], "nor is it told again"


@simulated
async def test_a_task_that_is_sent_again_while_its_failure_is_still_told_runs_again() -> None:
    """Its dead letter is there before its message is deleted, and the new message comes to the same node."""
    world = TaskWorld(calm(PlannedTask(0.1, "t", QUICK, 0.1, fails=TRIES)))
    queue = world.queues[task_queue(APP, QUICK)]
    was_in_hand = list[bool]()

    async def send_again() -> None:
        while not queue.letters:
            await world.clock.sleep(0.001)
        [work] = world.works.values()
        was_in_hand.append("t" in work.held.by_id)
        assert await world.producer.redrive(QUICK, list(queue.letters.values())) == 1
        while not world.store.standing["t"].ended:
            await world.clock.sleep(1.0)

    world.spawn(send_again())
    await world.live()
    assert world.failures == []
    assert was_in_hand == [True]
    task = world.store.standing["t"]
    assert (task.state, task.attempts) == (State.SUCCEEDED, 1), "it was queued for ever"


@simulated
async def test_a_task_that_is_sent_again_while_a_copy_of_it_is_judged_runs_again() -> None:
    """The store has said that it failed, and the node doesn't know yet."""
    world = TaskWorld(calm(PlannedTask(0.1, "t", QUICK, 0.1, fails=TRIES)))
    queue, start = world.queues[task_queue(APP, QUICK)], world.store.start
    judged = asyncio.Event()

    async def answer_slowly(wishes: Sequence[StartAttempt]) -> list[Task]:
        tasks = await start(wishes)
        if tasks[0].ended and not judged.is_set():
            judged.set()
            await world.clock.sleep(0.5)
        return tasks

    world.store.start = answer_slowly  # type: ignore[method-assign]

    async def send_again() -> None:
        while not queue.letters or queue.messages:
            await world.clock.sleep(0.1)
        await sent_as(QUICK, "t", queue)
        await judged.wait()
        assert await world.producer.redrive(QUICK, list(queue.letters.values())) == 1
        while queue.messages:
            await world.clock.sleep(1.0)

    world.spawn(send_again())
    await world.live()
    assert world.failures == []
    task = world.store.standing["t"]
    assert (task.state, task.attempts) == (State.SUCCEEDED, 1), "it was queued for ever"


@simulated
async def test_a_task_that_is_sent_again_while_its_node_is_yet_to_learn_of_its_end_runs_again() -> None:
    """The store has its failure, of which a copy on another node may have left a dead letter."""
    world = TaskWorld(calm(PlannedTask(0.1, "t", QUICK, 0.1, fails=TRIES)))
    queue, end = world.queues[task_queue(APP, QUICK)], world.store.end
    ended, again = asyncio.Event(), asyncio.Event()

    async def answer_slowly(ends: Sequence[EndAttempt]) -> list[Task | Fenced]:
        answers = await end(ends)
        if not ended.is_set():
            ended.set()
            await again.wait()
        return answers

    world.store.end = answer_slowly  # type: ignore[method-assign]

    async def send_again() -> None:
        await ended.wait()
        await world.store.reset(["t"])
        await sent_as(QUICK, "t", queue)
        [work] = world.works.values()
        while len(work.held.by_id["t"].held.receipts) < 2:
            await world.clock.sleep(0.001)
        again.set()
        while queue.messages:
            await world.clock.sleep(1.0)

    world.spawn(send_again())
    await world.live()
    assert world.failures == []
    task = world.store.standing["t"]
    assert (task.state, task.attempts) == (State.SUCCEEDED, 1), "it was queued for ever"


@simulated
async def test_an_effect_that_is_sent_again_before_the_message_of_its_task_is_deleted_reaches_its_target(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The message that has a node look at the record is another one than that, though of the same task."""
    taken, willing = list[OutgoingEffect](), asyncio.Event()

    async def take(self: Sink, effects: Sequence[OutgoingEffect]) -> None:
        if self._picky and not willing.is_set():
            raise InvalidMessage("it takes nothing yet")
        taken.extend(effects)

    monkeypatch.setattr(Sink, "take", take)
    world = TaskWorld(calm(PlannedTask(0.1, "t", QUICK, 0.1, sends=2)))
    queue, was_in_hand = world.queues[task_queue(APP, QUICK)], list[bool]()
    handed_over = world.store.handed_over

    async def answer_slowly(left: Sequence[EffectsLeft]) -> None:
        await handed_over(left)
        await world.clock.sleep(0.5)

    world.store.handed_over = answer_slowly  # type: ignore[method-assign]

    async def send_again() -> None:
        while not queue.letters or world.store.standing["t"].effects:
            await world.clock.sleep(0.001)
        [work] = world.works.values()
        was_in_hand.append("t" in work.held.by_id)
        taken.clear()
        willing.set()
        assert await world.producer.redrive(QUICK, list(queue.letters.values())) == 1
        while queue.messages:
            await world.clock.sleep(1.0)

    world.spawn(send_again())
    await world.live()
    assert world.failures == []
    assert was_in_hand == [True]
    assert [each.target for each in taken] == [PICKY]
    assert not queue.letters
    assert world.store.standing["t"].effects == b""


def test_a_task_of_hours_hears_within_seconds_that_it_is_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    """It tells nothing of its progress, so its node has no news to tell the store of."""
    hours = msgspec.structs.replace(SPECS[QUICK], timeout_s=7200.0)
    monkeypatch.setattr("simulator.tasks.SPECS", {**SPECS, QUICK: hours})
    monkeypatch.setattr(MemoryTaskSlot, "progress", lambda *_: None)

    async def live() -> tuple[TaskWorld, float]:
        world = TaskWorld(calm(PlannedTask(0.1, "t", QUICK, 3600.0)))
        cancelled_at: list[float] = []

        async def cancel() -> None:
            await world.clock.sleep(60.0)
            assert world.tried["t"] == 1
            cancelled_at.append(world.clock.wall())
            await world.producer.cancel("t", "not wanted")

        world.spawn(cancel())
        await world.live()
        return world, cancelled_at[0]

    world, cancelled_at = run(live())
    (outcome,) = world.outcomes["t"]
    assert (outcome.state, outcome.detail) == (State.FAILED, "cancelled: not wanted")
    assert outcome.ended_at - cancelled_at < 10.0


@pytest.mark.parametrize("reason", ["the node is stopping", "its delivery lapsed"])
@simulated
async def test_the_attempt_that_is_cancelled_ends_its_task_whatever_words_the_reason_has(reason: str) -> None:
    """These are a node's own words for why it asks an attempt to end and has another follow."""
    world = TaskWorld(calm(PlannedTask(0.1, "t", QUICK, 3600.0)))

    async def cancel() -> None:
        await world.clock.sleep(2.0)
        await world.producer.cancel("t", reason)

    world.spawn(cancel())
    await world.live()
    [outcome] = world.outcomes["t"]
    assert (outcome.state, outcome.detail) == (State.FAILED, f"cancelled: {reason}")
    assert outcome.attempts == 1


@pytest.mark.parametrize("answer_s", [0.05, 0.5])
@simulated
async def test_a_node_that_stops_while_the_store_begins_a_task_spends_no_try_of_it(answer_s: float) -> None:
    """The store has counted the attempt, though the node has no answer yet."""
    world = TaskWorld(calm(PlannedTask(1.0, "t", QUICK, 0.5, tries=1)))
    start, counted = world.store.start, asyncio.Event()

    async def answer_slowly(wishes: Sequence[StartAttempt]) -> list[Task]:
        tasks = await start(wishes)
        if not counted.is_set():
            counted.set()
            await world.clock.sleep(answer_s)
        return tasks

    world.store.start = answer_slowly  # type: ignore[method-assign]

    async def stop() -> None:
        await counted.wait()
        [node] = world.nodes.values()
        stopping = asyncio.ensure_future(node.stop())
        while not stopping.done():  # its receives end at once, as where much comes
            await world.clock.sleep(0.001)
            world.queues[task_queue(APP, QUICK)].wake()
        await stopping
        world.start_node(0)

    world.spawn(stop())
    assert check(world, await world.live()) == []
    task = world.store.standing["t"]
    assert (task.state, task.attempts, task.epoch) == (State.SUCCEEDED, 1, 2)


@simulated
async def test_a_task_that_can_not_run_ends_on_a_node_that_stops() -> None:
    """No other node could run it, either."""
    world = TaskWorld(calm(PlannedTask(0.1, "t", QUICK, 0.1)))
    start, asked = world.store.start, asyncio.Event()

    async def answer_slowly(wishes: Sequence[StartAttempt]) -> list[Task]:
        tasks = await start(wishes)
        if "odd" in {wish.task_id for wish in wishes} and not asked.is_set():
            asked.set()
            await world.clock.sleep(0.5)
        return tasks

    world.store.start = answer_slowly  # type: ignore[method-assign]

    async def stop() -> None:
        await sent_as("no.such", "odd", world.queues[task_queue(APP, QUICK)])
        await asked.wait()
        [node] = world.nodes.values()
        await node.stop()
        world.start_node(0)

    world.spawn(stop())
    assert check(world, await world.live()) == []
    task = world.store.standing["odd"]
    assert (task.state, task.epoch) == (State.FAILED, 1)


@simulated
async def test_a_node_that_stops_asks_again_whether_an_attempt_has_begun_that_would_be_the_last() -> None:
    """The store has counted it, and the answer was lost."""
    world = TaskWorld(calm(PlannedTask(1.0, "t", QUICK, 0.5, tries=1)))
    start, counted = world.store.start, asyncio.Event()

    async def lose_the_answer(wishes: Sequence[StartAttempt]) -> list[Task]:
        tasks = await start(wishes)
        if not counted.is_set():
            counted.set()
            await world.clock.sleep(0.5)
            raise OutcomeUnknown("timed out")
        return tasks

    world.store.start = lose_the_answer  # type: ignore[method-assign]

    async def stop() -> None:
        await counted.wait()
        [node] = world.nodes.values()
        await node.stop()
        world.start_node(0)

    world.spawn(stop())
    assert check(world, await world.live()) == []
    task = world.store.standing["t"]
    assert (task.state, task.attempts, task.epoch) == (State.SUCCEEDED, 1, 2)


@simulated
async def test_what_succeeds_in_the_last_moment_of_a_node_that_stops_does_not_run_again() -> None:
    until_s = 2.0 + TaskWorld.limits.drain_timeout_s
    world = TaskWorld(calm(PlannedTask(1.0, "t", LONG, until_s)))

    async def stop() -> None:
        await world.clock.sleep(2.0)
        [node], [work] = world.nodes.values(), world.works.values()
        asked = list[str]()

        def cancel(task_id: str, reason: str, grace_s: float = 0.0) -> bool:
            asked.append(reason)
            return True

        work.slots.cancel = cancel  # type: ignore[method-assign]
        await node.stop()
        assert asked, "it was asked to end"
        world.start_node(0)

    world.spawn(stop())
    assert check(world, await world.live()) == []
    task = world.store.standing["t"]
    assert (task.state, task.attempts, task.epoch) == (State.SUCCEEDED, 1, 1)


@pytest.mark.parametrize("error", [Unavailable("timed out"), OutcomeUnknown("timed out")])
@simulated
async def test_a_node_stops_in_time_while_the_store_does_not_say_what_may_begin(error: HoldfastError) -> None:
    world = TaskWorld(calm(PlannedTask(1.0, "t", QUICK, 0.5, tries=1)))
    start, asked = world.store.start, asyncio.Event()

    async def be_away(wishes: Sequence[StartAttempt]) -> list[Task]:
        asked.set()
        raise error

    world.store.start = be_away  # type: ignore[method-assign]
    took_s = list[float]()

    async def stop() -> None:
        await asked.wait()
        await world.clock.sleep(1.0)
        [node] = world.nodes.values()
        began_at = world.clock.monotonic()
        await node.stop()
        took_s.append(world.clock.monotonic() - began_at)
        world.store.start = start  # type: ignore[method-assign]
        world.start_node(0)

    world.spawn(stop())
    assert check(world, await world.live()) == []
    assert took_s[0] < TaskWorld.limits.drain_timeout_s + 1.0
    assert world.store.standing["t"].state is State.SUCCEEDED


@pytest.fixture
def one_in_two_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rate of the long tasks."""
    slow = msgspec.structs.replace(SPECS[LONG], group_rate=0.5)
    monkeypatch.setattr("simulator.tasks.SPECS", {**SPECS, LONG: slow})


@pytest.mark.usefixtures("one_in_two_seconds")
@simulated
async def test_a_node_without_room_goes_on_when_a_group_s_rate_would_let_it_begin() -> None:
    """Its event loop stood still for good."""
    running = [PlannedTask(0.1, f"quick{n}", QUICK, 3.0) for n in range(SLOTS)]
    waiting = [PlannedTask(0.0, f"long{n}", LONG, 0.5) for n in range(2)]
    world = TaskWorld(calm(*waiting, *running))
    assert check(world, await world.live()) == []
    began = {e.task_id: e.at for e in world.log if isinstance(e, RanAttempt) and not e.end}
    first, second = sorted(began[task.name] for task in waiting)
    assert second >= first + 2.5, "its rate would have let it begin earlier, and there was no room"


@pytest.mark.usefixtures("one_in_two_seconds")
@simulated
async def test_a_node_that_stops_goes_on_when_a_group_s_rate_would_let_it_begin(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its event loop stood still for good."""
    world = TaskWorld(calm(*(PlannedTask(0.1, f"t{n}", LONG, 0.5) for n in range(2))))

    async def stop() -> None:
        await world.clock.sleep(0.5)
        [node] = world.nodes.values()
        [work] = world.works.values()
        assert work.held.waiting.rests_until() is not None
        for queue in world.queues.values():  # it waits for their answers
            monkeypatch.setattr(queue, "wake", lambda: None)
        await node.stop()
        world.start_node(0)

    world.spawn(stop())
    assert check(world, await world.live()) == []
    assert {task.state for task in world.store.standing.values()} == {State.SUCCEEDED}


@pytest.mark.slow
@simulated
async def test_while_results_can_t_be_stored_a_node_has_no_more_of_them_than_slots(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They would fill its memory."""
    monkeypatch.setattr("holdfast.tasks.attempts.INLINE_BYTES_MAX", 0)
    planned = [PlannedTask(0.1, f"t{n}", QUICK, 1.0) for n in range(4 * SLOTS)]
    away_s, puts = 20.0, list[float]()
    world = TaskWorld(calm(*planned))

    async def put(self: Values, data: bytes) -> StoredValue:
        puts.append(world.clock.monotonic())
        if puts[-1] < away_s:
            raise Unavailable("no connection")
        return StoredValue("memory:///a", len(data), "0" * 64)

    monkeypatch.setattr(Values, "put", put)
    await world.live()
    assert world.failures == []
    ends = [event.at for event in world.log if isinstance(event, RanAttempt) and event.end]
    assert sum(at < away_s for at in ends) == SLOTS
    assert puts[0] < away_s / 2
    assert len(ends) == len(planned)
    assert {task.state for task in world.store.standing.values()} == {State.SUCCEEDED}


@pytest.mark.slow
@simulated
async def test_a_group_at_its_limit_keeps_nothing_from_coming_though_it_fills_the_hands_of_its_node(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one_at_once = msgspec.structs.replace(SPECS[LONG], group_limit=1)
    monkeypatch.setattr("simulator.tasks.SPECS", {**SPECS, LONG: one_at_once})
    monkeypatch.setattr(TaskWorld, "limits", msgspec.structs.replace(TaskWorld.limits, max_held=20))
    of_the_group = [PlannedTask(0.1, f"long{n}", LONG, 4.0) for n in range(60)]
    others = [PlannedTask(5.0, f"quick{n}", QUICK, 0.1) for n in range(10)]
    world = TaskWorld(calm(*of_the_group, *others))
    assert check(world, await world.live()) == []
    ends = {e.task_id: e.at for e in world.log if isinstance(e, RanAttempt) and e.end}
    assert max(ends[each.name] for each in others) < 30.0, "not only once 40 of the group had ended"
    took_s = max(ends[each.name] for each in of_the_group)
    assert took_s < 60 * 4.0 * 1.2, "and always one of the group ran"
    [node] = world.nodes.values()
    assert node.host.stats.given_back < 200
