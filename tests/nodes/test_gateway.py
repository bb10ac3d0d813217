"""Clients, gateways and nodes as real processes: whatever is hurt, clients that wait see no error, and each
frame is in the state once, in order."""

import asyncio
import signal

import aiohttp
import pytest

from holdfast.gateway.haproxy.binary import find
from tests.nodes.cameras import Cameras
from tests.nodes.conftest import MakeCluster
from tests.nodes.drills import owned

FOREVER_S = 60.0
TTL_S = 3.0
STALL_S = 15.0
"""Shorter than any timeout. (Benchmarks measure how long it really takes: the aim is 0.3 s.)"""


@pytest.mark.slow
async def test_frames_of_a_camera_go_to_one_node_in_order(
    make_cluster: MakeCluster, session: aiohttp.ClientSession
) -> None:
    cluster = make_cluster(ttl_s=FOREVER_S)
    await cluster.start("a", "b", "c")
    cameras = Cameras(session, [await cluster.gateway(), await cluster.gateway()])
    await cameras.shoot()
    cameras.check()
    for camera in cameras.all:
        assert len(set(camera.owners)) == 1
    assert len({camera.owners[0] for camera in cameras.all}) == 3, "all nodes have work"


@pytest.mark.slow
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


@pytest.mark.slow
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
    cameras.check()
    assert all(camera.stall_s < STALL_S for camera in cameras.all)


@pytest.mark.slow
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
    cameras.check()
    assert all(camera.stall_s < STALL_S for camera in cameras.all)


@pytest.mark.nightly
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
    cameras.check()


@pytest.mark.nightly
@pytest.mark.parametrize(
    "data_plane", ["python", pytest.param("haproxy", marks=pytest.mark.skipif(find() is None, reason="none"))]
)
async def test_a_killed_gateway_is_no_error_to_clients_that_ask_another(
    make_cluster: MakeCluster, session: aiohttp.ClientSession, data_plane: str
) -> None:
    cluster = make_cluster(ttl_s=FOREVER_S)
    await cluster.start("a", "b")
    addresses = [await cluster.gateway(data_plane), await cluster.gateway(data_plane)]
    cameras = Cameras(session, addresses, patient=True)
    shooting = asyncio.create_task(cameras.shoot())
    await cameras.until(30)
    cluster.gateways[0].signal(signal.SIGKILL)
    await shooting
    cameras.check()
    assert cameras.retries > 0
