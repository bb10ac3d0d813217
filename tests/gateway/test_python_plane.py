"""The data plane in Python: which requests reach the forwarder."""

from types import SimpleNamespace
from typing import Any, cast

from aiohttp.test_utils import TestClient, TestServer
from multidict import CIMultiDict

from holdfast.cluster.view import View
from holdfast.gateway.forwarder import Forwarder, Reply
from holdfast.gateway.python_plane import Plane
from holdfast.ports.coordinator import Load, Member
from holdfast.system.clock import SystemClock


class Waiting:
    """Stands for the forwarder, which waits for nodes as long as a request may."""

    async def forward(self, key: str, *_: Any, **__: Any) -> Reply:
        return Reply(200, CIMultiDict(), key.encode(), "a")


async def test_requests_wait_for_nodes_that_all_have_to_join_again() -> None:
    """As after an outage of the coordinator that outlasted every membership."""
    members = {"a": Member("a", "a", "http://a", Load(serves=("frames",)))}
    plane = Plane(
        cast("Forwarder", Waiting()),
        cast("View", SimpleNamespace(members=members)),
        SystemClock(),
        ready=lambda: "",
        max_body_bytes=1024,
    )
    async with TestClient(TestServer(plane.app())) as client:

        async def ask() -> tuple[int, str]:
            async with client.post("/process/cam-1", data=b"{}") as response:
                return response.status, await response.text()

        assert await ask() == (200, "frames/cam-1")
        members.clear()
        assert await ask() == (200, "frames/cam-1"), "known from before"
