"""The promises of every queue."""

from __future__ import annotations

import asyncio
import math
from collections import Counter

import pytest

from holdfast.errors import TooLarge
from holdfast.ports.dead_letters import in_order
from holdfast.ports.queue import DeadLetter, Delivery, Outgoing, Queue

LONG_S = 60.0
"""Longer than any test: a delivery with this visibility stays hidden."""

FOREVER = 1e11
"""A wall time that no clock reaches."""

PATIENCE_S = 10.0
"""Seconds for which a test waits for an expected event."""

TRACEPARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"

ODD = "käse/\N{SNOWMAN} '\"%_\\;--\N{PILE OF POO}"


@pytest.mark.asyncio
class QueueConformance:
    """Every promise of the queue port. Fixture: ``queue``, new and empty, its ``max_batch`` at least 8."""

    tick_s = 0.05
    """One step of time, in seconds: long enough for a few calls to be answered in."""

    glance_s = 0.05
    """Seconds for which a receive must wait to see all messages that are visible now."""

    lease_s = 0.4
    """A visibility that is long enough to handle what was received, and short enough for a test to wait for
    its end."""

    @pytest.fixture
    def queue(self) -> Queue:
        """Override: make a fresh adapter."""
        raise NotImplementedError("define the fixture queue")

    @pytest.fixture
    def other_queue(self, queue: Queue) -> Queue:
        """Override if several clients may share a queue: another client of the same one."""
        return queue

    # --- sending and receiving

    async def test_messages_are_delivered_with_body_and_attributes_as_sent(
        self, queue: Queue, other_queue: Queue
    ) -> None:
        sent = [Outgoing(b"one"), Outgoing(b"two", {"kind": "frame"}), Outgoing(b"three")]
        ids = await queue.send(sent)
        deliveries = await _receive(other_queue, 3)
        assert len(set(ids)) == 3
        assert {d.id: (d.body, d.attributes) for d in deliveries} == {
            i: (m.body, m.attributes) for i, m in zip(ids, sent, strict=True)
        }
        assert [d.receives for d in deliveries] == [1, 1, 1]
        assert len({d.receipt for d in deliveries}) == 3

    async def test_bodies_may_hold_any_byte(self, queue: Queue) -> None:
        bodies = [bytes(range(256)), b"\0", b"\xff\xfe\xfd" * 100, ODD.encode()]
        await queue.send([Outgoing(body) for body in bodies])
        assert {d.body for d in await _receive(queue, len(bodies))} == set(bodies)

    async def test_attributes_may_hold_any_text(self, queue: Queue) -> None:
        attributes = {"key": ODD, "empty-ish": " ", "lines": "a\nb\tc"}
        await queue.send([Outgoing(b"x", attributes)])
        [delivery] = await _receive(queue, 1)
        assert delivery.attributes == attributes

    async def test_a_place_in_a_trace_is_kept_beside_ten_other_attributes(self, queue: Queue) -> None:
        attributes = {f"a{n}": str(n) for n in range(10)} | {"traceparent": TRACEPARENT}
        await queue.send([Outgoing(b"x", attributes, key="k")])
        [delivery] = await _receive(queue, 1)
        assert delivery.attributes == attributes
        await queue.bury([DeadLetter("one", b"x", "r", attributes=delivery.attributes, key="k")])
        await queue.delete([delivery.receipt])
        await queue.redrive(["one"])
        [again] = await _receive(queue, 1)
        assert again.attributes == attributes

    async def test_a_body_of_max_bytes_passes(self, queue: Queue) -> None:
        body = b"\xfe" * queue.max_bytes
        await queue.send([Outgoing(body)])
        [delivery] = await _receive(queue, 1)
        assert delivery.body == body

    async def test_a_larger_body_is_refused_before_anything_is_sent(self, queue: Queue) -> None:
        with pytest.raises(TooLarge, match=str(queue.max_bytes)):
            await queue.send([Outgoing(b"fits"), Outgoing(bytes(queue.max_bytes + 1))])
        assert await queue.receive(1, self.glance_s, LONG_S, "node") == []

    async def test_batches_over_max_batch_are_refused(self, queue: Queue) -> None:
        over, limit = queue.max_batch + 1, str(queue.max_batch)
        with pytest.raises(TooLarge, match=limit):
            await queue.send([Outgoing(b"x")] * over)
        with pytest.raises(TooLarge, match=limit):
            await queue.extend(["receipt"] * over, LONG_S)
        with pytest.raises(TooLarge, match=limit):
            await queue.delete(["receipt"] * over)
        with pytest.raises(TooLarge, match=limit):
            await queue.give_back(["receipt"] * over, 0)
        assert await queue.receive(1, self.glance_s, LONG_S, "node") == []

    async def test_an_empty_batch_changes_nothing_and_fails_nowhere(self, queue: Queue) -> None:
        assert await queue.send([]) == []
        assert await queue.extend([], LONG_S) == await queue.delete([]) == await queue.give_back([], 0) == []
        assert await queue.redrive([]) == await queue.purge([]) == 0
        await queue.bury([])

    async def test_higher_priorities_are_received_first(self, queue: Queue) -> None:
        if not queue.by_key:
            pytest.skip("it knows no priorities")
        sent = {b"a": 0, b"b": 0, b"c": 1, b"d": 9, b"e": -3, b"f": 5, b"g": 9, b"h": 0, b"i": 5}
        await queue.send([Outgoing(body, key="k", priority=each) for body, each in list(sent.items())[:5]])
        await queue.send([Outgoing(body, priority=each) for body, each in list(sent.items())[5:]])
        depth = await queue.depth()
        assert (depth.ready, depth.in_flight, depth.delayed) == (9, 0, 0)
        found: list[Delivery] = []
        while some := await queue.receive(2, 0, LONG_S, "node"):
            found += some
        assert b"".join(delivery.body for delivery in found) == b"dgfic" + b"abeh"
        first, *others = found
        assert await queue.give_back([first.receipt], 0) == []
        [again] = await _receive(queue, 1)
        assert (again.body, again.receives) == (b"d", 2)
        assert await queue.delete([again.receipt, *(other.receipt for other in others)]) == []
        assert await queue.receive(1, 0, LONG_S, "node") == []

    async def test_a_waiting_receive_wakes_for_a_priority_and_a_delay_comes_before_it(
        self, queue: Queue, other_queue: Queue
    ) -> None:
        if not queue.by_key:
            pytest.skip("it knows no priorities")
        waiting = asyncio.create_task(queue.receive(1, 3 * PATIENCE_S, LONG_S, "node"))
        await asyncio.sleep(0)  # it begins to wait
        await other_queue.send(
            [Outgoing(b"late", delay_s=LONG_S, priority=9), Outgoing(b"x", priority=2**31 - 1)]
        )
        [delivery] = await asyncio.wait_for(waiting, PATIENCE_S)
        assert delivery.body == b"x"
        assert (await queue.depth()).delayed == 1

    async def test_receives_no_more_than_asked_for(self, queue: Queue) -> None:
        await queue.send([Outgoing(b"x")] * 5)
        assert len(await queue.receive(2, PATIENCE_S, LONG_S, "node")) <= 2

    async def test_an_empty_queue_delivers_nothing(self, queue: Queue) -> None:
        assert await queue.receive(1, 0, LONG_S, "node") == []
        assert await queue.receive(1, self.tick_s, LONG_S, "node") == []

    async def test_a_waiting_receive_wakes_when_a_message_comes(
        self, queue: Queue, other_queue: Queue
    ) -> None:
        waiting = asyncio.create_task(queue.receive(1, 3 * PATIENCE_S, LONG_S, "node"))
        await asyncio.sleep(0)  # it begins to wait
        await other_queue.send([Outgoing(b"x")])
        [delivery] = await asyncio.wait_for(waiting, PATIENCE_S)
        assert delivery.body == b"x"

    async def test_a_waiting_receive_ends_when_the_queue_is_closed(self, queue: Queue) -> None:
        waiting = asyncio.create_task(queue.receive(1, 3 * PATIENCE_S, LONG_S, "node"))
        await asyncio.sleep(0)
        await queue.close()
        assert await asyncio.wait_for(waiting, PATIENCE_S) == []

    async def test_a_woken_receive_ends_and_the_queue_goes_on(self, queue: Queue) -> None:
        waiting = asyncio.create_task(queue.receive(1, 4 * self.tick_s, LONG_S, "node"))
        await asyncio.sleep(0)
        queue.wake()
        assert await asyncio.wait_for(waiting, PATIENCE_S) == []
        await queue.send([Outgoing(b"x")])
        assert len(await _receive(queue, 1)) == 1

    async def test_concurrent_receivers_never_get_the_same_delivery(
        self, queue: Queue, other_queue: Queue
    ) -> None:
        batch, total = min(queue.max_batch, 10), 60
        for begin in range(0, total, batch):
            await queue.send([Outgoing(b"%d" % i) for i in range(begin, min(begin + batch, total))])

        async def drain(client: Queue, holder: str) -> list[Delivery]:
            taken: list[Delivery] = []
            while some := await client.receive(3, self.glance_s, LONG_S, holder):
                taken += some
            return taken

        clients = [queue, other_queue] * 3
        shares = await asyncio.gather(*(drain(client, f"node-{i}") for i, client in enumerate(clients)))
        assert Counter(d.body for share in shares for d in share) == Counter(b"%d" % i for i in range(total))

    async def test_a_cancelled_receive_takes_nothing_with_it(self, queue: Queue) -> None:
        waiting = asyncio.create_task(queue.receive(1, LONG_S, self.tick_s, "node"))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait([waiting])
        await queue.send([Outgoing(b"x")])
        [delivery] = await _receive(queue, 1)
        assert delivery.body == b"x"

    async def test_a_delayed_message_comes_only_after_its_delay(self, queue: Queue) -> None:
        if queue.delay_max_s == 0:
            pytest.skip("this queue delays no single message")
        await queue.send([Outgoing(b"soon", delay_s=self.tick_s), Outgoing(b"late", delay_s=LONG_S)])
        [delivery] = await _receive(queue, 1)
        assert delivery.body == b"soon"
        assert await queue.receive(1, self.glance_s, LONG_S, "node") == []

    # --- visibility and receipts

    async def test_a_delivered_message_is_invisible(self, queue: Queue, other_queue: Queue) -> None:
        await queue.send([Outgoing(b"x")])
        await _receive(queue, 1)
        assert await other_queue.receive(1, self.glance_s, LONG_S, "other") == []

    async def test_an_undeleted_message_comes_again_and_counts(
        self, queue: Queue, other_queue: Queue
    ) -> None:
        await queue.send([Outgoing(b"x", {"a": "b"})])
        [first] = await _receive(queue, 1, self.tick_s)
        [second] = await _receive(other_queue, 1, self.tick_s)
        [third] = await _receive(queue, 1)
        assert [d.receives for d in (first, second, third)] == [1, 2, 3]
        assert {(d.id, d.body, d.attributes["a"], d.number) for d in (first, second, third)} == {
            (first.id, b"x", "b", first.number)
        }

    async def test_an_extension_counts_from_now_longer_or_shorter(self, queue: Queue) -> None:
        await queue.send([Outgoing(b"shorter"), Outgoing(b"longer")])
        receipts = {d.body: d.receipt for d in await _receive(queue, 2, self.lease_s)}
        assert await queue.extend([receipts[b"longer"]], LONG_S) == []
        assert await queue.extend([receipts[b"shorter"]], self.tick_s) == []
        [delivery] = await _receive(queue, 1)
        assert (delivery.body, delivery.receives) == (b"shorter", 2)
        assert await queue.receive(1, self.lease_s + self.tick_s, LONG_S, "node") == []

    async def test_any_client_may_use_a_receipt(self, queue: Queue, other_queue: Queue) -> None:
        await queue.send([Outgoing(b"x"), Outgoing(b"y")])
        x, y = await _receive(queue, 2)
        assert await other_queue.extend([x.receipt], LONG_S) == []
        assert await other_queue.delete([x.receipt]) == []
        assert await other_queue.give_back([y.receipt], 0) == []
        assert [d.id for d in await _receive(queue, 1)] == [y.id]

    async def test_a_deleted_message_is_never_delivered_again(self, queue: Queue) -> None:
        await queue.send([Outgoing(b"x")])
        [delivery] = await _receive(queue, 1, self.lease_s)
        assert await queue.delete([delivery.receipt]) == []
        assert await queue.receive(1, self.lease_s + self.tick_s, LONG_S, "node") == []

    async def test_deleting_again_is_no_fault(self, queue: Queue) -> None:
        await queue.send([Outgoing(b"x")])
        [delivery] = await _receive(queue, 1)
        assert await queue.delete([delivery.receipt]) == []
        assert await queue.delete([delivery.receipt]) == []

    async def test_a_stale_receipt_changes_nothing(self, queue: Queue) -> None:
        await queue.send([Outgoing(b"x")])
        [first] = await _receive(queue, 1, self.tick_s)
        [second] = await _receive(queue, 1, LONG_S)
        stale = await queue.extend([first.receipt], 0)
        stale += await queue.give_back([first.receipt], 0)
        assert stale == [first.receipt] * 2 if queue.tells_stale else set(stale) <= {first.receipt}
        assert await queue.receive(1, self.glance_s, LONG_S, "node") == []
        assert await queue.extend([second.receipt], LONG_S) == []
        assert await queue.delete([second.receipt]) == []

    async def test_a_receipt_known_to_be_stale_is_returned_and_its_message_stands(self, queue: Queue) -> None:
        await queue.send([Outgoing(b"x"), Outgoing(b"y")])
        old = {d.body: d.receipt for d in await _receive(queue, 2, self.tick_s)}
        new = {d.body: d.receipt for d in await _receive(queue, 2, LONG_S)}
        answered = await queue.delete([old[b"x"], new[b"y"]])
        if not queue.tells_stale:
            assert set(answered) <= {old[b"x"]}
            return
        assert answered == await queue.delete([old[b"x"]]) == [old[b"x"]]
        assert await queue.give_back([new[b"x"]], 0) == []
        [delivery] = await _receive(queue, 1)
        assert (delivery.body, delivery.receives) == (b"x", 3)

    async def test_a_message_that_is_given_back_shows_at_once(self, queue: Queue) -> None:
        await queue.send([Outgoing(b"x")])
        [first] = await _receive(queue, 1)
        assert await queue.give_back([first.receipt], 0) == []
        [second] = await _receive(queue, 1)
        assert (second.id, second.receives) == (first.id, 2)

    async def test_given_back_with_delay_shows_later(self, queue: Queue) -> None:
        await queue.send([Outgoing(b"soon"), Outgoing(b"late")])
        receipts = {d.body: d.receipt for d in await _receive(queue, 2)}
        assert await queue.give_back([receipts[b"late"]], LONG_S) == []
        assert await queue.give_back([receipts[b"soon"]], self.tick_s) == []
        assert [d.body for d in await _receive(queue, 1)] == [b"soon"]
        assert await queue.receive(1, self.glance_s, LONG_S, "node") == []

    async def test_a_delete_wakes_a_receive_for_the_next_message(
        self, queue: Queue, other_queue: Queue
    ) -> None:
        if not queue.fifo:
            pytest.skip("this queue keeps no order")
        for body in (b"first", b"second"):
            await queue.send([Outgoing(body, key="k")])
        [first] = await _receive(queue, 1)
        waiting = asyncio.create_task(other_queue.receive(1, PATIENCE_S, LONG_S, "node"))
        await asyncio.sleep(self.glance_s)
        assert not waiting.done()
        began_at = asyncio.get_running_loop().time()
        await queue.delete([first.receipt])
        assert [delivery.body for delivery in await waiting] == [b"second"]
        assert asyncio.get_running_loop().time() - began_at < PATIENCE_S / 2

    async def test_giving_a_message_back_wakes_a_receive(self, queue: Queue, other_queue: Queue) -> None:
        await queue.send([Outgoing(b"x")])
        [delivery] = await _receive(queue, 1)
        waiting = asyncio.create_task(other_queue.receive(1, 3 * PATIENCE_S, LONG_S, "other"))
        await asyncio.sleep(0)
        await queue.give_back([delivery.receipt], 0)
        assert [d.id for d in await asyncio.wait_for(waiting, PATIENCE_S)] == [delivery.id]

    async def test_freeing_shows_the_messages_of_a_dead_holder(
        self, queue: Queue, other_queue: Queue
    ) -> None:
        await queue.send([Outgoing(b"x"), Outgoing(b"y")])
        [dead] = await _receive(queue, 1, holder="dead")
        [alive] = await _receive(queue, 1, holder="alive")
        freed = await other_queue.free("dead")
        if not queue.frees_on_evict:
            assert freed == 0
            return
        assert freed == 1
        [again] = await _receive(queue, 1, holder="alive")
        assert (again.id, again.receives) == (dead.id, 2)
        assert await queue.free("dead") == 0
        assert await queue.extend([dead.receipt], LONG_S) == [dead.receipt]
        assert await queue.extend([alive.receipt, again.receipt], LONG_S) == []

    async def test_depth_counts_messages_by_state(self, queue: Queue) -> None:
        await queue.send([Outgoing(b"1"), Outgoing(b"2"), Outgoing(b"3")])
        delayed = int(queue.delay_max_s >= LONG_S)
        if delayed:
            await queue.send([Outgoing(b"4", delay_s=LONG_S)])
        await queue.bury([DeadLetter("letter", b"bad", "junk")])
        [delivery] = await _receive(queue, 1)
        depth = await queue.depth()
        assert (depth.ready, depth.in_flight, depth.delayed, depth.dead) == (2, 1, delayed, 1)
        await queue.delete([delivery.receipt])
        depth = await queue.depth()
        assert (depth.ready, depth.in_flight, depth.delayed, depth.dead) == (2, 0, delayed, 1)

    async def test_a_longer_delay_than_any_is_refused_before_anything_is_sent(self, queue: Queue) -> None:
        if queue.delay_max_s == math.inf:
            pytest.skip("this queue delays for as long as one likes")
        with pytest.raises(TooLarge, match="delay_max_s"):
            await queue.send([Outgoing(b"now"), Outgoing(b"late", delay_s=queue.delay_max_s + 1)])
        assert await queue.receive(1, self.glance_s, LONG_S, "node") == []

    async def test_lag_is_the_age_of_the_oldest(self, queue: Queue) -> None:
        if not queue.tells_lag:
            assert (await queue.depth()).lag_s == 0
            pytest.skip("this queue has no lag")
        assert (await queue.depth()).lag_s == 0
        await queue.send([Outgoing(b"1")])
        [delivery] = await _receive(queue, 1)
        await queue.receive(1, 0.05, LONG_S, "m")  # waits in vain
        assert (await queue.depth()).lag_s >= 0.04
        await queue.delete([delivery.receipt])
        assert (await queue.depth()).lag_s == 0

    # --- dead letters

    async def test_a_dead_letter_keeps_all_its_fields(self, queue: Queue, other_queue: Queue) -> None:
        letter = DeadLetter(
            id=f"tracks/{ODD}:3:7#failed",
            body=bytes(range(256)),
            reason="failed 3 times",
            attributes={"a": ODD},
            detail="Traceback:\n  …\n" * 100,
            stream="tracks",
            key=ODD,
            run=3,
            seq="7".zfill(39),
            at=-1.0,
        )
        await queue.bury([letter])
        [kept] = await other_queue.dead_letters(10)
        assert kept.at != letter.at, "the queue sets the time"
        assert kept == DeadLetter(
            **{f: getattr(letter, f) for f in letter.__struct_fields__} | {"at": kept.at}
        )

    async def test_a_dead_letter_that_is_buried_again_stays_as_it_was(
        self, queue: Queue, other_queue: Queue
    ) -> None:
        await queue.bury([DeadLetter("a", b"x", "first")])
        [before] = await queue.dead_letters(10)
        await other_queue.bury([DeadLetter("a", b"x", "second"), DeadLetter("b", b"y", "first")])
        after = await queue.dead_letters(10)
        assert [letter.id for letter in after] == ["a", "b"]
        assert after[0] == before

    async def test_dead_letters_are_listed_by_page_and_key(self, queue: Queue) -> None:
        keys = ["k1", ODD]
        letters = [DeadLetter(f"id-{i:02d}", b"x", "r", key=keys[i % 2]) for i in (5, 3, 8, 1, 4, 6, 7, 2)]
        await queue.bury(letters)
        listed: list[str] = []
        while page := await queue.dead_letters(3, after=listed[-1] if listed else ""):
            assert len(page) <= 3
            listed += [letter.id for letter in page]
        assert listed == [f"id-{i:02d}" for i in range(1, 9)]
        assert [d.id for d in await queue.dead_letters(9, key=ODD)] == ["id-01", "id-03", "id-05", "id-07"]
        assert [d.id for d in await queue.dead_letters(2, after="id-03", key=ODD)] == ["id-05", "id-07"]
        assert await queue.dead_letters(9, key="none such") == []

    async def test_redriven_dead_letters_come_again_in_order_as_new(self, queue: Queue) -> None:
        await queue.bury(
            [DeadLetter(i, i.encode(), "r", attributes={"name": i}, key="k") for i in ("a", "b", "c", "d")]
        )
        assert await queue.redrive(["c", "a", "none such", "b"]) == 3
        assert [letter.id for letter in await queue.dead_letters(10)] == ["d"]
        deliveries = await _receive_and_delete(queue, 3)
        assert {(d.body, d.attributes["name"], d.receives) for d in deliveries} == {
            (b"a", "a", 1),
            (b"b", "b", 1),
            (b"c", "c", 1),
        }
        if None not in {d.number for d in deliveries}:
            ordered = sorted(deliveries, key=lambda d: d.number or 0)
            assert [d.body for d in ordered] == [b"c", b"a", b"b"]
        assert await queue.redrive(["a", "b", "c"]) == 0

    async def test_dead_letters_keep_the_turn_of_their_messages_and_come_again_by_it(
        self, queue: Queue
    ) -> None:
        for n in range(3):
            await queue.send([Outgoing(b"%d" % n, key="k")])
        found = await _receive_and_delete(queue, 3)
        if None in {delivery.turn for delivery in found}:
            assert not queue.fifo
            pytest.skip("this queue doesn't know the order of arrival")
        await queue.bury(
            [
                DeadLetter(f"id-{9 - n}", d.body, "r", key="k", seq=f"{9 - n}", turn=d.turn)
                for n, d in enumerate(found)
            ]
        )
        letters = sorted(await queue.dead_letters(10), key=in_order)
        assert [(letter.body, letter.turn) for letter in letters] == [(d.body, d.turn) for d in found]
        assert await queue.redrive([letter.id for letter in letters]) == 3
        assert [d.body for d in await _receive_and_delete(queue, 3)] == [b"0", b"1", b"2"]

    async def test_purged_dead_letters_are_gone_and_no_others(self, queue: Queue) -> None:
        await queue.bury([DeadLetter(i, b"x", "r") for i in ("a", "b", "c")])
        assert await queue.purge(["a", "c", "none such"]) == 2
        assert [letter.id for letter in await queue.dead_letters(10)] == ["b"]
        assert await queue.purge(["a"]) == 0
        assert await queue.receive(1, self.glance_s, LONG_S, "node") == []

    async def test_expiry_drops_old_dead_letters_only(self, queue: Queue) -> None:
        await queue.bury([DeadLetter("a", b"x", "r"), DeadLetter("b", b"y", "r")])
        letters = await queue.dead_letters(10)
        assert await queue.expire(min(letter.at for letter in letters)) == 0
        assert await queue.dead_letters(10) == letters
        assert await queue.expire(FOREVER) == 2
        assert await queue.dead_letters(10) == []
        assert (await queue.depth()).dead == 0


async def _receive_and_delete(queue: Queue, count: int) -> list[Delivery]:
    """Receive messages of one key, of which a queue may hold back those behind. Returns them in the order of
    the queue, if it has one."""
    deliveries: list[Delivery] = []
    while len(deliveries) < count:
        some = await queue.receive(count - len(deliveries), PATIENCE_S, LONG_S, "node")
        assert some
        await queue.delete([d.receipt for d in some])
        deliveries += some
    return sorted(deliveries, key=lambda d: d.turn or d.number or 0)


async def _receive(
    queue: Queue, count: int, visibility_s: float = LONG_S, holder: str = "node"
) -> list[Delivery]:
    """Receive exactly ``count`` deliveries, in any number of calls."""
    deliveries: list[Delivery] = []
    async with asyncio.timeout(PATIENCE_S):
        while len(deliveries) < count:
            deliveries += await queue.receive(count - len(deliveries), PATIENCE_S, visibility_s, holder)
    return deliveries
