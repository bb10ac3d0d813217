"""Free ports on loopback."""

from __future__ import annotations

import random
import socket

HOST = "127.0.0.1"
PORTS = range(12000, 22000)
"""Below those that systems give to outgoing connections, so that no client takes the port of a server
that is about to start again; and low enough for a Redis Cluster's second port, 10,000 above."""

_given: set[int] = set()


def free_port(*, above: int = 0) -> int:
    """A port that nobody listens at, nor at the one ``above`` it if given. Never the same twice."""
    while True:
        port = random.choice(PORTS)  # noqa: S311 (several processes choose at once)
        if port not in _given and _free(port) and (not above or _free(port + above)):
            _given.add(port)
            return port


def _free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
        return True
