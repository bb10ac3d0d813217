"""Reservations as only the queue in SQLite keeps them."""

import asyncio
import contextlib
import sqlite3
import threading
from contextlib import closing
from pathlib import Path

import pytest

from holdfast.ports.queue import DeadLetter, Delivery, Outgoing, PutBack, Taken
from holdfast.services.sqlite import queue as module
from holdfast.services.sqlite.database import Database, Transaction
from holdfast.services.sqlite.queue import SqliteQueue
from holdfast.services.sqlite.reservations import ASIDE_S, SORT_MESSAGES
from holdfast.system.clock import SystemClock

LONG_S = 100_000.0

OLD_SHOW_DUE = "UPDATE messages SET state = 0, visible_at = 0 WHERE state IN (1, 2) AND visible_at <= ?"
OLD_PICK = "SELECT id, body FROM messages JOIN bodies ON message = id WHERE state = 0 AND visible_at = 0"
OLD_DELIVER = """
UPDATE messages SET state = 1, visible_at = ?, receives = receives + 1, holder = 'old' WHERE id = ?"""
"""What Holdfast 0.2.0 does at a receive."""


class Ahead(SystemClock):
    """A clock that can be put forward."""

    ahead_s = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.ahead_s


@pytest.fixture
def clock() -> Ahead:
    return Ahead()


@pytest.fixture
def queue(database: Database, clock: Ahead) -> SqliteQueue:
    return SqliteQueue(database, "q", clock)


async def _send(queue: SqliteQueue, key: str, count: int) -> None:
    messages = [Outgoing(b"%s%d" % (key.encode(), number), key=key) for number in range(count)]
    for begin in range(0, count, queue.max_batch):
        await queue.send(messages[begin : begin + queue.max_batch])


async def _take_all(queue: SqliteQueue, key: str) -> list[Delivery]:
    deliveries: list[Delivery] = []
    while (taken := await queue.take(key, "me", 500, LONG_S)) and (taken.more or taken.deliveries):
        deliveries += taken.deliveries
    return deliveries


async def _receive_as_before(database: Database, clock: Ahead) -> list[tuple[int, bytes]]:
    """Receive all that a node of Holdfast 0.2.0 sees."""

    def receive(transaction: Transaction) -> list[tuple[int, bytes]]:
        now = clock.monotonic()
        transaction.execute(OLD_SHOW_DUE, (now,))
        found = transaction.execute(OLD_PICK).fetchall()
        for number, _ in found:
            transaction.execute(OLD_DELIVER, (now + 60, number))
        return found

    return await database.write(receive)


# --- beside older versions


async def test_a_node_of_an_older_version_sees_what_was_set_aside_when_nobody_keeps_it_any_more(
    queue: SqliteQueue, database: Database, clock: Ahead
) -> None:
    await _send(queue, "a", 2)
    await queue.reserve("a", "me", 1, LONG_S)
    assert await queue.receive(2, 0, 60, "me") == []
    assert await _receive_as_before(database, clock) == []
    clock.ahead_s += ASIDE_S + 1
    received = await _receive_as_before(database, clock)
    assert [body for _, body in received] == [b"a0", b"a1"]
    assert await queue.take("a", "me", 2, 60) == Taken([], more=False)
    assert await queue.give_back([f"{number}.1" for number, _ in received], 0) == []
    assert [(d.body, d.receives) for d in await _take_all(queue, "a")] == [(b"a0", 2), (b"a1", 2)]


async def test_what_is_kept_for_long_is_hidden_from_older_versions_again_and_again(
    queue: SqliteQueue, database: Database, clock: Ahead
) -> None:
    await _send(queue, "a", 2)
    await queue.reserve("a", "me", 1, LONG_S)
    for _ in range(4):
        assert await queue.receive(2, 0, 60, "me") == []
        clock.ahead_s += ASIDE_S * 0.6
        assert await _receive_as_before(database, clock) == []
    assert [d.body for d in await _take_all(queue, "a")] == [b"a0", b"a1"]


async def test_messages_of_older_versions_are_delivered_and_get_their_key_when_they_are_put_back(
    queue: SqliteQueue, database: Database
) -> None:
    await queue.reserve("a", "me", 1, LONG_S)

    def send(transaction: Transaction) -> None:
        transaction.execute("INSERT INTO messages (queue, state, visible_at, receives) VALUES (1, 0, 0, 0)")
        transaction.execute("INSERT INTO bodies (message, attributes, body, at) VALUES (1, '{}', x'61', 0)")

    await database.write(send)
    [delivery] = await queue.receive(2, 0, 60, "me")
    assert (delivery.body, delivery.turn) == (b"a", 1)
    await queue.put_back([PutBack(delivery.receipt, "a")])
    assert await queue.receive(2, 0, 60, "me") == []
    assert [d.id for d in await _take_all(queue, "a")] == [delivery.id]


async def test_after_a_reboot_reservations_are_over(path: Path, clock: Ahead) -> None:
    database = Database.open(path, clock)
    queue = SqliteQueue(database, "q", clock)
    await _send(queue, "a", 2)
    await queue.reserve("a", "me", 1, LONG_S)
    assert await queue.receive(2, 0, 60, "me") == []
    await database.close()
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE host SET boot = 'earlier'")
    database = Database.open(path, clock)
    queue = SqliteQueue(database, "q", clock)
    assert [d.body for d in await queue.receive(2, 0, 60, "me")] == [b"a0", b"a1"]
    await database.close()


# --- many messages


async def test_a_take_goes_on_behind_the_messages_of_others_though_nobody_receives(
    queue: SqliteQueue,
) -> None:
    await _send(queue, "others", 2 * SORT_MESSAGES + 100)
    await _send(queue, "a", 3)
    await queue.reserve("a", "me", 1, LONG_S)
    assert [d.body for d in await _take_all(queue, "a")] == [b"a0", b"a1", b"a2"]
    await _send(queue, "a", 1)
    assert await queue.take("a", "me", 1, 60) != Taken([], more=False)
    assert (await queue.depth()).ready == 2 * SORT_MESSAGES + 100


async def test_many_messages_of_reservations_that_ended_show_oldest_first(queue: SqliteQueue) -> None:
    await _send(queue, "a", 2 * SORT_MESSAGES + 100)
    await _send(queue, "b", 1)
    await queue.reserve("a", "me", 1, LONG_S)
    assert [d.body for d in await queue.receive(1, 5, 60, "me")] == [b"b0"]
    await queue.unreserve("a", "me")
    received: list[bytes] = []
    while deliveries := await queue.receive(300, 0, 60, "me"):
        received += [d.body for d in deliveries]
    assert received == [b"a%d" % number for number in range(2 * SORT_MESSAGES + 100)]


async def test_a_key_that_is_reserved_again_keeps_what_did_not_show_yet(queue: SqliteQueue) -> None:
    await _send(queue, "a", 2 * SORT_MESSAGES)
    await queue.reserve("a", "me", 1, LONG_S)
    assert await queue.receive(1, 0.001, 60, "me") == []
    await queue.unreserve("a", "me")
    [first] = await queue.receive(1, 0, 60, "me")
    await queue.reserve("a", "me", 2, LONG_S)
    taken = await _take_all(queue, "a")
    assert [d.body for d in (first, *taken)] == [b"a%d" % number for number in range(2 * SORT_MESSAGES)]


async def test_a_redriven_message_is_taken_in_its_turn_ahead_of_many(queue: SqliteQueue) -> None:
    await _send(queue, "a", SORT_MESSAGES + 100)
    [first] = await queue.receive(1, 0, 60, "me")
    await queue.bury([DeadLetter("x", first.body, "failed", key="a", turn=first.turn)])
    await queue.delete([first.receipt])
    await queue.redrive(["x"])
    await queue.reserve("a", "me", 1, LONG_S)
    assert [d.body for d in await _take_all(queue, "a")] == [
        b"a%d" % number for number in range(SORT_MESSAGES + 100)
    ]


async def test_a_take_of_large_bodies_says_that_there_are_more(
    queue: SqliteQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = module.INLINE_BYTES + 1
    monkeypatch.setattr(module, "RECEIVE_BYTES", 2 * size)
    await queue.send([Outgoing(b"%d" % number * size, key="a") for number in range(3)])
    await queue.reserve("a", "me", 1, LONG_S)
    taken = await queue.take("a", "me", 3, 60)
    assert taken is not None
    assert ([d.body[:1] for d in taken.deliveries], taken.more) == ([b"0", b"1"], True)


async def test_what_is_set_aside_is_found_by_its_index(database: Database) -> None:
    values = {"queue": 1, "limit": 1, "key": "a", "after": 0, "inline": 1}
    plan = await database.read(
        lambda c: c.execute(f"EXPLAIN QUERY PLAN {module.PICK_KEPT}", values).fetchall()
    )
    steps = [step[3] for step in plan]
    assert any("messages_aside (queue=? AND key=? AND aside>?)" in step for step in steps), steps
    assert not any("TEMP B-TREE" in step for step in steps), steps


# --- small things


async def test_a_take_that_is_cancelled_half_way_puts_back_uncounted(
    queue: SqliteQueue, database: Database
) -> None:
    await _send(queue, "a", 1)
    await queue.reserve("a", "me", 1, LONG_S)
    entered, leave = threading.Event(), threading.Event()

    def block(_: Transaction) -> None:
        entered.set()
        leave.wait()

    blocking = asyncio.create_task(database.write(block))
    await asyncio.to_thread(entered.wait)
    taking = asyncio.create_task(queue.take("a", "me", 1, 60))
    await asyncio.sleep(0)
    taking.cancel()
    await asyncio.sleep(0)
    leave.set()
    await asyncio.wait([blocking, taking])
    assert taking.cancelled()
    assert [(d.body, d.receives) for d in await _take_all(queue, "a")] == [(b"a0", 1)]


async def test_a_turn_from_elsewhere_is_no_higher_than_the_message_s_own(queue: SqliteQueue) -> None:
    await queue.bury([DeadLetter("x", b"x", "failed", key="a", turn=10**15)])
    await queue.redrive(["x"])
    [delivery] = await queue.receive(1, 0, 60, "me")
    assert delivery.turn == int(delivery.id)


async def test_what_a_caller_adds_in_its_own_transaction_has_its_key(
    queue: SqliteQueue, database: Database
) -> None:
    addition = await queue.addition([Outgoing(b"x", key="a")])
    with closing(sqlite3.connect(database.path)) as connection, connection:
        steps, answer = addition.steps(), None
        with contextlib.suppress(StopIteration):
            while True:
                statement = steps.send(answer)
                row = connection.execute(statement.text, statement.parameters).fetchone()
                answer = row[0] if row else None
    await queue.reserve("a", "me", 1, LONG_S)
    assert await queue.receive(1, 0, 60, "me") == []
    assert [d.body for d in await _take_all(queue, "a")] == [b"x"]
