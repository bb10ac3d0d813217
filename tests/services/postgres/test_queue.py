"""The queue in PostgreSQL: its promises, and what is its own."""

import asyncio
import math
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import psycopg
import pytest

from holdfast.ports.queue import DeadLetter, Outgoing, PutBack, Queue
from holdfast.services.postgres import messages as module
from holdfast.services.postgres import reservations, search_marks
from holdfast.services.postgres.lane import Connection
from holdfast.services.postgres.messages import PostgresMessages, ReceiveAnswer, ReceiveCall
from holdfast.services.postgres.queue import PostgresQueue, filled
from holdfast.services.postgres.search_marks import FoundRow
from holdfast.system.clock import SystemClock
from holdfast.testing.conformance import (
    KeyedQueueConformance,
    QueueConformance,
    QueueTransferConformance,
)
from simulator.servers import PostgresqlServer
from tests.services.postgres.conftest import MakeDatabase, MakeQueue

PATIENCE_S = 30.0
LONG_S = 60.0

SEND = "INSERT INTO holdfast.messages (queue, attributes, body) VALUES ('q', '{}', %s)"


class TestOnOneServer(KeyedQueueConformance, QueueConformance, QueueTransferConformance):
    @pytest.fixture
    def queue(self, make_queue: MakeQueue) -> Queue:
        return make_queue()

    @pytest.fixture
    def other_queue(self, queue: Queue, make_queue: MakeQueue) -> Queue:
        return make_queue()


@pytest.mark.nightly
class TestWithoutWhatAPoolerTakesAway(KeyedQueueConformance, QueueConformance):
    """Nothing is prepared or set for a connection, and no notification is received."""

    @pytest.fixture
    def queue(self, make_queue: MakeQueue) -> Queue:
        return make_queue(parameters="?pooled=yes")

    @pytest.fixture
    def other_queue(self, queue: Queue, make_queue: MakeQueue) -> Queue:
        return make_queue(parameters="?pooled=yes")


async def test_a_queue_sees_and_changes_nothing_of_another(make_queue: MakeQueue) -> None:
    queue = make_queue("q")
    other = PostgresQueue(queue.messages, "other", SystemClock())
    await queue.send([Outgoing(b"x")])
    await queue.bury([DeadLetter("a", b"x", "r")])
    assert await other.receive(1, 0, LONG_S, "me") == []
    [delivery] = await queue.receive(1, 0, LONG_S, "me")
    assert await other.extend([delivery.receipt], LONG_S) == [delivery.receipt]
    await other.delete([delivery.receipt])
    assert await other.free("me") == 0
    assert await other.dead_letters(9) == []
    assert await other.redrive(["a"]) == await other.purge(["a"]) == await other.expire(1e12) == 0
    depth = await queue.depth()
    assert (depth.in_flight, depth.dead) == (1, 1)


async def test_queues_that_hold_messages_are_listed(make_queue: MakeQueue) -> None:
    for name in ("b", "a", "empty"):
        await make_queue(name).send([Outgoing(b"x")] * 2)
    await make_queue("d").send([Outgoing(b"x", delay_s=LONG_S)])
    await make_queue("a").receive(2, 0, LONG_S, "me")
    queue = make_queue("empty")
    await queue.delete([d.receipt for d in await queue.receive(2, 0, LONG_S, "me")])
    assert await filled(queue.messages.database) == ["a", "b", "d"]


async def test_what_comes_again_comes_first_and_in_order(make_queue: MakeQueue) -> None:
    queue = make_queue()
    await queue.send([Outgoing(b"%d" % i) for i in range(5)])
    taken = await queue.receive(3, 0, LONG_S, "me")
    await queue.give_back([d.receipt for d in reversed(taken)], 0)
    assert [d.body for d in await queue.receive(5, 0, LONG_S, "me")] == [b"0", b"1", b"2", b"3", b"4"]


@pytest.mark.parametrize(
    "receipt", ["", "1", "x.1", "1.x", "0.1", "1.1.1", "-1.1", "9" * 30 + ".1", "1." + "9" * 30, "\u0661.1"]
)
async def test_junk_for_a_receipt_is_stale(make_queue: MakeQueue, receipt: str) -> None:
    queue = make_queue()
    await queue.send([Outgoing(b"x")])
    [delivery] = await queue.receive(1, 0, LONG_S, "me")
    assert await queue.extend([receipt, delivery.receipt], LONG_S) == [receipt]
    assert await queue.give_back([receipt], 0) == [receipt]
    await queue.delete([receipt])
    assert (await queue.depth()).in_flight == 1


async def test_a_receive_brings_no_more_bytes_than_it_may(
    make_queue: MakeQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CALL_BYTES", 5000)
    queue = make_queue()
    bodies = [b"small", b"a" * 2000, b"b" * 2000, b"small", b"c" * 6000, b"small", b"d" * 2000]
    await queue.send([Outgoing(body) for body in bodies])
    brought = []
    while deliveries := await queue.receive(10, 0, LONG_S, "me"):
        assert {d.receives for d in deliveries} == {1}
        brought.append([d.body for d in deliveries])
    assert brought == [bodies[:4], bodies[4:5], bodies[5:]]


async def test_texts_may_hold_the_character_that_postgresql_has_not(make_queue: MakeQueue) -> None:
    queue = make_queue()
    await queue.send([Outgoing(b"x", {"a\0": "\0b"})])
    [delivery] = await queue.receive(1, 0, LONG_S, "me")
    assert delivery.attributes == {"a\0": "\0b"}
    letters = [
        DeadLetter(f"\0id{i}", b"\0", "\0", {"\0": "\0"}, "\0", "\0", f"key\0{i}", 7, "\0") for i in range(3)
    ]
    await queue.bury([*letters, DeadLetter("other", b"", "r")])
    kept = await queue.dead_letters(2, after="\0id0")
    assert [(d.id, d.key, d.reason, d.detail, d.stream, d.seq, d.attributes) for d in kept] == [
        (d.id, d.key, d.reason, d.detail, d.stream, d.seq, d.attributes) for d in letters[1:]
    ]
    assert [d.id for d in await queue.dead_letters(9, key="key\x001")] == ["\0id1"]
    assert await queue.redrive(["\0id1"]) == 1
    assert await queue.purge(["\0id2"]) == 1
    assert [d.id for d in await queue.dead_letters(9)] == ["\0id0", "other"]


class Blocked:
    """While open, the lane of a queue does nothing else."""

    def __init__(self, queue: PostgresQueue) -> None:
        self._queue = queue
        self._began, self._leave = asyncio.Event(), asyncio.Event()

    async def __aenter__(self) -> None:
        async def block(_: Connection) -> None:
            self._began.set()
            await self._leave.wait()

        self._blocking = asyncio.create_task(self._queue.messages.database.lane("queue").write(block))
        await self._began.wait()

    async def __aexit__(self, *_: object) -> None:
        self._leave.set()
        await self._blocking


async def test_a_receive_cancelled_half_way_gives_back(make_queue: MakeQueue) -> None:
    queue = make_queue()
    await queue.send([Outgoing(b"x")])
    async with Blocked(queue):
        receiving = asyncio.create_task(queue.receive(1, LONG_S, LONG_S, "me"))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        receiving.cancel()
        await asyncio.sleep(0)
    await asyncio.wait([receiving])
    assert receiving.cancelled()
    [delivery] = await queue.receive(1, PATIENCE_S, LONG_S, "me")
    assert delivery.body == b"x"


class CountedMessages(PostgresMessages):
    """Notes how many calls each transaction served."""

    calls: list[int]

    async def receive(self, connection: Connection, asked: Sequence[ReceiveCall]) -> list[ReceiveAnswer]:
        self.calls.append(len(asked))
        return await super().receive(connection, asked)


async def test_receives_that_wait_together_are_served_together(
    postgresql_server: PostgresqlServer, make_database: MakeDatabase
) -> None:
    messages = CountedMessages(make_database(postgresql_server.url), SystemClock())
    messages.calls = []
    queue = PostgresQueue(messages, "q", SystemClock())
    await queue.send([Outgoing(b"%d" % i) for i in range(7)])
    async with Blocked(queue):
        receiving = [asyncio.create_task(queue.receive(2, 0, LONG_S, "me")) for _ in range(4)]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    taken = [[d.body for d in some] for some in await asyncio.gather(*receiving)]
    assert taken == [[b"0", b"1"], [b"2", b"3"], [b"4", b"5"], [b"6"]]
    assert messages.calls == [4]


@pytest.mark.nightly
@pytest.mark.parametrize("body", [b"", bytes(50_000)])
async def test_no_transaction_takes_more_than_it_has_time_for(make_queue: MakeQueue, body: bytes) -> None:
    queue, count, sent = make_queue(), 500 if not body else 50, list[int]()
    send = queue.messages.send

    async def counted(connection: Connection, batches: Sequence[Any]) -> list[list[str]]:
        sent.append(len(batches))
        return await send(connection, batches)

    queue.messages.send = counted  # type: ignore[method-assign]
    async with Blocked(queue):
        sending = [asyncio.ensure_future(queue.send([Outgoing(body)] * count)) for _ in range(50)]
        await asyncio.sleep(0)
    await asyncio.gather(*sending)
    assert sum(sent) == 50
    assert max(sent) * count <= 20_000
    assert max(sent) * count * len(body) <= 70 << 20
    assert len(sent) < 5


async def test_what_one_receive_has_locked_another_passes_over(
    make_queue: MakeQueue, postgresql_server: PostgresqlServer
) -> None:
    queue = make_queue()
    await queue.send([Outgoing(b"locked"), Outgoing(b"free")])
    async with await psycopg.AsyncConnection.connect(postgresql_server.url) as other:
        await other.execute("SELECT 1 FROM holdfast.messages WHERE body = 'locked' FOR UPDATE")
        [delivery] = await asyncio.wait_for(queue.receive(2, 0, LONG_S, "me"), PATIENCE_S / 3)
        assert delivery.body == b"free"
    [delivery] = await queue.receive(1, PATIENCE_S, LONG_S, "me")
    assert delivery.body == b"locked"


@pytest.mark.parametrize("act", ["delete", "extend", "give_back"])
async def test_a_receipt_that_becomes_stale_while_it_waits_for_a_lock_changes_nothing(
    make_queue: MakeQueue, postgresql_server: PostgresqlServer, act: str
) -> None:
    queue = make_queue()
    await queue.send([Outgoing(b"x")])
    [delivery] = await queue.receive(1, 0, LONG_S, "me")
    calls: dict[str, Callable[[], Awaitable[list[str]]]] = {
        "delete": lambda: queue.delete([delivery.receipt]),
        "extend": lambda: queue.extend([delivery.receipt], 0),
        "give_back": lambda: queue.give_back([delivery.receipt], 0),
    }
    async with await psycopg.AsyncConnection.connect(postgresql_server.url) as other:
        await other.execute("UPDATE holdfast.messages SET receives = receives + 1, holder = 'other'")
        acting = asyncio.ensure_future(calls[act]())
        await one_waits_for_a_lock(postgresql_server.url)
        await other.commit()
    assert await asyncio.wait_for(acting, PATIENCE_S) == [delivery.receipt]
    assert (await queue.depth()).in_flight == 1


async def test_a_receipt_that_is_deleted_and_extended_at_once_is_deleted(make_queue: MakeQueue) -> None:
    queue = make_queue()
    await queue.send([Outgoing(b"x"), Outgoing(b"y")])
    x, y = [d.receipt for d in await queue.receive(2, 0, LONG_S, "me")]
    async with Blocked(queue):
        calls = [
            queue.delete([x]),
            queue.extend([y, x], LONG_S),
            queue.extend([y], LONG_S),
            queue.delete([y]),
        ]
        acting = [asyncio.ensure_future(call) for call in calls]
        await asyncio.sleep(0)
    assert await asyncio.gather(*acting) == [[]] * 4
    depth = await queue.depth()
    assert (depth.ready, depth.in_flight, depth.delayed) == (0, 0, 0)


async def test_rows_are_locked_in_one_order_in_whichever_they_are_asked_for(
    make_queue: MakeQueue, postgresql_server: PostgresqlServer
) -> None:
    queue, url = make_queue(), postgresql_server.url
    await queue.send([Outgoing(b"first"), Outgoing(b"second")])
    receipts = [d.receipt for d in await queue.receive(2, 0, LONG_S, "me")]
    lock = "SELECT 1 FROM holdfast.messages WHERE body = %s FOR UPDATE NOWAIT"
    async with await psycopg.AsyncConnection.connect(url) as holds:
        await holds.execute(lock, (b"first",))
        acting = asyncio.ensure_future(queue.extend(receipts[::-1], LONG_S))
        await one_waits_for_a_lock(url)
        async with await psycopg.AsyncConnection.connect(url) as other:
            await other.execute(lock, (b"second",))
    assert await asyncio.wait_for(acting, PATIENCE_S) == []


async def one_waits_for_a_lock(url: str) -> None:
    waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as search_marks:
        while (await (await search_marks.execute(waits)).fetchone()) != (1,):
            pass


@pytest.mark.nightly
async def test_processes_that_want_the_same_rows_never_deadlock(
    make_queue: MakeQueue, postgresql_server: PostgresqlServer
) -> None:
    begin = postgresql_server.log.stat().st_size
    queue = make_queue()
    await queue.send([Outgoing(b"%d" % i) for i in range(100)])
    receipts = [d.receipt for d in await queue.receive(100, 0, LONG_S, "me")]
    letters = [DeadLetter(f"{i:03d}", b"x", "r") for i in range(100)]

    async def act(client: PostgresQueue, backwards: bool) -> None:
        step = -1 if backwards else 1
        for _ in range(10):
            await asyncio.gather(
                client.extend(receipts[:60][::step], LONG_S),
                client.extend(receipts[40:][::step], LONG_S),
                client.bury(letters[::step]),
                client.free("me"),
                client.receive(50, 0, LONG_S, "other"),
                client.put_back([PutBack(receipt, "k") for receipt in receipts[20:80][::step]]),
            )
            await asyncio.gather(
                client.reserve("k", "me", 1, LONG_S),
                client.keep(["k", "l", "m"][::step], "me", LONG_S),
                client.take("k", "me", 50, LONG_S),
                client.free("me"),
                client.unreserve("k", "me"),
            )
            await asyncio.gather(
                client.redrive([d.id for d in letters[:60][::step]]),
                client.purge([d.id for d in letters[40:][::step]]),
                client.expire(1e12),
            )

    async with asyncio.timeout(PATIENCE_S):
        await asyncio.gather(*(act(make_queue(), bool(n % 2)) for n in range(4)))
    with postgresql_server.log.open("rb") as log:
        log.seek(begin)
        assert b"deadlock" not in log.read()


async def test_large_dead_letters_are_buried_in_parts(
    make_queue: MakeQueue, postgresql_server: PostgresqlServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.services.postgres.queue.CALL_BYTES", 5000)
    queue = make_queue()
    await queue.bury([DeadLetter(str(number), b"x" * 2000, "r") for number in range(5)])
    assert len(await queue.dead_letters(9)) == 5
    with psycopg.connect(postgresql_server.url) as connection:
        written = "SELECT count(DISTINCT xmin::text) FROM holdfast.dead_letters"
        assert connection.execute(written).fetchone() == (3,)


NOTE_DROPPED = """
CREATE TABLE public.dropped (letters bigint);
CREATE FUNCTION public.note() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN INSERT INTO public.dropped SELECT count(*) FROM gone; RETURN NULL; END $$;
CREATE TRIGGER note AFTER DELETE ON holdfast.dead_letters REFERENCING OLD TABLE AS gone
    FOR EACH STATEMENT EXECUTE FUNCTION public.note()"""


async def test_dead_letters_expire_in_small_batches_however_many_there_are(
    make_queue: MakeQueue, postgresql_server: PostgresqlServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.services.postgres.queue.EXPIRE_BATCH", 3)
    queue, young = make_queue(), ["3", "4", "5", "7"]
    letters = [DeadLetter(str(n), b"x", "r", at=9.0 if str(n) in young else 1.0) for n in range(10)]
    await queue.restore_dead_letters(letters)
    with psycopg.connect(postgresql_server.url, autocommit=True) as connection:
        connection.execute(NOTE_DROPPED)
        assert await queue.expire(5.0) == 6
        dropped = connection.execute("SELECT letters FROM public.dropped").fetchall()
    assert [count for (count,) in dropped] == [3, 0, 2, 1]
    assert [letter.id for letter in await queue.dead_letters(10)] == young


async def test_what_is_given_back_is_in_nobodys_hands(make_queue: MakeQueue) -> None:
    queue = make_queue()
    await queue.send([Outgoing(b"x")])
    [delivery] = await queue.receive(1, 0, LONG_S, "me")
    await queue.give_back([delivery.receipt], LONG_S)
    depth = await queue.depth()
    assert (depth.in_flight, depth.delayed) == (0, 1)
    assert await queue.extend([delivery.receipt], 0) == [delivery.receipt]
    assert await queue.delete([delivery.receipt]) == [delivery.receipt]
    assert await queue.free("me") == 0


@pytest.mark.parametrize("act", ["send", "delayed", "give_back", "extend", "free", "redrive"])
async def test_who_waits_hears_of_what_shows(
    make_queue: MakeQueue, act: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue, other = make_queue(), make_queue()
    await queue.send([Outgoing(b"x")])
    [delivery] = await queue.receive(1, 0, LONG_S, "me")
    await queue.bury([DeadLetter("a", b"x", "r")])
    monkeypatch.setattr("holdfast.services.postgres.queue.SAFETY_S", LONG_S)
    calls: dict[str, Callable[[], Awaitable[object]]] = {
        "send": lambda: queue.send([Outgoing(b"x")]),
        "delayed": lambda: queue.send([Outgoing(b"x", delay_s=0.2)]),
        "give_back": lambda: queue.give_back([delivery.receipt], 0),
        "extend": lambda: queue.extend([delivery.receipt], 0.2),
        "free": lambda: queue.free("me"),
        "redrive": lambda: queue.redrive(["a"]),
    }
    waiting = asyncio.create_task(other.receive(1, LONG_S, LONG_S, "other"))
    await asyncio.wait_for(other.messages.database.bells.hears.wait(), PATIENCE_S)
    for _ in range(3):
        await other.depth()  # its first looks are over
    await calls[act]()
    [shown] = await asyncio.wait_for(waiting, PATIENCE_S)
    assert shown.body == b"x"


# --- ids


async def test_ids_do_not_come_again_though_the_server_has_forgotten_some(
    make_queue: MakeQueue, postgresql_server: PostgresqlServer
) -> None:
    queue = make_queue()
    await queue.send([Outgoing(b"forgotten")])
    [old] = await queue.receive(1, 0, LONG_S, "me")
    async with await psycopg.AsyncConnection.connect(postgresql_server.url, autocommit=True) as server:
        await server.execute("DELETE FROM holdfast.messages")
        await server.execute("ALTER SEQUENCE holdfast.message_numbers RESTART")
    await queue.send([Outgoing(b"new")])
    [new] = await queue.receive(1, PATIENCE_S, LONG_S, "me")
    assert int(new.id) > int(old.id)
    await queue.delete([old.receipt])
    assert (await queue.depth()).in_flight == 1


# --- from where receives look


@pytest.mark.slow
@pytest.mark.parametrize("look", ["farther", "from the beginning"])
async def test_what_is_committed_late_is_delivered(
    make_queue: MakeQueue, postgresql_server: PostgresqlServer, look: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = make_queue()
    await queue.send([Outgoing(b"before")])
    async with await psycopg.AsyncConnection.connect(postgresql_server.url) as late:
        await late.execute(SEND, (b"late",))
        await queue.receive(10, 0, LONG_S, "me")
        assert await queue.receive(10, 2 * search_marks.MARGIN_S, LONG_S, "me") == []
        marks = queue.messages.marks["q"]
        if look == "farther":
            marks.full_at = math.inf
        else:
            monkeypatch.setattr(search_marks, "WIDE_MARGIN_S", 0.0)
        await late.commit()
        [delivery] = await queue.receive(10, PATIENCE_S, LONG_S, "me")
        assert delivery.body == b"late"


async def test_a_look_that_does_not_bring_all_is_gone_on_with() -> None:
    now, margin = 2_000_000_000_000_000, round(search_marks.MARGIN_S * 1e6)
    old = search_marks.least_id(now - margin) - 1000

    def row(visible_at: int | None, number: int, total: int) -> FoundRow:
        return FoundRow(number, 1, 0, None, "", b"", total, now, visible_at)

    marks = search_marks.Marks()
    marks.move([row(5, 1, 9), row(7, 2, 9)], 10, now)  # the rest would be too many bytes
    assert (marks.due_from, marks.fresh_from) == (6, 0)
    marks.move([row(7, 2, 1), row(None, old, 1)], 2, now)  # the limit is reached
    assert (marks.due_from, marks.fresh_from) == (now - margin, old)
    marks.move([row(None, old + 1, 1)], 2, now + margin)  # that was all
    assert (marks.due_from, marks.fresh_from) == (now, search_marks.least_id(now))


async def test_the_longer_a_look_from_the_beginning_takes_the_seldomer_it_is() -> None:
    marks = search_marks.Marks()
    marks.start(100.0)
    marks.end(100.0, 100.01)
    assert marks.full_at == pytest.approx(100.01 + search_marks.WIDE_S)
    marks.start(200.0)
    marks.end(200.0, 201.0)
    assert marks.full_at == marks.wide_at == pytest.approx(201.0 + 1 / search_marks.WIDE_SHARE)


async def test_what_a_failed_receive_had_taken_is_looked_for_again(make_queue: MakeQueue) -> None:
    queue, clock = make_queue(), SystemClock()
    await queue.send([Outgoing(b"%d" % i) for i in range(10)])

    class Failing(PostgresMessages):
        async def receive(self, connection: Connection, asked: Sequence[ReceiveCall]) -> list[ReceiveAnswer]:
            await super().receive(connection, asked)
            await connection.execute("SELECT 1 / 0")
            return []

    messages = Failing(queue.messages.database, clock)
    failing = PostgresQueue(messages, "q", clock)
    with pytest.raises(Exception, match="division"):
        await failing.receive(5, 0, LONG_S, "me")
    assert messages.marks == {}


@pytest.mark.slow
async def test_a_receive_does_not_pass_over_what_cannot_be_removed_yet(
    make_queue: MakeQueue, postgresql_server: PostgresqlServer
) -> None:
    queue, rounds, batch = make_queue(), 10, 500
    await queue.send([Outgoing(b"x")])
    await queue.receive(1, 0, LONG_S, "me")
    marks = queue.messages.marks["q"]
    marks.full_at = marks.wide_at = math.inf
    async with await psycopg.AsyncConnection.connect(postgresql_server.url) as holds:
        await holds.set_isolation_level(psycopg.IsolationLevel.REPEATABLE_READ)
        await holds.execute("SELECT 1 FROM holdfast.messages")
        for _ in range(rounds):
            await queue.send([Outgoing(b"x")] * batch)
            await queue.delete([d.receipt for d in await queue.receive(batch, 0, LONG_S, "me")])
        await queue.receive(1, 2 * search_marks.MARGIN_S, LONG_S, "me")
        before = await entries_read(queue)
        await queue.send([Outgoing(b"x")] * 10)
        assert len(await queue.receive(10, PATIENCE_S, LONG_S, "me")) == 10
        assert await entries_read(queue) - before < batch


async def entries_read(queue: PostgresQueue) -> int:
    """How many entries of the indexes of messages the queue's connection has passed so far."""

    async def read(connection: Connection) -> int:
        await connection.execute("SELECT pg_stat_force_next_flush()")
        rows = await connection.execute(
            "SELECT sum(idx_tup_read)::bigint FROM pg_stat_user_indexes WHERE relname = 'messages'"
        )
        [entries] = await rows.fetchone() or (0,)
        return int(entries)

    return await queue.messages.database.lane("queue").read(read)


@pytest.mark.parametrize("rows", [0, 50_000])
async def test_every_statement_finds_its_rows_by_an_index(make_queue: MakeQueue, rows: int) -> None:
    """Also where the table was empty when the statement was planned, or has statistics that mislead."""
    database = make_queue().messages.database

    async def plans(connection: Connection) -> list[str]:
        await connection.execute(
            "INSERT INTO holdfast.messages (queue, attributes, body)"
            " SELECT 'q', '{}', '' FROM generate_series(1, %s)",
            (rows,),
        )
        await connection.execute("ANALYZE holdfast.messages")
        call: dict[str, Any] = {"queue": "q", "limit": 10, "visibility": 1, "holder": "me", "bytes": 100}
        call |= {"key": b"k", "after": 0, "kept": 1, "due_from": 0, "fresh_from": 0, "ended_from": 0}
        call["first"] = module.FIRST
        asked: list[tuple[str, Any]] = [
            (module.RECEIVE, call),
            (module.RECEIVE_AND_KEEP, call),
            (module.SETTLE, [["q"] * 9, list(range(9)), [1] * 9, [None] * 9, [False] * 9]),
            (module.FREE, {"queue": "q", "holder": "me"}),
            (module.NEXT_DUE, {"queue": "q", "soon": 1}),
            (module.SORT, call),
            (module.TIDY, call),
            (reservations.TAKE, call),
            (reservations.PUT_BACK, [["q"] * 9, list(range(9)), [1] * 9, [b"k"] * 9, [False] * 9, 1]),
            (reservations.KEEP, {"queue": "q", "keys": [b"k"], "holder": "me", "lasts": 1}),
        ]
        found = []
        for statement, parameters in asked:
            plan = await connection.execute(b"EXPLAIN " + database.sql(statement), parameters)
            found.append("\n".join(line for (line,) in await plan.fetchall()))
        return found

    receive, keep, *_, take, _, _ = plans_ = await database.lane("queue").write(plans)
    for plan in plans_:
        assert "Seq Scan" not in plan, plan
    assert "Index Scan using messages_kept" in keep, keep
    assert "Index Scan using messages_kept" in take, take
    for plan in (receive, keep):
        assert "Index Scan using messages_fresh" in plan, plan
        assert "Index Scan using messages_due" in plan, plan
        assert "Tid Scan" in plan, plan
        assert plan.count("Sort") <= plan.count("WindowAgg"), plan
