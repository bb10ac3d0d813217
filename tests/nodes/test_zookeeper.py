"""Nodes whose coordinator is ZooKeeper, and what becomes of streams when it, or a node, is hurt."""

import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from simulator.servers import ZooKeeperEnsemble, ZooKeeperServer
from tests.nodes.cluster import Cluster
from tests.nodes.conftest import MakeCluster
from tests.nodes.test_failures import KEYS, drained_without_a_gap, owned

TTL_S = 3.0
LONG_S = 20.0
FOREVER_S = 60.0


@pytest.fixture
def url(zookeeper_server: ZooKeeperServer, tmp_path: Path) -> str:
    """A folder of its own on the server that all share."""
    return f"{zookeeper_server.url}/{tmp_path.name}"


def under_way(cluster: Cluster) -> Callable[[], bool]:
    """True once every stream has some results."""
    return lambda: all(len(cluster.results[key]) >= 20 for key in KEYS)


def caught_up(cluster: Cluster) -> Callable[[], bool]:
    """True once all that was sent by now has results."""
    goals = {key: cluster.sent[key] for key in KEYS}
    return lambda: all(len(cluster.results[key]) >= goal for key, goal in goals.items())


@pytest.mark.nightly
async def test_a_killed_node_is_replaced_on_evidence(make_cluster: MakeCluster, url: str) -> None:
    cluster = make_cluster(coordinator_url=url, ttl_s=FOREVER_S)
    await cluster.start("a", "b", "c")
    async with cluster.load(KEYS, 100):
        await cluster.until(under_way(cluster))
        await owned(cluster, "b")
        cluster.nodes["b"].signal(signal.SIGKILL)
        await cluster.send_each(KEYS)
        await cluster.until(caught_up(cluster))
    await cluster.check(alive=["a", "c"])


@pytest.mark.nightly
async def test_a_node_stopped_past_its_ttl_commits_nothing_when_it_goes_on(
    make_cluster: MakeCluster, url: str
) -> None:
    cluster = make_cluster(coordinator_url=url, ttl_s=TTL_S, visibility_s=6.0)
    await cluster.start("a", "b")
    a = cluster.nodes["a"]
    async with cluster.load(KEYS, 100):
        await cluster.until(under_way(cluster))
        a.order("stop-before-commit")
        await cluster.send_each(KEYS)
        late = await a.stopped_before_commit()
        await cluster.until_members("b")
        await cluster.until_reopened(late)
        a.signal(signal.SIGCONT)
        await a.until_said("joined", times=2)
    await cluster.check(alive=["a", "b"])
    assert await a.metric("holdfast_fenced_total") >= 1


@pytest.mark.nightly
async def test_a_drained_node_hands_over_without_a_gap(make_cluster: MakeCluster, url: str) -> None:
    await drained_without_a_gap(make_cluster(coordinator_url=url, ttl_s=FOREVER_S, visibility_s=50.0))


@pytest.mark.nightly
async def test_the_loss_of_the_leader_is_not_noticed(
    make_cluster: MakeCluster, zookeeper_ensemble: ZooKeeperEnsemble, tmp_path: Path
) -> None:
    cluster = make_cluster(coordinator_url=f"{zookeeper_ensemble.url}/{tmp_path.name}", ttl_s=LONG_S)
    await cluster.start("a", "b")
    async with cluster.load(KEYS, 100):
        await cluster.until(under_way(cluster))
        (await zookeeper_ensemble.led()).kill()
        await cluster.send_each(KEYS)
        await cluster.until(caught_up(cluster))
        await zookeeper_ensemble.heal()
    await cluster.check(alive=["a", "b"])
    assert [len(cluster.nodes[name].said("joined")) for name in "ab"] == [1, 1]


@pytest.mark.nightly
async def test_a_server_that_forgot_everything_is_joined_anew(
    make_cluster: MakeCluster, zookeeper_server: ZooKeeperServer, url: str
) -> None:
    cluster = make_cluster(coordinator_url=url, ttl_s=FOREVER_S)
    await cluster.start("a", "b")
    async with cluster.load(KEYS, 100):
        await cluster.until(under_way(cluster))
        await zookeeper_server.restart(empty=True)
        forgotten_at = time.monotonic()
        for name in "ab":
            await cluster.nodes[name].until_said("joined", times=2)
        assert time.monotonic() - forgotten_at < LONG_S
    await cluster.check(alive=["a", "b"])
