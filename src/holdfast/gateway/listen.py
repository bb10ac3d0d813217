"""Listening sockets for clients, and TLS."""

from __future__ import annotations

import socket
import ssl
from pathlib import Path
from typing import Literal

import msgspec

from holdfast.errors import ConfigError
from holdfast.http.metrics_page import MetricsPageSettings
from holdfast.http.serving import CONNECTIONS_MAX
from holdfast.http.tls import PeerTls, tls_server

BACKLOG = 4096

OwnSiteCheck = Literal["", "any host", "local"]
"""The pages that may send requests: "" for any page, "any host" for pages of the gateway's own site by
``Origin``, and "local" for these by ``Host`` too."""


class Tls(msgspec.Struct, frozen=True):
    """Files in PEM form: the certificate with its chain, and its private key."""

    cert: Path
    key: Path

    def context(self) -> ssl.SSLContext:
        """Return the TLS context for a server in this process. Raises ConfigError."""
        return tls_server(self.cert, self.key, f"--tls-cert {self.cert} and --tls-key {self.key}")

    def pem(self) -> str:
        """Return certificate and key in one text. Raises ConfigError if a file can't be read or they don't
        match."""
        self.context()
        try:
            cert, key = (file.read_text("ascii", "ignore") for file in (self.cert, self.key))
        except OSError as error:  # another process is replacing them
            raise ConfigError(f"--tls-cert and --tls-key can't be read: {error}") from None
        return f"{cert.rstrip()}\n{key}"


class GatewaySettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings by which a gateway serves its clients.

    Attributes:
        host, port: the address for clients; port 0 takes a free one.
        max_body_bytes: the largest body of a client.
        max_connections: the most connections of clients at once.
        secret: the nodes' ``peer_secret``.
        peer_tls: the certificates, if nodes use TLS.
        tls: certificate and key, if clients use TLS.
        access_log: whether each request is logged.
        foreign: whether requests are forwarded to members of other programs.
        no_auth: whether clients may use the gateway without a key, by any host name.
        metrics: the settings of the metrics page.
    """

    host: str
    port: int
    max_body_bytes: int
    max_connections: int = CONNECTIONS_MAX
    secret: str | None = None
    peer_tls: PeerTls | None = None
    tls: Tls | None = None
    access_log: bool = False
    foreign: bool = False
    no_auth: bool = False
    metrics: MetricsPageSettings = MetricsPageSettings()

    def own_site(self, *, keys: bool) -> OwnSiteCheck:
        """Return which pages may send requests. With ``keys``, the client's key decides."""
        return "" if keys else "any host" if self.no_auth else "local"


def listen(host: str, port: int) -> list[socket.socket]:
    """Open sockets that listen on all addresses of ``host`` at one port; 0 takes a free one. Raises
    ConfigError."""
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
    except (OSError, OverflowError) as error:  # OverflowError for a port out of range
        for listening in sockets:
            listening.close()
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(
            f"can't listen on {host}:{port}: {reason}; choose another place with --host or --port"
        ) from error
    return sockets
