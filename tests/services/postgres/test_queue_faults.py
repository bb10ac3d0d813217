"""The queue in PostgreSQL while the server is killed."""

import asyncio
import contextlib
import itertools

import pytest

from holdfast.errors import HoldfastError, OutcomeUnknown, Unavailable
from holdfast.ports.queue import DeadLetter, Outgoing
from holdfast.services.postgres.messages import PostgresMessages
from holdfast.services.postgres.queue import PostgresQueue
from holdfast.system.clock import SystemClock
from simulator.servers import PostgresqlServer
from tests.services.postgres.conftest import MakeDatabase

PATIENCE_S = 60.0


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


@pytest.mark.nightly
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
