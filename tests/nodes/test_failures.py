"""Nodes on SQLite that die, stop, drain and start again, under load: nothing is lost, no order broken."""

import signal

import pytest

from tests.nodes.conftest import MakeCluster
from tests.nodes.drills import (
    FAIL_OVER_S,
    FOREVER_S,
    KEYS,
    TTL_S,
    drain_one,
    kill_one,
    owned,
    stop_past_ttl,
    under_load,
)


@pytest.mark.slow
async def test_a_killed_node_is_replaced_on_evidence(make_cluster: MakeCluster) -> None:
    """Neither membership nor visibility lapse within this test: only evidence can help."""
    cluster = make_cluster(ttl_s=FOREVER_S, visibility_s=50.0)
    killed_at, lost = await kill_one(cluster, "c")
    for key in lost:
        epoch = max(logged.epoch for logged in cluster.results[key] if logged.at <= killed_at)
        took_s = min(logged.at for logged in cluster.results[key] if logged.epoch > epoch) - killed_at
        assert took_s < FAIL_OVER_S, f"{key} stood still for {took_s:.2f} s"


@pytest.mark.slow
async def test_a_node_stopped_past_its_ttl_commits_nothing_when_it_goes_on(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(ttl_s=TTL_S)
    await stop_past_ttl(cluster)
    assert await cluster.nodes["a"].metric("holdfast_memberships_total") == 2


@pytest.mark.nightly
async def test_a_node_stopped_inside_a_transaction_is_killed_and_replaced(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(ttl_s=TTL_S)
    async with under_load(cluster, "a", "b"):
        await owned(cluster, "a")
        cluster.nodes["a"].order("stop-in-transaction")
        await cluster.send_each(KEYS)
        assert await cluster.nodes["a"].ended() == -signal.SIGKILL
    await cluster.check(alive=["b"])


@pytest.mark.slow
async def test_a_drained_node_hands_over_without_a_gap(make_cluster: MakeCluster) -> None:
    await drain_one(make_cluster(ttl_s=FOREVER_S, visibility_s=50.0))


@pytest.mark.slow
async def test_all_nodes_die_and_come_again(make_cluster: MakeCluster) -> None:
    """Memberships and deliveries of the dead lapse by themselves: no node is left to end them."""
    cluster = make_cluster(ttl_s=TTL_S, visibility_s=8.0)
    async with under_load(cluster, "a", "b"):
        for node in cluster.nodes.values():
            node.signal(signal.SIGKILL)
        for node in cluster.nodes.values():
            assert await node.ended() == -signal.SIGKILL
        await cluster.start("c", "d")
    await cluster.check(alive=["c", "d"])
