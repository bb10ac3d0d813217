"""A node's HTTP server and gateways before it, on real sockets in a thread of their own, and a client that
sends any bytes."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import socket
import threading
from collections.abc import Iterator
from typing import Any, NamedTuple, cast

import msgspec
from aiohttp import web

from holdfast import App
from holdfast.cluster.host import Host
from holdfast.common.message import Place
from holdfast.common.protocol import Done
from holdfast.errors import NoQuery, QueryFailed
from holdfast.gateway.haproxy.binary import find
from holdfast.gateway.haproxy.plane import HaproxyOptions
from holdfast.gateway.listen import GatewaySettings
from holdfast.gateway.node_routes import NodeRoutes
from holdfast.gateway.service import Gateway
from holdfast.ports.coordinator import Load, Member
from holdfast.services.http.peer import HttpPeer
from holdfast.services.memory.coordinator import MemoryCoordinator
from holdfast.streams.queries import CommittedAnswer, Queries
from holdfast.streams.requests import RequestAnswer, Requests
from holdfast.system.clock import SystemClock
from simulator.limits import limits_with
from tests.cluster.fakes import Log

LIMIT = 50_000
MEMBER = "node-1"
RESULT = b'{"ok": true}'
HURRY_S = 10.0
"""Seconds until each request is answered, or its connection closed."""


class Item(msgspec.Struct):
    """A message of the stream of JSON."""

    key: str
    n: int
    url: str = ""


class Taken(NamedTuple):
    """One message that reached the node."""

    stream: str
    key: str
    place: Place
    body: bytes


class Said(NamedTuple):
    """One answer; its header names are in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes


def app() -> App:
    """An app with a stream of each kind."""
    made = App("t")
    made.stream("raw", message=bytes, seq="n")(lambda message, context: None)
    made.stream("json", message=Item, seq="n")(lambda message, context: None)
    made.stream("free", message=bytes)(lambda message, context: None)
    return made


class Surface:
    """The servers: ``ports`` by name, and ``taken``, the messages that reached the node. Use
    :func:`surface`."""

    def __init__(self) -> None:
        self.ports: dict[str, int] = {}
        self.taken: list[Taken] = []

    async def process(
        self, stream: str, key: str, place: Place, body: bytes, attributes: Any, timeout_s: float
    ) -> RequestAnswer:
        """Play the streams of the node."""
        self.taken.append(Taken(stream, key.partition("/")[2], place, body))
        return RequestAnswer(RESULT, 1)

    async def answer(self, stream: str, key: str, request: bytes, timeout_s: float) -> CommittedAnswer:
        """Play the queries of the node."""
        if stream == "free":
            raise NoQuery("stream 'free' answers no queries")
        if request == b'"raise"':
            raise QueryFailed(f"{key}: ValueError: on demand")
        return CommittedAnswer(b'{"key":"%s","asked":%s}' % (key.encode(), request), 7, 12)

    def routes(self, secret: str | None = None) -> list[web.AbstractRouteDef]:
        """Return the routes of the node."""
        return NodeRoutes(
            app().streams,
            SystemClock(),
            requests=cast("Requests", self),
            queries=cast("Queries", self),
            member=lambda: MEMBER,
            max_body_bytes=LIMIT,
            secret=secret,
        ).routes()

    async def serve(self, ready: threading.Event, over: asyncio.Event) -> None:
        """Serve until it is over."""
        clock, coordinator, streams = SystemClock(), MemoryCoordinator(SystemClock()), app().streams
        async with contextlib.AsyncExitStack() as stack:
            peer = HttpPeer(clock)
            peer.add_routes(self.routes())
            stack.push_async_callback(peer.close)
            address = await peer.serve(_done)
            self.ports["node"] = int(address.rpartition(":")[2])
            await coordinator.join(Member(MEMBER, "node", address, Load(serves=tuple(streams))), 3600)
            for name, haproxy in planes().items():
                calling = HttpPeer(clock)
                stack.push_async_callback(calling.close)
                gateway = Gateway(
                    Host(coordinator, calling, clock, limits_with(), Log(), "gateway"),
                    GatewaySettings(host="127.0.0.1", port=0, max_body_bytes=LIMIT), haproxy=haproxy,
                )  # fmt: skip
                await gateway.start()
                stack.push_async_callback(gateway.stop)
                self.ports[name] = int(gateway.address.rpartition(":")[2])
            ready.set()
            await over.wait()

    def exchange(self, name: str, *parts: bytes, close: bool = False, most: int | None = None) -> list[Said]:
        """Send bytes over one connection; return ``most`` answers, or all until the server closes it.
        ``close``: shut down the sending side."""
        with socket.create_connection(("127.0.0.1", self.ports[name]), timeout=HURRY_S) as connection:
            with contextlib.suppress(OSError):  # the server may close the connection early
                for part in parts:
                    connection.sendall(part)
                if close:
                    connection.shutdown(socket.SHUT_WR)
            return list(itertools.islice(answers(connection), most))


def planes() -> dict[str, HaproxyOptions | None]:
    """Return the data planes of this machine."""
    made: dict[str, HaproxyOptions | None] = {"python": None}
    if build := find():
        made["haproxy"] = HaproxyOptions(build)
    return made


def answers(connection: socket.socket) -> Iterator[Said]:
    """Read answers until the server closes. Raises TimeoutError if it neither answers nor closes."""
    data = b""
    while True:
        head, found, rest = data.partition(b"\r\n\r\n")
        if found:
            first, *lines = head.decode("latin-1").split("\r\n")
            headers = {
                name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)
            }
            size = int(headers.get("content-length", 0))
            if len(rest) >= size:
                yield Said(int(first.split()[1]), headers, rest[:size])
                data = rest[size:]
                continue
        try:
            more = connection.recv(65536)
        except ConnectionResetError:
            return
        if not more:
            return
        data += more


@contextlib.contextmanager
def surface() -> Iterator[Surface]:
    """Serve in a thread."""
    made, ready = Surface(), threading.Event()
    loop, over = asyncio.new_event_loop(), asyncio.Event()

    def run() -> None:
        try:
            loop.run_until_complete(made.serve(ready, over))
        finally:
            ready.set()
            loop.close()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        ready.wait()
        yield made
    finally:
        if not loop.is_closed():
            loop.call_soon_threadsafe(over.set)
        thread.join()


async def _done(request: Any) -> Done:
    return Done()
