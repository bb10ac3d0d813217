"""Destinations that take files by HTTP PUT."""

import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from holdfast.errors import (
    AlreadyThere,
    ConfigError,
    Damaged,
    HoldfastError,
    LoginRefused,
    OutcomeUnknown,
    TooLarge,
    Unavailable,
)
from holdfast.extend.tools import Backoff
from holdfast.reports.conformance import SinkConformance
from holdfast.reports.conformance.sink import held, part, put
from holdfast.reports.deliver import Delivered, deliver_file
from holdfast.reports.deliver_plan import Companion, FileToDeliver
from holdfast.reports.ports.sink import Sink
from holdfast.reports.sinks.http.sink import HttpSink
from holdfast.system.clock import SystemClock
from simulator.proxies import TcpFaults

USER, PASSWORD = "ann", "secret"
AUTHORIZATION = "Basic YW5uOnNlY3JldA=="


class Files:
    """A web server that takes files, and shows each when all of it has come."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.answer = 0
        self.lies_by = 0
        self.heads = 0  # the status of every answer to HEAD, unless it is 0
        self.tells_sizes = True
        self.refused: dict[str, int] = {}  # the status of the next PUT, by name
        self.unanswered = 0  # PUTs whose connections end without an answer
        app = web.Application(client_max_size=1 << 30)
        app.router.add_route("*", "/root/{name:.+}", self.serve)
        self.server = TestServer(app)

    async def serve(self, request: web.Request) -> web.StreamResponse:
        name = request.match_info["name"]
        if request.headers.get("Authorization") != AUTHORIZATION:
            return web.Response(status=401)
        if self.answer:
            return web.Response(status=self.answer)
        if request.method == "PUT":
            body = await request.read()
            if status := self.refused.pop(name, 0):
                return web.Response(status=status)
            if request.headers.get("If-None-Match") == "*" and name in self.files:
                return web.Response(status=412)
            self.files[name] = body
            if self.unanswered and request.transport is not None:
                self.unanswered -= 1
                request.transport.abort()
            return web.Response(status=201)
        if request.method == "HEAD" and self.heads:
            return web.Response(status=self.heads)
        if name not in self.files:
            return web.Response(status=404)
        body = self.files[name]
        headers = {"ETag": f'"{hashlib.sha256(body).hexdigest()}"'}
        if request.method == "HEAD" and not self.tells_sizes:
            answer = web.StreamResponse(headers=headers)
            answer.enable_chunked_encoding()
            return answer
        if request.method == "HEAD":
            headers["Content-Length"] = str(len(body) + self.lies_by)
            return web.Response(headers=headers)
        return web.Response(body=body, headers=headers)


@pytest.fixture
async def files() -> AsyncIterator[Files]:
    files = Files()
    await files.server.start_server()
    yield files
    await files.server.close()


def connected(files: Files, password: str = PASSWORD) -> HttpSink:
    return HttpSink(str(files.server.make_url("/root")), user=USER, password=password)


@pytest.fixture
async def sink(files: Files) -> AsyncIterator[HttpSink]:
    sink = connected(files)
    yield sink
    await sink.close()


class TestHttpSink(SinkConformance):
    @pytest.fixture
    def sink(self, sink: HttpSink) -> HttpSink:
        return sink

    @pytest.fixture
    async def other_sink(self, files: Files) -> AsyncIterator[HttpSink]:
        sink = connected(files)
        yield sink
        await sink.close()


@pytest.mark.parametrize(
    "status, error",
    [
        (302, ConfigError),
        (403, ConfigError),
        (404, ConfigError),
        (412, AlreadyThere),
        (413, TooLarge),
        (429, Unavailable),
        (500, Unavailable),
        (507, Unavailable),
    ],
)
@pytest.mark.parametrize("size", [10, 3_000_000], ids=["small", "large"])
async def test_each_http_status_has_its_error(
    files: Files, sink: HttpSink, status: int, error: type[HoldfastError], size: int
) -> None:
    files.answer = status
    with pytest.raises(error):
        await put(sink, "a.csv", bytes(size))


async def test_a_refused_login_is_said_without_the_password(files: Files) -> None:
    sink = connected(files, "wrong-secret")
    with pytest.raises(LoginRefused) as caught:
        await put(sink, "a.csv", b"x")
    assert "wrong-secret" not in str(caught.value)
    await sink.close()


async def test_a_server_that_lies_about_sizes_is_not_believed(files: Files, sink: HttpSink) -> None:
    files.lies_by = -1
    with pytest.raises(Damaged, match="2 bytes"):
        await put(sink, "a.csv", b"123")


UNTELLING = pytest.mark.parametrize(
    "heads", [0, 403, 405, 501], ids=["no size", "not allowed", "no HEAD", "unknown"]
)


def tell_nothing(files: Files, heads: int) -> None:
    """Have the server refuse HEAD, or leave out sizes."""
    files.heads, files.tells_sizes = heads, False


@UNTELLING
async def test_a_server_that_tells_no_sizes_is(files: Files, sink: HttpSink, heads: int) -> None:
    tell_nothing(files, heads)
    await put(sink, "a.csv", b"123")
    assert await held(sink, "a.csv") == b"123"


async def deliver(files: Files, **options: Any) -> Delivered:
    @asynccontextmanager
    async def connect() -> AsyncIterator[Sink]:
        sink = connected(files)
        try:
            yield sink
        finally:
            await sink.close()

    parcel = FileToDeliver(name="a.csv", content="v1", **options)
    quick = Backoff(first_s=0.0, max_s=0.0)
    return await deliver_file(parcel, lambda: iter([b"123"]), connect, SystemClock(), backoff=quick)


@UNTELLING
async def test_companions_come_after_a_failure_though_the_server_tells_nothing_of_the_file(
    files: Files, heads: int
) -> None:
    """The next try took the file for gone, and left its companion out."""
    tell_nothing(files, heads)
    files.refused["a.csv.ok"] = 503
    await deliver(files, companions=(Companion.OK,))
    assert files.files == {"a.csv": b"123", "a.csv.ok": b""}


@UNTELLING
async def test_a_passing_failure_is_made_up_for_though_the_server_tells_nothing_of_the_file(
    files: Files, heads: int
) -> None:
    tell_nothing(files, heads)
    files.refused["a.csv"] = 503
    await deliver(files)
    assert files.files == {"a.csv": b"123"}


@pytest.mark.parametrize("heads", [0, 405], ids=["no size", "no HEAD"])
async def test_a_lost_answer_is_found_out_by_reading_where_the_server_tells_nothing_of_the_file(
    files: Files, heads: int
) -> None:
    tell_nothing(files, heads)
    files.unanswered = 2  # aiohttp sends it twice itself
    assert (await deliver(files)).duplicated
    assert files.files == {"a.csv": b"123"}


@pytest.mark.parametrize("tenth", range(10))
async def test_a_connection_may_be_cut_at_every_tenth(files: Files, tenth: int) -> None:
    body = part(1, 4_000_000)
    async with TcpFaults(files.server.port or 0) as faults:
        sink = HttpSink(f"http://127.0.0.1:{faults.port}/root", user=USER, password=PASSWORD)
        faults.cut_after(max(1, len(body) * tenth // 10))
        with pytest.raises((Unavailable, OutcomeUnknown)):
            await put(sink, "a.csv", body)
        assert files.files == {}
        await put(sink, "a.csv", body)
        assert files.files == {"a.csv": body}
        await sink.close()
