"""Gateways and nodes whose coordinator is ZooKeeper, in the layout that other programs know, and clients that
see no error whatever becomes of it."""

import asyncio
import json
import signal
import time
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from kazoo.client import KazooClient

from simulator.proxies import TcpFaults
from simulator.servers import ZooKeeperEnsemble, ZooKeeperServer
from tests.nodes.cameras import Camera, Cameras
from tests.nodes.cluster import LOOK_S, PATIENCE_S, STREAM
from tests.nodes.conftest import MakeCluster
from tests.nodes.drills import owned

TTL_S = 10.0
LONG_S = 30.0
SHORT_S = 3.0


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


@pytest.mark.slow
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


@pytest.mark.nightly
@pytest.mark.parametrize("data_plane", ["python", "haproxy"])
async def test_workers_of_another_program_run_beside_nodes(
    make_cluster: MakeCluster, session: aiohttp.ClientSession, url: str, data_plane: str
) -> None:
    """They take streams and release them; requests follow them, whoever owned the stream before."""
    served: list[dict[str, str]] = []

    async def serve(request: web.Request) -> web.Response:
        served.append(dict(request.headers))
        return web.json_response({"worker": request.match_info["id"], "n": (await request.json())["n"]})

    worker = web.Application()
    worker.add_routes([web.post("/process/{id}", serve)])
    server = TestServer(worker)
    await server.start_server()
    cluster = make_cluster(
        ttl_s=TTL_S,
        coordinator_url=f"{url}?stream={STREAM}",
        foreign_streams="forward",
        peer_secret="a secret of the nodes",
    )
    await cluster.start("a", "b")
    address = await cluster.gateway(data_plane)
    other = KazooClient(url.partition("://")[2])
    await asyncio.to_thread(other.start)
    data = json.dumps({"host": server.host, "port": server.port, "timestamp": 1_700_000_000_000}).encode()

    async def ask(key: str, n: int) -> Any:
        message, headers = {"key": key, "n": n}, {"X-Seq": str(n), "X-Timeout-Ms": "20000"}
        async with session.post(f"{address}/process/{key}", json=message, headers=headers) as response:
            assert response.status == 200, await response.text()
            return await response.json(content_type=None)

    async def until_served_by(key: str, n: int, worker: bool) -> None:
        """Within a second; a busy machine may take a few."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                if ("worker" in await ask(key, n)) is worker:
                    return
                await asyncio.sleep(LOOK_S)

    try:
        theirs = await asyncio.to_thread(other.create, "/services/worker-", data, None, True, True, True)
        await asyncio.to_thread(other.create, "/tasks/theirs", theirs.encode(), None, True)
        assert await ask("theirs", 0) == {"worker": "theirs", "n": 0}
        assert not any(name.lower() == "authorization" for name in served[0])
        for n in range(3):
            assert (await ask("cam-1", n))["n"] == n
        await asyncio.to_thread(steal, other, "/tasks/cam-1", theirs)
        await until_served_by("cam-1", 2, worker=True)
        for key in ("cam-1", "theirs"):
            await asyncio.to_thread(other.delete, f"/tasks/{key}")
        await until_served_by("theirs", 0, worker=False)
        await until_served_by("cam-1", 3, worker=False)
    finally:
        await asyncio.to_thread(other.stop)
        await asyncio.to_thread(other.close)
        await server.close()


def steal(other: KazooClient, claim: str, path: str) -> None:
    """Take a claim away from whoever has it."""
    transaction = other.transaction()
    transaction.delete(claim)
    transaction.create(claim, path.encode(), ephemeral=True)
    assert all(not isinstance(result, Exception) for result in transaction.commit())


@pytest.mark.nightly
async def test_zookeeper_may_go_away_and_known_streams_flow_on(
    make_cluster: MakeCluster, session: aiohttp.ClientSession, zookeeper_server: ZooKeeperServer, url: str
) -> None:
    """Also past every membership: the commits show that no other node has opened them."""
    cluster = make_cluster(ttl_s=SHORT_S, coordinator_url=url)
    await cluster.start("a", "b")
    cameras = Cameras(session, [await cluster.gateway()])
    await cameras.shoot(20)
    zookeeper_server.pause()
    silent_until = time.monotonic() + 3 * SHORT_S
    while time.monotonic() < silent_until:
        await cameras.shoot(5)
    assert "coordinator" in await refused(session, cameras.gateways[0], "new")
    zookeeper_server.resume()
    await cameras.shoot(20)
    cameras.check()


@pytest.mark.nightly
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


@pytest.mark.nightly
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
