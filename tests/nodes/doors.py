"""Real nodes, a real broker, a real database, terminals, their business, and what must be true of them."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Iterable
from contextlib import AsyncExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, Self

from sqlalchemy import Engine, create_engine, event, func, insert, select
from sqlalchemy.exc import DBAPIError

from holdfast import App
from holdfast.devices.rules.device_queue import CLOSED, CommandState, Correlation, StoredCommand
from holdfast.devices.services.sqlalchemy import tables
from holdfast.devices.services.sqlalchemy.outbox import SqlOutbox
from holdfast.errors import HoldfastError, Unavailable
from holdfast.system.clock import SystemClock
from simulator.proxies import TcpFaults
from simulator.servers import MosquittoServer, PostgresqlServer
from tests.devices.services.sqlalchemy import full_disk
from tests.nodes.cluster import LOOK_S, Process, until
from tests.nodes.doors_app import RETRY_S, business, change
from tests.nodes.terminals import names

OUTBOX = "doors"
SOON_SHARE = 0.6
"""A command that comes within this share of the retry interval came too soon. (What is on the way to a
terminal may take its time, and the next one not.)"""

JUDGED_AFTER_S = 15.0
"""For so long after the clock was set, a command may come sooner: times that are stored were wrong."""


class Heard(NamedTuple):
    """A command that a terminal received."""

    at: float
    device: str
    correlation: Correlation


class Node:
    """A node and its own lines to the broker and to the database."""

    def __init__(self, name: str, broker: TcpFaults, database: TcpFaults | None) -> None:
        self.name = name
        self.broker = broker
        self.database = database
        self.process: Process

    @property
    def lines(self) -> list[TcpFaults]:
        """All of them."""
        return [self.broker, *([self.database] if self.database else [])]

    @property
    def alive(self) -> bool:
        return self.process.child.poll() is None


class Doors:
    """All of it. ``postgresql``: the database is that server; else a SQLite file. ``calm``: terminals behave
    better."""

    def __init__(
        self,
        place: Path,
        *,
        postgresql: PostgresqlServer | None,
        version: str = "5",
        terminals: int = 40,
        shards: int = 4,
        seed: int = 0,
        calm: bool = False,
        **settings: Any,
    ) -> None:
        self.place = place
        self.devices = names(terminals)
        self.nodes: dict[str, Node] = {}
        self.broker = MosquittoServer()
        self.postgresql = postgresql
        self.added: dict[int, str] = {}
        self.set_at: list[float] = []
        self._version = version
        self._seed = seed
        self._behaviour = "calm" if calm else "odd"
        self._shards = shards
        self._settings = {"ttl_s": 3.0, "lock_timeout_s": 0.5} | settings
        self._outbox = App("office").outbox(OUTBOX, shards=shards, expires_in_s=None)
        self._outbox.wall = lambda: time.time() + self._offset_s
        self._offset_s = 0.0
        self._stack = AsyncExitStack()
        self._started: list[Process] = []
        self._url = postgresql.url if postgresql else f"sqlite:///{place}/office.db"
        self._engine = self._connect()
        self._store = SqlOutbox(self._url, SystemClock(), durability="normal")
        self._notes = place / "notes"
        self.terminals: Process

    async def __aenter__(self) -> Self:
        await self._stack.enter_async_context(self.broker)
        business.create_all(self._engine)
        await self._store.prepare(OUTBOX, self._shards)
        return self

    async def __aexit__(self, *_: object) -> None:
        for process in self._started:
            process.child.kill()
            await process.ended()
        await self._store.close()
        self._engine.dispose()
        await self._stack.aclose()

    def _connect(self) -> Engine:
        engine = create_engine(self._url.replace("postgresql:", "postgresql+psycopg:"))
        if self.postgresql is None:

            @event.listens_for(engine, "connect")
            def on_connect(connection: Any, _: object) -> None:
                for pragma in ("journal_mode = WAL", "synchronous = NORMAL", "busy_timeout = 10000"):
                    connection.execute(f"PRAGMA {pragma}")

        return engine

    # --- processes

    async def start(self, *nodes: str) -> None:
        """Start the terminals and these nodes; return when all are there."""
        for name in nodes:
            broker = await self._stack.enter_async_context(TcpFaults(self.broker.port))
            database = None
            if self.postgresql is not None:
                database = await self._stack.enter_async_context(TcpFaults(self.postgresql.port))
            self.nodes[name] = Node(name, broker, database)
            self.spawn(name)
        self.start_terminals()
        for name in nodes:
            await self.nodes[name].process.until_said("joined")

    def spawn(self, name: str) -> None:
        """Start one node, again."""
        node, url = self.nodes[name], self._url
        if node.database is not None:
            url = f"postgresql://postgres@127.0.0.1:{node.database.port}/postgres"
        broker = f"mqtt://127.0.0.1:{node.broker.port}?version={self._version}&keepalive_s=1"
        settings = self._settings | {
            "url": f"sqlite:///{self.place}/holdfast.db",
            "durability": "normal",
            "outbox_url": url,
            "devices_url": broker,
        }
        environment = {f"HOLDFAST_{key.upper()}": str(value) for key, value in settings.items()}
        environment["CHAOS_SHARDS"] = str(self._shards)
        command = ("node", "doors_app:app", "--name", name)
        node.process = Process(name, self.place, command, environment)
        self._started.append(node.process)

    def start_terminals(self) -> None:
        """Switch all terminals on, again."""
        url = f"{self.broker.url}?version={self._version}"
        command = (url, str(self._notes), str(len(self.devices)), str(self._seed), self._behaviour)
        self.terminals = Process("terminals", self.place, command, {}, module="terminals")
        self._started.append(self.terminals)

    def set_clock(self, by_s: float) -> None:
        """Set the wall clock of all nodes."""
        self._offset_s += by_s
        self.set_at.append(SystemClock().monotonic())
        (self.place / "clock").write_text(str(self._offset_s))

    async def fill_disk(self, *, full: bool) -> None:
        """The database has no room; or has again."""
        if self.postgresql is None:
            file = self.place / "disk-full"
            file.touch() if full else file.unlink(missing_ok=True)
            return
        await asyncio.to_thread(self._execute, full_disk.FULL if full else full_disk.ROOM)

    def _execute(self, statements: str) -> None:
        with self._engine.begin() as db:
            db.exec_driver_sql(statements)

    # --- the business

    async def add(self, device: str, **options: Any) -> int:
        """Make a change and the command for it, in one transaction; returns its number. Goes on until the
        database has taken it."""
        number = len(self.added) + 1
        self.added[number] = device
        while True:
            try:
                await asyncio.to_thread(self._change, number, device, options)
                return number
            except (DBAPIError, HoldfastError):
                await asyncio.sleep(LOOK_S)

    def _change(self, number: int, device: str, options: dict[str, Any]) -> None:
        with self._engine.begin() as db:
            if db.execute(select(change.c.id).where(change.c.id == number)).one_or_none():
                return  # the answer to its commit was lost
            db.execute(insert(change).values(id=number, device=device))
            self._outbox.add(db, device=device, command={"change": number}, trace_id=str(number), **options)

    def read(self, query: Any) -> list[Any]:
        """Rows of the database."""
        with self._engine.connect() as db:
            return list(db.execute(query))

    async def told(self) -> int:
        """Of how many changes the business knows the end."""
        [[count]] = await asyncio.to_thread(self.read, select(func.count()).where(change.c.told > 0))
        return int(count)

    async def until_told(self, count: int) -> None:
        """Wait until the business knows the end of so many changes."""

        async def enough() -> bool:
            try:
                return await self.told() >= count
            except DBAPIError:  # the test may have seen to that
                return False

        try:
            await until(enough, f"{count} changes came to their end")
        except AssertionError as error:
            raise AssertionError(f"{error}\n{await self._story()}") from None

    async def commands(self) -> dict[int, StoredCommand]:
        """All commands, by id."""
        found: list[StoredCommand] = []
        while True:
            try:
                page = await self._store.commands(OUTBOX, after=found[-1].id if found else 0, limit=1000)
            except Unavailable:  # by a connection from before the database was hurt; the next is new
                continue
            if not page:
                return {entry.id: entry for entry in found}
            found += page

    # --- what must be true in the end

    async def check(self, alive: Iterable[str]) -> None:
        """Nothing lost; every command ended and was reported once; each terminal received its commands in
        order, and none while it might still have been at another."""
        await self.until_told(len(self.added))
        commands = await self.commands()
        rows = {row.id: row for row in self.read(select(change))}
        assert {number: row.device for number, row in rows.items()} == self.added
        by_change = {int(entry.trace_id): entry for entry in commands.values()}
        assert len(by_change) == len(commands) == len(rows)
        for number, row in rows.items():
            entry = by_change[number]
            assert entry.state in CLOSED, entry
            assert (row.told, row.command, row.state) == (1, entry.id, entry.state.value), (row, entry)
        heard, said, slow = self.notes()
        wrong = self._disorder(heard, commands) + self._haste(heard, said, slow, commands)
        assert not wrong, "\n".join([*wrong[:5], self.place.as_posix()])
        arrivals = select(func.count()).select_from(tables.arrival)
        assert self.read(arrivals) == [(0,)]
        for name in alive:
            assert self.nodes[name].alive, self.nodes[name].process.events[-10:]
        for process in self._started:
            assert not process.said("node crashed"), process.events

    def notes(self) -> tuple[list[Heard], dict[Correlation, list[float]], list[tuple[float, float]]]:
        """What terminals received, what they sent and when, and when they were busy."""
        heard: list[Heard] = []
        said: dict[Correlation, list[float]] = defaultdict(list)
        slow = []
        for line in self._notes.read_text().splitlines():
            match line.split():
                case ["heard", at, device, correlation]:
                    heard.append(Heard(float(at), device, Correlation.parse(correlation)))
                case ["said", at, _, correlation] if correlation not in ("-", "0.0.0"):
                    said[Correlation.parse(correlation)].append(float(at))
                case ["slow", until, since]:
                    slow.append((float(since), float(until)))
        return heard, said, slow

    def _disorder(self, heard: list[Heard], commands: dict[int, StoredCommand]) -> list[str]:
        wrong = []
        newest: dict[str, int] = defaultdict(int)
        for each in heard:
            number = each.correlation.command
            if number < newest[each.device]:
                wrong.append(f"{each} came after command {newest[each.device]}")
            newest[each.device] = max(newest[each.device], number)
            if number not in commands:
                wrong.append(f"{each} was never committed")
            elif commands[number].state is CommandState.SUPERSEDED:
                wrong.append(f"{each} was superseded")
        return wrong

    def _haste(
        self,
        heard: list[Heard],
        said: dict[Correlation, list[float]],
        slow: list[tuple[float, float]],
        commands: dict[int, StoredCommand],
    ) -> list[str]:
        wrong = []
        by_device: dict[str, list[Heard]] = defaultdict(list)
        for each in heard:
            by_device[each.device].append(each)
        for arrivals in by_device.values():
            for before, after in pairwise(arrivals):
                if after.at - before.at >= SOON_SHARE * RETRY_S:
                    continue
                entry = commands[before.correlation.command]
                answered = any(at <= after.at for at in said[before.correlation])
                if answered and before.correlation == Correlation(entry.epoch, entry.id, entry.tries):
                    continue
                if any(since <= after.at and before.at <= until for since, until in slow):
                    continue  # both may have waited for this process
                if any(-1.0 <= after.at - at <= JUDGED_AFTER_S for at in self.set_at):
                    continue
                wrong.append(f"{after} came {after.at - before.at:.3f} s after {before}: {entry}")
        return wrong

    async def _story(self) -> str:
        left = [entry for entry in (await self.commands()).values() if entry.state not in CLOSED]
        heads = self.read(select(tables.head).where(tables.head.c.phase != "idle"))
        logs = "\n".join(
            f"{process.name}: {entry}" for process in self._started[-4:] for entry in process.events[-15:]
        )
        return f"{len(left)} of {len(self.added)} left: {left[:3]}\n{heads[:3]}\n{logs}"
