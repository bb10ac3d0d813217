"""Nodes whose coordinator is ZooKeeper, and streams survive damage to it and to nodes."""

import time
from pathlib import Path

import pytest

from simulator.servers import ZooKeeperEnsemble, ZooKeeperServer
from tests.nodes.conftest import MakeCluster
from tests.nodes.drills import FOREVER_S, KEYS, TTL_S, drain_one, kill_one, stop_past_ttl, under_load

LONG_S = 20.0


@pytest.fixture
def url(zookeeper_server: ZooKeeperServer, tmp_path: Path) -> str:
    """A folder of its own on the server that all share."""
    return f"{zookeeper_server.url}/{tmp_path.name}"


@pytest.mark.nightly
async def test_a_killed_node_is_replaced_on_evidence(make_cluster: MakeCluster, url: str) -> None:
    await kill_one(make_cluster(coordinator_url=url, ttl_s=FOREVER_S), "c")


@pytest.mark.nightly
async def test_a_node_stopped_past_its_ttl_commits_nothing_when_it_goes_on(
    make_cluster: MakeCluster, url: str
) -> None:
    await stop_past_ttl(make_cluster(coordinator_url=url, ttl_s=TTL_S, visibility_s=6.0))


@pytest.mark.nightly
async def test_a_drained_node_hands_over_without_a_gap(make_cluster: MakeCluster, url: str) -> None:
    await drain_one(make_cluster(coordinator_url=url, ttl_s=FOREVER_S, visibility_s=50.0))


@pytest.mark.nightly
async def test_the_loss_of_the_leader_is_not_noticed(
    make_cluster: MakeCluster, zookeeper_ensemble: ZooKeeperEnsemble, tmp_path: Path
) -> None:
    cluster = make_cluster(coordinator_url=f"{zookeeper_ensemble.url}/{tmp_path.name}", ttl_s=LONG_S)
    async with under_load(cluster, "a", "b"):
        (await zookeeper_ensemble.led()).kill()
        await cluster.send_each(KEYS)
        goals = {key: cluster.sent[key] for key in KEYS}
        await cluster.until(lambda: all(len(cluster.results[key]) >= goal for key, goal in goals.items()))
        await zookeeper_ensemble.heal()
    await cluster.check(alive=["a", "b"])
    assert [len(cluster.nodes[name].said("joined")) for name in "ab"] == [1, 1]


@pytest.mark.nightly
async def test_a_server_that_forgot_everything_is_joined_anew(
    make_cluster: MakeCluster, zookeeper_server: ZooKeeperServer, url: str
) -> None:
    cluster = make_cluster(coordinator_url=url, ttl_s=FOREVER_S)
    async with under_load(cluster, "a", "b"):
        await zookeeper_server.restart(empty=True)
        forgotten_at = time.monotonic()
        for name in "ab":
            await cluster.nodes[name].until_said("joined", times=2)
        assert time.monotonic() - forgotten_at < LONG_S
    await cluster.check(alive=["a", "b"])
