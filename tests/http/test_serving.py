"""The connections of a server: bounded in number and in how long they stand still."""

import asyncio
import contextlib
import resource
from collections.abc import AsyncIterator, Awaitable, Callable
from random import Random
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request
from structlog.testing import capture_logs

from holdfast.http.serving import (
    FILES_RESERVED,
    HEAD_S,
    IDLE_S,
    RESERVE,
    Connections,
    allow_files,
    problems,
)
from holdfast.system.clock import SystemClock
from simulator.loop import SimClock

REQUEST = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
PATIENCE_S = 30.0
LARGE = 4 * 1024 * 1024
"""More than the buffers of any connection hold."""


class Clock(SimClock):
    """Real pauses are short; the time that connections are judged by goes as the test says."""

    def __init__(self) -> None:
        super().__init__(Random(0), "clock")
        self.at = 0.0
        self.looks = asyncio.Condition()

    def monotonic(self) -> float:
        return self.at

    async def sleep(self, seconds: float) -> None:
        async with self.looks:
            self.looks.notify_all()
        await asyncio.sleep(0)

    async def looked(self) -> None:
        """Return once all connections have been looked at."""
        async with self.looks:
            for _ in range(2):
                await self.looks.wait()


class NotedConnections(Connections):
    """Connections that tell when bytes have come on one without a request."""

    def __init__(self, clock: Clock, most: int) -> None:
        super().__init__(clock, most)
        self.received = asyncio.Event()

    def begun(self, connection: Any) -> None:
        super().begun(connection)
        self.received.set()


class Server:
    """A server whose requests wait for ``go_on``."""

    def __init__(self, most: int) -> None:
        self.clock = Clock()
        self.connections = NotedConnections(self.clock, most)
        self.begun = asyncio.Event()
        self.go_on = asyncio.Event()
        self.port = 0
        self.text = "here"

    async def answer(self, request: web.Request) -> web.Response:
        self.begun.set()
        await self.go_on.wait()
        return web.Response(text=self.text)

    async def look(self, request: web.Request) -> web.Response:
        return web.Response(text="alive")

    async def fill(self) -> list[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        """Make all connections but those of the reserve busy."""
        busy = []
        for _ in range(self.connections.most):
            busy.append(await self.connect())
            self.begun.clear()
            busy[-1][1].write(REQUEST)
            await self.begun.wait()
        return busy

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator["Server"]:
        app = web.Application(middlewares=[self.connections.note])
        app.router.add_get("/", self.answer)
        for path in ("/healthz", "/readyz", "/v1/peer/presence"):
            app.router.add_get(path, self.look)
        runner = web.AppRunner(app, handler_cancellation=True)
        await runner.setup()
        server = await self.connections.listen(runner, None, host="127.0.0.1", port=0)
        self.port = server.sockets[0].getsockname()[1]
        watching = asyncio.create_task(self.connections.watch())
        yield self
        watching.cancel()
        server.close()
        await runner.cleanup()

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        before = len(self.connections)
        streams = await asyncio.open_connection("127.0.0.1", self.port)
        if before < self.connections.most:
            while len(self.connections) == before:
                await self.clock.looked()
        return streams


async def ended(reader: asyncio.StreamReader) -> bytes:
    """All that comes until the connection is closed."""
    said = b""
    async with asyncio.timeout(PATIENCE_S):
        with contextlib.suppress(ConnectionError):
            while more := await reader.read(65536):
                said += more
    return said


@pytest.mark.parametrize("sent", [b"", b"GET / HTT", b"GET / HTTP/1.1\r\nHost: localhost\r\n"])
async def test_who_sends_no_whole_request_is_closed(sent: bytes) -> None:
    async with Server(10).running() as server:
        reader, writer = await server.connect()
        writer.write(sent)
        server.clock.at = HEAD_S - 0.1
        await server.clock.looked()
        assert len(server.connections) == 1
        server.clock.at = 2 * HEAD_S + 1
        assert await ended(reader) == b""
        assert (len(server.connections), server.connections.closed) == (0, 1)
        writer.close()


async def test_a_head_that_comes_a_byte_at_a_time_has_no_more_time_than_any() -> None:
    async with Server(10).running() as server:
        reader, writer = await server.connect()
        received = server.connections.received
        writer.write(b"G")
        await asyncio.wait_for(received.wait(), PATIENCE_S)
        received.clear()
        server.clock.at = HEAD_S - 1
        writer.write(b"E")
        await asyncio.wait_for(received.wait(), PATIENCE_S)
        server.clock.at = HEAD_S
        assert await ended(reader) == b""
        writer.close()


async def test_a_connection_whose_other_end_reads_nothing_is_closed_all_the_same() -> None:
    async with Server(10).running() as server:
        server.go_on.set()
        server.text = "here" * LARGE
        _, writer = await server.connect()
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(REQUEST)
        await server.begun.wait()
        await server.clock.looked()
        server.clock.at = 2 * IDLE_S
        async with asyncio.timeout(PATIENCE_S):
            while len(server.connections):
                await server.clock.looked()
        assert server.connections.closed == 1
        writer.transport.abort()


async def test_a_connection_is_kept_for_a_while_after_its_answer_and_closed_then() -> None:
    async with Server(10).running() as server:
        server.go_on.set()
        reader, writer = await server.connect()
        writer.write(REQUEST)
        await reader.readuntil(b"here")
        server.clock.at = IDLE_S - 1
        await server.clock.looked()
        writer.write(REQUEST)
        await reader.readuntil(b"here")
        server.connections.received.clear()
        writer.write(b"GET /")  # half of a request
        await asyncio.wait_for(server.connections.received.wait(), PATIENCE_S)
        server.clock.at += HEAD_S + 1
        assert await ended(reader) == b""
        writer.close()


async def test_a_request_under_way_is_never_cut_off() -> None:
    async with Server(10).running() as server:
        reader, writer = await server.connect()
        writer.write(REQUEST)
        await server.begun.wait()
        server.clock.at = 100 * IDLE_S
        await server.clock.looked()
        server.go_on.set()
        await asyncio.wait_for(reader.readuntil(b"here"), PATIENCE_S)
        writer.close()


async def test_where_there_is_no_room_the_longest_idle_makes_it() -> None:
    async with Server(2).running() as server:
        first, second = await server.connect(), await server.connect()
        third = await server.connect()
        assert await ended(first[0]) == b""
        server.go_on.set()
        for reader, writer in (second, third):
            writer.write(REQUEST)
            await asyncio.wait_for(reader.readuntil(b"here"), PATIENCE_S)
        assert (server.connections.closed, server.connections.refused) == (1, 0)
        for _, writer in (first, second, third):
            writer.close()


async def test_where_all_are_busy_the_next_is_told_so_and_readiness_too() -> None:
    async with Server(2).running() as server:
        busy = await server.fill()
        assert "max_connections" in server.connections.trouble
        reader, writer = await server.connect()
        writer.write(REQUEST)
        said = await ended(reader)
        assert said.startswith(b"HTTP/1.1 503 ")
        assert b"application/problem+json" in said
        assert b"Retry-After: 1" in said
        assert (len(server.connections), server.connections.refused) == (2, 1)
        server.go_on.set()
        for reader, _ in busy:
            await asyncio.wait_for(reader.readuntil(b"here"), PATIENCE_S)
        while server.connections.trouble:
            await server.clock.looked()
        for _, each in (*busy, (reader, writer)):
            each.close()


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/v1/peer/presence"])
async def test_where_all_are_busy_nodes_and_looks_at_health_are_heard(path: str) -> None:
    async with Server(2).running() as server:
        opened = await server.fill()
        opened += [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(RESERVE)]
        async with asyncio.timeout(PATIENCE_S):
            while len(server.connections) < server.connections.most + RESERVE:
                await server.clock.looked()
        reader, writer = await server.connect()  # one that is silent makes room
        writer.write(REQUEST.replace(b"GET /", f"GET {path}".encode()))
        await asyncio.wait_for(reader.readuntil(b"alive"), PATIENCE_S)
        assert "max_connections" in server.connections.trouble
        assert (server.connections.closed, server.connections.refused) == (1, 0)
        server.go_on.set()
        for _, each in (*opened, (reader, writer)):
            each.close()


async def test_open_files_are_allowed_as_far_as_they_may(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = [1024, 4096]
    monkeypatch.setattr(resource, "getrlimit", lambda _: tuple(limits))
    monkeypatch.setattr(resource, "setrlimit", lambda _, new: limits.__setitem__(slice(None), new))
    assert allow_files(1000) == 1000
    assert allow_files(2000) == 2000
    assert allow_files(10_000) == 4096
    connections = Connections(Clock(), 10_000)
    connections.fit()
    assert connections.most == 4096 - FILES_RESERVED
    limits[:] = [64, 64]
    connections.fit()
    assert connections.most == 32


async def test_readiness_tells_when_no_more_files_can_be_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise OSError(24, "Too many open files")

    connections = Connections(Clock(), 10)
    assert not connections.trouble
    monkeypatch.setattr("os.open", refuse)
    assert "Too many open files" in connections.trouble


@pytest.mark.parametrize("middlewares", [[problems], []], ids=["problems", "none"])
async def test_a_connection_that_is_closed_before_its_answer_is_told_without_a_traceback(
    middlewares: list[Any],
) -> None:
    """As those of the other nodes are, while a node ends."""

    async def answer(request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        request.transport.close()
        response = web.StreamResponse()
        await response.prepare(request)
        return response

    with capture_logs() as logged:
        await asked(answer, middlewares)
    [told] = logged
    assert (told["log_level"], told["event"]) == ("info", "connection closed before its answer")
    assert "exc_info" not in told


async def test_what_fails_at_a_service_while_the_client_waits_is_an_error() -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        raise ConnectionResetError("the database is gone")

    with capture_logs() as logged:
        await asked(answer, [problems])
    [told] = logged
    assert (told["log_level"], told["event"]) == ("error", "request failed")


async def asked(
    answer: Callable[[web.Request], Awaitable[web.StreamResponse]], middlewares: list[Any]
) -> None:
    """Ask a server with this handler, until the connection is closed."""
    connections = Connections(SystemClock(), 10)
    app = web.Application(middlewares=middlewares)
    app.router.add_get("/", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    server = await connections.listen(runner, None, host="127.0.0.1", port=0)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    writer.write(REQUEST.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
    await ended(reader)
    writer.close()
    server.close()
    await runner.cleanup()


async def test_what_an_error_says_tells_no_secret() -> None:
    async def refuse(_: web.Request) -> web.Response:
        raise web.HTTPBadRequest(text="no answer from redis://me:hunter2@host/0")

    answer = await problems(make_mocked_request("GET", "/"), refuse)
    assert isinstance(answer, web.Response)
    assert "redis://me:***@host/0" in str(answer.text)
