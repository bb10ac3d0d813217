"""Terminals get their commands, whatever befalls nodes, broker, database, lines and themselves."""

import asyncio
import contextlib
import os
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
from sqlalchemy.exc import DBAPIError

from simulator.servers import PostgresqlServer
from tests.nodes.doors import Doors, Node

MINUTES = float(os.environ.get("CHAOS_MINUTES", "2.5"))
SEED = int(os.environ.get("CHAOS_SEED", str(time.time_ns() % 10_000)))
PAUSE_S = 1.5
CLERKS = 4
PACE_S = 0.1
TERMINALS = 30
EACH = 6

MakeDoors = Callable[..., Awaitable[Doors]]


@pytest.fixture
async def make_doors(tmp_path: Path, kept_postgresql: PostgresqlServer) -> AsyncIterator[MakeDoors]:
    """Make the services and the business; all ends with the test."""
    made: list[Doors] = []

    async def make(database: str, **settings: Any) -> Doors:
        server = kept_postgresql if database == "postgresql" else None
        if server is not None:
            await server.reset()
        doors = Doors(tmp_path, postgresql=server, **settings)
        made.append(doors)
        return await doors.__aenter__()

    yield make
    for doors in made:
        await doors.__aexit__()


@pytest.mark.nightly
async def test_what_is_killed_and_cut_loses_nothing(make_doors: MakeDoors) -> None:
    """A node, the broker, the database, the terminals, and a line."""
    doors = await make_doors("postgresql", terminals=TERMINALS, calm=True)

    async def change(device: str) -> None:
        for number in range(EACH):
            await doors.add(device, supersede_key="person" if number % 3 else None)

    async with asyncio.TaskGroup() as group:
        group.create_task(doors.start("a", "b"))
        for device in doors.devices:
            group.create_task(change(device))
    total = len(doors.added)
    await doors.until_told(total // 6)
    doors.nodes["a"].process.signal(signal.SIGKILL)
    doors.nodes["b"].broker.cut()
    await doors.until_told(total // 3)
    await doors.broker.restart()
    await doors.until_told(total // 2)
    assert doors.postgresql is not None
    await doors.postgresql.restart()
    await doors.until_told(2 * total // 3)
    doors.terminals.signal(signal.SIGKILL)
    doors.start_terminals()
    await doors.check(alive=["b"])


class Chaos:
    """Does one bad thing after another to all that there is."""

    def __init__(self, doors: Doors, random: Random) -> None:
        self.doors = doors
        self.random = random
        self.done: Counter[str] = Counter()

    async def strike(self) -> None:
        """One bad thing."""
        deeds = [self.kill, self.kill, self.kill_all, self.stop, self.stop, self.drain]
        deeds += [self.kill_broker, self.pause_broker, self.kill_terminals, self.set_clock]
        deeds += [self.cut, self.cut, self.freeze, self.freeze, self.delay, self.fill_disk]
        if self.doors.postgresql is not None:
            deeds += [self.kill_database, self.pause_database, self.lose_answers, self.lose_answers]
        deed = self.random.choice(deeds)
        self.done[deed.__name__] += 1
        await deed()

    def any_node(self) -> Node:
        return self.random.choice(list(self.doors.nodes.values()))

    async def wait(self, most_s: float) -> None:
        await asyncio.sleep(self.random.uniform(0.0, most_s))

    async def kill(self) -> None:
        node = self.any_node()
        node.process.signal(signal.SIGKILL)
        await node.process.ended()
        await self.wait(2.0)
        self.doors.spawn(node.name)

    async def kill_all(self) -> None:
        for node in self.doors.nodes.values():
            node.process.signal(signal.SIGKILL)
            await node.process.ended()
        for name in self.doors.nodes:
            self.doors.spawn(name)

    async def stop(self) -> None:
        """For less than its membership lives, or for more: then it is a zombie."""
        node = self.any_node()
        node.process.signal(signal.SIGSTOP)
        await self.wait(8.0)
        node.process.signal(signal.SIGCONT)

    async def drain(self) -> None:
        node = self.any_node()
        node.process.signal(signal.SIGTERM)
        await node.process.ended()
        self.doors.spawn(node.name)

    async def kill_broker(self) -> None:
        self.doors.broker.kill()
        await self.wait(2.0)
        await self.doors.broker.start()

    async def pause_broker(self) -> None:
        self.doors.broker.pause()
        await self.wait(3.0)
        self.doors.broker.resume()

    async def kill_database(self) -> None:
        assert self.doors.postgresql is not None
        self.doors.postgresql.kill()
        await self.wait(2.0)
        await self.doors.postgresql.start()

    async def pause_database(self) -> None:
        assert self.doors.postgresql is not None
        self.doors.postgresql.pause()
        await self.wait(3.0)
        self.doors.postgresql.resume()

    async def kill_terminals(self) -> None:
        self.doors.terminals.signal(signal.SIGKILL)
        await self.doors.terminals.ended()
        await self.wait(2.0)
        self.doors.start_terminals()

    async def cut(self) -> None:
        self.random.choice(self.any_node().lines).cut()

    async def freeze(self) -> None:
        """Connections stand, and nothing passes; then what was held back passes, or is gone."""
        line = self.random.choice(self.any_node().lines)
        line.freeze()
        await self.wait(8.0)
        if self.random.random() < 0.5:
            line.cut()
        line.thaw()

    async def delay(self) -> None:
        line = self.random.choice(self.any_node().lines)
        line.delay_s = self.random.uniform(0.0, 0.3)
        await self.wait(3.0)
        line.delay_s = 0.0

    async def lose_answers(self) -> None:
        node = self.any_node()
        assert node.database is not None
        node.database.lose_replies(self.random.randint(1, 3))

    async def set_clock(self) -> None:
        self.doors.set_clock(self.random.choice((-3600.0, -5.0, 5.0, 3600.0)))

    async def fill_disk(self) -> None:
        with contextlib.suppress(DBAPIError):  # by a connection from before the database was hurt
            await self.doors.fill_disk(full=True)
        await self.wait(3.0)
        await self.doors.fill_disk(full=False)


@pytest.mark.nightly
@pytest.mark.timeout(0)  # CHAOS_MINUTES
@pytest.mark.parametrize(
    "database, version, shards", [("postgresql", "5", 4), ("postgresql", "3.1.1", 4), ("sqlite", "5", 1)]
)
async def test_commands_survive_random_faults_of_nodes(
    database: str, version: str, shards: int, make_doors: MakeDoors
) -> None:
    random = Random(SEED)
    doors = await make_doors(database, version=version, shards=shards, seed=SEED, terminals=40)
    chaos = Chaos(doors, random)
    print(f"seed {SEED}")  # noqa: T201
    await doors.start("a", "b", "c")
    end_at = time.monotonic() + MINUTES * 60
    async with asyncio.TaskGroup() as group:
        clerks = [group.create_task(work(doors, clerk, end_at)) for clerk in range(CLERKS)]
        while not all(clerk.done() for clerk in clerks):
            await chaos.strike()
            await asyncio.wait(clerks, timeout=random.expovariate(1 / PAUSE_S))
    print(f"{len(doors.added)} changes; {chaos.done}")  # noqa: T201
    await doors.check(alive=doors.nodes)


async def work(doors: Doors, clerk: int, end_at: float) -> None:
    """Make changes for its own terminals until then: with several clerks, the order would be unknown."""
    random = Random(f"{SEED}/{clerk}")
    while time.monotonic() < end_at:
        options: dict[str, Any] = {}
        chance = random.random()
        if chance < 0.2:
            options["supersede_key"] = f"person {random.randrange(5)}"
        elif chance < 0.25:
            options["expires_in_s"] = 3.0
        await doors.add(random.choice(doors.devices[clerk::CLERKS]), **options)
        await asyncio.sleep(PACE_S * 2 * random.random())
