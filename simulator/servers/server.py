"""What all servers have in common: a process that is started, asked, and ended in every way there is."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import ClassVar, Self

from holdfast.errors import Unavailable
from holdfast.slots import lifeline
from simulator.servers.loopback import HOST, free_port

START_TIMEOUT_S = 60.0
ASK_TIMEOUT_S = 2.0
POLL_S = 0.02
LOG_LINES = 20


async def until(asked: Callable[[], Awaitable[bool]], what: str, timeout_s: float = START_TIMEOUT_S) -> None:
    """Ask until the answer is yes. Raises Unavailable, which says ``what`` didn't come to be."""
    deadline = time.monotonic() + timeout_s
    while not await asked():
        if time.monotonic() > deadline:
            raise Unavailable(f"{what}: not within {timeout_s:g} s")
        await asyncio.sleep(POLL_S)


async def exchange(port: int, request: bytes) -> bytes:
    """What a server answers to ``request``, up to 64 KiB; nothing if it doesn't answer."""
    try:
        async with asyncio.timeout(ASK_TIMEOUT_S):
            reader, writer = await asyncio.open_connection(HOST, port)
            try:
                writer.write(request)
                return await reader.read(65536)
            finally:
                writer.close()
    except (OSError, TimeoutError):
        return b""


class Server(ABC):
    """A server in a process of its own.

    ``port`` stays the same over ``restart``. ``folder`` holds its data and settings, ``log`` what it wrote.
    """

    name: ClassVar[str]

    def __init__(self) -> None:
        self.port = free_port()
        self._folder: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self.lifeline: tuple[socket.socket, socket.socket] | None = None

    @property
    def folder(self) -> Path:
        """Made at first use, deleted by ``stop``."""
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix=f"holdfast-{self.name}-", dir=self.parent_folder()))
        return self._folder

    def parent_folder(self) -> Path:
        """Where ``folder`` is made."""
        return Path(tempfile.gettempdir())

    @property
    def log(self) -> Path:
        return self.folder / "log"

    @property
    def data(self) -> Path:
        """What ``restart(empty=True)`` deletes."""
        return self.folder / "data"

    @property
    def address(self) -> str:
        return f"{HOST}:{self.port}"

    @property
    def pid(self) -> int:
        """The id of its process, which must run."""
        assert self._process is not None, f"{self.name} doesn't run"
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether its process runs (or is paused)."""
        return self._process is not None and self._process.poll() is None

    async def start(self) -> None:
        """Return once it answers. Raises Unavailable with the end of its log if it doesn't; ConfigError if
        its program is missing."""
        if not self.alive:
            self._spawn()
        try:
            await until(self._up, f"{self.name} answers at {self.address}")
        except Unavailable as error:
            raise Unavailable(f"{error}{self._last_words()}") from None

    async def stop(self) -> None:
        """End it, running, paused or not at all, and delete its data."""
        self.kill()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    def kill(self) -> None:
        """End it as a crash would (SIGKILL); its data stays."""
        if self._process is not None:
            self._signal(signal.SIGKILL)
            self._process.wait()
            self._process = None
        if self.lifeline is not None:
            for end in self.lifeline:
                end.close()
            self.lifeline = None

    def pause(self) -> None:
        """Have it stand still (SIGSTOP): connections open, nothing is answered any more."""
        if self.alive:
            self._signal(signal.SIGSTOP)
            os.waitpid(self.pid, os.WUNTRACED)

    def resume(self) -> None:
        """Let it go on after ``pause``."""
        self._signal(signal.SIGCONT)

    async def restart(self, *, empty: bool = False) -> None:
        """Kill it if it runs, then start it on the same port; with ``empty``, without its data."""
        self.kill()
        if empty:
            shutil.rmtree(self.data, ignore_errors=True)
        await self.start()

    async def heal(self) -> None:
        """Make it run and answer, whatever was done to it."""
        if self.alive:
            self.resume()
        await self.start()

    async def __aenter__(self) -> Self:
        try:
            await self.start()
        except BaseException:
            await self.stop()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    @abstractmethod
    def command(self) -> Sequence[str | Path]:
        """The program and its arguments; may write settings into ``folder`` first."""

    @abstractmethod
    async def answers(self) -> bool:
        """Whether it answers a request now."""

    async def _up(self) -> bool:
        if not self.alive:
            raise Unavailable(f"{self.name} ended by itself")
        return await self.answers()

    def _spawn(self) -> None:
        self.kill()
        self.data.mkdir(exist_ok=True)
        self.lifeline = socket.socketpair()
        theirs = self.lifeline[1]
        tied = [sys.executable, "-I", "-S", lifeline.__file__, os.getpid(), theirs.fileno()]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603
                [str(argument) for argument in (*tied, *self.command())],
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                pass_fds=[theirs.fileno()],
                process_group=0,  # what is typed at the terminal is for this process, which ends it
            )

    def _signal(self, number: int) -> None:
        if self.alive:
            os.killpg(self.pid, number)

    def _last_words(self) -> str:
        lines = self.log.read_text(errors="replace").splitlines() if self.log.exists() else []
        return "".join(f"\n  {line}" for line in lines[-LOG_LINES:])


class Group(ABC):
    """Servers that make one service."""

    @property
    @abstractmethod
    def servers(self) -> Sequence[Server]:
        """All of them."""

    async def start(self) -> None:
        """Return once the service works as a whole."""
        await asyncio.gather(*(server.start() for server in self.servers))

    async def stop(self) -> None:
        """End all and delete their data."""
        for server in self.servers:
            await server.stop()

    async def heal(self) -> None:
        """Make the service whole again, whatever was done to its servers."""
        await asyncio.gather(*(server.heal() for server in self.servers))

    async def __aenter__(self) -> Self:
        try:
            await self.start()
        except BaseException:
            await self.stop()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()
