"""Nodes on one Redis for everything: what becomes of streams when it fails over or forgets."""

import time
from collections.abc import AsyncIterator

import pytest
from redis.crc import key_slot

from simulator.servers import RedisCluster, RedisSentinel, RedisServer
from simulator.servers.redis import SLOTS
from tests.nodes.cluster import STREAM, until
from tests.nodes.conftest import MakeCluster
from tests.nodes.drills import KEYS, TTL_S, all_went_on
from tests.nodes.test_services import forget

LOST = "commits lost by the state store"


@pytest.fixture
async def keeping() -> AsyncIterator[RedisServer]:
    """A Redis that loses nothing."""
    async with RedisServer(appendonly=True, settings={"appendfsync": "always"}) as server:
        yield server


@pytest.fixture
async def watched() -> AsyncIterator[RedisSentinel]:
    """A master and two replicas in memory, watched by Sentinels."""
    async with RedisSentinel() as sentinel:
        yield sentinel


@pytest.mark.nightly
async def test_a_fail_over_loses_nothing_that_all_replicas_have(
    watched: RedisSentinel, make_cluster: MakeCluster
) -> None:
    """Whichever replica is chosen has what was answered; until the dead one is back, nothing is confirmed."""
    cluster = make_cluster(url=f"{watched.url}?wait_replicas=2", ttl_s=TTL_S, visibility_s=6.0)
    await cluster.start("a", "b")
    async with cluster.load(KEYS, 100):
        await cluster.until(lambda: all(len(cluster.results[key]) >= 20 for key in KEYS))
        master = await watched.master()
        master.kill()
        await watched.failed_over(master)
        await watched.heal()
        since = time.time()
        await cluster.send_each(KEYS)
        await cluster.until(all_went_on(cluster, since))
    await cluster.check(alive=["a", "b"])


@pytest.fixture
async def shards() -> AsyncIterator[RedisCluster]:
    """Three masters in memory, each with a replica."""
    async with RedisCluster(replicas=1) as redis:
        yield redis


@pytest.mark.nightly
async def test_the_replica_of_a_killed_shard_goes_on_with_its_queue(
    shards: RedisCluster, make_cluster: MakeCluster
) -> None:
    cluster = make_cluster(url=f"{shards.url}?wait_replicas=1", ttl_s=TTL_S, visibility_s=6.0)
    await cluster.start("a", "b")
    async with cluster.load(KEYS, 100):
        await cluster.until(lambda: all(len(cluster.results[key]) >= 20 for key in KEYS))
        masters = await shards.masters()
        hurt = masters[key_slot(f"{{holdfast:queue:{STREAM}}}".encode()) * len(masters) // SLOTS]
        hurt.kill()

        async def replaced() -> bool:
            return len(set(await shards.masters()) - {hurt}) == len(masters)

        await until(replaced, "its replica has taken over")
        await shards.heal()
        since = time.time()
        await cluster.send_each(KEYS)
        await cluster.until(all_went_on(cluster, since))
    await cluster.check(alive=["a", "b"])


@pytest.mark.nightly
async def test_a_node_goes_on_when_redis_was_flushed_and_tells_what_is_gone(
    keeping: RedisServer, make_cluster: MakeCluster
) -> None:
    """Messages that are sent again from the start are handled with higher epochs, from the start or from
    where the node was."""
    cluster = make_cluster(url=keeping.url, ttl_s=TTL_S, visibility_s=6.0)
    await cluster.start("a")
    await cluster.send_each(KEYS, 20)
    await cluster.until(lambda: all(len(cluster.results[key]) == 20 for key in KEYS))
    await cluster.until_all()
    await forget(keeping)
    cluster.sent.clear()
    await cluster.send_each(KEYS, 40)
    await cluster.until(lambda: all(cluster.bodies(key)[-1]["n"] == 39 for key in KEYS))
    await cluster.until_all()
    for key in KEYS:
        numbers = [body["n"] for body in cluster.bodies(key)]
        assert numbers[:20] == list(range(20))
        assert numbers[20:] in (list(range(40)), list(range(20, 40)))
        before, after = (
            [logged.epoch for logged in some]
            for some in (cluster.results[key][:20], cluster.results[key][20:])
        )
        assert max(before) < min(after)
        assert after == sorted(after)
    lost = {event["key"] for event in cluster.nodes["a"].said(LOST)}
    assert lost == {f"{STREAM}/{key}" for key in KEYS}
    assert await cluster.letters() == []
    await cluster.until_members("a")
