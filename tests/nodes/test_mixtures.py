"""Nodes on services of several kinds: any queue with any coordinator with any state store."""

import contextlib
import signal
from collections.abc import Callable
from typing import Any

import pytest

from simulator.servers import RedisServer, ZooKeeperServer
from tests.nodes.cluster import STREAM
from tests.nodes.conftest import MakeCluster, MakeQueue
from tests.nodes.test_failures import KEYS, owned

FOREVER_S = 60.0
SERVERS: dict[str, Callable[[], RedisServer | ZooKeeperServer]] = {
    "redis": RedisServer,
    "zookeeper": ZooKeeperServer,
}

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
"""Queue, coordinator and state store. SQLite alone, SQS with Redis and SQLite with ZooKeeper have tests of
their own."""


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
        await cluster.start("a", "b")
        async with cluster.load(KEYS, 60):
            await cluster.until(lambda: all(len(cluster.results[key]) >= 20 for key in KEYS))
            await owned(cluster, "b")
            cluster.nodes["b"].signal(signal.SIGKILL)
            await cluster.send_each(KEYS)
        await cluster.check(alive=["a"])
