"""What child processes of the tests run."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any

from holdfast.ports.queue import Outgoing
from holdfast.rules.streams.ledger import Commit, Result
from holdfast.services.sqlite.database import Database, Transaction
from holdfast.services.sqlite.queue import SqliteQueue
from holdfast.services.sqlite.state import SqliteState
from holdfast.system.clock import SystemClock

Child = Callable[[Database, Connection], Awaitable[None]]


@contextmanager
def running(child: Child, path: Path) -> Iterator[tuple[SpawnProcess, Connection]]:
    """A process that runs ``child`` with the database, and this end of a pipe to it."""
    context = get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=_main, args=(child, path, there))
    process.start()
    there.close()
    try:
        yield process, here
    finally:
        here.close()
        process.kill()
        process.join()


async def heard(pipe: Connection) -> Any:
    """The next thing that the child says."""
    return await asyncio.to_thread(pipe.recv)


def _main(child: Child, path: Path, pipe: Connection) -> None:
    async def run() -> None:
        database = Database.open(path, SystemClock())
        await child(database, pipe)
        await database.close()

    asyncio.run(run())


# --- children


async def write_for_ever(database: Database, pipe: Connection) -> None:
    """Commit to 8 keys, two results a commit, saying the number of each commit once it is answered."""
    clock = SystemClock()
    state, queue = SqliteState(database, clock), SqliteQueue(database, "q", clock)

    async def work(key: str) -> None:
        await state.open(key, 0, "child")
        number = 0
        while True:
            number += 1
            results = tuple(Result(f"{number}:{i}", b"x" * 500) for i in range(2))
            await state.commit(
                Commit(
                    key, 1, number, str(number), None, identities=(str(number),), window=4, results=results
                )
            )
            [sent] = await queue.send([Outgoing(key.encode())])
            pipe.send((key, number, sent))

    await asyncio.gather(*(work(f"s/{i}") for i in range(8)))


async def block_in_a_transaction(database: Database, pipe: Connection) -> None:
    """Print from the middle of a transaction, and stay there until a line arrives."""

    def block(transaction: Transaction) -> None:
        transaction.execute("INSERT INTO queues (name) VALUES ('unfinished')")
        pipe.send("in")
        pipe.recv()

    await database.write(block)


async def idle(database: Database, pipe: Connection) -> None:
    """Write, then wait for a line."""
    await SqliteQueue(database, "q", SystemClock()).send([Outgoing(b"x")])
    pipe.send("idle")
    await asyncio.to_thread(pipe.recv)


async def send_when_told(database: Database, pipe: Connection) -> None:
    """Send a message for every word."""
    queue = SqliteQueue(database, "q", SystemClock())
    await queue.send([])
    pipe.send("ready")
    while await asyncio.to_thread(pipe.recv):
        await queue.send([Outgoing(b"x")])


async def listen(database: Database, pipe: Connection) -> None:
    """Listen to the doorbell, until killed."""
    with database.doorbell.listen("anything"):
        pipe.send("listening")
        await asyncio.to_thread(pipe.recv)


async def take(database: Database, pipe: Connection) -> None:
    """Take the messages of the key ``a`` until none is left; print them."""
    queue = SqliteQueue(database, "q", SystemClock())
    await queue.reserve("a", "child", 1, 60)
    pipe.send("ready")
    await asyncio.to_thread(pipe.recv)
    bodies: list[bytes] = []
    while (taken := await queue.take("a", "child", 7, 60)) and (taken.more or taken.deliveries):
        bodies += [d.body for d in taken.deliveries]
        await queue.delete([d.receipt for d in taken.deliveries])
    pipe.send(bodies)


async def drain(database: Database, pipe: Connection) -> None:
    """Receive and delete until nothing comes; say what came."""
    queue = SqliteQueue(database, "q", SystemClock())
    pipe.send("ready")
    await asyncio.to_thread(pipe.recv)
    bodies: list[bytes] = []
    while deliveries := await queue.receive(7, 0.5, 60, "child"):
        bodies += [d.body for d in deliveries]
        await queue.delete([d.receipt for d in deliveries])
    pipe.send(bodies)
