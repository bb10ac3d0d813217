"""What only the queue in SQLite does."""

import asyncio
import threading

import pytest

from holdfast.ports.clock import Clock
from holdfast.ports.queue import DeadLetter, Outgoing
from holdfast.services.sqlite import database as database_module
from holdfast.services.sqlite import queue as module
from holdfast.services.sqlite.database import Database, Transaction
from holdfast.services.sqlite.queue import SqliteQueue


@pytest.fixture
def queue(database: Database, clock: Clock) -> SqliteQueue:
    return SqliteQueue(database, "q", clock)


async def test_a_queue_sees_and_changes_nothing_of_another(
    queue: SqliteQueue, database: Database, clock: Clock
) -> None:
    other = SqliteQueue(database, "other", clock)
    await queue.send([Outgoing(b"x")])
    await queue.bury([DeadLetter("a", b"x", "r")])
    assert await other.receive(1, 0, 60, "me") == []
    [delivery] = await queue.receive(1, 0, 60, "me")
    assert await other.extend([delivery.receipt], 60) == [delivery.receipt]
    await other.delete([delivery.receipt])
    assert await other.free("me") == 0
    assert await other.redrive(["a"]) == await other.purge(["a"]) == await other.expire(1e12) == 0
    depth = await queue.depth()
    assert (depth.in_flight, depth.dead) == (1, 1)


async def test_oldest_first_also_when_they_come_again(queue: SqliteQueue) -> None:
    await queue.send([Outgoing(b"%d" % i) for i in range(5)])
    taken = await queue.receive(3, 0, 60, "me")
    await queue.give_back([d.receipt for d in reversed(taken)], 0)
    assert [d.body for d in await queue.receive(5, 0, 60, "me")] == [b"0", b"1", b"2", b"3", b"4"]


async def test_large_and_small_bodies_arrive_in_one_receive(queue: SqliteQueue) -> None:
    bodies = [
        b"",
        b"\n \n",
        bytes(range(256)) * 1000,
        b"-",
        b"x" * module.INLINE_BYTES,
        b"y" * (module.INLINE_BYTES + 1),
    ]
    await queue.send([Outgoing(body, {"a": "b c\nd\u2028e"}) for body in bodies])
    deliveries = await queue.receive(10, 0, 60, "me")
    assert [d.body for d in deliveries] == bodies
    assert {d.attributes["a"] for d in deliveries} == {"b c\nd\u2028e"}


async def test_a_receive_brings_no_more_large_bodies_than_it_may(
    queue: SqliteQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = module.INLINE_BYTES + 1
    monkeypatch.setattr(module, "RECEIVE_BYTES", 2 * size)
    bodies = [b"small", b"a" * size, b"b" * size, b"small", b"c" * size * 3, b"small", b"d" * size]
    await queue.send([Outgoing(body) for body in bodies])
    brought = []
    while deliveries := await queue.receive(10, 0, 60, "me"):
        assert {d.receives for d in deliveries} == {1}
        brought.append([d.body for d in deliveries])
    assert brought == [bodies[:4], bodies[4:6], bodies[6:]]


async def test_answers_that_may_be_taken_back_do_not_wait_for_the_disk(
    queue: SqliteQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    await queue.send([Outgoing(b"x")])
    monkeypatch.setattr(database_module, "confirm", None)
    [delivery] = await queue.receive(1, 0, 60, "me")
    assert await queue.delete([delivery.receipt]) == []


async def test_a_receive_cancelled_half_way_gives_back(queue: SqliteQueue, database: Database) -> None:
    await queue.send([Outgoing(b"x")])
    entered, leave = threading.Event(), threading.Event()

    def block(_: Transaction) -> None:
        entered.set()
        leave.wait()

    blocking = asyncio.create_task(database.write(block))
    await asyncio.to_thread(entered.wait)
    receiving = asyncio.create_task(queue.receive(1, 60, 60, "me"))
    await asyncio.sleep(0)
    receiving.cancel()
    await asyncio.sleep(0)
    leave.set()
    await asyncio.wait([blocking, receiving])
    assert receiving.cancelled()
    [delivery] = await queue.receive(1, 0, 60, "me")
    assert delivery.body == b"x"


@pytest.mark.parametrize(
    "receipt", ["", "1", "x.1", "1.x", "0.1", "1.1.1", "-1.1", "9" * 30 + ".1", "1." + "9" * 30, "\u0661.1"]
)
async def test_junk_for_a_receipt_is_stale(queue: SqliteQueue, receipt: str) -> None:
    await queue.send([Outgoing(b"x")])
    [delivery] = await queue.receive(1, 0, 60, "me")
    assert await queue.extend([receipt, delivery.receipt], 60) == [receipt]
    assert await queue.give_back([receipt], 0) == [receipt]
    await queue.delete([receipt])
    assert (await queue.depth()).in_flight == 1


async def test_a_deleted_message_leaves_no_body_behind(queue: SqliteQueue, database: Database) -> None:
    await queue.send([Outgoing(b"x")] * 10)
    await queue.delete([d.receipt for d in await queue.receive(10, 0, 60, "me")])
    assert await database.read(lambda c: c.execute("SELECT count(*) FROM bodies").fetchone()) == (0,)


async def test_a_deep_queue_is_received_from_its_index(queue: SqliteQueue, database: Database) -> None:
    plan = await database.read(lambda c: c.execute(f"EXPLAIN QUERY PLAN {module.PICK}", (1, 1, 1)).fetchall())
    steps = [step[3] for step in plan]
    assert any("messages_in_turn (queue=? AND state=? AND visible_at=?)" in step for step in steps), steps
    assert not any("TEMP B-TREE" in step for step in steps), steps


async def test_waiting_messages_are_read_page_by_page(database: Database) -> None:
    plan = await database.read(
        lambda c: c.execute(f"EXPLAIN QUERY PLAN {module.WAITING}", (1, 1, 1)).fetchall()
    )
    assert not any("TEMP B-TREE" in step for *_, step in plan), plan
