"""The queue in PostgreSQL while connections are cut and the server is killed."""

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import NamedTuple

import psycopg
import pytest

from holdfast.errors import HoldfastError, OutcomeUnknown, Unavailable
from holdfast.ports.queue import DeadLetter, Outgoing
from holdfast.services.postgres.messages import PostgresMessages
from holdfast.services.postgres.queue import PostgresQueue
from holdfast.system.clock import SystemClock
from simulator.proxies import TcpFaults
from simulator.servers import PostgresqlServer
from tests.services.postgres.conftest import MakeDatabase

PATIENCE_S = 60.0
LONG_S = 60.0

State = tuple[list[tuple[bytes, int, bool]], list[bytes]]
"""Each message's body, receives, and whether it is hidden; the ids of dead letters."""

STATE = """
SELECT body, receives, coalesce(visible_at > holdfast.micros(clock_timestamp()), false)
FROM holdfast.messages ORDER BY 1, 2"""


class Place(NamedTuple):
    """A queue behind a proxy, the same one past it, and a connection of its own to look."""

    queue: PostgresQueue
    direct: PostgresQueue
    faults: TcpFaults
    looks: psycopg.AsyncConnection

    async def fill(self) -> str:
        """Two messages, of which one is delivered, and two dead letters. Returns the delivery's receipt."""
        await self.looks.execute("TRUNCATE holdfast.messages, holdfast.dead_letters")
        await self.direct.send([Outgoing(b"a")])
        [delivery] = await self.direct.receive(1, PATIENCE_S, LONG_S, "me")
        await self.direct.send([Outgoing(b"b")])
        await self.direct.bury([DeadLetter("x", b"x", "r"), DeadLetter("y", b"y", "r")])
        return delivery.receipt

    async def state(self) -> State:
        messages = await (await self.looks.execute(STATE)).fetchall()
        letters = await (
            await self.looks.execute("SELECT id FROM holdfast.dead_letters ORDER BY 1")
        ).fetchall()
        return messages, [letter for (letter,) in letters]


@pytest.fixture
async def place(postgresql_server: PostgresqlServer, make_database: MakeDatabase) -> AsyncIterator[Place]:
    server, clock = postgresql_server, SystemClock()
    async with TcpFaults(server.port) as faults:
        urls = [server.url.replace(str(server.port), str(port)) for port in (faults.port, server.port)]
        queue, direct = [
            PostgresQueue(PostgresMessages(make_database(url), clock), "q", clock) for url in urls
        ]
        await direct.depth()
        async with await psycopg.AsyncConnection.connect(server.url, autocommit=True) as looks:
            yield Place(queue, direct, faults, looks)
        await queue._messages.database.close()


ACTS: dict[str, Callable[[PostgresQueue, str], Awaitable[object]]] = {
    "send": lambda queue, _: queue.send([Outgoing(b"c"), Outgoing(b"d", delay_s=LONG_S)]),
    "receive": lambda queue, _: queue.receive(5, 0, LONG_S, "me"),
    "extend": lambda queue, receipt: queue.extend([receipt], 0),
    "give_back": lambda queue, receipt: queue.give_back([receipt], 0),
    "delete": lambda queue, receipt: queue.delete([receipt]),
    "free": lambda queue, _: queue.free("me"),
    "bury": lambda queue, _: queue.bury([DeadLetter("w", b"w", "r"), DeadLetter("z", b"z", "r")]),
    "redrive": lambda queue, _: queue.redrive(["y", "x"]),
    "purge": lambda queue, _: queue.purge(["y", "x"]),
    "expire": lambda queue, _: queue.expire(1e12),
}


@pytest.mark.slow
@pytest.mark.parametrize("act", ACTS)
async def test_a_cut_connection_leaves_all_or_nothing_and_the_error_says_which(
    place: Place, act: str
) -> None:
    call = ACTS[act]

    async def connect_anew() -> str:
        """As the connection was cut before, each call begins with a new one, which knows no statement."""
        place.faults.cut()
        with contextlib.suppress(Unavailable):
            await place.queue.depth()
        await place.queue.depth()
        return await place.fill()

    receipt = await connect_anew()
    before, sent = await place.state(), place.faults.bytes_in
    await call(place.queue, receipt)
    size, after = place.faults.bytes_in - sent, await place.state()
    strikes: list[Callable[[], object]] = [place.faults.lose_replies]
    strikes += [partial(place.faults.cut_after, at) for at in (*range(1, size, max(1, size // 8)), size)]
    outcomes = set()
    for strike in strikes:
        receipt = await connect_anew()
        strike()
        try:
            await asyncio.wait_for(call(place.queue, receipt), PATIENCE_S)
            assert await place.state() == after
            outcomes.add("done")
        except Unavailable:
            assert await place.state() == before
            outcomes.add("not done")
        except OutcomeUnknown:
            while await _others_work(place):
                pass
            assert await place.state() in (before, after)
            outcomes.add("unknown")
        place.faults.cut_after(1 << 60)
        await call(place.queue, receipt)
    # The others are one statement, or wait for no answer before they ask for the commit.
    in_transactions = act in ("redrive", "purge", "expire")
    assert outcomes >= ({"not done", "unknown"} if in_transactions else {"unknown"})


async def _others_work(place: Place) -> bool:
    """Whether the server still works for a connection that was cut."""
    works = (
        "SELECT count(*) FROM pg_stat_activity"
        " WHERE state = 'active' AND pid <> pg_backend_pid() AND backend_type = 'client backend'"
    )
    [count] = await (await place.looks.execute(works)).fetchone() or (0,)
    return bool(count)


@pytest.mark.slow
@pytest.mark.parametrize("act", ["send", "bury", "redrive"])
async def test_what_was_sent_or_buried_is_there_after_a_crash_at_once(
    postgresql_server: PostgresqlServer, make_database: MakeDatabase, act: str
) -> None:
    clock = SystemClock()
    queue = PostgresQueue(PostgresMessages(make_database(postgresql_server.url), clock), "q", clock)
    await queue.bury([DeadLetter(str(number), b"", "r") for number in range(3)])
    for number in range(3):
        if act == "send":
            await queue.send([Outgoing(b"%d" % number)])
        elif act == "bury":
            await queue.bury([DeadLetter(f"more {number}", b"", "r")])
        else:
            await queue.redrive([str(number)])
        await postgresql_server.restart()
        with contextlib.suppress(HoldfastError):  # the connection may be found to be lost
            await queue.depth()
        depth = await queue.depth()
        moved = number + 1
        expected = {"send": (moved, 3), "bury": (0, 3 + moved), "redrive": (moved, 3 - moved)}
        assert (depth.ready, depth.dead) == expected[act]


@pytest.mark.slow
async def test_nothing_acknowledged_is_lost_while_the_server_is_killed_in_mid_traffic(
    postgresql_server: PostgresqlServer, make_database: MakeDatabase
) -> None:
    clock, server = SystemClock(), postgresql_server
    log_from = server.log.stat().st_size
    acknowledged: set[bytes] = set()
    done: set[bytes] = set()
    ended = asyncio.Event()
    moved = asyncio.Condition()

    def client() -> PostgresQueue:
        return PostgresQueue(PostgresMessages(make_database(server.url), clock), "q", clock)

    async def produce(queue: PostgresQueue, name: bytes) -> None:
        for number in itertools.count():
            if ended.is_set():
                return
            bodies = [b"%s-%d-%d" % (name, number, n) for n in range(5)]
            try:
                await queue.send([Outgoing(body) for body in bodies])
                acknowledged.update(bodies)
            except (Unavailable, OutcomeUnknown):
                await asyncio.sleep(0.01)
            async with moved:
                moved.notify_all()

    async def consume(queue: PostgresQueue, name: str) -> None:
        while not (ended.is_set() and acknowledged <= done):
            try:
                taken = await queue.receive(20, 0.1, 1.0, name)
                back, rest = taken[::7], [d for n, d in enumerate(taken) if n % 7]
                await asyncio.gather(
                    queue.extend([d.receipt for d in rest], 2.0),
                    queue.give_back([d.receipt for d in back if d.receives < 3], 0),
                )
                deleted = rest + [d for d in back if d.receives >= 3]
                stale = set(await queue.delete([d.receipt for d in deleted]))
                done.update(d.body for d in deleted if d.receipt not in stale)
            except (Unavailable, OutcomeUnknown):
                await asyncio.sleep(0.01)

    async def grow(by: int) -> None:
        until = len(acknowledged) + by
        async with moved:
            await moved.wait_for(lambda: len(acknowledged) >= until)

    async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as work:
        for n in range(2):
            work.create_task(produce(client(), b"%d" % n))
            work.create_task(consume(client(), f"node-{n}"))
        for _ in range(3):
            await grow(200)
            server.kill()
            await server.start()
        await grow(200)
        ended.set()
    assert acknowledged <= done
    with server.log.open("rb") as log:
        log.seek(log_from)
        assert b"deadlock" not in log.read()
