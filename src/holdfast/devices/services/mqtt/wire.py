"""A connection of asyncio that paho uses as its socket.

paho reads packets a few bytes at a time and writes them one by one. Here it reads from memory, and ``flush``
sends all that it wrote, so that these calls aren't system calls.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import cast


class Wire(asyncio.Protocol):
    """``readable`` is called when there is something to read, the end included; ``writable`` when the
    connection takes more again after it was ``full``. ``closed`` is set at its end."""

    def __init__(self, readable: Callable[[], None], writable: Callable[[], None]) -> None:
        self.full = False
        self.closed = asyncio.Event()
        self._readable = readable
        self._writable = writable
        self._transport: asyncio.Transport | None = None
        self._in = b""
        self._at = 0
        self._out: list[bytes | bytearray] = []

    @property
    def pending(self) -> bool:
        """True if there is something to read, or the connection has ended."""
        return self._at < len(self._in) or self.closed.is_set()

    def hold(self, *, held: bool) -> None:
        """Stop reading from the network, or go on."""
        if self._transport is not None and not self._transport.is_closing():
            if held:
                self._transport.pause_reading()
            else:
                self._transport.resume_reading()

    # Callbacks of asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        # With Nagle's algorithm small packets would wait for an acknowledgement, 40 ms a round trip.
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def data_received(self, data: bytes) -> None:
        self._in = self._in[self._at :] + data
        self._at = 0
        self._readable()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None  # a lost one of TLS can't be aborted in Python 3.11.2
        self.closed.set()
        self._readable()

    def pause_writing(self) -> None:
        self.full = True

    def resume_writing(self) -> None:
        self.full = False
        self._writable()

    # The socket of paho

    def recv(self, size: int) -> bytes:
        """Return up to ``size`` bytes, none at the end of the connection. Raises BlockingIOError if none has
        come."""
        data = self._in[self._at : self._at + size]
        if not data and not self.closed.is_set():
            raise BlockingIOError
        self._at += len(data)
        return data

    def send(self, data: bytes | bytearray) -> int:
        """Keep all of it for the next ``flush``."""
        self._out.append(data)
        return len(data)

    def flush(self) -> None:
        """Send the kept bytes."""
        if self._out and self._transport is not None and not self._transport.is_closing():
            self._transport.write(b"".join(self._out))
        self._out.clear()

    def close(self) -> None:
        """End the connection after all is sent."""
        self.flush()
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """End the connection at once."""
        if self._transport is not None:
            self._transport.abort()

    def setblocking(self, flag: bool) -> None:
        """Do nothing: it never blocks."""

    def fileno(self) -> int:
        """Return -1: there is no file to poll."""
        return -1
