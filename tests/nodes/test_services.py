"""Nodes on SQS, Redis, PostgreSQL and mixtures: streams survive damage to services and nodes."""

import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from simulator.servers import PostgresqlServer, RedisServer, ZooKeeperServer
from simulator.servers.server import Server
from tests.nodes.cluster import STREAM, Cluster, until
from tests.nodes.conftest import MakeCluster, MakeQueue
from tests.nodes.drills import FOREVER_S, TTL_S, drain_one, hurt_service, kill_one, stop_past_ttl

OUTAGE_S = 2 * TTL_S
REISSUED = "holdfast_reissued_total"

STANDARD = pytest.param(False, id="standard")
FIFO_AT_NIGHT = pytest.param(True, id="fifo", marks=pytest.mark.nightly)

OnServices = Callable[..., Awaitable[Cluster]]


@pytest.fixture
async def coordinating() -> AsyncIterator[RedisServer]:
    """The coordinator's Redis, which stores nothing on disk."""
    async with RedisServer() as server:
        yield server


@pytest.fixture
async def keeping() -> AsyncIterator[RedisServer]:
    """The Redis of the state store, which loses nothing."""
    async with RedisServer(appendonly=True, settings={"appendfsync": "always"}) as server:
        yield server


@pytest.fixture
def on_services(
    coordinating: RedisServer, keeping: RedisServer, make_queue: MakeQueue, make_cluster: MakeCluster
) -> OnServices:
    """Makes a cluster on SQS and two Redis servers."""

    async def make(*, fifo: bool = False, **settings: Any) -> Cluster:
        await make_queue(f"{STREAM}.fifo" if fifo else STREAM)
        return make_cluster(
            app="fifo" if fifo else "app",
            queue_url="sqs:///{stream}.fifo" if fifo else "sqs:///",
            coordinator_url=coordinating.url,
            state_url=keeping.url,
            receive_wait_s=2.0,
            **settings,
        )

    return make


@pytest.mark.slow
@pytest.mark.parametrize("fifo", [STANDARD, FIFO_AT_NIGHT])
async def test_a_killed_node_is_replaced_on_evidence(on_services: OnServices, fifo: bool) -> None:
    """Messages that other nodes forwarded continue immediately. The dead node's own must first reappear."""
    await kill_one(await on_services(fifo=fifo, ttl_s=FOREVER_S, visibility_s=6.0), "c")


@pytest.mark.nightly
@pytest.mark.parametrize("fifo", [False, True], ids=["standard", "fifo"])
async def test_a_node_stopped_past_its_ttl_commits_nothing_when_it_goes_on(
    on_services: OnServices, fifo: bool
) -> None:
    await stop_past_ttl(await on_services(fifo=fifo, ttl_s=TTL_S, visibility_s=6.0))


@pytest.mark.nightly
@pytest.mark.parametrize("fifo", [False, True], ids=["standard", "fifo"])
async def test_a_drained_node_hands_over_without_a_gap(on_services: OnServices, fifo: bool) -> None:
    await drain_one(await on_services(fifo=fifo, ttl_s=FOREVER_S))


MIXTURES = [
    ("sqlite", "sqlite", "redis"),
    ("sqlite", "redis", "sqlite"),
    ("sqlite", "zookeeper", "redis"),
    ("sqs", "sqlite", "sqlite"),
    ("sqs", "sqlite", "redis"),
    ("sqs", "redis", "sqlite"),
    ("sqs", "zookeeper", "sqlite"),
    ("sqs", "zookeeper", "redis"),
]
"""Queue, coordinator and state store, without the combinations that have tests of their own."""

SERVERS: dict[str, Callable[[], RedisServer | ZooKeeperServer]] = {
    "redis": RedisServer,
    "zookeeper": ZooKeeperServer,
}


@pytest.mark.nightly
@pytest.mark.parametrize("queue, coordinator, state", MIXTURES)
async def test_with_any_mixture_of_services_a_killed_node_is_replaced(
    queue: str, coordinator: str, state: str, make_queue: MakeQueue, make_cluster: MakeCluster
) -> None:
    async with contextlib.AsyncExitStack() as stack:
        settings: dict[str, Any] = {}
        if queue == "sqs":
            await make_queue(STREAM)
            settings["queue_url"] = "sqs:///"
        for setting, service in (("coordinator_url", coordinator), ("state_url", state)):
            if service in SERVERS:
                server = SERVERS[service]()
                await stack.enter_async_context(server)
                settings[setting] = server.url
        cluster = make_cluster(ttl_s=FOREVER_S, visibility_s=6.0, receive_wait_s=2.0, **settings)
        await kill_one(cluster, per_key=60)


async def forget(server: RedisServer) -> None:
    """Lose everything and go on."""
    async with server.client() as redis:
        await redis.flushall()


async def die_and_come_empty(server: RedisServer) -> None:
    """Kill it, and start it empty."""
    server.kill()
    await server.restart(empty=True)


async def pause(server: Server) -> None:
    """Stand still for longer than any membership lives."""
    server.pause()
    began = time.monotonic()
    await until(lambda: time.monotonic() > began + OUTAGE_S, "the outage is over")
    server.resume()


@pytest.mark.nightly
@pytest.mark.parametrize("hurt", [forget, die_and_come_empty, pause])
async def test_whatever_becomes_of_the_coordinator_no_order_breaks(
    on_services: OnServices, coordinating: RedisServer, hurt: Callable[[RedisServer], Awaitable[None]]
) -> None:
    cluster = await on_services(ttl_s=TTL_S, visibility_s=6.0)
    await hurt_service(cluster, lambda: hurt(coordinating), "a", "b", "c")


async def die_and_come_back(server: Server) -> None:
    """Be killed, and started again with the written data."""
    server.kill()
    await server.restart()


@pytest.mark.nightly
@pytest.mark.parametrize("hurt", [die_and_come_back, pause])
async def test_a_state_store_that_was_away_goes_on_where_it_was(
    on_services: OnServices, keeping: RedisServer, hurt: Callable[[RedisServer], Awaitable[None]]
) -> None:
    cluster = await on_services(ttl_s=TTL_S, visibility_s=6.0)
    await hurt_service(cluster, lambda: hurt(keeping), "a", "b")


Durable = RedisServer | PostgresqlServer


@pytest.fixture(params=["redis", "postgresql"])
async def only(request: pytest.FixtureRequest) -> AsyncIterator[Durable]:
    """A server for everything that loses nothing."""
    if request.param == "redis":
        async with RedisServer(appendonly=True, settings={"appendfsync": "always"}) as redis:
            yield redis
    else:
        async with PostgresqlServer(fsync=True) as postgresql:
            yield postgresql


@pytest.mark.slow
async def test_on_one_service_the_streams_of_a_killed_node_go_on_at_once(
    only: Durable, make_cluster: MakeCluster
) -> None:
    await kill_one(make_cluster(url=only.url, ttl_s=TTL_S, visibility_s=30.0), "c")


@pytest.mark.nightly
@pytest.mark.parametrize("hurt", [die_and_come_back, pause])
async def test_streams_go_on_where_they_were_when_their_only_service_was_away(
    only: Durable, make_cluster: MakeCluster, hurt: Callable[[Durable], Awaitable[None]]
) -> None:
    await hurt_service(
        make_cluster(url=only.url, ttl_s=TTL_S, visibility_s=6.0), lambda: hurt(only), "a", "b"
    )


@pytest.mark.nightly
async def test_what_is_held_for_longer_than_the_queue_allows_is_sent_again(
    on_services: OnServices, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Frames behind a gap, on a queue that takes each back after seconds instead of 12 hours."""
    monkeypatch.setenv("CHAOS_HOLD_MAX_S", "4")
    cluster = await on_services(ttl_s=FOREVER_S, visibility_s=2.0)
    await cluster.start("a", "b")
    cluster.sent["cam"] = 1  # the first is late
    await cluster.send("cam", count=12)

    async def reissued() -> bool:
        return sum([await node.metric(REISSUED) for node in cluster.nodes.values()]) >= 24

    await until(reissued, "each was sent again, and so was its copy")
    assert not cluster.results["cam"]
    cluster.sent["cam"] = 0
    await cluster.send("cam")
    cluster.sent["cam"] = 13
    await cluster.check(alive=["a", "b"])
