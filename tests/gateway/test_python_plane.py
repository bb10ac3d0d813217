"""The data plane in Python: which requests reach the forwarder, and as what."""

import gzip
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, cast

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer
from multidict import CIMultiDict

from holdfast.cluster.view import View
from holdfast.gateway.forwarder import Forwarder, Reply
from holdfast.gateway.python_plane import PythonPlane
from holdfast.ports.coordinator import Load, Member
from holdfast.system.clock import SystemClock
from tests.gateway.surface import planes, surface


class Waiting:
    """Stands for the forwarder, which waits for nodes as long as a request may. Answers with the full key,
    unless it has another answer."""

    def __init__(self) -> None:
        self.sent: list[CIMultiDict[str]] = []
        self.answer: Reply | None = None

    async def forward(self, key: str, path: str, headers: Mapping[str, str], *_: Any, **__: Any) -> Reply:
        self.sent.append(CIMultiDict(headers))
        return self.answer or Reply(200, CIMultiDict(), key.encode(), "a")


def serve(
    forwarder: Waiting, members: dict[str, Member] | None = None
) -> TestClient[web.Request, web.Application]:
    """A plane before a node with two streams, or before these members."""
    two = {"a": Member("a", "a", "http://a", Load(serves=("frames", "orders")))}
    plane = PythonPlane(
        cast("Forwarder", forwarder),
        cast("View", SimpleNamespace(members=two if members is None else members)),
        SystemClock(),
        not_ready=lambda: "",
        max_body_bytes=1024,
    )
    return TestClient(TestServer(plane.app()))


async def test_requests_wait_for_nodes_that_all_have_to_join_again() -> None:
    """As after an outage of the coordinator that outlasted every membership."""
    members = {"a": Member("a", "a", "http://a", Load(serves=("frames",)))}
    async with serve(Waiting(), members) as client:

        async def ask() -> tuple[int, str]:
            async with client.post("/process/cam-1", data=b"{}") as response:
                return response.status, await response.text()

        assert await ask() == (200, "frames/cam-1")
        members.clear()
        assert await ask() == (200, "frames/cam-1"), "known from before"


@pytest.mark.parametrize("headers", [{}, {"x-stream": ""}])
async def test_the_node_is_told_the_stream_that_a_parameter_names(headers: dict[str, str]) -> None:
    forwarder = Waiting()
    async with (
        serve(forwarder) as client,
        client.post("/process/cam-1?stream=orders", data=b"{}", headers=headers) as response,
    ):
        assert await response.text() == "orders/cam-1"
    assert forwarder.sent[0].getall("X-Stream") == ["orders"]


@pytest.mark.parametrize("server", ["node", *planes()])
def test_a_stream_is_found_that_a_parameter_names(server: str) -> None:
    """By nodes, and by gateways that see its key for the first time, and then again."""
    request = b"POST /process/cam-1?stream=free HTTP/1.1\r\nHost: [::1]\r\nContent-Length: 1\r\n"
    with surface() as servers:
        for _ in range(2):
            [said] = servers.exchange(server, request + b"Connection: close\r\n\r\nx")
            assert said.status == 200, said.body
        assert [(taken.stream, taken.key) for taken in servers.taken] == [("free", "cam-1")] * 2


async def test_an_answer_that_is_packed_says_so() -> None:
    """As that of another program to which its requests are forwarded."""
    forwarder = Waiting()
    packed = CIMultiDict({"Content-Type": "text/plain", "Content-Encoding": "gzip"})
    forwarder.answer = Reply(200, packed, gzip.compress(b"the answer"), "a")
    async with (
        serve(forwarder) as client,
        client.post("/process/cam-1?stream=orders", data=b"{}") as response,
    ):
        assert await response.text() == "the answer"


async def test_only_a_client_that_can_unpack_an_answer_gets_a_packed_one() -> None:
    forwarder = Waiting()
    async with serve(forwarder) as client:
        path = "/process/cam-1?stream=orders"
        await client.post(path, data=b"{}", headers={"accept-encoding": "br"})
        await client.post(path, data=b"{}", skip_auto_headers=["Accept-Encoding"])
        async with client.ws_connect(path, headers={"Accept-Encoding": "br"}) as socket:
            await socket.send_bytes(b"frame")
            await socket.receive()
    assert [sent.getall("Accept-Encoding") for sent in forwarder.sent] == [["br"], ["identity"], ["identity"]]
