"""Gateways and nodes whose coordinator is ZooKeeper, in the layout that other programs know, and clients that
see no error whatever becomes of it."""

import asyncio
import json
import signal
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from kazoo.client import KazooClient
from tests.nodes.cameras import Camera, Cameras
from tests.nodes.cluster import STREAM
from tests.nodes.conftest import MakeCluster
from tests.nodes.test_failures import owned

from holdfast.testing.faults import TcpFaults
from holdfast.testing.servers import ZooKeeperEnsemble, ZooKeeperServer

TTL_S = 10.0
LONG_S = 30.0


@pytest.fixture
def url(zookeeper_server: ZooKeeperServer, tmp_path: Path) -> str:
    """A folder of its own on the server that all share."""
    return f"zookeeper://{zookeeper_server.address}/{tmp_path.name}"


async def refused(session: aiohttp.ClientSession, gateway: str, key: str) -> str:
    """Why a gateway doesn't take a new stream."""
    frame: dict[str, Any] = {"json": {"key": key, "n": 0}, "headers": {"X-Timeout-Ms": "1000"}}
    async with session.post(f"{gateway}/process/{key}", **frame) as response:
        assert (response.status, response.headers["Retry-After"]) == (503, "1")
        reason: str = (await response.json(content_type=None))["detail"]
        return reason


async def test_others_find_the_owner_of_a_stream_and_are_respected(
    make_cluster: MakeCluster, session: aiohttp.ClientSession, url: str
) -> None:
    """A client that knows only the layout reads who owns a stream; what it claims itself, no node takes."""
    cluster = make_cluster(ttl_s=TTL_S, coordinator_url=f"{url}?stream={STREAM}")
    await cluster.start("a", "b")
    address = await cluster.gateway()
    other = KazooClient(url.partition("://")[2])
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
        await refused(session, address, "theirs")
        assert await cluster.state.peek(f"{STREAM}/theirs") is None
    finally:
        await asyncio.to_thread(other.stop)
        await asyncio.to_thread(other.close)


async def test_zookeeper_may_go_away_and_known_streams_flow_on(
    make_cluster: MakeCluster, session: aiohttp.ClientSession, zookeeper_server: ZooKeeperServer, url: str
) -> None:
    cluster = make_cluster(ttl_s=TTL_S, coordinator_url=url)
    await cluster.start("a", "b")
    cameras = Cameras(session, [await cluster.gateway()])
    await cameras.shoot(20)
    zookeeper_server.pause()
    await cameras.shoot(20)
    assert "coordinator" in await refused(session, cameras.gateways[0], "new")
    zookeeper_server.resume()
    await cameras.shoot(20)
    cameras.check()


async def test_a_gateway_that_is_cut_off_goes_by_the_word_of_nodes(
    make_cluster: MakeCluster, session: aiohttp.ClientSession, zookeeper_server: ZooKeeperServer, url: str
) -> None:
    """A node is drained meanwhile. Another gateway sees where its streams go."""
    async with TcpFaults(zookeeper_server.port) as wire:
        theirs = url.replace(zookeeper_server.address, f"{wire.host}:{wire.port}")
        cluster = make_cluster(ttl_s=TTL_S, coordinator_url=url)
        await cluster.start("a", "b", "c")
        cut_off, whole = await cluster.gateway(coordinator_url=theirs), await cluster.gateway()
        cameras = Cameras(session, [cut_off, whole], patient=True, timeout_s=2.0)
        await cameras.shoot(20)
        wire.freeze()
        cameras.gateways = [cut_off]
        await cameras.shoot(10)
        assert cameras.retries == 0
        fresh = Camera("taken by a node, for all that it knows")
        await fresh.shoot(session, [cut_off, whole], 6)
        fresh.check()
        cameras.gateways = [cut_off, whole]
        shooting = asyncio.create_task(cameras.shoot(60))
        await cameras.more(5)
        assert await owned(cluster, "a")
        cluster.nodes["a"].signal(signal.SIGTERM)
        assert await cluster.nodes["a"].ended() == 0
        await shooting
        cameras.check()
        wire.thaw()
        fresh = Camera("new")
        await fresh.shoot(session, [cut_off], 5)
        fresh.check()


async def test_servers_of_zookeeper_die_one_then_all_and_come_back(
    make_cluster: MakeCluster,
    session: aiohttp.ClientSession,
    zookeeper_ensemble: ZooKeeperEnsemble,
    tmp_path: Path,
) -> None:
    """Memberships outlast it: no client sees an error. A node that dies afterwards is replaced."""
    servers = ",".join(server.address for server in zookeeper_ensemble.servers)
    cluster = make_cluster(ttl_s=LONG_S, coordinator_url=f"zookeeper://{servers}/{tmp_path.name}")
    await cluster.start("a", "b")
    addresses = [await cluster.gateway(), await cluster.gateway()]
    cameras = Cameras(session, addresses)
    shooting = asyncio.create_task(cameras.shoot(100))
    await cameras.more(10)
    (await zookeeper_ensemble.led()).kill()
    await cameras.more(20)
    for server in zookeeper_ensemble.servers:
        server.kill()
    await cameras.more(20)
    assert "coordinator" in await refused(session, addresses[0], "new")
    await zookeeper_ensemble.heal()
    await zookeeper_ensemble.led()
    await shooting
    cameras.check()
    fresh = Camera("new", patient=True)
    await fresh.shoot(session, addresses, 5)
    assert await owned(cluster, "a")
    cluster.nodes["a"].signal(signal.SIGKILL)
    await cameras.shoot(20)
    cameras.check()
    assert [len(cluster.nodes[name].said("joined")) for name in "ab"] == [1, 1]
