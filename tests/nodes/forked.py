"""Nodes and gateways as processes that are forked from one which has imported what they need: else that would
be most of what the start of each takes. (Some tests of the command line start theirs as users do.)"""

from __future__ import annotations

import multiprocessing
import os
import runpy
import subprocess
import sys
import threading
from collections.abc import Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path
from signal import SIGKILL, SIGTERM, Signals

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(
    [
        "aiohttp.web",
        "encodings.idna",
        "holdfast.cli.gateway",
        "holdfast.cli.node",
        "holdfast.cluster.metrics",
        "holdfast.cluster.node",
        "holdfast.config.settings",
        "holdfast.devices.adapters",
        "holdfast.gateway.clients",
        "holdfast.gateway.haproxy.plane",
        "holdfast.gateway.listen",
        "holdfast.gateway.node_routes",
        "holdfast.gateway.service",
        "holdfast.services.aws.queue",
        "holdfast.services.http.peer",
        "holdfast.services.redis.coordinator",
        "holdfast.services.redis.state",
        "holdfast.services.sqlite.coordinator",
        "holdfast.services.sqlite.queue",
        "holdfast.services.sqlite.state",
        "holdfast.slots.slots",
        "holdfast.streams.slots",
        "holdfast.streams.work",
        "holdfast.system.log",
        "holdfast.tasks.api",
        "holdfast.tasks.work",
        "uvloop",
    ]
)

READING = threading.Lock()
"""An exit code can be read only once, and each start of a process reaps the ended ones."""


class Forked:
    """A module that runs as a program, to be used like ``subprocess.Popen``. Its stderr goes to ``log``:
    to a file, or into a pipe."""

    def __init__(
        self,
        module: str,
        command: Sequence[str],
        log: Path | Connection,
        place: Path,
        environment: dict[str, str],
    ) -> None:
        if isinstance(log, Path):
            log.touch()
        arguments = (module, list(command), log, place, environment)
        self._process = CONTEXT.Process(target=_become, args=arguments, daemon=True)
        with READING:
            self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid

    def poll(self) -> int | None:
        """Its exit code, once it has ended."""
        with READING:
            return self._process.exitcode

    def wait(self, timeout_s: float) -> int:
        """Its exit code, when it has ended. Raises TimeoutExpired."""
        wait([self._process.sentinel], timeout_s)
        code = self.poll()
        if code is None:
            raise subprocess.TimeoutExpired(self._process.name, timeout_s)
        return code

    def send_signal(self, number: Signals) -> None:
        """Signal it, if it runs."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """Tell it to end."""
        self.send_signal(SIGTERM)

    def kill(self) -> None:
        """End it."""
        self.send_signal(SIGKILL)


def _become(
    module: str, command: Sequence[str], log: Path | Connection, place: Path, environment: dict[str, str]
) -> None:
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(place)
    with log.open("ab") if isinstance(log, Path) else log as said:
        os.dup2(said.fileno(), sys.stderr.fileno())
    sys.path[:0] = [str(place), *filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))]
    sys.argv[:] = [module, *command]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
