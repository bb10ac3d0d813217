"""Nodes that die, stop, drain and start again, under load: nothing is lost, no order broken."""

import signal
import time
from itertools import pairwise

import pytest

from tests.nodes.cluster import STREAM, Cluster
from tests.nodes.conftest import MakeCluster

KEYS = [f"cam-{i}" for i in range(8)]
FAIL_OVER_S = 20.0
"""Sooner than anything lapses. (How soon it is, benchmarks tell.)"""

TTL_S = 3.0
FOREVER_S = 60.0


async def owned(cluster: Cluster, name: str) -> list[str]:
    """The keys of a node, which must have some for a test to mean anything."""
    keys = [claim.key.removeprefix(f"{STREAM}/") for claim in await cluster.claims(name)]
    assert keys, f"{name} owns nothing"
    return keys


@pytest.mark.slow
async def test_a_killed_node_is_replaced_on_evidence(make_cluster: MakeCluster) -> None:
    """Neither membership nor visibility lapse within this test: only evidence can help."""
    cluster = make_cluster(ttl_s=FOREVER_S, visibility_s=50.0)
    await cluster.start("a", "b", "c")
    async with cluster.load(KEYS, 100):
        await cluster.until(lambda: all(len(cluster.results[key]) >= 20 for key in KEYS))
        lost = await owned(cluster, "b")
        killed_at = time.time()
        cluster.nodes["b"].signal(signal.SIGKILL)
        await cluster.send_each(KEYS)
        await cluster.until(lambda: all(cluster.results[key][-1].at > killed_at + 0.01 for key in KEYS))
    await cluster.check(alive=["a", "c"])
    for key in lost:
        epoch = max(logged.epoch for logged in cluster.results[key] if logged.at <= killed_at)
        took_s = min(logged.at for logged in cluster.results[key] if logged.epoch > epoch) - killed_at
        assert took_s < FAIL_OVER_S, f"{key} stood still for {took_s:.2f} s"


@pytest.mark.slow
async def test_a_node_stopped_past_its_ttl_commits_nothing_when_it_goes_on(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(ttl_s=TTL_S)
    await cluster.start("a", "b")
    a = cluster.nodes["a"]
    async with cluster.load(KEYS, 100):
        await cluster.until(lambda: all(len(cluster.results[key]) >= 20 for key in KEYS))
        a.order("stop-before-commit")
        await cluster.send_each(KEYS)
        late = await a.stopped_before_commit()
        await cluster.until_members("b")
        await cluster.until_reopened(late)
        a.signal(signal.SIGCONT)
        await a.until_said("joined", times=2)
    await cluster.check(alive=["a", "b"])
    assert await a.metric("holdfast_fenced_total") >= 1
    assert await a.metric("holdfast_memberships_total") == 2


@pytest.mark.nightly
async def test_a_node_stopped_inside_a_transaction_is_killed_and_replaced(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(ttl_s=TTL_S)
    await cluster.start("a", "b")
    a = cluster.nodes["a"]
    async with cluster.load(KEYS, 100):
        await cluster.until(lambda: all(len(cluster.results[key]) >= 20 for key in KEYS))
        await owned(cluster, "a")
        a.order("stop-in-transaction")
        await cluster.send_each(KEYS)
        assert await a.ended() == -signal.SIGKILL
    await cluster.check(alive=["b"])


@pytest.mark.slow
async def test_a_drained_node_hands_over_without_a_gap(make_cluster: MakeCluster) -> None:
    await drained_without_a_gap(make_cluster(ttl_s=FOREVER_S, visibility_s=50.0))


async def drained_without_a_gap(cluster: Cluster) -> None:
    """Drain one of two nodes under load: what it owns goes to the other one at once, and none of it waits for
    a delivery to show again."""
    await cluster.start("a", "b")
    async with cluster.load(KEYS, 100):
        await cluster.until(lambda: all(len(cluster.results[key]) >= 20 for key in KEYS))
        await owned(cluster, "a")
        cluster.nodes["a"].signal(signal.SIGTERM)
        await cluster.send_each(KEYS)
        assert await cluster.nodes["a"].ended() == 0
    await cluster.check(alive=["b"])
    (drained,) = cluster.nodes["a"].said("drained")
    assert drained["left"] == 0
    for key in KEYS:
        times = [logged.at for logged in cluster.results[key]]
        assert max(b - a for a, b in pairwise(times)) < FAIL_OVER_S


@pytest.mark.slow
async def test_all_nodes_die_and_come_again(make_cluster: MakeCluster) -> None:
    """Memberships and deliveries of the dead lapse by themselves where nobody is left to end them."""
    cluster = make_cluster(ttl_s=TTL_S, visibility_s=8.0)
    await cluster.start("a", "b")
    async with cluster.load(KEYS, 100):
        await cluster.until(lambda: all(len(cluster.results[key]) >= 20 for key in KEYS))
        for node in cluster.nodes.values():
            node.signal(signal.SIGKILL)
        for node in cluster.nodes.values():
            assert await node.ended() == -signal.SIGKILL
        await cluster.start("c", "d")
    await cluster.check(alive=["c", "d"])
