"""Clients, gateways and nodes as real processes: whatever is hurt, clients that wait see no error, and each
frame is in the state once, in order."""

import asyncio
import json
import signal
import time
from collections.abc import AsyncIterator
from itertools import pairwise
from typing import Any

import aiohttp
import pytest
from kazoo.client import KazooClient
from tests.nodes.chaos_app import follow
from tests.nodes.cluster import STREAM, until
from tests.nodes.conftest import MakeCluster
from tests.nodes.test_failures import owned

from holdfast.testing.servers import ZooKeeperServer

KEYS = [f"cam-{i}" for i in range(12)]
FRAMES = 120
FOREVER_S = 60.0
TTL_S = 3.0
STALL_S = 3.0
"""Generous: 0.3 s is the aim, on a machine with nothing else to do."""


class Camera:
    """One client: sends its frames one after the other, and keeps what it is told."""

    def __init__(self, key: str) -> None:
        self.key = key
        self.said: list[Any] = []
        self.owners: list[str] = []
        self.at: list[float] = []

    async def shoot(self, session: aiohttp.ClientSession, gateways: list[str], frames: int) -> None:
        """Send frames by one gateway after the other."""
        for n in range(len(self.said), len(self.said) + frames):
            async with session.post(
                f"{gateways[n % len(gateways)]}/process/{self.key}",
                json={"key": self.key, "n": n},
                headers={"X-Seq": str(n), "X-Timeout-Ms": "30000"},
            ) as response:
                body = await response.json(content_type=None)
                assert response.status == 200, (self.key, n, body)
                self.said.append(body)
                self.owners.append(response.headers["X-Owner"])
                self.at.append(time.time())

    def check(self) -> None:
        """Each answer was computed from all frames before, each once."""
        digest = ""
        for n, body in enumerate(self.said):
            digest = follow(digest, n)
            assert (body["n"], body["digest"]) == (n, digest), f"{self.key} at {n}"

    @property
    def stall_s(self) -> float:
        """The longest wait for an answer."""
        return max(b - a for a, b in pairwise(self.at))


class Cameras:
    """All clients of a test."""

    def __init__(self, session: aiohttp.ClientSession, gateways: list[str]) -> None:
        self.session = session
        self.gateways = gateways
        self.all = [Camera(key) for key in KEYS]

    async def shoot(self, frames: int = FRAMES) -> None:
        """Every camera sends so many frames."""
        async with asyncio.TaskGroup() as group:
            for camera in self.all:
                group.create_task(camera.shoot(self.session, self.gateways, frames))

    async def until(self, frames: int) -> None:
        """Until every camera has had so many answers."""
        await until(lambda: all(len(camera.said) >= frames for camera in self.all), f"{frames} answers")


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as made:
        yield made


async def test_frames_of_a_camera_go_to_one_node_in_order(
    make_cluster: MakeCluster, session: aiohttp.ClientSession
) -> None:
    cluster = make_cluster(ttl_s=FOREVER_S)
    await cluster.start("a", "b", "c")
    cameras = Cameras(session, [await cluster.gateway(), await cluster.gateway()])
    await cameras.shoot()
    for camera in cameras.all:
        camera.check()
        assert len(set(camera.owners)) == 1
    assert len({camera.owners[0] for camera in cameras.all}) == 3, "all nodes have work"


async def test_a_repeated_frame_gets_its_stored_result(
    make_cluster: MakeCluster, session: aiohttp.ClientSession
) -> None:
    cluster = make_cluster(ttl_s=FOREVER_S)
    await cluster.start("a")
    address = await cluster.gateway()
    for n, duplicate in [(0, None), (1, None), (0, "true"), (1, "true"), (2, None)]:
        frame = {"json": {"key": "k", "n": n}, "headers": {"X-Seq": str(n)}}
        async with session.post(f"{address}/process/k", **frame) as response:  # type: ignore[arg-type]
            assert (await response.json())["n"] == n
            assert response.headers.get("X-Duplicate") == duplicate
    assert [body["n"] for body in await cluster.until_count("k", 3)] == [0, 1, 2]


async def test_a_killed_owner_is_no_error_to_clients(
    make_cluster: MakeCluster, session: aiohttp.ClientSession
) -> None:
    cluster = make_cluster(ttl_s=FOREVER_S)
    await cluster.start("a", "b", "c")
    cameras = Cameras(session, [await cluster.gateway(), await cluster.gateway()])
    shooting = asyncio.create_task(cameras.shoot())
    await cameras.until(30)
    assert await owned(cluster, "b")
    cluster.nodes["b"].signal(signal.SIGKILL)
    await shooting
    for camera in cameras.all:
        camera.check()
        assert camera.stall_s < STALL_S


async def test_a_drained_node_is_no_error_to_clients(
    make_cluster: MakeCluster, session: aiohttp.ClientSession
) -> None:
    cluster = make_cluster(ttl_s=FOREVER_S)
    await cluster.start("a", "b")
    cameras = Cameras(session, [await cluster.gateway()])
    shooting = asyncio.create_task(cameras.shoot())
    await cameras.until(30)
    assert await owned(cluster, "a")
    cluster.nodes["a"].signal(signal.SIGTERM)
    assert await cluster.nodes["a"].ended() == 0
    await shooting
    for camera in cameras.all:
        camera.check()
        assert camera.stall_s < STALL_S


async def test_an_owner_paused_past_its_membership_is_no_error_to_clients(
    make_cluster: MakeCluster, session: aiohttp.ClientSession
) -> None:
    cluster = make_cluster(ttl_s=TTL_S)
    await cluster.start("a", "b")
    cameras = Cameras(session, [await cluster.gateway()])
    shooting = asyncio.create_task(cameras.shoot())
    await cameras.until(30)
    lost = await owned(cluster, "a")
    a = cluster.nodes["a"]
    a.order("stop-before-commit")
    await a.stopped()
    epochs = {key: cluster.results[key][-1].epoch for key in lost}
    await cluster.until(lambda: all(cluster.results[key][-1].epoch > epochs[key] for key in lost))
    a.signal(signal.SIGCONT)
    await shooting
    for camera in cameras.all:
        camera.check()


async def test_a_killed_gateway_leaves_nothing_undone(
    make_cluster: MakeCluster, session: aiohttp.ClientSession
) -> None:
    cluster = make_cluster(ttl_s=FOREVER_S)
    await cluster.start("a")
    first, second = await cluster.gateway(), await cluster.gateway()
    cameras = Cameras(session, [first])
    shooting = asyncio.create_task(cameras.shoot())
    await cameras.until(30)
    cluster.gateways[0].signal(signal.SIGKILL)
    with pytest.raises(ExceptionGroup):
        await shooting
    cameras.gateways = [second]
    await cameras.shoot(30)
    for camera in cameras.all:
        camera.check()


# --- on ZooKeeper, in the layout that other programs know


async def test_others_find_the_owner_of_a_stream_and_are_respected(
    make_cluster: MakeCluster, session: aiohttp.ClientSession
) -> None:
    """A client that knows only the layout reads who owns a stream; what it claims itself, no node takes."""
    async with ZooKeeperServer() as server:
        cluster = make_cluster(ttl_s=6.0, coordinator_url=f"{server.url}?stream={STREAM}")
        await cluster.start("a", "b")
        address = await cluster.gateway()
        other = KazooClient(server.url.partition("://")[2])
        await asyncio.to_thread(other.start)
        try:
            camera = Camera("cam-1")
            await camera.shoot(session, [address], 5)
            camera.check()
            services = await asyncio.to_thread(other.get_children, "/services")
            assert len(services) == 2
            assert all(name.startswith("worker-") for name in services)
            path = (await asyncio.to_thread(other.get, "/tasks/cam-1"))[0].decode()
            owner = json.loads((await asyncio.to_thread(other.get, path))[0])
            async with session.get(f"http://{owner['host']}:{owner['port']}/healthz") as response:
                assert response.status == 200
            theirs = await asyncio.to_thread(
                other.create, "/services/worker-", b'{"host": "127.0.0.1", "port": 9}', None, True, True, True
            )
            await asyncio.to_thread(other.create, "/tasks/theirs", theirs.encode(), None, True)
            frame: dict[str, Any] = {"json": {"key": "theirs", "n": 0}, "headers": {"X-Timeout-Ms": "1500"}}
            async with session.post(f"{address}/process/theirs", **frame) as response:
                assert response.status == 503
            assert await cluster.state.peek(f"{STREAM}/theirs") is None
        finally:
            await asyncio.to_thread(other.stop)
            await asyncio.to_thread(other.close)


async def test_zookeeper_may_go_away_and_known_streams_flow_on(
    make_cluster: MakeCluster, session: aiohttp.ClientSession
) -> None:
    async with ZooKeeperServer() as server:
        cluster = make_cluster(ttl_s=10.0, coordinator_url=server.url)
        await cluster.start("a", "b")
        cameras = Cameras(session, [await cluster.gateway()])
        await cameras.shoot(20)
        server.pause()
        await cameras.shoot(20)
        frame: dict[str, Any] = {"json": {"key": "new", "n": 0}, "headers": {"X-Timeout-Ms": "1000"}}
        async with session.post(f"{cameras.gateways[0]}/process/new", **frame) as response:
            assert response.status == 503
            assert "coordinator" in (await response.json(content_type=None))["detail"]
        server.resume()
        await cameras.shoot(20)
        for camera in cameras.all:
            camera.check()
