"""The reservations of keys in PostgreSQL: what is their own beside the promises of every keyed queue."""

import asyncio
import re
from collections.abc import Awaitable, Callable
from typing import Any

import psycopg
import pytest

from holdfast.ports.queue import DeadLetter, Delivery, Outgoing, PutBack, Taken
from holdfast.services.postgres import messages, reservations, search_marks
from holdfast.services.postgres.queue import PostgresQueue
from simulator.servers import PostgresqlServer
from tests.services.postgres.conftest import MakeQueue
from tests.services.postgres.test_queue import Blocked, entries_read, one_waits_for_a_lock

PATIENCE_S = 30.0
LONG_S = 60.0

MINUTES = 60_000_000
"""Microseconds in a minute."""


async def keep(queue: PostgresQueue, count: int, key: str = "a") -> None:
    """Reserve a key, and have some of its messages set aside."""
    await queue.send([Outgoing(b"%s%d" % (key.encode(), n), key=key) for n in range(count)])
    await queue.reserve(key, "node", 1, LONG_S)
    assert await queue.receive(count, 0.05, LONG_S, "other") == []


def on(server: PostgresqlServer, statement: str) -> list[tuple[Any, ...]]:
    """Execute a statement; returns its rows."""
    with psycopg.connect(server.url, autocommit=True) as connection:
        done = connection.execute(statement.encode())
        return done.fetchall() if done.description else []


def bodies(taken: Taken | None) -> list[bytes]:
    assert taken is not None
    return [delivery.body for delivery in taken.deliveries]


async def test_a_take_waits_for_what_another_has_locked(
    make_queue: MakeQueue, postgresql_server: PostgresqlServer
) -> None:
    queue = make_queue()
    await keep(queue, 3)
    async with await psycopg.AsyncConnection.connect(postgresql_server.url) as other:
        await other.execute("SELECT 1 FROM holdfast.messages WHERE body = 'a0' FOR UPDATE")
        taking = asyncio.create_task(queue.take("a", "node", 2, LONG_S))
        await one_waits_for_a_lock(postgresql_server.url)
        await other.commit()
    assert bodies(await asyncio.wait_for(taking, PATIENCE_S)) == [b"a0", b"a1"]


async def test_a_take_brings_no_more_bytes_than_it_may(
    make_queue: MakeQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reservations, "CALL_BYTES", 5000)
    queue = make_queue()
    sent = [b"a" * 2000, b"b" * 2000, b"c" * 2000, b"d" * 6000]
    await queue.send([Outgoing(body, key="k") for body in sent])
    await queue.reserve("k", "node", 1, LONG_S)
    takes = [await queue.take("k", "node", 10, LONG_S) for _ in range(3)]
    assert [bodies(taken) for taken in takes] == [sent[:2], sent[2:3], sent[3:]]
    assert [taken.more for taken in takes[:2] if taken] == [True, True]


async def test_a_take_reaches_what_lies_behind_others_though_nobody_receives(
    make_queue: MakeQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(messages, "SORT_MAX", 10)
    monkeypatch.setattr(search_marks, "SORT_MAX", 10)
    queue = make_queue()
    await queue.send([Outgoing(b"b%d" % n, key="b") for n in range(35)])
    await queue.send([Outgoing(b"a0", key="a")])
    await queue.reserve("a", "node", 1, LONG_S)
    takes: list[Taken] = []
    while not takes or not takes[-1].deliveries:
        taken = await queue.take("a", "node", 5, LONG_S)
        assert taken is not None
        takes.append(taken)
        assert taken.more or taken.deliveries
    assert bodies(takes[-1]) == [b"a0"]
    assert await queue.take("a", "node", 5, LONG_S) == Taken([], more=False)
    assert (await queue.depth()).ready == 35
    assert len(await queue.receive(35, PATIENCE_S, LONG_S, "other")) == 35


async def test_what_is_reserved_after_a_look_through_all_is_looked_for_again(
    make_queue: MakeQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search_marks, "MARGIN_S", -LONG_S)  # as if all of it was sent long ago
    monkeypatch.setattr(search_marks, "WIDE_S", LONG_S)
    queue = make_queue()
    await queue.send([Outgoing(b"b0", key="b"), Outgoing(b"a0", key="a")])
    await queue.reserve("a", "node", 1, LONG_S)
    assert bodies(await queue.take("a", "node", 1, LONG_S)) == [b"a0"]
    await queue.reserve("b", "node", 1, LONG_S)
    assert bodies(await queue.take("b", "node", 1, LONG_S)) == [b"b0"]


async def test_a_take_cancelled_half_way_puts_back(make_queue: MakeQueue) -> None:
    queue = make_queue()
    await keep(queue, 1)
    async with Blocked(queue):
        taking = asyncio.create_task(queue.take("a", "node", 1, LONG_S))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        taking.cancel()
        await asyncio.sleep(0)
    await asyncio.wait([taking])
    assert taking.cancelled()
    [delivery] = (await queue.take("a", "node", 1, LONG_S) or Taken([], more=False)).deliveries
    assert (delivery.body, delivery.receives) == (b"a0", 1)


async def test_a_take_does_not_pass_over_what_cannot_be_removed_yet(
    make_queue: MakeQueue, postgresql_server: PostgresqlServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reservations, "SLOW_S", -1.0)
    monkeypatch.setattr(reservations, "FULL_SHARE", 1e-9)
    queue = make_queue()
    await queue.send([Outgoing(b"%d" % n, key="a") for n in range(500)])
    await queue.reserve("a", "node", 1, LONG_S)
    async with await psycopg.AsyncConnection.connect(postgresql_server.url) as holds:
        await holds.set_isolation_level(psycopg.IsolationLevel.REPEATABLE_READ)
        await holds.execute("SELECT 1 FROM holdfast.messages")
        for first in range(0, 400, 50):
            taken = await queue.take("a", "node", 50, LONG_S)
            assert bodies(taken) == [b"%d" % n for n in range(first, first + 50)]
        before = await entries_read(queue)
        last = await queue.take("a", "node", 50, LONG_S)
        assert await entries_read(queue) - before < 200
    assert last is not None
    await queue.put_back([PutBack(last.deliveries[0].receipt, "a")])
    assert bodies(await queue.take("a", "node", 2, LONG_S)) == [b"400", b"450"]


# --- while it lasts


async def test_what_is_kept_is_hidden_from_nodes_that_know_no_keys_as_long_as_it_is_reserved(
    make_queue: MakeQueue, postgresql_server: PostgresqlServer
) -> None:
    hidden = """SELECT min(visible_at - holdfast.micros(now())) > 10 * 60000000 AND bool_and(holder IS NULL)
        FROM holdfast.messages"""
    await keep(make_queue(), 3)
    assert on(postgresql_server, hidden) == [(True,)]
    on(postgresql_server, "UPDATE holdfast.messages SET visible_at = holdfast.micros(now()) + 60000000")
    assert on(postgresql_server, hidden) == [(False,)]
    assert await make_queue().receive(1, 0, LONG_S, "other") == []
    assert on(postgresql_server, hidden) == [(True,)]


async def test_what_such_a_node_has_received_is_in_flight_and_comes_back_to_the_reservation(
    make_queue: MakeQueue, postgresql_server: PostgresqlServer
) -> None:
    queue = make_queue()
    await keep(queue, 2)
    received = """UPDATE holdfast.messages SET visible_at = holdfast.micros(now()) + {}, holder = {},
        receives = 1 WHERE body = 'a0'"""
    on(postgresql_server, received.format(MINUTES, "'old'"))
    depth = await queue.depth()
    assert (depth.ready, depth.in_flight, depth.delayed) == (1, 1, 0)
    assert bodies(await queue.take("a", "node", 5, LONG_S)) == [b"a1"]
    on(postgresql_server, received.format(0, "NULL"))
    assert bodies(await queue.take("a", "node", 5, LONG_S)) == [b"a0"]


# --- when it has ended


async def test_a_reservation_that_has_ended_is_forgotten_once_nothing_is_left_of_it(
    make_queue: MakeQueue, postgresql_server: PostgresqlServer
) -> None:
    queue = make_queue()
    await keep(queue, 1)
    await queue.unreserve("a", "node")
    known = "SELECT key FROM holdfast.reservations"
    past = f"UPDATE holdfast.reservations SET ends_at = ends_at - 2 * {MINUTES}"
    assert on(postgresql_server, past) == []
    [delivery] = await make_queue().receive(1, PATIENCE_S, LONG_S, "other")
    assert on(postgresql_server, known) == [(b"a",)]
    await make_queue().receive(1, 0, LONG_S, "other")
    assert on(postgresql_server, known) == []
    assert await queue.delete([delivery.receipt]) == []


async def test_what_is_set_aside_after_the_end_is_delivered(
    make_queue: MakeQueue, postgresql_server: PostgresqlServer
) -> None:
    queue = make_queue()
    await queue.reserve("a", "node", 1, LONG_S)
    await queue.unreserve("a", "node")
    await queue.send([Outgoing(b"x", key="a", delay_s=LONG_S)])
    assert await queue.receive(1, 2 * search_marks.MARGIN_S, LONG_S, "other") == []  # it has looked for it
    on(postgresql_server, "UPDATE holdfast.messages SET reserved = true")
    [delivery] = await queue.receive(1, PATIENCE_S, LONG_S, "other")
    assert delivery.body == b"x"


@pytest.mark.parametrize("act", ["unreserve", "free", "put back", "lapse"])
async def test_who_waits_hears_of_what_a_reservation_shows(
    make_queue: MakeQueue, act: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue, other = make_queue(), make_queue()
    await keep(queue, 1)
    monkeypatch.setattr("holdfast.services.postgres.queue.SAFETY_S", LONG_S)
    if act == "lapse":
        await queue.reserve("a", "node", 1, 0.5)
    delivery = await _only(queue) if act == "put back" else None
    waiting = asyncio.create_task(other.receive(1, LONG_S, LONG_S, "other"))
    await asyncio.wait_for(other.messages.database.bells.hears.wait(), PATIENCE_S)
    for _ in range(3):
        await other.depth()  # its first looks are over
    if delivery:
        await queue.unreserve("a", "node")
        await queue.put_back([PutBack(delivery.receipt, "a")])
    calls: dict[str, Callable[[], Awaitable[object]]] = {
        "unreserve": lambda: queue.unreserve("a", "node"),
        "free": lambda: queue.free("node"),
    }
    if act in calls:
        await calls[act]()
    [shown] = await asyncio.wait_for(waiting, PATIENCE_S)
    assert shown.body == b"a0"


async def _only(queue: PostgresQueue) -> Delivery:
    taken = await queue.take("a", "node", 1, LONG_S)
    assert taken is not None
    return taken.deliveries[0]


# --- keys and turns


async def test_what_is_added_in_a_transaction_of_the_callers_has_its_key(
    make_queue: MakeQueue, postgresql_server: PostgresqlServer
) -> None:
    queue = make_queue()
    addition = await queue.addition([Outgoing(b"x", key="a"), Outgoing(b"y")])
    with psycopg.connect(postgresql_server.url) as connection:
        steps, row = addition.steps(), None
        while True:
            try:
                statement = steps.send(row)
            except StopIteration:
                break
            text = re.sub(r":(\w+)", r"%(\1)s", statement.text)
            first = connection.execute(text.encode(), statement.parameters).fetchone()
            row = first and first[0]
    await queue.reserve("a", "node", 1, LONG_S)
    assert [d.body for d in await queue.receive(2, PATIENCE_S, LONG_S, "other")] == [b"y"]
    assert bodies(await queue.take("a", "node", 2, LONG_S)) == [b"x"]


async def test_a_turn_of_another_queue_is_never_above_those_that_this_one_has_given(
    make_queue: MakeQueue,
) -> None:
    queue = make_queue()
    await queue.bury([DeadLetter("high", b"x", "r", key="a", turn=2**62), DeadLetter("none", b"y", "r")])
    assert [letter.turn for letter in await queue.dead_letters(2)] == [2**62, None]
    await queue.redrive(["high", "none"])
    delivered = await queue.receive(2, PATIENCE_S, LONG_S, "other")
    assert [(d.body, d.turn) for d in delivered] == [(d.body, int(d.id)) for d in delivered]
