"""Nodes of an app as real processes, as the command line starts them; over one SQLite file if nothing else is
said."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import sqlite3
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from holdfast.config.settings import Config
from holdfast.config.sources import load
from holdfast.ports.queue import Outgoing
from holdfast.ports.state import Logged
from holdfast.wiring.services import Services

ROOT = Path(__file__).parent.parent
READY_TIMEOUT_S = 60.0
EMPTY_CHECK_S = 0.005
CHECK_S = 0.02

FIRST_IN_POSTGRESQL = "SELECT id FROM holdfast.messages WHERE queue = %s ORDER BY id LIMIT 1"
FIRST_IN_SQLITE = (
    "SELECT messages.id FROM messages JOIN queues ON queues.id = messages.queue WHERE name = ? LIMIT 1"
)


@contextlib.contextmanager
def workplace() -> Iterator[Path]:
    """A directory on the project's own disk (a temporary one may be memory), deleted afterwards."""
    parent = ROOT / ".cache" / "benchmarks"
    parent.mkdir(parents=True, exist_ok=True)
    place = Path(tempfile.mkdtemp(dir=parent))
    try:
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)


async def until(condition: Callable[[], Awaitable[bool]], timeout_s: float = 30.0) -> None:
    """Return once ``condition`` is true. Raises TimeoutError."""
    async with asyncio.timeout(timeout_s):
        while True:
            if await condition():
                return
            await asyncio.sleep(CHECK_S)


class Spent:
    """Processor time of all processes below one, or below this one, in ``seconds`` from ``begin`` to ``end``.
    This process itself doesn't count."""

    def __init__(self, pid: int | None = None) -> None:
        self.seconds = 0.0
        self._root = psutil.Process(pid)
        self._before: dict[int, float] = {}

    def begin(self) -> None:
        """Count from now on."""
        self._before = self._now()

    def end(self) -> None:
        """Count until now what those have spent that still live."""
        self.seconds = sum(spent - self._before.get(pid, 0.0) for pid, spent in self._now().items())

    def _now(self) -> dict[int, float]:
        found = {}
        for process in self._root.children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                if process.pid != os.getpid():
                    found[process.pid] = sum(process.cpu_times()[:2])
        return found


class Program(NamedTuple):
    """A program that runs, and its standard output."""

    pid: int
    output: asyncio.StreamReader


@contextlib.asynccontextmanager
async def program(
    module: str, *arguments: str, environment: Mapping[str, str] | None = None
) -> AsyncIterator[Program]:
    """Run a Python program, and end it at the end."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", module, *arguments,
        cwd=ROOT, env=os.environ | (environment or {}), stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    try:
        yield Program(process.pid, process.stdout)
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        await process.wait()


class LoggedProcess:
    """A ``holdfast`` command that logs an ``event`` with its address when it is ready. ``console`` is the
    line with the address of its console, if it has one."""

    def __init__(self, name: str, process: asyncio.subprocess.Process, event: str) -> None:
        self.name = name
        self.process = process
        self.member = ""
        self.address = ""
        self.console = ""
        self.log: list[str] = []
        self._event = event
        self._ready = asyncio.Event()
        self._reading = asyncio.create_task(self._read())

    @property
    def pid(self) -> int:
        """The process id; the slots of a node are among its descendants."""
        return self.process.pid

    async def ready(self) -> None:
        """Return when the process is ready. Raises RuntimeError with its log if it isn't in time."""
        waits = asyncio.create_task(self._ready.wait())
        await asyncio.wait((waits, self._reading), timeout=READY_TIMEOUT_S, return_when="FIRST_COMPLETED")
        waits.cancel()
        if not self._ready.is_set():
            raise RuntimeError(f"{self.name} did not log {self._event!r}:\n" + "\n".join(self.log))

    def kill(self) -> None:
        """End it as a crash does."""
        self.process.send_signal(signal.SIGKILL)

    async def stop(self, timeout_s: float = 20.0) -> None:
        """Tell it to drain and end; kill it if it doesn't."""
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGTERM)
        try:
            await asyncio.wait_for(self.process.wait(), timeout_s)
        except TimeoutError:
            self.kill()
            await self.process.wait()
        await self._reading

    async def _read(self) -> None:
        assert self.process.stderr is not None
        async for line in self.process.stderr:
            text = line.decode(errors="replace").rstrip()
            self.log.append(text)
            if text.startswith("console: "):
                self.console = text
            with contextlib.suppress(ValueError):
                event = json.loads(text)
                if event.get("event") == self._event:
                    self.member, self.address = event.get("member", ""), event["address"]
                    self._ready.set()


class Cluster:
    """The nodes of one app, and the services they share. Use :func:`cluster`."""

    def __init__(
        self, app: str, place: Path, environment: Mapping[str, str], settings: dict[str, Any]
    ) -> None:
        self.app = app
        self._environment = environment
        self.config: Config = load(
            {
                "url": f"sqlite:///{place / 'holdfast.db'}",
                "objects_url": f"file:{place / 'objects'}",
                "log_format": "json",
                **settings,
            }
        )
        self.database = place / "holdfast.db"
        self.services = Services(self.config)
        self.nodes: list[LoggedProcess] = []

    async def start(self, name: str, *arguments: str) -> LoggedProcess:
        """Start a node; see ``LoggedProcess.ready``."""
        settings = self.config.environment() | {"HOLDFAST_NODE_NAME": name}
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "holdfast",
            "node",
            self.app,
            *arguments,
            cwd=ROOT,
            env=os.environ | self._environment | settings,
            stdin=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
        )
        node = LoggedProcess(name, process, "joined")
        self.nodes.append(node)
        return node

    async def start_all(self, count: int, *first: str) -> None:
        """Start nodes and wait until each knows all others. ``first`` are arguments of the first one."""
        nodes = [await self.start("n1", *first)]
        nodes += [await self.start(f"n{number}") for number in range(2, count + 1)]
        await asyncio.gather(*(node.ready() for node in nodes))

    def kill(self) -> None:
        """Kill all nodes, where draining them would only take time."""
        for node in self.nodes:
            node.kill()

    async def send(
        self,
        stream: str,
        bodies: Iterable[bytes],
        due_at: float | None = None,
        key_of: Callable[[bytes], str] = lambda body: "",
        attributes: Callable[[], dict[str, str]] = dict,
    ) -> int:
        """Send messages; at the monotonic time ``due_at`` all of them become visible. Returns how many."""
        queue, clock = self.services.queue(stream), self.services.clock
        messages = [(body, attributes()) for body in bodies]

        async def send(some: list[tuple[bytes, dict[str, str]]]) -> None:
            delay_s = 0.0 if due_at is None else due_at - clock.monotonic()
            await queue.send([Outgoing(body, given, delay_s, key_of(body)) for body, given in some])

        size = queue.max_batch
        await asyncio.gather(*(send(messages[i : i + size]) for i in range(0, len(messages), size)))
        return len(messages)

    @contextlib.contextmanager
    def sending(self, lead_s: float) -> Iterator[float]:
        """The monotonic time, so many seconds from now, at which messages are to show that are sent inside.
        Raises RuntimeError if sending takes longer."""
        clock = self.services.clock
        due_at = clock.monotonic() + lead_s
        yield due_at
        if clock.monotonic() >= due_at:
            raise RuntimeError(f"sending took longer than {lead_s} s")

    async def results(self, after: int = 0, stream: str = "") -> AsyncIterator[Logged]:
        """Yield the log of results, after a cursor, of all streams or one."""
        state = self.services.state()
        while page := await state.results(after, 5000, stream=stream):
            for logged in page:
                yield logged
            after = page[-1].cursor

    async def settled(self) -> None:
        """Wait until every node has reported how many streams it owns, so that new ones are placed evenly."""
        coordinator = self.services.coordinator()

        async def all_told() -> bool:
            reported = sum(member.load.streams for member in await coordinator.members())
            return reported == len(await coordinator.claims())

        await until(all_told)

    async def drained(self, queue: str, timeout_s: float, every_s: float = EMPTY_CHECK_S) -> float:
        """Wait until every message is off a queue, by regular checks; returns the monotonic time of that.
        Raises TimeoutError."""
        async with asyncio.timeout(timeout_s), self._looking(queue) as has_left:
            while True:
                if not await has_left():
                    return self.services.clock.monotonic()
                await asyncio.sleep(every_s)

    @contextlib.asynccontextmanager
    async def _looking(self, name: str) -> AsyncIterator[Callable[[], Awaitable[bool]]]:
        """A check whether a queue has messages left. In a database it ends at the first one, as the peers'
        checks do: to count them all would take the nodes' processor time."""
        url = self.config.queue_url
        if url.startswith("postgresql:"):
            import psycopg  # noqa: PLC0415 (an extra)

            server = await psycopg.AsyncConnection.connect(url, autocommit=True)

            async def has_row() -> bool:
                return (await server.execute(FIRST_IN_POSTGRESQL, (name,))).rowcount > 0

            async with server:
                yield has_row
        elif url.startswith("sqlite:"):
            file = sqlite3.connect(f"file:{self.database}?mode=ro", uri=True, isolation_level=None)

            async def has_row() -> bool:
                return file.execute(FIRST_IN_SQLITE, (name,)).fetchone() is not None

            with contextlib.closing(file):
                yield has_row
        else:
            queue = self.services.queue(name)

            async def has_any() -> bool:
                depth = await queue.depth()
                return bool(depth.ready or depth.in_flight or depth.delayed)

            yield has_any


@contextlib.asynccontextmanager
async def cluster(
    app: str, environment: Mapping[str, str] | None = None, **settings: Any
) -> AsyncIterator[Cluster]:
    """A cluster without nodes yet, in a place of its own; its nodes end with it."""
    with workplace() as place:
        made = Cluster(app, place, environment or {}, settings)
        try:
            async with made.services:
                try:
                    yield made
                finally:
                    await asyncio.gather(*(node.stop() for node in made.nodes))
        finally:
            for node in made.nodes:
                if node.process.returncode is None:
                    node.kill()
