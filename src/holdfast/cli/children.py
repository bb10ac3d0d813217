"""Commands as child processes, which end with this process."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from holdfast.errors import Unavailable
from holdfast.slots import lifeline
from holdfast.system.interpreter import not_run

if TYPE_CHECKING:
    from holdfast.config.settings import Config

PROGRAM = "from holdfast.cli.children import main; main()"


class Launcher:
    """Starts nodes with ``arguments`` and ``config`` in ``folder``, or in the working directory. Their logs
    go to ``stderr``, or with the log of this process, and ``environment`` is added to theirs. They end with
    the launcher and with this process, however it ends."""

    def __init__(
        self,
        arguments: Sequence[str],
        config: Config,
        folder: Path | None = None,
        stderr: IO[Any] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._arguments = arguments
        self._config = config
        self._folder = folder
        self._stderr = stderr
        self._environment = dict(environment or {})
        self._ours, self._theirs = socket.socketpair()

    def close(self) -> None:
        """End the nodes: each ends when its socket closes."""
        self._ours.close()
        self._theirs.close()

    async def node(self, name: str) -> asyncio.subprocess.Process:
        """Start a node under a name. Raises Unavailable if this Python can't be run."""
        fd = self._theirs.fileno()
        try:
            return await asyncio.create_subprocess_exec(
                *(sys.executable, "-c", PROGRAM, str(os.getpid()), str(fd), *self._arguments),
                env=os.environ
                | self._config.environment()
                | self._environment
                | {"HOLDFAST_NODE_NAME": name},
                cwd=self._folder,
                stdin=asyncio.subprocess.DEVNULL,
                stderr=self._stderr,
                pass_fds=[fd],
            )
        except OSError as error:
            raise Unavailable(not_run(error, self._folder)) from error


def main() -> None:
    """Run a command in a process that ends with its parent. Arguments: the parent's process id, the number
    of a socket to the parent, then the command."""
    from holdfast.cli import run  # noqa: PLC0415 (it imports this module)

    parent, fd, *arguments = sys.argv[1:]
    lifeline.lead_group()  # signals of the terminal go to the parent
    lifeline.die_with(int(parent))
    lifeline.end_with(socket.socket(fileno=int(fd)))
    sys.exit(run(arguments))
