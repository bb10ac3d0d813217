"""Destinations that take files by HTTP PUT."""

import hashlib
from collections.abc import AsyncIterator

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
from holdfast.reports.conformance import SinkConformance
from holdfast.reports.conformance.sink import held, part, put
from holdfast.reports.sinks.http.sink import HttpSink
from simulator.proxies import TcpFaults

USER, PASSWORD = "ann", "secret"
AUTHORIZATION = "Basic YW5uOnNlY3JldA=="


class Files:
    """A web server that takes files, and shows each when all of it has come."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.answer = 0
        self.lies_by = 0
        self.heads = True
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
            if request.headers.get("If-None-Match") == "*" and name in self.files:
                return web.Response(status=412)
            self.files[name] = body
            return web.Response(status=201)
        if request.method == "HEAD" and not self.heads:
            return web.Response(status=405)
        if name not in self.files:
            return web.Response(status=404)
        body = self.files[name]
        headers = {"ETag": f'"{hashlib.sha256(body).hexdigest()}"'}
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


def connect(files: Files, password: str = PASSWORD) -> HttpSink:
    return HttpSink(str(files.server.make_url("/root")), user=USER, password=password)


@pytest.fixture
async def sink(files: Files) -> AsyncIterator[HttpSink]:
    sink = connect(files)
    yield sink
    await sink.close()


class TestHttpSink(SinkConformance):
    @pytest.fixture
    def sink(self, sink: HttpSink) -> HttpSink:
        return sink

    @pytest.fixture
    async def other_sink(self, files: Files) -> AsyncIterator[HttpSink]:
        sink = connect(files)
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
    sink = connect(files, "wrong-secret")
    with pytest.raises(LoginRefused) as caught:
        await put(sink, "a.csv", b"x")
    assert "wrong-secret" not in str(caught.value)
    await sink.close()


async def test_a_server_that_lies_about_sizes_is_not_believed(files: Files, sink: HttpSink) -> None:
    files.lies_by = -1
    with pytest.raises(Damaged, match="2 bytes"):
        await put(sink, "a.csv", b"123")


async def test_a_server_that_tells_no_sizes_is(files: Files, sink: HttpSink) -> None:
    files.heads = False
    await put(sink, "a.csv", b"123")
    assert await held(sink, "a.csv") == b"123"


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
