"""A loopback port that can be shut, so that connections are refused, and opened again."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from collections.abc import Callable

HOST = "127.0.0.1"


class FaultPort:
    """One port. While it is shut nobody else gets it.

    Args:
        protocol: makes what talks to whoever connects.
        port: the port; 0 for a free one.
    """

    def __init__(self, protocol: Callable[[], asyncio.BaseProtocol], port: int = 0) -> None:
        self._protocol = protocol
        self._socket = _bound(port)
        self._server: asyncio.Server | None = None
        self.port: int = self._socket.getsockname()[1]

    async def open(self) -> None:
        """Let connections in."""
        if self._server is None:
            loop = asyncio.get_running_loop()
            self._server = await loop.create_server(self._protocol, sock=self._socket)

    def shut(self) -> None:
        """Refuse connections; those that stand are left alone."""
        if self._server is not None:
            self._server.close()
            self._server = None
            self._socket = _bound(self.port)

    def close(self) -> None:
        """Give the port up."""
        self.shut()
        self._socket.close()


def reset(transport: asyncio.BaseTransport | None) -> None:
    """End a connection as a machine does that knows nothing of it: with a reset."""
    inner = transport.get_extra_info("socket") if transport is not None else None
    if inner is not None and inner.fileno() >= 0:
        with socket.socket(fileno=os.dup(inner.fileno())) as shared:
            shared.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    if isinstance(transport, asyncio.WriteTransport):
        transport.abort()


def _bound(port: int) -> socket.socket:
    """A socket that has its port and doesn't listen: who connects is refused."""
    made = socket.socket(proto=socket.IPPROTO_TCP)  # told so, asyncio has small writes go at once
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    made.bind((HOST, port))
    return made
