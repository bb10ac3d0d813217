"""Fifty doors, their back office, and a node that is killed in between; in the end all must agree.

    make demo-devices

Everything is real but the terminals: Mosquitto, the office's web application and its database, and nodes in
processes of their own. Ends with 0 only if every terminal's whitelist is the office's.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random

import aiohttp
import uvicorn
from rich.console import Console
from rich.table import Table
from sqlalchemy import Engine, create_engine, event, select
from sqlalchemy.orm import Session

from examples.whitelist.office import Office
from examples.whitelist.tables import whitelists
from examples.whitelist.terminals import Terminals
from holdfast import devices
from simulator.servers import MosquittoServer
from simulator.servers.loopback import HOST, free_port
from simulator.servers.server import until

APP = "examples.whitelist.app:app"
PEOPLE = 40
CLERKS = 8
DEADLINE_S = 180.0


def engine_for(file: Path) -> Engine:
    """The office's database, which the nodes write to as well."""
    engine = create_engine(f"sqlite:///{file}")

    @event.listens_for(engine, "connect")
    def on_connect(connection: object, _: object) -> None:
        for pragma in ("journal_mode = WAL", "synchronous = NORMAL", "busy_timeout = 10000"):
            connection.execute(f"PRAGMA {pragma}")  # type: ignore[attr-defined]

    return engine


@contextlib.asynccontextmanager
async def served(office: Office) -> AsyncIterator[str]:
    """The office on loopback; gives its URL."""
    port = free_port()
    server = uvicorn.Server(uvicorn.Config(office.application(), HOST, port, log_level="warning"))
    serving = asyncio.create_task(server.serve())

    async def started() -> bool:
        return server.started

    await until(started, "the office serves", DEADLINE_S)
    yield f"http://{HOST}:{port}"
    server.should_exit = True
    await serving


class Node:
    """``holdfast node`` in a process of its own."""

    def __init__(self, folder: Path, broker: str) -> None:
        self._folder = folder
        self._environment = os.environ | {
            "HOLDFAST_URL": f"sqlite:///{folder / 'holdfast.db'}",
            "HOLDFAST_OUTBOX_URL": f"sqlite:///{folder / 'office.db'}",
            "HOLDFAST_DEVICES_URL": broker,
        }
        self._process: asyncio.subprocess.Process

    async def start(self) -> None:
        """Begin; its log goes to a file."""
        with (self._folder / "node.log").open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "holdfast", "node", APP), env=self._environment, stderr=log
            )

    async def kill(self) -> None:
        """End it as a crash would, its children too."""
        self._process.kill()
        await self._process.wait()

    async def stop(self) -> None:
        """End it in good order."""
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGTERM)
        await self._process.wait()


class Clerks:
    """Office clerks who add and remove people at random."""

    def __init__(self, office: str, terminals: list[str], seed: str) -> None:
        self.changes = 0
        self._office = office
        self._terminals = terminals
        self._seed = seed

    async def work(self, changes: int, seconds: float) -> None:
        """Make ``changes`` changes within ``seconds``."""
        async with aiohttp.ClientSession(raise_for_status=True) as session:
            pace_s = seconds * CLERKS / changes
            async with asyncio.TaskGroup() as clerks:
                for number in range(CLERKS):
                    clerks.create_task(self._work(session, changes // CLERKS, pace_s, number))

    async def _work(self, session: aiohttp.ClientSession, changes: int, pace_s: float, clerk: int) -> None:
        random = Random(f"{self._seed}/{clerk}")  # noqa: S311 (a play)
        for _ in range(changes):
            # Each clerk has terminals of their own, as two changes of one person at once have no order.
            terminal = random.choice(self._terminals[clerk::CLERKS])
            person = f"{random.randrange(PEOPLE)}"
            url = f"{self._office}/terminals/{terminal}/people"
            if random.random() < 0.7:
                asked = {"person": person, "name": f"Person {person}, card {random.randrange(1000)}"}
                await session.post(url, json=asked)
            else:
                await session.delete(f"{url}/{person}")
            self.changes += 1
            await asyncio.sleep(pace_s * 2 * random.random())


async def agreed(office: str) -> None:
    """Return once no change is pending."""
    async with aiohttp.ClientSession(raise_for_status=True) as session:

        async def none_pending() -> bool:
            return not await (await session.get(f"{office}/pending")).json()

        await until(none_pending, "all terminals agree with the office", DEADLINE_S)


async def demo(
    console: Console, *, terminals: int, changes: int, seconds: float, seed: str, folder: Path
) -> bool:
    """Play it; True if all agree in the end."""
    names = [f"door-{number:03}" for number in range(terminals)]
    engine = engine_for(folder / "office.db")
    devices.metadata.create_all(engine)
    office = Office(engine)
    async with MosquittoServer() as broker, served(office) as url:
        doors = Terminals(names, broker.url, seed)
        nodes = [Node(folder, broker.url) for _ in range(2)]
        async with doors.fleet:
            for node in nodes:
                await node.start()
            clerks = Clerks(url, names, seed)
            console.print(
                f"{terminals} terminals, 2 nodes, {CLERKS} clerks: {changes} changes in {seconds:g} s"
            )
            working = asyncio.create_task(clerks.work(changes, seconds))
            await asyncio.sleep(seconds / 2)
            await nodes[0].kill()
            console.print("a node is killed, and started again")
            await nodes[0].start()
            await working
            console.print("the clerks are done; terminals that crashed or lost messages come to agree")
            await agreed(url)
            for node in nodes:
                await node.stop()
        with Session(engine) as db:
            wanted = whitelists(db)
            commands = all_commands(db)
        engine.dispose()
    equal = [name for name in names if doors.people[name] == wanted.get(name, {})]
    console.print(summary(doors, clerks.changes, commands, len(equal)))
    return len(equal) == terminals


def all_commands(db: Session) -> list[tuple[str, int]]:
    """The state and the tries of every command that there was."""
    command = devices.metadata.tables["holdfast_outbox_command"].c
    return [(row.state, row.tries) for row in db.execute(select(command.state, command.tries))]


def summary(doors: Terminals, changes: int, commands: list[tuple[str, int]], equal: int) -> Table:
    """What happened, as a table."""
    table = Table(title="whitelists", title_justify="left", box=None, show_header=False, pad_edge=False)
    table.add_column()
    table.add_column(justify="right")
    counts = doors.fleet.counts
    states = Counter(state for state, _ in commands)
    rows: dict[str, int | str] = {
        "changes made in the office": changes,
        "commands": len(commands),
        "of these replaced by a newer one before they were sent": states[devices.CommandState.SUPERSEDED],
        "sent": sum(tries for _, tries in commands),
        "of these sent again": sum(max(tries - 1, 0) for _, tries in commands),
        "agreed": states[devices.CommandState.ACKNOWLEDGED],
        "failed or expired": states[devices.CommandState.FAILED] + states[devices.CommandState.EXPIRED],
        "messages that terminals lost": counts.lost,
        "times that a terminal crashed": counts.crashes,
        "most that a terminal had to do at a time": counts.at_once,
        "people on the terminals' whitelists": sum(len(people) for people in doors.people.values()),
        "whitelists equal to the office's": f"{equal} of {counts.devices}",
    }
    for name, value in rows.items():
        table.add_row(name, f"{value:,}" if isinstance(value, int) else value)
    return table


def main() -> int:
    """Play the demo; the exit code says whether all agreed."""
    parser = argparse.ArgumentParser(prog="examples.whitelist.demo", description=__doc__)
    parser.add_argument("--terminals", type=int, default=50)
    parser.add_argument("--changes", type=int, default=2_000)
    parser.add_argument("--seconds", type=float, default=15.0, help="for the changes")
    parser.add_argument("--seed", default="0")
    asked = parser.parse_args()
    console = Console()
    with tempfile.TemporaryDirectory(prefix="holdfast-whitelist-") as folder:
        ok = asyncio.run(
            demo(
                console,
                terminals=asked.terminals,
                changes=asked.changes,
                seconds=asked.seconds,
                seed=asked.seed,
                folder=Path(folder),
            )
        )
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
