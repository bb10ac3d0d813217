"""Free ports on loopback."""

from __future__ import annotations

import fcntl
import os
import random
import socket
import tempfile
from functools import cache
from pathlib import Path

HOST = "127.0.0.1"
PORTS = range(12000, 22000)
"""Below those that systems give to outgoing connections, so that no client takes the port of a server
that is about to start again; and low enough for a Redis Cluster's second port, 10,000 above."""

_given: set[int] = set()


def free_port(*, above: int = 0) -> int:
    """A port that nobody listens at, nor at the one ``above`` it if given. Never the same twice, nor one that
    another process was given and that runs still: a server which is about to start (again) has it alone."""
    while True:
        port = random.choice(PORTS)  # noqa: S311 (several processes choose at once)
        if port not in _given and _claim(port) and _free(port) and (not above or _free(port + above)):
            _given.add(port)
            return port


def _claim(port: int) -> bool:
    """Whether this process has it now: by a lock on one byte of a file, which ends with the process."""
    try:
        fcntl.lockf(_claims(), fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
    except OSError:
        return False
    return True


@cache
def _claims() -> int:
    """The descriptor of one file of all processes of a user. It stays open: a close would end the locks."""
    path = Path(tempfile.gettempdir()) / f"holdfast-ports-{os.getuid()}"
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)


def _free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
        return True
