"""Faults in front of any TCP port: delay, freeze, cut, refuse, lose an answer."""

from __future__ import annotations

import asyncio
import contextlib
import math
from types import TracebackType
from typing import Self

from simulator.proxies.door import HOST, FaultPort, reset

READ_BYTES = 1 << 16
CHUNKS_MAX = 64
"""How many chunks may be on their way in one direction, for a sender to be held back like on a wire."""


class TcpFaults:
    """Passes connections on to ``host:port``. Used as an async context manager, or with ``start`` and
    ``close``.

    Args:
        port, host: the server's.
        listen: where to listen; 0 for a free port.

    Attributes:
        delay_s: how long all that is sent takes, each way.
        rate: bytes a second that a connection carries to the server, at most.
        accepted: connections that came in so far.
        bytes_in, bytes_out: bytes to the server and from it so far.
    """

    host = HOST

    def __init__(self, port: int, host: str = HOST, *, listen: int = 0) -> None:
        self.delay_s = 0.0
        self.rate = math.inf
        self.accepted = 0
        self.bytes_in = 0
        self.bytes_out = 0
        self._server = (host, port)
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._replies_to_lose = 0
        self._closed = False
        self._cut_at = math.inf
        self._record: bytearray | None = None
        self._links: set[_Link] = set()
        self._door = FaultPort(self._protocol, listen)

    @property
    def port(self) -> int:
        """Where clients are to connect, on ``host``."""
        return self._door.port

    @property
    def connections(self) -> int:
        """Connections that stand now."""
        return len(self._links)

    async def start(self) -> None:
        """Begin to listen."""
        await self.accept()

    async def close(self) -> None:
        """Stop listening and drop all connections, those too that were accepted and have yet to begin."""
        self._closed = True
        await self._door.close()
        tasks = [link.task for link in self._links]
        self.cut()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def freeze(self) -> None:
        """Connections stand and new ones are made, but nothing passes, as when the server's machine hangs."""
        self._flowing.clear()

    def thaw(self) -> None:
        """End a freeze; what was held back passes."""
        self._flowing.set()

    def cut(self) -> int:
        """Reset all connections, on both sides; returns how many."""
        links = list(self._links)
        for link in links:
            link.cut()
        return len(links)

    def cut_after(self, size: float) -> None:
        """Pass ``size`` more bytes on to the server, which gets all of them, and then reset all connections.
        With ``math.inf``: don't."""
        self._cut_at = self.bytes_in + size

    def record(self) -> bytearray:
        """Return a record of what is passed on to the server from now on, until the next one begins."""
        self._record = record = bytearray()
        return record

    def refuse(self) -> None:
        """Begin an outage: connections are reset, new ones refused."""
        self._door.shut()
        self.cut()

    async def accept(self) -> None:
        """End an outage."""
        await self._door.open()

    def lose_replies(self, count: int = 1) -> None:
        """Reset the connection in place of the next ``count`` answers: what was asked has its effect."""
        self._replies_to_lose = count

    def _protocol(self) -> asyncio.StreamReaderProtocol:
        reader = asyncio.StreamReader(READ_BYTES)
        return asyncio.StreamReaderProtocol(reader, self._begin)

    def _begin(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._closed:
            reset(writer.transport)
            return
        self.accepted += 1
        link = _Link(writer)
        self._links.add(link)
        link.task = asyncio.create_task(self._relay(link, reader))

    async def _relay(self, link: _Link, reader: asyncio.StreamReader) -> None:
        try:
            answers, server = await asyncio.open_connection(*self._server, limit=READ_BYTES)
            link.writers.append(server)
            async with asyncio.TaskGroup() as both:
                both.create_task(self._carry(reader, server, link, replies=False))
                both.create_task(self._carry(answers, link.writers[0], link, replies=True))
        except* (OSError, asyncio.CancelledError):
            pass
        finally:
            self._links.discard(link)
            for writer in link.writers:
                reset(writer.transport)

    async def _carry(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, link: _Link, *, replies: bool
    ) -> None:
        """Bring bytes from one side to the other until the first hangs up."""
        loop = asyncio.get_running_loop()
        chunks: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(CHUNKS_MAX)

        async def write() -> None:
            while True:
                due, chunk = await chunks.get()
                if due > loop.time():
                    await asyncio.sleep(due - loop.time())
                if not replies:
                    await asyncio.sleep(len(chunk) / self.rate)
                await self._flowing.wait()
                if replies and self._replies_to_lose and chunk:
                    self._replies_to_lose -= 1
                    link.cut()
                    return
                if not chunk:
                    with contextlib.suppress(OSError):
                        writer.write_eof()
                    return
                cut = not replies and self.bytes_in + len(chunk) >= self._cut_at
                if cut:
                    chunk = chunk[: int(self._cut_at) - self.bytes_in]
                    self._cut_at = math.inf
                writer.write(chunk)
                await writer.drain()
                if replies:
                    self.bytes_out += len(chunk)
                else:
                    self.bytes_in += len(chunk)
                    if self._record is not None:
                        self._record += chunk
                if cut:
                    link.hang_up()
                    self.cut()

        async with asyncio.TaskGroup() as both:
            both.create_task(write())
            while chunk := await reader.read(READ_BYTES):
                await chunks.put((loop.time() + self.delay_s, chunk))
            await chunks.put((loop.time() + self.delay_s, b""))


class _Link:
    """One connection through the proxy: the client's side first, then the server's."""

    def __init__(self, client: asyncio.StreamWriter) -> None:
        self.writers = [client]
        self.task: asyncio.Task[None]

    def hang_up(self) -> None:
        """End the server's side in good order, so that the server gets all that was sent."""
        self.writers.pop().close()

    def cut(self) -> None:
        for writer in self.writers:
            reset(writer.transport)
        self.task.cancel()
