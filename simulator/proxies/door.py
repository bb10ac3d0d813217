"""A loopback port that can be shut, so that connections are refused, and opened again."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from collections.abc import Callable
from contextlib import suppress

HOST = "127.0.0.1"
BACKLOG = 100


class FaultPort:
    """One port. While it is shut nobody else gets it.

    Args:
        protocol: makes what talks to whoever connects.
        port: the port; 0 for a free one.
    """

    def __init__(self, protocol: Callable[[], asyncio.BaseProtocol], port: int = 0) -> None:
        self._protocol = protocol
        self._socket = _bound(port)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._beginning: set[asyncio.Task[None]] = set()
        self.port: int = self._socket.getsockname()[1]

    async def open(self) -> None:
        """Let connections in."""
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
            self._socket.listen(BACKLOG)
            self._socket.setblocking(False)
            self._loop.add_reader(self._socket, self._accept, self._loop)

    def shut(self) -> None:
        """Refuse connections, and reset those that have yet to begin; those that stand are left alone."""
        if self._loop is not None:
            self._loop.remove_reader(self._socket)
            self._loop = None
            self._socket.close()
            self._socket = _bound(self.port)

    async def close(self) -> None:
        """Give the port up."""
        self.shut()
        self._socket.close()
        await asyncio.gather(*self._beginning)

    def _accept(self, loop: asyncio.AbstractEventLoop) -> None:
        # By hand: a server of asyncio that is closed forgets open what it has just accepted.
        with suppress(BlockingIOError, InterruptedError, ConnectionAbortedError):
            connection, _ = self._socket.accept()
            connection.setblocking(False)
            task = loop.create_task(self._begin(loop, connection))
            self._beginning.add(task)
            task.add_done_callback(self._beginning.discard)

    async def _begin(self, loop: asyncio.AbstractEventLoop, connection: socket.socket) -> None:
        transport, _ = await loop.connect_accepted_socket(self._protocol, connection)
        if self._loop is None:
            reset(transport)


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
