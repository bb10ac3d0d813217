"""Nodes on SQS and Redis, and what becomes of streams when those, or the nodes, are hurt."""

import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from itertools import pairwise
from typing import Any

import pytest

from simulator.servers import RedisServer
from simulator.servers.server import Server
from tests.nodes.cluster import STREAM, Cluster, until
from tests.nodes.conftest import MakeCluster, MakeQueue
from tests.nodes.test_failures import FAIL_OVER_S, KEYS, owned

TTL_S = 3.0
FOREVER_S = 60.0
OUTAGE_S = 2 * TTL_S
REISSUED = "holdfast_reissued_total"

STANDARD = pytest.param(False, id="standard")  # the tests part the two kinds, the night has each with both
FIFO = pytest.param(True, id="fifo")
STANDARD_AT_NIGHT = pytest.param(False, id="standard", marks=pytest.mark.nightly)
FIFO_AT_NIGHT = pytest.param(True, id="fifo", marks=pytest.mark.nightly)

OnServices = Callable[..., Awaitable[Cluster]]


@pytest.fixture
async def coordinating() -> AsyncIterator[RedisServer]:
    """The Redis of the coordinator, which keeps nothing on disk."""
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


def all_went_on(cluster: Cluster, since: float) -> Callable[[], bool]:
    """True once every stream has a result from after then."""
    return lambda: all(cluster.results[key] and cluster.results[key][-1].at > since for key in KEYS)


@pytest.mark.slow
@pytest.mark.parametrize("fifo", [STANDARD, FIFO_AT_NIGHT])
async def test_a_killed_node_is_replaced_on_evidence(on_services: OnServices, fifo: bool) -> None:
    """What other nodes had forwarded goes on at once; what the dead node alone held, when it shows again."""
    cluster = await on_services(fifo=fifo, ttl_s=FOREVER_S, visibility_s=6.0)
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
@pytest.mark.parametrize("fifo", [STANDARD_AT_NIGHT, FIFO])
async def test_a_node_stopped_past_its_ttl_commits_nothing_when_it_goes_on(
    on_services: OnServices, fifo: bool
) -> None:
    cluster = await on_services(fifo=fifo, ttl_s=TTL_S, visibility_s=6.0)
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


@pytest.mark.nightly
@pytest.mark.parametrize("fifo", [STANDARD, FIFO_AT_NIGHT])
async def test_a_drained_node_hands_over_without_a_gap(on_services: OnServices, fifo: bool) -> None:
    cluster = await on_services(fifo=fifo, ttl_s=FOREVER_S)
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
        gaps = [b - a for a, b in pairwise(times)]
        assert max(gaps) < FAIL_OVER_S


async def forget(server: RedisServer) -> None:
    """Lose everything and go on."""
    async with server.client() as redis:
        await redis.flushall()


async def die_and_come_empty(server: RedisServer) -> None:
    """Be killed, and started anew with nothing."""
    server.kill()
    await server.restart(empty=True)


async def pause(server: Server) -> None:
    """Stand still for longer than any membership lives."""
    server.pause()
    began = time.monotonic()
    await until(lambda: time.monotonic() > began + OUTAGE_S, "the outage is over")
    server.resume()


@pytest.mark.nightly
@pytest.mark.parametrize("hurt", [pytest.param(forget, marks=pytest.mark.nightly), die_and_come_empty, pause])
async def test_whatever_becomes_of_the_coordinator_no_order_breaks(
    on_services: OnServices, coordinating: RedisServer, hurt: Callable[[RedisServer], Awaitable[None]]
) -> None:
    cluster = await on_services(ttl_s=TTL_S, visibility_s=6.0)
    await cluster.start("a", "b", "c")
    async with cluster.load(KEYS, 100):
        await cluster.until(lambda: all(len(cluster.results[key]) >= 20 for key in KEYS))
        await hurt(coordinating)
        since = time.time()
        await cluster.send_each(KEYS)  # all that is sent by now may have been done meanwhile
        await cluster.until(all_went_on(cluster, since))
    await cluster.check(alive=["a", "b", "c"])


async def die_and_come_back(server: Server) -> None:
    """Be killed, and started anew with what was written."""
    server.kill()
    await server.restart()


@pytest.mark.nightly
@pytest.mark.parametrize("hurt", [die_and_come_back, pause])
async def test_a_state_store_that_was_away_goes_on_where_it_was(
    on_services: OnServices, keeping: RedisServer, hurt: Callable[[RedisServer], Awaitable[None]]
) -> None:
    cluster = await on_services(ttl_s=TTL_S, visibility_s=6.0)
    await cluster.start("a", "b")
    async with cluster.load(KEYS, 100):
        await cluster.until(lambda: all(len(cluster.results[key]) >= 20 for key in KEYS))
        await hurt(keeping)
        since = time.time()
        await cluster.send_each(KEYS)  # all that is sent by now may have been done meanwhile
        await cluster.until(all_went_on(cluster, since))
    await cluster.check(alive=["a", "b"])


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
