"""The pump receives when it may, sets aside what has no key, and never stops for it."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from holdfast.cluster.lifecycle import Tasks
from holdfast.cluster.pump import Pump, Seen
from holdfast.common.held import Receipt
from holdfast.common.polling import CROWDED_S
from holdfast.common.reception import Reception
from holdfast.errors import InvalidMessage, Unavailable
from holdfast.ports.clock import Clock
from holdfast.ports.queue import Delivery, Outgoing
from holdfast.services.memory.queue import MemoryQueue
from simulator.limits import limits_with
from tests.cluster.fakes import Log, StandingMembership, make_host

VIRTUAL = True
LIMITS = limits_with(visibility_s=30.0, receive_wait_s=5.0, renew_s=1.0)


class Flaky(MemoryQueue):
    """Fails on demand."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self.failing: list[str] = []
        self.calls: list[str] = []

    def attempt(self, call: str) -> None:
        self.calls.append(call)
        if call in self.failing:
            raise Unavailable("not now")

    async def receive(self, limit: int, wait_s: float, visibility_s: float, holder: str) -> list[Delivery]:
        self.attempt("receive")
        return await super().receive(limit, wait_s, visibility_s, holder)

    async def bury(self, letters: Any) -> None:
        self.attempt("bury")
        await super().bury(letters)


class Rig:
    """A pump, its queue and what it took."""

    def __init__(self, clock: Clock, tasks: Tasks) -> None:
        self.queue = Flaky(clock)
        self.membership = StandingMembership()
        self.log = Log()
        self.host = make_host(clock, tasks, limits=LIMITS, log=self.log, membership=self.membership)
        self.stats = self.host.stats
        self.room = 1000
        self.crowded = False
        self.taken: list[tuple[bytes, Receipt]] = []
        self.took = asyncio.Event()
        self.seen: list[Seen] = []
        self.reception = Reception(clock.monotonic(), LIMITS.receive_wait_s + 1.0)
        self.begin()

    async def restart(self) -> None:
        """A new pump in place of the old one."""
        self.pump.stopping = True
        self.queue.wake()
        assert self.running is not None
        await asyncio.wait((self.running,))
        self.begin()

    def begin(self) -> None:
        self.pump = Pump(
            "s", self.queue, self.host,
            take=self._take, room=lambda: self.room, is_crowded=lambda: self.crowded,
            may=lambda: self.membership.alive, reception=self.reception,
        )  # fmt: skip
        self.running = self.host.tasks.spawn(self.pump.run())

    def _take(self, delivery: Delivery, receipt: Receipt, seen: Seen) -> None:
        if delivery.body.startswith(b"bad"):
            raise InvalidMessage(f"field 'key' is missing{delivery.body[3:].decode()}", "key")
        self.taken.append((delivery.body, receipt))
        self.seen.append(seen)
        self.took.set()

    async def send(self, *bodies: bytes) -> None:
        await self.queue.send([Outgoing(body) for body in bodies])

    @property
    def bodies(self) -> list[bytes]:
        return [body for body, _ in self.taken]


@pytest.fixture
async def rig(clock: Clock, tasks: Tasks) -> Rig:
    return Rig(clock, tasks)


async def until(clock: Clock, condition: Callable[[], Any], limit_s: float = 60.0) -> None:
    """In virtual time."""
    end_at = clock.monotonic() + limit_s
    while not condition():
        assert clock.monotonic() < end_at
        await clock.sleep(0.01)


async def test_it_takes_what_comes_as_it_comes(clock: Clock, rig: Rig) -> None:
    await clock.sleep(1)
    began = clock.monotonic()
    await rig.send(b"1", b"2")
    await clock.wait(rig.took, 5)
    assert rig.bodies == [b"1", b"2"]
    assert clock.monotonic() == began, "a long poll wakes immediately"
    assert rig.stats.received == 2


async def test_a_delivery_lapses_by_the_time_its_reply_came(clock: Clock, rig: Rig) -> None:
    await clock.sleep(3)
    await rig.send(b"1")
    await clock.wait(rig.took, 5)
    assert rig.taken[0][1].expires_at == clock.monotonic() + LIMITS.visibility_s


async def test_without_a_membership_nothing_is_received(clock: Clock, rig: Rig) -> None:
    rig.membership.alive = False
    rig.membership.joined.clear()
    await clock.sleep(LIMITS.receive_wait_s + 1)  # the receive under way ends
    calls = rig.stats.receive_calls
    await rig.send(b"1")
    await clock.sleep(60)
    assert rig.stats.receive_calls == calls
    assert rig.taken == []
    rig.membership.alive = True
    rig.membership.joined.set()
    await clock.wait(rig.took, LIMITS.renew_s + 0.1)
    assert rig.bodies == [b"1"]


async def test_past_the_deadline_of_a_membership_nothing_is_received(clock: Clock, rig: Rig) -> None:
    rig.membership.alive = False  # the node doesn't know yet that it lost its membership
    await clock.sleep(LIMITS.receive_wait_s + 1)
    calls = rig.stats.receive_calls
    await rig.send(b"1")
    await clock.sleep(10)
    assert rig.stats.receive_calls == calls


async def test_a_pump_without_room_receives_nothing(clock: Clock, rig: Rig) -> None:
    rig.room = 0
    await clock.sleep(LIMITS.receive_wait_s + 1)
    calls = rig.stats.receive_calls
    await rig.send(b"1")
    await clock.sleep(60)
    assert rig.stats.receive_calls == calls
    rig.room = 1000
    await clock.wait(rig.took, 1)
    assert rig.bodies == [b"1"]


async def test_what_has_no_key_is_set_aside_then_deleted_and_holds_nothing_up(clock: Clock, rig: Rig) -> None:
    await rig.send(b"1", b"bad", b"2")
    await until(clock, lambda: not any(m.body == b"bad" for m in rig.queue.messages.values()))
    assert rig.bodies == [b"1", b"2"]
    (letter,) = rig.queue.letters.values()
    assert letter.body == b"bad"
    assert letter.reason == "malformed: field 'key' is missing"
    assert (letter.stream, letter.key) == ("s", "")
    kinds = [event.kind for event in rig.queue.log if b"bad" in event.body]
    assert kinds.index("buried") < kinds.index("deleted")
    assert rig.stats.malformed == 1
    assert rig.log.events("warning") == ["malformed message"]


async def test_the_reason_of_a_dead_letter_hides_passwords(clock: Clock, rig: Rig) -> None:
    await rig.send(b"bad in redis://user:hunter2@host")
    await until(clock, lambda: rig.queue.letters)
    (letter,) = rig.queue.letters.values()
    assert letter.reason == "malformed: field 'key' is missing in redis://user:***@host"


async def test_a_letter_that_can_t_be_sent_delays_only_its_own_message(clock: Clock, rig: Rig) -> None:
    rig.queue.failing = ["bury"]
    await rig.send(b"bad", b"1")
    await clock.wait(rig.took, 1)
    assert rig.bodies == [b"1"], "taken although the message before it could not be set aside"
    await until(clock, lambda: rig.queue.calls.count("bury") == 1)
    assert len(rig.queue.messages) == 2, "nothing is deleted without its letter"
    rig.queue.failing = []
    await until(clock, lambda: rig.queue.letters, 2 * LIMITS.visibility_s)


async def test_the_same_malformed_delivery_makes_one_letter(clock: Clock, rig: Rig) -> None:
    rig.queue.failing = ["bury"]
    await rig.send(b"bad")
    await clock.sleep(3 * LIMITS.visibility_s)
    assert rig.queue.calls.count("bury") >= 2
    rig.queue.failing = []
    await until(clock, lambda: not rig.queue.messages, 2 * LIMITS.visibility_s)
    assert len(rig.queue.letters) == 1


async def test_a_queue_that_fails_is_asked_ever_more_rarely(clock: Clock, rig: Rig) -> None:
    rig.queue.failing = ["receive"]
    rig.queue.calls.clear()
    await clock.sleep(120)
    assert 10 < rig.queue.calls.count("receive") < 60
    assert set(rig.log.events("warning")) == {"cannot receive messages"}
    rig.queue.failing = []
    await rig.send(b"1")
    await clock.wait(rig.took, 10)
    assert rig.bodies == [b"1"]


async def test_a_pump_that_stops_still_takes_what_is_on_its_way(clock: Clock, rig: Rig) -> None:
    await clock.sleep(1)
    rig.pump.stopping = True
    await rig.send(b"1")
    assert rig.running is not None
    await asyncio.wait((rig.running,))
    assert rig.bodies == [b"1"]
    await rig.send(b"2")
    await clock.sleep(10)
    assert rig.bodies == [b"1"]


async def test_full_batches_bring_more_receives_and_empty_ones_send_them_home(clock: Clock, rig: Rig) -> None:
    rig.queue.max_receives = 4
    under_way, most = 0, 0
    receive = rig.queue.receive

    async def slow(*args: Any) -> list[Delivery]:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        try:
            await clock.sleep(0.01)
            return await receive(*args)
        finally:
            under_way -= 1

    rig.queue.receive = slow  # type: ignore[method-assign, assignment]
    await rig.restart()
    for _ in range(20):
        await rig.send(*[b"x"] * 10)
    await until(clock, lambda: len(rig.taken) == 200)
    assert most == 4
    await clock.sleep(10 * LIMITS.receive_wait_s)
    assert under_way == 1


async def test_a_queue_in_trouble_is_asked_by_one_alone(clock: Clock, rig: Rig) -> None:
    rig.queue.max_receives = 4
    await rig.restart()
    for _ in range(5):
        await rig.send(*[b"x"] * 10)
    await until(clock, lambda: len(rig.taken) == 50)
    rig.queue.failing = ["receive"]
    await clock.sleep(60)
    rig.queue.calls.clear()
    await clock.sleep(60)
    assert 8 <= rig.queue.calls.count("receive") <= 24


async def test_what_a_receive_has_brought_is_told_to_the_taker(clock: Clock, rig: Rig) -> None:
    await clock.sleep(1)
    await rig.send(b"1", b"2")
    await until(clock, lambda: len(rig.taken) == 2)
    await rig.send(b"3")
    await until(clock, lambda: len(rig.taken) == 3)
    assert [id(seen) == id(rig.seen[0]) for seen in rig.seen] == [True, True, False]


async def test_a_crowd_is_not_made_larger_faster_than_it_has_to_be(clock: Clock, rig: Rig) -> None:
    rig.crowded = True
    size = rig.queue.max_batch
    for _ in range(5):
        await rig.send(*(b"%d" % n for n in range(size)))
    began = clock.monotonic()
    await until(clock, lambda: len(rig.taken) == 5 * size)
    assert clock.monotonic() - began >= 4 * CROWDED_S


async def test_a_queue_that_stops_answering_is_asked_by_one(
    clock: Clock, rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.queue.max_receives = 8
    for _ in range(40):
        await rig.send(*[b"x"] * rig.queue.max_batch)

    def fail_later(call: str) -> None:
        rig.queue.calls.append(call)
        if len(rig.queue.calls) > 20:
            raise Unavailable("not now")

    monkeypatch.setattr(rig.queue, "attempt", fail_later)
    await rig.restart()
    await clock.sleep(30)
    calls = rig.stats.receive_calls
    assert calls > 20
    await clock.sleep(60)
    assert rig.stats.receive_calls - calls <= 60 / 2.5 + 1, "one receive, with its pauses of up to 5 s"


@pytest.mark.parametrize("lacks", ["an answer", "membership"])
async def test_it_notes_while_the_node_receives_nothing(clock: Clock, rig: Rig, lacks: str) -> None:
    def receive(is_on: bool) -> None:
        rig.queue.failing = ["receive"] if lacks == "an answer" and not is_on else []
        rig.membership.alive = is_on or lacks != "membership"

    await clock.sleep(20)
    assert rig.reception.silent_s(clock.monotonic()) == 0.0, "an empty queue answers"
    receive(False)
    at_most_s = LIMITS.receive_wait_s + 0.5  # a receive that has begun ends first
    await until(clock, lambda: rig.reception.is_silent(clock.monotonic()), at_most_s)
    await clock.sleep(60)
    receive(True)
    await until(clock, lambda: not rig.reception.is_silent(clock.monotonic()))
    silent_s = rig.reception.silent_s(clock.monotonic())
    assert silent_s > 60
    await clock.sleep(20)
    assert rig.reception.silent_s(clock.monotonic()) == silent_s


@pytest.mark.slow
async def test_time_without_room_counts_as_if_it_received(clock: Clock, rig: Rig) -> None:
    """What fills the node may wait for the end of a wait for a missing message."""
    rig.room = 0
    await clock.sleep(600)
    assert rig.reception.silent_s(clock.monotonic()) == 0.0
    rig.queue.failing = ["receive"]
    rig.room = 1000
    await until(clock, lambda: rig.reception.is_silent(clock.monotonic()))
    rig.room = 0
    await clock.sleep(60)
    assert rig.reception.is_silent(clock.monotonic()), "that the queue works again is yet to be seen"
