"""Where clients come: listening sockets, and TLS."""

from __future__ import annotations

import socket
import ssl
from pathlib import Path

import msgspec

from holdfast.errors import ConfigError
from holdfast.http.serving import tls_server

BACKLOG = 4096


class Tls(msgspec.Struct, frozen=True):
    """Files in PEM form: the certificate with its chain, and its private key."""

    cert: Path
    key: Path

    def context(self) -> ssl.SSLContext:
        """For a server in this process. Raises ConfigError."""
        return tls_server(self.cert, self.key, f"--tls-cert {self.cert} and --tls-key {self.key}")

    def pem(self) -> str:
        """Certificate and key in one text. Raises ConfigError if they don't fit."""
        self.context()
        return f"{self.cert.read_text().rstrip()}\n{self.key.read_text()}"


def listen(host: str, port: int) -> list[socket.socket]:
    """Sockets that listen on all addresses of ``host`` at one port; 0 takes a free one.

    Raises ConfigError."""
    sockets: list[socket.socket] = []
    try:
        for family, kind, protocol, _, address in socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        ):
            listening = socket.socket(family, kind, protocol)
            sockets.append(listening)
            listening.setblocking(False)
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            listening.bind((address[0], port, *address[2:]))
            listening.listen(BACKLOG)
            port = listening.getsockname()[1]
    except OSError as error:
        for listening in sockets:
            listening.close()
        raise ConfigError(f"can't listen on {host}:{port}: {error.strerror or error}") from error
    return sockets
