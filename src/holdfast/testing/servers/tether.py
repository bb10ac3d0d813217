"""Runs a program that ends with the process that started it.

Arguments: that process's id, a socket whose other end it holds, then the program and its arguments.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys

from holdfast.adapters.forkserver import lifeline


def main() -> None:
    """Become the program where the kernel ends it with its parent; else stay and see to it."""
    parent, fd, *command = sys.argv[1:]
    lifeline.die_with(int(parent))
    if lifeline.LINUX:
        os.close(int(fd))
        os.execv(command[0], command)  # noqa: S606 (the program that the caller named)
    lifeline.end_with(socket.socket(fileno=int(fd)))
    sys.exit(subprocess.call(command))  # noqa: S603


if __name__ == "__main__":
    main()
