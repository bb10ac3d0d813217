"""The promises of a queue that knows the keys of its messages."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from holdfast.ports.queue import DeadLetter, Delivery, KeyedQueue, Outgoing, PutBack, Taken

LONG_S = 60.0
"""Seconds that outlast any test."""

PATIENCE_S = 10.0
"""Seconds for which a test waits for an expected event."""

DEEP = 1_500
"""A number of messages of one key that is too large for one receive to sort."""


@pytest.mark.asyncio
class KeyedQueueConformance:
    """Every promise of reservations. Fixture: ``queue``, new and empty."""

    lapse_s = 0.2
    """The length of a reservation whose end a test waits for, in seconds."""

    quick_s = 0.05
    """Seconds for which a receive must wait to see all messages that are visible now."""

    @pytest.fixture
    def queue(self) -> KeyedQueue:
        """Override: make a fresh adapter."""
        raise NotImplementedError("define the fixture queue")

    @pytest.fixture
    def other_queue(self, queue: KeyedQueue) -> KeyedQueue:
        """Override if several clients may share a queue: another client of the same one."""
        return queue

    # --- reservations

    async def test_deliveries_carry_their_turn_in_order_of_arrival(self, queue: KeyedQueue) -> None:
        await _send(queue, "a", range(4))
        deliveries = await _receive(queue, 4)
        turns = [delivery.turn for delivery in sorted(deliveries, key=lambda each: each.body)]
        assert None not in turns
        assert len(set(turns)) == 4
        assert turns == sorted(turn for turn in turns if turn is not None)

    async def test_a_reserved_key_is_left_out_of_receives_and_taken_in_order(
        self, queue: KeyedQueue, other_queue: KeyedQueue
    ) -> None:
        await _send(queue, "a", range(3))
        await _send(queue, "b", range(1))
        assert await queue.reserve("a", "node", 1, LONG_S)
        await _send(queue, "a", range(3, 6))
        assert [d.body for d in await _receive(other_queue, 1)] == [b"b0"]
        assert await other_queue.receive(8, self.quick_s, LONG_S, "node") == []
        taken = await _take_all(other_queue, "a", 6)
        assert [d.body for d in taken] == [b"a0", b"a1", b"a2", b"a3", b"a4", b"a5"]
        assert [d.receives for d in taken] == [1] * 6

    async def test_a_take_brings_no_more_than_asked_for_and_says_if_there_are_more(
        self, queue: KeyedQueue
    ) -> None:
        await _send(queue, "a", range(5))
        await queue.reserve("a", "node", 1, LONG_S)
        first = await queue.take("a", "node", 3, LONG_S)
        assert first is not None
        assert len(first.deliveries) <= 3
        assert first.more
        rest = await _take_all(queue, "a", 5 - len(first.deliveries))
        assert [d.body for d in (*first.deliveries, *rest)] == [b"a0", b"a1", b"a2", b"a3", b"a4"]
        assert await queue.take("a", "node", 3, LONG_S) == Taken([], more=False)

    async def test_a_take_begins_after_the_given_turn(self, queue: KeyedQueue) -> None:
        await _send(queue, "a", range(4))
        await queue.reserve("a", "node", 1, LONG_S)
        head = await _take_all(queue, "a", 2)
        await queue.put_back([PutBack(d.receipt, "a") for d in head])
        assert head[1].turn is not None
        assert [d.body for d in await _take_all(queue, "a", 2, after=head[1].turn)] == [b"a2", b"a3"]
        assert [d.body for d in await _take_all(queue, "a", 2)] == [b"a0", b"a1"]

    async def test_a_taken_message_is_an_ordinary_delivery(self, queue: KeyedQueue) -> None:
        await _send(queue, "a", range(3))
        await queue.reserve("a", "node", 1, LONG_S)
        first, second, third = await _take_all(queue, "a", 3)
        assert await queue.extend([first.receipt], LONG_S) == []
        assert await queue.delete([second.receipt]) == []
        assert await queue.give_back([third.receipt], 0) == []
        [again] = await _take_all(queue, "a", 1)
        assert (again.id, again.receives, again.turn) == (third.id, 2, third.turn)

    async def test_only_the_holder_takes(self, queue: KeyedQueue) -> None:
        await _send(queue, "a", range(1))
        assert await queue.take("a", "node", 1, LONG_S) is None
        await queue.reserve("a", "node", 1, LONG_S)
        assert await queue.take("a", "other", 1, LONG_S) is None
        assert [d.body for d in await _take_all(queue, "a", 1)] == [b"a0"]

    async def test_no_lower_epoch_replaces_a_reservation(
        self, queue: KeyedQueue, other_queue: KeyedQueue
    ) -> None:
        assert await queue.reserve("a", "node", 2, LONG_S)
        assert await queue.reserve("a", "node", 2, LONG_S)
        assert not await other_queue.reserve("a", "other", 1, LONG_S)
        await _send(queue, "a", range(1))
        assert await other_queue.reserve("a", "same opening", 2, LONG_S)
        assert await queue.take("a", "node", 1, LONG_S) is None
        assert await other_queue.reserve("a", "other", 3, LONG_S)
        assert not await queue.reserve("a", "same opening", 2, LONG_S)
        assert await queue.take("a", "node", 1, LONG_S) is None
        assert await queue.keep(["a"], "node", LONG_S) == ["a"]
        await queue.unreserve("a", "node")
        assert [d.body for d in await _take_all(other_queue, "a", 1, holder="other")] == [b"a0"]

    async def test_a_reservation_that_was_given_up_shows_its_messages_oldest_first(
        self, queue: KeyedQueue
    ) -> None:
        await _send(queue, "a", range(6))
        await queue.reserve("a", "node", 1, LONG_S)
        assert await queue.receive(8, self.quick_s, LONG_S, "node") == []
        await queue.unreserve("a", "node")
        first = await _receive(queue, 2)
        assert [d.body for d in first] == [b"a0", b"a1"]
        assert {d.body for d in await _receive(queue, 4)} == {b"a2", b"a3", b"a4", b"a5"}
        assert await queue.take("a", "node", 1, LONG_S) is None

    async def test_a_lapsed_reservation_shows_its_messages_to_a_receive_that_waits(
        self, queue: KeyedQueue, other_queue: KeyedQueue
    ) -> None:
        await _send(queue, "a", range(2))
        await queue.reserve("a", "node", 1, self.lapse_s)
        waiting = asyncio.create_task(_receive(other_queue, 2, holder="other"))
        assert {d.body for d in await asyncio.wait_for(waiting, PATIENCE_S)} == {b"a0", b"a1"}
        assert await queue.keep(["a"], "node", LONG_S) == ["a"]
        assert await queue.reserve("a", "other", 1, LONG_S)

    async def test_a_kept_reservation_outlasts_its_first_end(self, queue: KeyedQueue) -> None:
        await _send(queue, "a", range(1))
        await queue.reserve("a", "node", 1, self.lapse_s)
        assert await queue.keep(["a", "never reserved"], "node", LONG_S) == ["never reserved"]
        assert await queue.receive(1, 2 * self.lapse_s, LONG_S, "other") == []
        assert [d.body for d in await _take_all(queue, "a", 1)] == [b"a0"]

    async def test_freeing_a_holder_ends_its_reservations_and_no_others(
        self, queue: KeyedQueue, other_queue: KeyedQueue
    ) -> None:
        await _send(queue, "a", range(2))
        await _send(queue, "b", range(1))
        await queue.reserve("a", "dead", 1, LONG_S)
        await queue.reserve("b", "alive", 1, LONG_S)
        assert await queue.receive(8, self.quick_s, LONG_S, "alive") == []
        await other_queue.free("dead")
        assert [d.body for d in await _receive(other_queue, 2)] == [b"a0", b"a1"]
        assert [d.body for d in await _take_all(queue, "b", 1, holder="alive")] == [b"b0"]

    async def test_the_next_holder_takes_what_the_last_one_kept_in_order(self, queue: KeyedQueue) -> None:
        await _send(queue, "a", range(6))
        await queue.reserve("a", "node", 1, LONG_S)
        await queue.receive(8, self.quick_s, LONG_S, "node")
        await queue.unreserve("a", "node")
        assert await queue.reserve("a", "other", 2, LONG_S)
        taken = await _take_all(queue, "a", 6, holder="other")
        assert [d.body for d in taken] == [b"a0", b"a1", b"a2", b"a3", b"a4", b"a5"]

    async def test_a_deep_backlog_keeps_no_other_key_back(self, queue: KeyedQueue) -> None:
        await _send(queue, "deep", range(DEEP))
        await _send(queue, "b", range(1))
        await queue.reserve("deep", "node", 1, LONG_S)
        assert [d.body for d in await _receive(queue, 1)] == [b"b0"]
        taken = await _take_all(queue, "deep", DEEP)
        assert [d.body for d in taken] == [b"deep%d" % number for number in range(DEEP)]

    async def test_a_message_in_flight_reaches_the_reservation_when_its_delivery_ends(
        self, queue: KeyedQueue
    ) -> None:
        await _send(queue, "a", range(3))
        lapses, given, freed = (
            (await _receive(queue, 1, self.lapse_s, "node"))[0],
            *(await _receive(queue, 2, LONG_S, "dead")),
        )
        await queue.reserve("a", "node", 1, LONG_S)
        assert await queue.take("a", "node", 3, LONG_S) == Taken([], more=False)
        await queue.give_back([given.receipt], 0)
        if queue.frees_on_evict:
            await queue.free("dead")
        else:
            await queue.give_back([freed.receipt], 0)
        assert await queue.receive(3, 2 * self.lapse_s, LONG_S, "other") == []
        taken = await _take_all(queue, "a", 3)
        assert [d.id for d in taken] == [lapses.id, given.id, freed.id]

    async def test_a_delayed_message_reaches_the_reservation_after_its_delay(self, queue: KeyedQueue) -> None:
        await queue.reserve("a", "node", 1, LONG_S)
        await queue.send([Outgoing(b"late", delay_s=self.lapse_s, key="a"), Outgoing(b"now", key="a")])
        assert [d.body for d in await _take_all(queue, "a", 1)] == [b"now"]
        assert await queue.receive(1, 2 * self.lapse_s, LONG_S, "other") == []
        assert [d.body for d in await _take_all(queue, "a", 1)] == [b"late"]

        # --- messages that are put back

    async def test_a_message_that_is_put_back_shows_at_once_and_is_not_counted(
        self, queue: KeyedQueue, other_queue: KeyedQueue
    ) -> None:
        await _send(queue, "a", range(1))
        [first] = await _receive(queue, 1)
        assert await other_queue.put_back([PutBack(first.receipt, "a")]) == []
        [second] = await _receive(queue, 1)
        assert (second.id, second.receives, second.turn) == (first.id, 1, first.turn)
        assert second.receipt != first.receipt
        assert await queue.put_back([PutBack(first.receipt, "a")]) == [first.receipt]
        assert await queue.extend([first.receipt], LONG_S) == [first.receipt]
        await queue.put_back([PutBack(second.receipt, "a", counted=True)])
        [third] = await _receive(queue, 1)
        assert third.receives == 2
        assert await queue.delete([third.receipt]) == []

    async def test_a_message_that_is_put_back_reaches_the_reservation_in_its_old_turn(
        self, queue: KeyedQueue
    ) -> None:
        await _send(queue, "a", range(4))
        first, second = await _receive(queue, 2)
        await queue.reserve("a", "node", 1, LONG_S)
        assert await queue.put_back([PutBack(d.receipt, "a") for d in (second, first)]) == []
        assert await queue.receive(4, self.quick_s, LONG_S, "other") == []
        taken = await _take_all(queue, "a", 4)
        assert [(d.body, d.receives) for d in taken] == [(b"a0", 1), (b"a1", 1), (b"a2", 1), (b"a3", 1)]

    @pytest.mark.parametrize("key", ["", "of an earlier version"])
    @pytest.mark.parametrize("attributes", [{}, {"id": "x", 'k\\"': "\n"}])
    async def test_a_message_gets_the_key_with_which_it_is_put_back(
        self, queue: KeyedQueue, key: str, attributes: dict[str, str]
    ) -> None:
        await queue.send([Outgoing(b"x", attributes, key=key)])
        await queue.reserve("a", "node", 1, LONG_S)
        [delivery] = await _receive(queue, 1, holder="other")
        await queue.put_back([PutBack(delivery.receipt, "a")])
        assert await queue.receive(1, self.quick_s, LONG_S, "other") == []
        [again] = await _take_all(queue, "a", 1)
        assert (again.body, again.attributes) == (b"x", attributes)

    async def test_an_empty_batch_is_put_back(self, queue: KeyedQueue) -> None:
        assert await queue.put_back([]) == []
        assert await queue.keep([], "node", LONG_S) == []

    async def test_reserved_messages_count_as_ready(self, queue: KeyedQueue) -> None:
        await _send(queue, "a", range(3))
        await queue.reserve("a", "node", 1, LONG_S)
        assert await queue.receive(4, self.quick_s, LONG_S, "other") == []
        depth = await queue.depth()
        assert (depth.ready, depth.in_flight, depth.delayed) == (3, 0, 0)
        await _take_all(queue, "a", 1)
        depth = await queue.depth()
        assert (depth.ready, depth.in_flight, depth.delayed) == (2, 1, 0)

    # --- dead letters

    async def test_a_redriven_message_keeps_its_turn_and_its_key(self, queue: KeyedQueue) -> None:
        await _send(queue, "a", range(3))
        first, second, _ = await _receive(queue, 3)
        letters = [
            DeadLetter(d.body.decode(), d.body, "failed", key="a", turn=d.turn) for d in (second, first)
        ]
        await queue.bury(letters)
        await queue.delete([first.receipt, second.receipt])
        kept = await queue.dead_letters(10)
        assert [(letter.id, letter.turn) for letter in kept] == [("a0", first.turn), ("a1", second.turn)]
        await queue.redrive(["a1", "a0"])
        await queue.reserve("a", "node", 1, LONG_S)
        taken = await _take_all(queue, "a", 2)
        assert [(d.body, d.turn) for d in taken] == [(b"a0", first.turn), (b"a1", second.turn)]


async def _send(queue: KeyedQueue, key: str, numbers: Sequence[int]) -> None:
    messages = [Outgoing(f"{key}{number}".encode(), key=key) for number in numbers]
    for first in range(0, len(messages), queue.max_batch):
        await queue.send(messages[first : first + queue.max_batch])


async def _receive(
    queue: KeyedQueue, count: int, visibility_s: float = LONG_S, holder: str = "node"
) -> list[Delivery]:
    """Receive exactly ``count`` deliveries, in any number of calls."""
    deliveries: list[Delivery] = []
    async with asyncio.timeout(PATIENCE_S):
        while len(deliveries) < count:
            deliveries += await queue.receive(count - len(deliveries), PATIENCE_S, visibility_s, holder)
    return deliveries


async def _take_all(
    queue: KeyedQueue, key: str, count: int, *, holder: str = "node", after: int = 0
) -> list[Delivery]:
    """Take exactly ``count`` deliveries, in any number of calls, while the queue says that there are more."""
    deliveries: list[Delivery] = []
    async with asyncio.timeout(PATIENCE_S):
        while len(deliveries) < count:
            limit = min(count - len(deliveries), queue.max_batch)
            taken = await queue.take(key, holder, limit, LONG_S, after)
            assert taken is not None, "the reservation is gone"
            assert taken.more or taken.deliveries, "a take without messages has ``more`` unset"
            deliveries += taken.deliveries
            if taken.deliveries and after:
                after = max(delivery.turn or 0 for delivery in taken.deliveries)
    return deliveries
