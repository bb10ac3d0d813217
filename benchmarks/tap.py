"""Counts the calls to an SQS server on their way there, whoever makes them.

A process between the two passes bytes on and looks for the header that names a call's operation: both sides
of a comparison are counted in the same way, at next to no cost.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import sys
from collections import Counter
from collections.abc import AsyncIterator

TARGET = re.compile(rb"\r\nx-amz-target: *AmazonSQS\.(\w+)\r\n", re.IGNORECASE)
TAIL_BYTES = 80
"""Kept of what has passed, for a header that comes in two parts."""


class Tap:
    """A tap before the server at ``port``. Use :func:`tap`."""

    def __init__(self, process: asyncio.subprocess.Process, port: int) -> None:
        self._process = process
        self.port = port

    async def counts(self) -> Counter[str]:
        """Calls so far, by operation."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(b"\n")
        return Counter(json.loads(await self._process.stdout.readline()))


@contextlib.asynccontextmanager
async def tap(port: int) -> AsyncIterator[Tap]:
    """Run a tap before a server on a loopback port."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", __name__, str(port),
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    try:
        yield Tap(process, int(await process.stdout.readline()))
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        await process.wait()


class Pipe(asyncio.Protocol):
    """One direction of one connection."""

    def __init__(self, counts: Counter[str] | None = None) -> None:
        self.to: asyncio.Transport | None = None
        self._counts = counts
        self._tail = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Ready to be joined with the other direction."""
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        """Count what passes, and pass it on."""
        assert self.to is not None
        self.to.write(data)
        if self._counts is not None:
            seen = self._tail + data
            end = 0
            for found in TARGET.finditer(seen):
                self._counts[found[1].decode()] += 1
                end = found.end()
            self._tail = seen[max(end, len(seen) - TAIL_BYTES) :]

    def connection_lost(self, error: Exception | None) -> None:
        """Close the other direction too."""
        if self.to is not None:
            self.to.close()


class Client(Pipe):
    """The side of the client: connects to the server when the client has."""

    def __init__(self, port: int, counts: Counter[str]) -> None:
        super().__init__(counts)
        self._port = port

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Connect to the server; nothing is read before."""
        assert isinstance(transport, asyncio.Transport)
        super().connection_made(transport)
        transport.pause_reading()
        self._joining = asyncio.ensure_future(self._join(transport))

    async def _join(self, transport: asyncio.Transport) -> None:
        server = Pipe()
        server.to = transport
        self.to, _ = await asyncio.get_running_loop().create_connection(
            lambda: server, "127.0.0.1", self._port
        )
        transport.resume_reading()


async def _main(port: int) -> None:
    counts: Counter[str] = Counter()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Client(port, counts), "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    while await loop.run_in_executor(None, sys.stdin.readline):
        print(json.dumps(counts), flush=True)


if __name__ == "__main__":
    asyncio.run(_main(int(sys.argv[1])))
