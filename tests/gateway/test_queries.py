"""``/query/{stream}/{key}`` at a node and at gateways before it."""

import json
from collections.abc import Iterator

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from tests.gateway.surface import LIMIT, Said, Surface, planes, surface
from tests.gateway.test_openapi import QUERY, check

EACH_SERVER = pytest.mark.parametrize("server", ["node", *planes()])


@pytest.fixture(scope="module")
def servers() -> Iterator[Surface]:
    with surface() as made:
        yield made


def ask(servers: Surface, server: str, method: str, path: str, body: bytes = b"", **headers: str) -> Said:
    lines = [f"{method} {path} HTTP/1.1", "Host: localhost", "Connection: close"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    if method == "POST":
        lines.append(f"Content-Length: {len(body)}")
    (said,) = servers.exchange(server, "\r\n".join([*lines, "", ""]).encode() + body)
    check(QUERY, method.lower(), said)
    return said


def kind(said: Said) -> tuple[int, str]:
    return said.status, json.loads(said.body)["type"].rpartition(":")[2]


@EACH_SERVER
def test_a_get_query_asks_by_its_parameters(servers: Surface, server: str) -> None:
    said = ask(servers, server, "GET", "/query/json/cam%2F1?since=5&stream=json", X_Stream="raw")
    assert said.status == 200
    assert json.loads(said.body) == {"key": "json/cam/1", "asked": {"since": "5", "stream": "json"}}
    assert (said.headers["x-epoch"], said.headers["x-commit-number"]) == ("7", "12")
    assert json.loads(ask(servers, server, "GET", "/query/raw/a").body) == {"key": "raw/a", "asked": None}


@EACH_SERVER
def test_a_post_query_asks_by_its_body(servers: Surface, server: str) -> None:
    body = b'{"since": [5, null]}'
    said = ask(servers, server, "POST", "/query/json/a", body, Content_Type="application/json")
    assert json.loads(said.body) == {"key": "json/a", "asked": {"since": [5, None]}}
    assert servers.taken == [], "a query is no message"


@EACH_SERVER
def test_a_bad_query_gets_its_status_and_type(servers: Surface, server: str) -> None:
    def get(path: str) -> tuple[int, str]:
        return kind(ask(servers, server, "GET", path))

    def post(body: bytes, content_type: str = "application/json") -> tuple[int, str]:
        return kind(ask(servers, server, "POST", "/query/json/a", body, Content_Type=content_type))

    assert get("/query/free/a") == (404, "no-query")
    assert get("/query/other/a") == (404, "no-stream")
    assert get("/query/json") == get("/query/json/") == get("/query/json/a/b") == (404, "no-path")
    assert get("/query/json/%ff") == (400, "invalid")
    assert get("/query/json/a?x=1&x=2") == (400, "invalid")
    assert post(b"{") == post(b"") == (400, "invalid")
    assert post(b"{}", "text/plain") == (415, "type")
    assert post(b'"raise"') == (422, "query-failed")
    assert post(b'"%s"' % (b"x" * LIMIT)) == (413, "too-large")


async def test_a_node_asks_for_its_secret() -> None:
    made = web.Application()
    made.add_routes(Surface().routes("of-the-nodes"))
    async with TestClient(TestServer(made)) as client:
        async with client.get("/query/json/a") as response:
            assert response.status == 401
        async with client.get("/query/json/a", headers={"Authorization": "Bearer of-the-nodes"}) as response:
            assert response.status == 200
