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
from dataclasses import dataclass, field

from benchmarks.cluster import ROOT

TARGET = re.compile(rb"\r\nx-amz-target: *AmazonSQS\.(\w+)\r\n", re.IGNORECASE)
TAIL_BYTES = 80
"""Kept of what has passed, for a header that comes in two parts."""


class Tap:
    """A tap before the server at ``port``. Use :func:`tap`."""

    def __init__(self, process: asyncio.subprocess.Process, port: int) -> None:
        self._process = process
        self.port = port

    @property
    def endpoint(self) -> str:
        """For ``AWS_ENDPOINT_URL``."""
        return f"http://127.0.0.1:{self.port}"

    async def counts(self) -> Counter[str]:
        """Calls so far, by operation."""
        return await self._tell(b"count")

    @contextlib.asynccontextmanager
    async def shut(self) -> AsyncIterator[None]:
        """Let no call through meanwhile; those that came wait."""
        await self._tell(b"shut")
        try:
            yield
        finally:
            await self._tell(b"open")

    async def _tell(self, what: bytes) -> Counter[str]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(what + b"\n")
        return Counter(json.loads(await self._process.stdout.readline()))


@contextlib.asynccontextmanager
async def tap(port: int) -> AsyncIterator[Tap]:
    """Run a tap before a server on a loopback port."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", __name__, str(port), cwd=ROOT,
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
        assert isinstance(transport, asyncio.Transport)
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

    def __init__(self, turnstile: Turnstile) -> None:
        super().__init__(turnstile.counts)
        self._turnstile = turnstile

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Connect to the server; nothing is read before."""
        super().connection_made(transport)
        self._turnstile.clients.add(self)
        # Python 3.11.2 begins to read once this has returned, whatever was asked for here.
        asyncio.get_running_loop().call_soon(self.transport.pause_reading)
        self._joining = asyncio.ensure_future(self._join())

    def connection_lost(self, error: Exception | None) -> None:
        """Close the server's side too."""
        self._turnstile.clients.discard(self)
        super().connection_lost(error)

    async def _join(self) -> None:
        server = Pipe()
        server.to = self.transport
        self.to, _ = await asyncio.get_running_loop().create_connection(
            lambda: server, "127.0.0.1", self._turnstile.port
        )
        if self._turnstile.open:
            self.transport.resume_reading()


@dataclass
class Turnstile:
    """What all connections share."""

    port: int
    counts: Counter[str] = field(default_factory=Counter)
    clients: set[Client] = field(default_factory=set)
    open: bool = True

    def turn(self, to_open: bool) -> None:
        """Let calls through, or none."""
        self.open = to_open
        for client in self.clients:
            if client.to is not None:
                (client.transport.resume_reading if to_open else client.transport.pause_reading)()


async def _main(port: int) -> None:
    turnstile = Turnstile(port)
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Client(turnstile), "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        if line != "count\n":
            turnstile.turn(line == "open\n")
        print(json.dumps(turnstile.counts), flush=True)


if __name__ == "__main__":
    asyncio.run(_main(int(sys.argv[1])))
