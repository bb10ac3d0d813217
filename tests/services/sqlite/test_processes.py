"""Several processes on one database: crashes, stops, wake-ups."""

import asyncio
import os
import signal
import sqlite3
from contextlib import ExitStack
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from holdfast.ports.clock import Clock
from holdfast.ports.queue import Outgoing
from holdfast.services.sqlite import queue as queue_module
from holdfast.services.sqlite.database import Database
from holdfast.services.sqlite.queue import SqliteQueue
from holdfast.services.sqlite.state import SqliteState
from tests.services.sqlite import children


@pytest.mark.slow
async def test_what_was_answered_survives_a_kill_and_nothing_is_half_written(
    path: Path, clock: Clock
) -> None:
    said: dict[str, int] = {}
    sent: set[str] = set()
    with children.running(children.write_for_ever, path) as (process, pipe):
        for _ in range(2_000):
            key, number, message = await children.heard(pipe)
            said[key] = number
            sent.add(message)
        os.kill(process.pid or 0, signal.SIGKILL)
        process.join()
    with sqlite3.connect(path) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    connection.close()
    database = Database.open(path, clock)
    state, queue = SqliteState(database, clock), SqliteQueue(database, "q", clock)
    checkpoints = {c.key: c for c in await state.checkpoints()}
    results = await state.results(0, 1_000_000)
    for key, number in said.items():
        checkpoint = checkpoints[key]
        assert checkpoint.number >= number
        names = [r.result.name for r in results if r.key == key]
        assert names == [f"{n}:{i}" for n in range(1, checkpoint.number + 1) for i in range(2)]
        reopened = await state.open(key, 1, "next")
        assert reopened.recent == tuple(str(n) for n in range(checkpoint.number - 3, checkpoint.number + 1))
    found: set[str] = set()
    while deliveries := await queue.receive(100, 0, 60, "next"):
        found |= {d.id for d in deliveries}
    assert sent <= found
    await database.close()


@pytest.mark.slow
async def test_a_process_stopped_in_a_transaction_is_killed(database: Database, clock: Clock) -> None:
    queue = SqliteQueue(database, "q", clock)
    await queue.send([])
    with children.running(children.block_in_a_transaction, database.path) as (process, pipe):
        assert await children.heard(pipe) == "in"
        os.kill(process.pid or 0, signal.SIGSTOP)
        with capture_logs() as logs:
            async with asyncio.timeout(30):
                await queue.send([Outgoing(b"x")])
        process.join()
        assert process.exitcode == -signal.SIGKILL
    assert [entry["pid"] for entry in logs if entry["log_level"] == "warning"] == [process.pid]
    names = await database.read(lambda c: c.execute("SELECT name FROM queues").fetchall())
    assert names == [("q",)], "its transaction was undone"


@pytest.mark.slow
async def test_a_process_that_works_long_in_a_transaction_is_waited_for(path: Path, clock: Clock) -> None:
    database = Database.open(path, clock, lock_timeout_s=0.05, busy_timeout_s=0.3)
    queue = SqliteQueue(database, "q", clock)
    await queue.send([Outgoing(b"before")])
    with children.running(children.block_in_a_transaction, path) as (process, pipe):
        assert await children.heard(pipe) == "in"
        with pytest.raises(Exception, match=rf"{path} is locked by another process \(.*pid={process.pid}"):
            await queue.send([Outgoing(b"refused")])
        pipe.send("go on")
        await asyncio.to_thread(process.join)
        assert process.exitcode == 0
    await queue.send([Outgoing(b"after")])
    assert [d.body for d in await queue.receive(9, 0, 60, "me")] == [b"before", b"after"]
    await database.close()


@pytest.mark.slow
async def test_a_process_stopped_elsewhere_harms_nobody(database: Database, clock: Clock) -> None:
    queue = SqliteQueue(database, "q", clock)
    with children.running(children.idle, database.path) as (process, pipe):
        assert await children.heard(pipe) == "idle"
        os.kill(process.pid or 0, signal.SIGSTOP)
        for _ in range(20):
            await queue.send([Outgoing(b"x")])
        os.kill(process.pid or 0, signal.SIGCONT)
        pipe.send("go on")
        await asyncio.to_thread(process.join)
        assert process.exitcode == 0


@pytest.mark.slow
async def test_a_long_poll_wakes_at_once_for_another_process(
    database: Database, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_module, "SAFETY_S", 3600.0)  # it never looks of its own accord
    queue = SqliteQueue(database, "q", clock)
    with children.running(children.send_when_told, database.path) as (_, pipe):
        assert await children.heard(pipe) == "ready"
        for _ in range(10):
            waiting = asyncio.create_task(queue.receive(1, 60, 60, "me"))
            await queue.depth()  # by now it waits
            pipe.send(True)
            assert len(await waiting) == 1
        pipe.send(False)


@pytest.mark.slow
async def test_the_doorbells_of_the_dead_are_removed(database: Database, clock: Clock) -> None:
    queue = SqliteQueue(database, "q", clock)
    with children.running(children.listen, database.path) as (process, pipe):
        assert await children.heard(pipe) == "listening"
        assert len(list(database.doorbell.directory.iterdir())) == 1
        process.kill()
    await queue.send([Outgoing(b"x")])
    assert list(database.doorbell.directory.iterdir()) == []


@pytest.mark.slow
async def test_one_process_takes_a_key_in_order_while_others_receive(
    database: Database, clock: Clock
) -> None:
    queue = SqliteQueue(database, "q", clock)
    with ExitStack() as stack:
        pipes = [
            stack.enter_context(children.running(child, database.path))[1]
            for child in (children.take, children.drain, children.drain)
        ]
        for pipe in pipes:
            assert await children.heard(pipe) == "ready"
        for begin in range(0, 600, 100):
            numbers = range(begin, begin + 100)
            await queue.send([Outgoing(b"%d" % i, key="a" if i % 2 else "b") for i in numbers])
        for pipe in pipes:
            pipe.send("go")
        taken, *drained = [await children.heard(pipe) for pipe in pipes]
    assert taken == [b"%d" % i for i in range(1, 600, 2)]
    assert sorted(body for share in drained for body in share) == sorted(b"%d" % i for i in range(0, 600, 2))


@pytest.mark.slow
async def test_many_processes_share_the_messages(database: Database, clock: Clock) -> None:
    queue = SqliteQueue(database, "q", clock)
    for begin in range(0, 600, 100):
        await queue.send([Outgoing(b"%d" % i) for i in range(begin, begin + 100)])
    with ExitStack() as stack:
        drains = [stack.enter_context(children.running(children.drain, database.path)) for _ in range(3)]
        for _, pipe in drains:
            assert await children.heard(pipe) == "ready"
        for _, pipe in drains:
            pipe.send("go")
        shares = [await children.heard(pipe) for _, pipe in drains]
    bodies = [body for share in shares for body in share]
    assert sorted(bodies) == sorted(b"%d" % i for i in range(600))
    assert (await queue.depth()).ready == 0
