"""The tracker: deliveries stay alive while they are held, and end in one order: letters, deletes, reports."""

import asyncio
import math
from collections.abc import Iterable, Sequence
from typing import Any

import pytest

from holdfast.cluster.deliveries import DELETE_LINGER_FACTOR, DeliveryTracker, Settlement
from holdfast.cluster.lifecycle import Tasks
from holdfast.common.held import Held, PendingDeadLetter, Receipt
from holdfast.common.message import Life, Place, Span
from holdfast.errors import OutcomeUnknown, TooLarge, Unavailable
from holdfast.ports.clock import Clock
from holdfast.ports.queue import DeadLetter, Outgoing
from holdfast.services.memory.queue import MemoryQueue
from simulator.limits import limits_with
from tests.cluster.fakes import Log, held, make_host, settle_down

VIRTUAL = True
VISIBILITY_S = 30.0
LIMITS = limits_with(visibility_s=VISIBILITY_S)
KEY = "s/k"


class Queue:
    """A queue whose calls fail as often as the test says, and that notes them."""

    max_batch = 10
    linger_s = 0.0
    hold_max_s = math.inf

    def __init__(self, clock: Clock) -> None:
        self.standing = MemoryQueue(clock)
        self.failing: dict[str, list[Exception]] = {}
        self.calls: list[tuple[str, list[Any]]] = []

    def __getattr__(self, name: str) -> Any:
        async def call(items: Any, *args: Any) -> Any:
            self.calls.append((name, list(items)))
            if self.failing.get(name):
                raise self.failing[name].pop(0)
            return await getattr(self.standing, name)(items, *args)

        return call

    def names(self) -> list[str]:
        return [name for name, _ in self.calls]


class Rig:
    """A tracker and all it talks to."""

    def __init__(self, clock: Clock, tasks: Tasks) -> None:
        self.queue = Queue(clock)
        self.clock = clock
        self.holding: list[Held] = []
        self.story: list[str] = []
        self.reports: list[tuple[list[int], bool]] = []
        self.log = Log()
        host = make_host(clock, tasks, limits=LIMITS, log=self.log)
        self.stats = host.stats
        self.kept: list[Held] = []
        """What must not be replaced by a copy."""
        self.tracker = DeliveryTracker(
            "s",
            self.queue,
            host,
            holding=self._holding,
            report=self._report,
            may_reissue=lambda message: message not in self.kept,
        )
        self.tracker.start()

    def _holding(self, stream: str) -> list[tuple[str, Held]]:
        assert stream == "s"
        return [("k", message) for message in self.holding]

    async def _report(self, receipts: list[Receipt], settled: bool) -> None:
        self.queue.calls.append(("report", [receipt.number for receipt in receipts]))
        self.reports.append(([receipt.number for receipt in receipts], settled))

    async def receive(self, count: int = 1) -> list[Held]:
        """Messages with real deliveries, as an accepted commit leaves them."""
        await self.queue.standing.send([Outgoing(b"%d" % n) for n in range(count)])
        deliveries = await self.queue.standing.receive(count, 0, VISIBILITY_S, "me")
        messages = [
            held(n, delivery.receipt, expires_at=self.clock.monotonic() + VISIBILITY_S)
            for n, delivery in enumerate(deliveries)
        ]
        for message in messages:
            message.life = Life.COMMITTED
        return messages

    async def settle(self, messages: Iterable[Held], letters: Iterable[PendingDeadLetter] = ()) -> None:
        """Hand it over, and wait until all is done that can be."""
        done = asyncio.Event()
        self.tracker.settle(Settlement(KEY, tuple(letters), tuple(messages), done.set))
        await self.clock.wait(done, 60)
        assert done.is_set()
        await self.tracker.settled()
        await settle_down()


@pytest.fixture
async def rig(clock: Clock, tasks: Tasks) -> Rig:
    return Rig(clock, tasks)


async def test_letters_go_before_deletes_and_deletes_before_reports(rig: Rig) -> None:
    (message,) = await rig.receive()
    message.receipts[0].sender = "other"
    await rig.settle([message], [PendingDeadLetter("late", message)])
    assert rig.queue.names() == ["bury", "delete", "report"]
    assert rig.reports == [([0], True)]
    assert rig.queue.standing.messages == {}
    (letter,) = rig.queue.standing.letters.values()
    assert (letter.reason, letter.key, letter.body) == ("late", "k", b"body 0")
    assert message.life is Life.DELETED


async def test_own_messages_are_reported_to_nobody(rig: Rig) -> None:
    await rig.settle(await rig.receive())
    assert rig.queue.names() == ["delete"]


async def test_what_comes_together_goes_together_ten_a_call(rig: Rig) -> None:
    messages = [message for _ in range(3) for message in await rig.receive(10)]
    done: list[int] = []
    for number, message in enumerate(messages):
        rig.tracker.settle(Settlement(KEY, (), (message,), lambda number=number: done.append(number)))  # type: ignore[misc]
    await rig.tracker.settled()
    assert [len(items) for name, items in rig.queue.calls if name == "delete"] == [10, 10, 10]
    assert rig.stats.delete_calls == 3
    assert done == list(range(30))


async def test_a_stale_receipt_is_never_used(rig: Rig) -> None:
    first, second = await rig.receive(2)
    first.receipts[0].stale = True
    await rig.settle([first, second])
    assert [items for name, items in rig.queue.calls if name == "delete"] == [[second.receipts[0].receipt]]
    assert len(rig.queue.standing.messages) == 1
    rig.holding = [first]
    await rig.clock.sleep(VISIBILITY_S)
    assert "extend" not in rig.queue.names()


async def test_every_receipt_of_a_message_is_deleted_once(rig: Rig) -> None:
    first, second = await rig.receive(2)
    first.receipts += [*second.receipts, Receipt(first.receipts[0].receipt, 0, sender="other", number=7)]
    await rig.settle([first])
    (deleted,) = [items for name, items in rig.queue.calls if name == "delete"]
    assert len(deleted) == len(set(deleted)) == 2
    assert rig.queue.standing.messages == {}
    assert rig.reports == [([7], True)]


@pytest.mark.parametrize("call", ["bury", "delete"])
@pytest.mark.parametrize("error", [Unavailable("down"), OutcomeUnknown("lost")])
async def test_what_the_queue_does_not_answer_is_asked_again(rig: Rig, call: str, error: Exception) -> None:
    (message,) = await rig.receive()
    rig.queue.failing[call] = [error] * 5
    began = rig.clock.monotonic()
    await rig.settle([message], [PendingDeadLetter("late", message)])
    assert rig.queue.names().count(call) == 6
    assert rig.clock.monotonic() - began > 0.1, "after pauses that grow"
    assert rig.queue.standing.messages == {}
    assert len(rig.queue.standing.letters) == 1


async def test_without_its_letter_no_message_is_deleted(rig: Rig) -> None:
    """What is refused for good can't be insisted on, nor may it be lost."""
    first, second = await rig.receive(2)
    first.receipts[0].sender = "other"
    rig.queue.failing["bury"] = [TooLarge("no letter of that size")]
    done: list[int] = []
    rig.tracker.settle(Settlement(KEY, (PendingDeadLetter("late", first),), (first,), lambda: done.append(1)))
    rig.tracker.settle(Settlement(KEY, (), (second,), lambda: done.append(2)))
    await rig.tracker.settled()
    await settle_down()
    assert [message.id for message in rig.queue.standing.messages.values()] == ["m1"]
    assert rig.reports == [], "its sender still has it"
    assert done == [1, 2], "the stream goes on"
    assert rig.log.events("error") == ["queue call refused"]


async def test_a_letter_that_is_refused_keeps_no_other(rig: Rig) -> None:
    refused, *others = await rig.receive(4)
    bury = rig.queue.standing.bury

    async def refuse_one(letters: Sequence[DeadLetter]) -> None:
        if any(refused.place.name in letter.id for letter in letters):
            raise TooLarge("no letter of that size")
        await bury(letters)

    rig.queue.standing.bury = refuse_one  # type: ignore[method-assign]
    for each in (others[0], refused, *others[1:]):
        rig.tracker.settle(Settlement(KEY, (PendingDeadLetter("late", each),), (each,), lambda: None))
    await rig.tracker.settled()
    assert len(rig.queue.standing.letters) == 3
    assert len(rig.queue.standing.messages) == 1, "what was refused stays in the queue"


async def test_seqs_that_never_came_have_a_letter_without_a_message(rig: Rig) -> None:
    await rig.settle([], [PendingDeadLetter("never came", run=2, span=Span(5, 7))])
    (letter,) = rig.queue.standing.letters.values()
    assert (letter.id, letter.run, letter.seq, letter.body) == ("s/k:2:5-7", 2, "5-7", b"")
    assert "delete" not in rig.queue.names()


async def test_the_same_letter_sent_again_changes_nothing(rig: Rig) -> None:
    for _ in range(2):
        (message,) = await rig.receive()
        await rig.settle([message], [PendingDeadLetter("skipped before", message)])
    assert len(rig.queue.standing.letters) == 1
    assert rig.stats.set_aside == 2


@pytest.mark.parametrize("waits", [False, True])
async def test_only_what_no_commit_has_passed_over_is_the_same_message_when_it_is_redriven(
    rig: Rig, waits: bool
) -> None:
    (message,) = await rig.receive()
    message.place = Place(0, 0, "m0")
    await rig.settle([message], [PendingDeadLetter("parked", message, waits=waits)])
    await rig.queue.standing.redrive(["s/k:0:m0"])
    (again,) = rig.queue.standing.messages.values()
    assert again.attributes == ({"id": "m0"} if waits else {})


async def test_a_message_that_was_skipped_and_redriven_keeps_its_first_reason(rig: Rig) -> None:
    (message,) = await rig.receive()
    reason = "cannot reach ftp://user:hunter2@lab: " + "x" * 1000
    await rig.settle([message], [PendingDeadLetter(reason, message, skipped=True)])
    for _ in range(2):
        (letter,) = rig.queue.standing.letters.values()
        assert await rig.queue.standing.redrive([letter.id]) == 1
        (delivery,) = await rig.queue.standing.receive(1, 0, VISIBILITY_S, "me")
        again = held(0, delivery.receipt)
        again.attributes, again.life = delivery.attributes, Life.COMMITTED
        await rig.settle([again], [PendingDeadLetter(again.skipped_before, again)])
    (letter,) = rig.queue.standing.letters.values()
    assert letter.reason.startswith("skipped before: cannot reach ftp://")
    assert len(letter.reason) < 600, "an attribute of a queue is no place for a long text"
    assert "hunter2" not in str(letter)


# --- extending


async def test_only_what_is_due_is_extended(rig: Rig) -> None:
    now = rig.clock.monotonic()
    soon, later = await rig.receive(2)
    later.receipts[0].expires_at = now + 10 * VISIBILITY_S
    rig.holding = [soon, later]
    await rig.clock.sleep(VISIBILITY_S)
    extended = {receipt for name, items in rig.queue.calls if name == "extend" for receipt in items}
    assert extended == {soon.receipts[0].receipt}
    assert soon.receipts[0].expires_at > now + VISIBILITY_S
    assert not soon.receipts[0].stale


async def test_what_is_held_stays_invisible_ten_a_call(rig: Rig) -> None:
    messages = [message for _ in range(3) for message in await rig.receive(10)]
    rig.holding = messages
    await rig.clock.sleep(10 * VISIBILITY_S)
    assert await rig.queue.standing.receive(10, 0, VISIBILITY_S, "other") == []
    sizes = [len(items) for name, items in rig.queue.calls if name == "extend"]
    assert set(sizes) == {10}
    assert len(sizes) < 3 * 10 * 4, "a few calls a visibility, not one a message"


async def test_what_is_yet_to_be_deleted_stays_invisible(rig: Rig) -> None:
    """For a while, the queue accepts calls without confirming them."""
    messages = await rig.receive(2)
    deletes = rig.queue.failing["delete"] = [OutcomeUnknown("lost")] * 1000
    for message in messages:
        rig.tracker.settle(Settlement(KEY, (), (message,), lambda: None))
        await rig.clock.sleep(1)
    await rig.clock.sleep(3 * VISIBILITY_S)
    assert await rig.queue.standing.receive(10, 0, VISIBILITY_S, "other") == []
    deletes.clear()
    await rig.tracker.settled()
    await settle_down()
    assert rig.queue.standing.messages == {}
    calls = len(rig.queue.calls)
    await rig.clock.sleep(3 * VISIBILITY_S)
    assert len(rig.queue.calls) == calls, "what is deleted is extended no more"


async def test_a_failed_extension_leaves_time_for_another(rig: Rig) -> None:
    (message,) = await rig.receive()
    rig.holding = [message]
    rig.queue.failing["extend"] = [Unavailable("down"), OutcomeUnknown("lost")]
    await rig.clock.sleep(3 * VISIBILITY_S)
    assert await rig.queue.standing.receive(10, 0, VISIBILITY_S, "other") == []
    assert rig.log.events("warning").count("cannot extend deliveries") == 2


async def test_an_extension_that_fails_costs_no_other_delivery(rig: Rig) -> None:
    broken, *others = [message for _ in range(3) for message in await rig.receive(10)]
    rig.holding = [broken, *others]
    extend = rig.queue.standing.extend

    async def refuse(receipts: Sequence[str], visibility_s: float) -> list[str]:
        if broken.receipts[0].receipt in receipts:
            raise OutcomeUnknown("1 of 10 failed")
        return await extend(receipts, visibility_s)

    rig.queue.standing.extend = refuse  # type: ignore[method-assign]
    await rig.clock.sleep(5 * VISIBILITY_S)
    lapsed = await rig.queue.standing.receive(10, 0, VISIBILITY_S, "other")
    assert len(lapsed) == 10, "the messages of its call"
    assert await rig.queue.standing.receive(10, 0, VISIBILITY_S, "other") == []


async def test_a_receipt_that_turns_out_stale_is_not_extended_again(rig: Rig) -> None:
    (message,) = await rig.receive()
    await rig.clock.sleep(VISIBILITY_S + 1)
    assert await rig.queue.standing.receive(10, 0, VISIBILITY_S, "other")
    rig.holding = [message]
    await rig.clock.sleep(3 * VISIBILITY_S)
    assert message.receipts[0].stale
    assert rig.queue.names().count("extend") == 1


# --- reissuing


async def aged(rig: Rig, count: int = 1, place: Place | None = None) -> list[Held]:
    """Messages whose deliveries the queue won't extend much longer, but that are still in use."""
    rig.queue.hold_max_s = rig.queue.standing.hold_max_s = 20 * VISIBILITY_S
    messages = await rig.receive(count)
    for message in messages:
        message.place = place or message.place
        message.receipts[0].received_at = rig.clock.monotonic()
    rig.holding = messages
    return messages


async def test_what_was_held_for_too_long_is_sent_again_and_only_then_deleted(rig: Rig) -> None:
    messages = await aged(rig, 3)
    bodies = {message.body for message in messages}
    await rig.clock.sleep(15 * VISIBILITY_S)
    assert "send" not in rig.queue.names(), "there is time"
    await rig.clock.sleep(2 * VISIBILITY_S)
    tail = rig.queue.names()[rig.queue.names().index("send") :]
    assert tail[:2] == ["send", "delete"]
    assert {message.body for message in rig.queue.standing.messages.values()} == bodies
    assert {message.key for message in rig.queue.standing.messages.values()} == {"k"}
    assert all(message.receipts[0].stale for message in messages)
    assert rig.stats.reissued == 3
    assert rig.queue.names().count("send") == 1


async def test_what_was_sent_again_is_not_sent_once_more_while_nothing_can_be_extended(rig: Rig) -> None:
    await aged(rig)
    await rig.clock.sleep(15 * VISIBILITY_S)
    rig.queue.failing["extend"] = [Unavailable("down") for _ in range(100)]
    await rig.clock.sleep(4 * VISIBILITY_S)
    assert rig.queue.names().count("send") == 1


async def test_what_must_not_be_replaced_is_held_for_as_long_as_the_queue_lets_it(rig: Rig) -> None:
    first, second = await aged(rig, 2)
    rig.kept.append(first)
    await rig.clock.sleep(18 * VISIBILITY_S)
    assert (first.receipts[0].stale, second.receipts[0].stale) == (False, True)
    assert rig.stats.reissued == 1


async def test_the_copy_has_the_identity_of_the_first(rig: Rig) -> None:
    await aged(rig, place=Place(0, 0, "m-first"))
    await rig.clock.sleep(17 * VISIBILITY_S)
    (copy,) = rig.queue.standing.messages.values()
    assert copy.attributes == {"id": "m-first"}


async def test_what_could_not_be_sent_again_is_not_deleted(rig: Rig) -> None:
    (message,) = await aged(rig)
    rig.queue.failing["send"] = [Unavailable("down"), OutcomeUnknown("lost")]
    await rig.clock.sleep(16.1 * VISIBILITY_S)
    assert rig.queue.names()[-1] == "send"
    assert not message.receipts[0].stale
    await rig.clock.sleep(VISIBILITY_S)
    assert rig.queue.names().count("send") == 3
    assert len(rig.queue.standing.messages) == 1


# --- sharing calls


async def test_deletes_wait_a_moment_to_share_a_call_where_calls_cost(rig: Rig) -> None:
    rig.queue.linger_s = 0.1
    one, two = await rig.receive(2)
    for message in (one, two):
        rig.tracker.settle(Settlement(KEY, (), (message,), lambda: None))
        await rig.clock.sleep(0.5 * DELETE_LINGER_FACTOR * rig.queue.linger_s)
    await rig.clock.sleep(0.1 * DELETE_LINGER_FACTOR * rig.queue.linger_s)
    assert [len(items) for name, items in rig.queue.calls if name == "delete"] == [2]


async def test_what_fills_no_call_waits_on(rig: Rig) -> None:
    rig.queue.linger_s = 0.1
    messages = await rig.receive(10) + await rig.receive(5)
    for start in range(0, 15, 3):
        rig.tracker.settle(Settlement(KEY, (), tuple(messages[start : start + 3]), lambda: None))
    await settle_down()
    assert [len(items) for name, items in rig.queue.calls if name == "delete"] == [9]
    await rig.clock.sleep(1.1 * DELETE_LINGER_FACTOR * rig.queue.linger_s)
    assert [len(items) for name, items in rig.queue.calls if name == "delete"] == [9, 6]


async def test_a_full_call_does_not_wait_and_neither_does_a_drain(rig: Rig) -> None:
    rig.queue.linger_s = 60.0
    began = rig.clock.monotonic()
    for message in await rig.receive(10):
        rig.tracker.settle(Settlement(KEY, (), (message,), lambda: None))
    await settle_down()
    assert rig.queue.names() == ["delete"]
    (last,) = await rig.receive()
    rig.tracker.settle(Settlement(KEY, (), (last,), lambda: None))
    await rig.tracker.settled()
    assert rig.queue.names() == ["delete", "delete"]
    assert rig.clock.monotonic() == began


async def test_visibility_counts_from_when_its_extension_was_sent(rig: Rig) -> None:
    [message] = await rig.receive()
    rig.holding = [message]
    sent_at: list[float] = []
    extend = rig.queue.standing.extend

    async def slow(receipts: Sequence[str], visibility_s: float) -> list[str]:
        sent_at.append(rig.clock.monotonic())
        await rig.clock.sleep(2)
        return await extend(receipts, visibility_s)

    rig.queue.standing.extend = slow  # type: ignore[method-assign]
    await rig.clock.sleep(0.7 * VISIBILITY_S)
    assert message.receipts[0].expires_at == sent_at[0] + VISIBILITY_S
