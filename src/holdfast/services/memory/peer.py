"""Peers in memory: nodes that call each other over a network that a test can cut."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from holdfast.common.protocol import Probe, Reply, Request, UnknownMember
from holdfast.errors import ConfigError, HoldfastError, NobodyThere, OutcomeUnknown, Retry, Unavailable
from holdfast.ports.clock import Clock
from holdfast.ports.peer import Handler

PROBE_TIMEOUT_S = 1.0


@dataclass(eq=False)
class MemoryPeerServer:
    """A server at an address. Calls run as tasks in the server's context, not in the caller's."""

    handler: Handler
    context: contextvars.Context
    closed: asyncio.Event = field(default_factory=asyncio.Event)
    calls: dict[asyncio.Task[Reply], None] = field(default_factory=dict)
    """Calls in order of age, in which they are dropped. A set would have another order in each run."""

    async def answer(self, request: Request, clock: Clock, timeout_s: float) -> Reply:
        """Return the handler's reply. Raises Unavailable if the handler refuses, OutcomeUnknown if there is
        no reply in time."""
        call = asyncio.get_running_loop().create_task(
            _run(self.handler, request), context=self.context.copy()
        )
        answered = asyncio.Event()

        def finish(call: asyncio.Task[Reply]) -> None:
            self.calls.pop(call, None)
            answered.set()

        self.calls[call] = None
        call.add_done_callback(finish)
        if not await clock.wait(answered, timeout_s):
            raise OutcomeUnknown(f"no answer within {timeout_s} s")
        if call.cancelled():
            raise OutcomeUnknown("the node is gone")
        error = call.exception()
        if isinstance(error, HoldfastError) and error.retry is Retry.SAFE:
            raise Unavailable(str(error)) from error
        if error is not None:
            raise OutcomeUnknown(f"the node failed: {error!r}") from error
        return call.result()

    def drop(self) -> None:
        """Close connections and answer no further call."""
        self.closed.set()
        for call in list(self.calls):
            call.cancel()


class MemoryNetwork:
    """The servers by address.

    ``fault`` is awaited before each call with source, destination and request; it may delay the call or
    raise Unavailable or OutcomeUnknown in its place.
    """

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.fault: Callable[[str, str, Request], Awaitable[None]] | None = None
        self._servers: dict[str, MemoryPeerServer] = {}

    def listen(self, address: str, handler: Handler) -> MemoryPeerServer:
        """Begin to answer at ``address``."""
        if address in self._servers:
            raise ConfigError(f"address {address} is in use")
        server = self._servers[address] = MemoryPeerServer(handler, contextvars.copy_context())
        return server

    def find(self, address: str) -> MemoryPeerServer | None:
        """Return the server at ``address``."""
        return self._servers.get(address)

    def cut(self, address: str) -> None:
        """Drop the server at ``address``: connections close, and calls under way are never answered."""
        server = self._servers.pop(address, None)
        if server is not None:
            server.drop()


class MemoryPeer:
    """One node's side of the network."""

    def __init__(self, network: MemoryNetwork, address: str) -> None:
        self.address = address
        self._network = network
        self._server: MemoryPeerServer | None = None

    async def serve(self, handler: Handler) -> str:
        self._server = self._network.listen(self.address, handler)
        return self.address

    async def call(self, address: str, request: Request, timeout_s: float) -> Reply:
        if self._network.fault is not None:
            await self._network.fault(self.address, address, request)
        server = self._network.find(address)
        if server is None:
            raise NobodyThere(f"no node listens at {address}")
        return await server.answer(request, self._network.clock, timeout_s)

    async def gone(self, address: str, member: str) -> None:
        server = self._network.find(address)
        try:
            reply = await self.call(address, Probe(member), PROBE_TIMEOUT_S)
        except (Unavailable, OutcomeUnknown):
            return
        if server is not None and not isinstance(reply, UnknownMember):
            await self._network.clock.wait(server.closed, None)

    async def close(self) -> None:
        if self._server is not None and self._network.find(self.address) is self._server:
            self._network.cut(self.address)


async def _run(handler: Handler, request: Request) -> Reply:
    return await handler(request)
