"""HAProxy as a child process that ends with this process."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.errors import ConfigError, HoldfastError
from holdfast.gateway.haproxy import admin
from holdfast.gateway.haproxy.binary import Build
from holdfast.gateway.haproxy.config import HaproxyFiles
from holdfast.ports.clock import Clock
from holdfast.system.interpreter import not_run

READY_TIMEOUT_S = 20.0
READY_CHECK_S = 0.01
LINES_KEPT = 20

PROGRAM = """
import ctypes, os, signal, sys
parent, path, *arguments = sys.argv[1:]
os.setpgid(0, 0)
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != int(parent):
        os._exit(1)
os.execv(path, [path, *arguments])
"""
"""Starts HAProxy in a process group of its own, so that signals from the terminal don't reach it. On Linux
the kernel ends it with its parent."""


class HaproxyProcess:
    """A running HAProxy. ``ended`` is a future with its exit code."""

    def __init__(self, files: HaproxyFiles, process: asyncio.subprocess.Process, log: Any) -> None:
        self.files = files
        self._process = process
        self._log = log
        self._lines: list[str] = []
        self._reading = asyncio.create_task(self._read())
        self.ended: asyncio.Task[int] = asyncio.create_task(self._end())

    @classmethod
    async def start(
        cls,
        build: Build,
        files: HaproxyFiles,
        inherited: Sequence[int],
        environment: Mapping[str, str],
        clock: Clock,
        log: Any,
    ) -> HaproxyProcess:
        """Start HAProxy after its files are written; return when it serves. Raises ConfigError if it
        doesn't."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
        arguments = [str(os.getpid()), build.path, "-db", "-f", str(files.config)]
        try:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-I", "-S", "-c", PROGRAM, *arguments),
                env=kept | dict(environment),
                stdin=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.PIPE,
                pass_fds=inherited,
            )
        except OSError as error:
            raise ConfigError(f"HAProxy is not started: {not_run(error)}") from error
        child = cls(files, process, log)
        try:
            await child._ready(clock)
        except BaseException:
            child.kill()
            raise
        return child

    async def _ready(self, clock: Clock) -> None:
        deadline = clock.monotonic() + READY_TIMEOUT_S
        while True:
            try:
                await admin.ask(self.files.admin, "show version")
                return
            except HoldfastError:
                if self.ended.done() or clock.monotonic() > deadline:
                    raise ConfigError(f"HAProxy does not start: {' | '.join(self._lines)}") from None
            await clock.sleep(READY_CHECK_S)

    async def _read(self) -> None:
        assert self._process.stderr is not None
        async for line in self._process.stderr:
            text = line.decode(errors="replace").strip()
            self._lines = [*self._lines[1 - LINES_KEPT :], text]
            if text:
                log = self._log.error if text.startswith("[ALERT]") else self._log.debug
                log("HAProxy output", text=text)

    async def _end(self) -> int:
        code = await self._process.wait()
        await self._reading
        return code

    @property
    def pid(self) -> int:
        return self._process.pid

    def finish(self) -> None:
        """Have HAProxy take no new connections, and end after the last one has closed."""
        self._signal(signal.SIGUSR1)

    def kill(self) -> None:
        self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(number)
