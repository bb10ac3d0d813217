"""The forwarder: one request until it is answered, whichever nodes leave meanwhile."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Self, cast

import msgspec
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from holdfast.cluster.view import View
from holdfast.errors import TargetAway, Unavailable
from holdfast.gateway.assigner import Assigner
from holdfast.gateway.forwarder import Forwarder
from holdfast.http import problem
from holdfast.http.tls import PeerTls
from holdfast.ports.coordinator import Member
from holdfast.rules.cluster.gateway import GatewayRoute, Routes
from holdfast.system.clock import SystemClock
from simulator.servers import certificate

TIMEOUT_S = 10.0


class Nodes:
    """Three nodes, one of which never answers, and one owns nothing; stands for assigner and view too."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.routes = Routes()
        self.owner = "silent"
        self.members: dict[str, Member] = {}
        self.doubted: list[str] = []
        self.cut_off = False
        self.headers: list[Mapping[str, str]] = []

    async def resolve(self, key: str) -> Member:
        """The owner of every key, as this gateway knows it."""
        route = self.routes.get(key)
        return self.members[route.member if route is not None else self.owner]

    @property
    def placing(self) -> Self:
        """This stands for the placing too."""
        return self

    def another(self, key: str, member: str) -> Member | None:
        """Return another member than that."""
        return next((other for other in self.members.values() if other.id != member), None)

    async def suspect(self, member: str) -> None:
        """A connection to it failed."""
        self.doubted.append(member)
        if self.cut_off:
            await asyncio.Event().wait()
        self.members.pop(member)
        self.owner = "good"

    async def silent(self, request: web.Request) -> web.Response:
        """Takes a request, and that is all."""
        await request.read()
        self.asked.set()
        await asyncio.Event().wait()
        raise AssertionError

    async def knowing(self, request: web.Request) -> web.Response:
        """Has just asked the coordinator who the owner is."""
        return web.Response(status=421, headers={"X-Owner": "good"})

    async def stranded(self, request: web.Request) -> web.Response:
        """Has lost a stream, and doesn't know who has it."""
        return web.Response(status=421)

    async def sending(self, request: web.Request) -> web.Response:
        """Sends to another server, as what took a node's address could."""
        raise web.HTTPTemporaryRedirect(f"{self.members['good'].address}{request.path}")

    async def away(self, request: web.Request) -> web.Response:
        """Owns a stream whose effects no target takes."""
        return problem.response(TargetAway("its effects wait for 'alert'", 30.0))

    async def good(self, request: web.Request) -> web.Response:
        """Answers with what it got."""
        self.headers.append(request.headers)
        return web.Response(body=await request.read(), headers={"X-Owner": "good", "X-Epoch": "2"})


@pytest.fixture
async def nodes() -> AsyncIterator[Nodes]:
    made, servers = Nodes(), []
    for name in ("silent", "knowing", "stranded", "sending", "away", "good"):
        app = web.Application()
        app.add_routes([web.post("/process/{id}", getattr(made, name))])
        server = TestServer(app)
        await server.start_server()
        servers.append(server)
        made.members[name] = Member(name, name, str(server.make_url("")).rstrip("/"))
    yield made
    for server in servers:
        await server.close()


@pytest.fixture
async def forwarder(nodes: Nodes) -> AsyncIterator[Forwarder]:
    made = Forwarder(cast("Assigner", nodes), nodes.routes, cast("View", nodes), SystemClock())
    yield made
    await made.close()


async def forward(forwarder: Forwarder, body: bytes) -> bytes:
    return (await forwarder.forward("s/k", "/process/k", {}, body, TIMEOUT_S)).body


async def test_what_a_node_owes_that_left_is_asked_of_the_next(nodes: Nodes, forwarder: Forwarder) -> None:
    first = asyncio.create_task(forward(forwarder, b"1"))
    await nodes.asked.wait()
    nodes.owner = "good"
    forwarder.left("silent")
    assert await first == b"1"
    assert forwarder.retries == 1
    assert nodes.doubted == []


async def test_also_if_another_is_just_being_sent_there(nodes: Nodes, forwarder: Forwarder) -> None:
    first = asyncio.create_task(forward(forwarder, b"1"))
    await nodes.asked.wait()
    forwarder.left("silent")
    nodes.asked.clear()
    second = asyncio.create_task(forward(forwarder, b"2"))  # whose node was found before the news
    await nodes.asked.wait()
    nodes.owner = "good"
    forwarder.left("silent")
    assert (await first, await second) == (b"1", b"2")


async def test_a_route_to_who_owns_a_stream_no_more_is_asked_for_again(
    nodes: Nodes, forwarder: Forwarder
) -> None:
    nodes.owner = "good"
    assert nodes.routes.answered("s/k", "stranded", 1)
    assert await forward(forwarder, b"1") == b"1"
    assert nodes.routes.get("s/k") == GatewayRoute("good", 2)


async def test_a_client_that_leaves_takes_its_request_along(nodes: Nodes, forwarder: Forwarder) -> None:
    asking = asyncio.create_task(forward(forwarder, b"1"))
    await nodes.asked.wait()
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert forwarder.retries == 0


async def test_a_redirect_takes_no_request_along_with_its_secret(nodes: Nodes, forwarder: Forwarder) -> None:
    nodes.owner = "sending"
    said = await forwarder.forward("s/k", "/process/k", {"Authorization": "Bearer x"}, b"1", TIMEOUT_S)
    assert said.status == 307
    assert nodes.headers == []


async def test_a_stream_whose_target_is_away_is_told_at_once(nodes: Nodes, forwarder: Forwarder) -> None:
    nodes.owner = "away"
    said = await forwarder.forward("s/k", "/process/k", {}, b"1", TIMEOUT_S)
    assert (said.status, said.headers["Retry-After"]) == (503, "30")
    assert forwarder.retries == 0


async def test_a_connection_that_breaks_is_a_reason_to_look(nodes: Nodes, forwarder: Forwarder) -> None:
    nodes.members["silent"] = Member("silent", "silent", "http://127.0.0.1:9")
    assert await forward(forwarder, b"1") == b"1"
    assert nodes.doubted == ["silent"]


async def test_who_is_cut_off_asks_another_node_than_the_one_that_can_not_be_reached(
    nodes: Nodes, forwarder: Forwarder
) -> None:
    """The coordinator is unreachable too: it neither learns of the death nor names the next owner."""
    nodes.cut_off = True
    nodes.members["silent"] = Member("silent", "silent", "http://127.0.0.1:9")
    nodes.routes.answered("s/k", "silent", 7)
    assert await forward(forwarder, b"1") == b"1"
    assert nodes.doubted == ["silent"]
    assert (forwarder.retries, nodes.routes.get("s/k")) == (2, GatewayRoute("good", 2))


async def test_where_nodes_speak_tls_none_is_asked_in_the_clear(nodes: Nodes, tmp_path: Path) -> None:
    cert, key = certificate.make(tmp_path)
    made = Forwarder(
        cast("Assigner", nodes),
        nodes.routes,
        cast("View", nodes),
        SystemClock(),
        secret="s" * 16,
        tls=PeerTls(cert, key, cert),
    )
    nodes.owner = "good"
    with pytest.raises(Unavailable, match="peer_tls_ca"):
        await made.forward("s/k", "/process/k", {}, b"frame", 0.2)
    assert not nodes.asked.is_set()
    assert not nodes.headers
    good = nodes.members["good"]
    nodes.members["good"] = msgspec.structs.replace(good, foreign=True)
    assert await forward(made, b"frame") == b"frame", "another program gets no secret"
    assert "Authorization" not in nodes.headers[0]
    await made.close()


async def test_the_name_of_the_nodes_is_asked_of_no_other_program(nodes: Nodes, tmp_path: Path) -> None:
    cert, key = certificate.make(tmp_path)
    tls = PeerTls(cert, key, cert, "nodes.example")
    app = web.Application()
    app.add_routes([web.post("/process/{id}", nodes.good)])
    server = TestServer(app, scheme="https")
    await server.start_server(ssl=tls.server())
    made = Forwarder(
        cast("Assigner", nodes), nodes.routes, cast("View", nodes), SystemClock(), secret="s" * 16, tls=tls
    )
    address = str(server.make_url("")).rstrip("/")
    nodes.members["good"] = Member("good", "good", address, foreign=True)
    nodes.owner = "good"
    assert await forward(made, b"frame") == b"frame"
    await made.close()
    await server.close()
