"""Streams that act, on nodes that die: every effect reaches its target, in order, and no timer is lost."""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any

import psycopg
import pytest

from holdfast.tasks.names import event_queue, task_queue
from simulator.servers import PostgresqlServer, RedisServer
from tests.nodes.cluster import STREAM, Cluster
from tests.nodes.conftest import MakeCluster, MakeQueue
from tests.nodes.site import Receiver, Site

TTL_S = 3.0
KILLS = 3
SOAK_S = float(os.environ.get("CHAOS_MINUTES", "2")) * 60
SOAK_KILL_S = 2.0
"""How long from one death to the next, at least."""

SOAK_KILLS = int(SOAK_S // 6.0)
"""How many nodes die at least: a slow machine needs more time for it."""
CONNECTIONS_MOST = 4


async def acting(make_cluster: MakeCluster, receiver: Receiver, keys: Iterable[str], **settings: Any) -> Site:
    cluster = make_cluster(app="acting", ttl_s=TTL_S, **settings)
    site = Site(cluster, receiver, keys)
    await site.note_hand_overs()
    return site


async def kill_one(cluster: Cluster) -> None:
    """Kill the busiest node, and start another one."""
    node = await cluster.busiest()
    node.signal(signal.SIGKILL)
    await node.ended()
    await cluster.start(f"n{len(cluster.nodes)}")


@pytest.mark.slow
async def test_no_effect_or_timer_of_nodes_that_die_or_stop_is_lost(
    make_cluster: MakeCluster, receiver: Receiver
) -> None:
    site = await acting(make_cluster, receiver, [f"cam-{i}" for i in range(20)])
    cluster = site.cluster
    await cluster.start("n0", "n1", "n2")
    for _ in range(KILLS):
        async with cluster.load(site.keys, 10):
            await site.until_more(50)
            await kill_one(cluster)
    async with cluster.load(site.keys, 10):
        await site.until_more(50)
        stopped = await cluster.busiest()
        stopped.order("stop-before-commit")
        await cluster.send_each(site.keys)
        assert await stopped.stopped_before_commit(), "it had commits on their way"
        living = [node.name for node in cluster.nodes.values() if node.child.poll() is None]
        await cluster.until_members(*(name for name in living if name != stopped.name))
        stopped.signal(signal.SIGCONT)
        await stopped.until_said("joined", times=2)
    await site.check()


@pytest.fixture(params=["sqlite", "postgresql", "redis-sqs"])
async def services(
    request: pytest.FixtureRequest, tmp_path: Path, make_queue: MakeQueue, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[dict[str, Any]]:
    """What sets a node up for these services, whose queues are there."""
    if request.param == "sqlite":
        yield {}
        return
    marker = tmp_path / "handed-over"
    marker.touch()
    monkeypatch.setenv("CHAOS_HANDED_OVER", str(marker))
    if request.param == "postgresql":
        async with PostgresqlServer(fsync=True) as postgresql:
            yield {"url": postgresql.url, "visibility_s": 6.0}
        return
    for queue in (STREAM, "sites", task_queue("acting", "note"), event_queue("acting")):
        await make_queue(queue)
    async with RedisServer() as redis:
        yield {
            "queue_url": "sqs:///",
            "coordinator_url": redis.url,
            "state_url": redis.url,
            "receive_wait_s": 2.0,
            "visibility_s": 6.0,
        }


@pytest.mark.nightly
async def test_a_busy_node_has_four_connections_to_postgresql_at_most(
    make_cluster: MakeCluster, receiver: Receiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With streams, tasks and effects, and every port on it."""
    marker = tmp_path / "handed-over"
    marker.touch()
    monkeypatch.setenv("CHAOS_HANDED_OVER", str(marker))
    async with (
        PostgresqlServer() as server,
        await psycopg.AsyncConnection.connect(server.url, autocommit=True) as looks,
    ):
        site = await acting(make_cluster, receiver, [f"cam-{i}" for i in range(10)], slots=2, url=server.url)
        node = site.cluster.spawn("n0", url=f"{server.url}?application_name=n0")
        counts: list[int] = []

        async def count() -> None:
            while not working.done():
                found = await looks.execute(
                    "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'n0'"
                )
                counts.extend(number for (number,) in await found.fetchall())

        async def work() -> None:
            await node.until_said("node runs")
            async with site.cluster.load(site.keys, 30):
                pass
            await site.check()

        async with asyncio.TaskGroup() as group:
            working = group.create_task(work())
            group.create_task(count())
        assert max(counts) == CONNECTIONS_MOST
        await site.cluster.close()


@pytest.mark.nightly
@pytest.mark.timeout(0)  # CHAOS_MINUTES
async def test_no_effect_or_timer_is_lost_in_minutes_of_deaths(
    services: dict[str, Any], make_cluster: MakeCluster, receiver: Receiver
) -> None:
    site = await acting(make_cluster, receiver, [f"cam-{i}" for i in range(60)], slots=2, **services)
    cluster = site.cluster
    await cluster.start("n0", "n1", "n2", "n3")
    end_at = time.monotonic() + SOAK_S

    def killed() -> int:
        return len(cluster.nodes) - 4

    async def feed() -> None:
        while time.monotonic() < end_at or killed() < SOAK_KILLS:
            async with cluster.load(site.keys, 50):
                pass

    async with asyncio.TaskGroup() as group:
        feeding = group.create_task(feed())
        await site.until_more(len(site.keys))
        while not feeding.done():
            next_at = time.monotonic() + SOAK_KILL_S
            await kill_one(cluster)
            await asyncio.wait((feeding,), timeout=max(0.0, next_at - time.monotonic()))
    print(f"{sum(cluster.sent.values())} messages; {killed()} nodes killed")  # noqa: T201
    await site.check()
