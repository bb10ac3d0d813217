"""Nodes on one service for everything, and what becomes of streams when it, or the nodes, are hurt."""

import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from simulator.servers import PostgresqlServer, RedisServer
from tests.nodes.conftest import MakeCluster
from tests.nodes.test_failures import KEYS, owned
from tests.nodes.test_services import TTL_S, all_went_on, die_and_come_back, pause

Keeping = RedisServer | PostgresqlServer

HIDDEN_S = 30.0
"""Longer than any stream may stand still here."""


@pytest.fixture(params=["redis", "postgresql"])
async def keeping(request: pytest.FixtureRequest) -> AsyncIterator[Keeping]:
    """A server that loses nothing."""
    if request.param == "redis":
        async with RedisServer(appendonly=True, settings={"appendfsync": "always"}) as redis:
            yield redis
    else:
        async with PostgresqlServer(fsync=True) as postgresql:
            yield postgresql


@pytest.mark.slow
async def test_a_killed_node_is_replaced_and_what_it_held_goes_on_at_once(
    keeping: Keeping, make_cluster: MakeCluster
) -> None:
    cluster = make_cluster(url=keeping.url, ttl_s=TTL_S, visibility_s=HIDDEN_S)
    await cluster.start("a", "b", "c")
    async with cluster.load(KEYS, 100):
        await cluster.until(lambda: all(len(cluster.results[key]) >= 20 for key in KEYS))
        await owned(cluster, "b")
        killed_at = time.time()
        cluster.nodes["b"].signal(signal.SIGKILL)
        await cluster.send_each(KEYS)
        await cluster.until(all_went_on(cluster, killed_at + 0.01))
    await cluster.check(alive=["a", "c"])


@pytest.mark.nightly
@pytest.mark.parametrize("hurt", [die_and_come_back, pause])
async def test_streams_go_on_where_they_were_when_their_service_was_away(
    keeping: Keeping,
    make_cluster: MakeCluster,
    hurt: Callable[[Keeping], Awaitable[None]],
) -> None:
    cluster = make_cluster(url=keeping.url, ttl_s=TTL_S, visibility_s=6.0)
    await cluster.start("a", "b")
    async with cluster.load(KEYS, 100):
        await cluster.until(lambda: all(len(cluster.results[key]) >= 20 for key in KEYS))
        await hurt(keeping)
        since = time.time()
        await cluster.send_each(KEYS)
        await cluster.until(all_went_on(cluster, since))
    await cluster.check(alive=["a", "b"])
