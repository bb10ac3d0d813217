"""``/query/{stream}/{key}`` at a node and at gateways before it."""

import json
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from holdfast.cluster.view import View
from holdfast.errors import Unavailable
from holdfast.gateway.assigner import Assigner
from holdfast.gateway.query_routes import QueryRoutes
from holdfast.gateway.routes import Routes
from holdfast.ports.coordinator import Claim, Load, Member
from holdfast.services.memory.coordinator import MemoryCoordinator
from holdfast.streams.queries import Queries
from holdfast.system.clock import SystemClock
from tests.gateway.surface import LIMIT, Said, Surface, app, planes, surface
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
    assert servers.taken == [], "no message came of it"


@EACH_SERVER
def test_what_can_t_be_asked_is_told(servers: Surface, server: str) -> None:
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
    queries = QueryRoutes(
        app().streams, queries=cast("Queries", Surface()), max_body_bytes=LIMIT, secret="of-the-nodes"
    )
    made = web.Application()
    made.add_routes(queries.routes())
    async with TestClient(TestServer(made)) as client:
        async with client.get("/query/json/a") as response:
            assert response.status == 401
        async with client.get("/query/json/a", headers={"Authorization": "Bearer of-the-nodes"}) as response:
            assert response.status == 200


def reading(members: dict[str, Member]) -> tuple[Assigner, Routes]:
    routes, view = Routes(), cast("View", SimpleNamespace(members=members))
    return Assigner(MemoryCoordinator(SystemClock()), view, routes), routes


def test_a_query_goes_to_the_owner_and_after_failures_to_others() -> None:
    def member(name: str, **given: Any) -> Member:
        return Member(name, name, f"http://{name}", Load(serves=("s",)), **given)

    members = {name: member(name) for name in "abc"}
    members["other"] = Member("other", "other", "http://other", Load(serves=("t",)))
    members["foreign"] = member("foreign", foreign=True)
    assigner, routes = reading(members)
    assert {assigner.reader("s/k", n).id for n in range(3)} == {"a", "b", "c"}
    assert {assigner.reader(f"s/{n}", 0).id for n in range(50)} == {"a", "b", "c"}, "spread by key"
    for name in "abc":
        routes.claimed(Claim("s/k", name, 1))
        assert assigner.reader("s/k", 0).id == assigner.reader("s/k", 3).id == name
        assert assigner.reader("s/k", 1).id != name
    with pytest.raises(Unavailable, match="no node is there"):
        reading({})[0].reader("s/k", 0)
