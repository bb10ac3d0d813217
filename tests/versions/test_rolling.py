"""Nodes of the last release and of this version in one cluster, rolled forward and back under load."""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

import holdfast
from simulator.servers import PostgresqlServer, RedisServer
from tests.nodes.cluster import Cluster
from tests.nodes.conftest import MakeCluster
from tests.nodes.site import Receiver, Site, effect_of
from tests.versions import released

NODES = 2
STREAMS = 8
ROLL = 40
"""Messages of each stream that are sent during a roll."""

TTL_S = 5.0
SOAK_S = float(os.environ.get("CHAOS_MINUTES", "2")) * 60


class Rolled(Site):
    """Effects of streams on nodes of two versions. How they were handed over is not noted, as by nodes under
    test: the order of effects is checked by those to the webhook, as of each owner."""

    def handed_over(self) -> Iterator[dict[str, Any]]:
        yield from sorted(self.arrived, key=effect_of)


class Roll:
    """The nodes of a cluster, each replaced by one of another version."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self._pythons = {released.version(): released.python(), holdfast.__version__: None}
        self._names = 0

    @property
    def alive(self) -> list[str]:
        """Nodes that run."""
        return [name for name, node in self.cluster.nodes.items() if node.child.poll() is None]

    async def start(self, version: str, nodes: int = 1) -> None:
        """Start nodes of a version."""
        names = [f"n{self._names + number}" for number in range(nodes)]
        self._names += nodes
        await self.cluster.start(*names, python=self._pythons[version])

    async def to(self, version: str) -> None:
        """Replace all nodes: start as many of the other version, then kill one of those before, drain the
        next, and so on."""
        before = self.alive
        await self.start(version, len(before))
        for number, name in enumerate(before):
            await self.handled()
            node = self.cluster.nodes[name]
            node.signal(signal.SIGKILL if number % 2 == 0 else signal.SIGTERM)
            await node.ended()
        await self.handled()
        members = await self.cluster.coordinator.members()
        assert {member.load.version for member in members if member.name in self.alive} == {version}

    async def handled(self) -> None:
        """Return once the nodes have handled more, if more was sent."""
        done = {key: len(self.cluster.results[key]) for key in self.cluster.sent}
        behind = [key for key, count in self.cluster.sent.items() if done[key] < count]
        await self.cluster.until(lambda: all(len(self.cluster.results[key]) > done[key] for key in behind))


@pytest.fixture(params=["sqlite", "redis", "postgresql"])
async def services(request: pytest.FixtureRequest) -> AsyncIterator[dict[str, Any]]:
    """The settings that name the services."""
    if request.param == "sqlite":
        yield {}
    elif request.param == "redis":
        async with RedisServer(appendonly=True) as redis:
            yield {"url": redis.url, "visibility_s": 6.0}
    else:
        async with PostgresqlServer() as postgresql:
            yield {"url": postgresql.url, "visibility_s": 6.0}


@pytest.fixture
async def site(make_cluster: MakeCluster, receiver: Receiver, services: dict[str, Any]) -> Rolled:
    """Streams that act, and what they have sent."""
    cluster = make_cluster(module="acting_app", ttl_s=TTL_S, **services)
    return Rolled(cluster, receiver, [f"cam-{number}" for number in range(STREAMS)])


@pytest.mark.nightly
async def test_a_roll_to_this_version_and_back_loses_nothing_and_keeps_order(site: Rolled) -> None:
    roll = Roll(site.cluster)
    await roll.start(released.version(), NODES)
    for version in (holdfast.__version__, released.version()):
        async with site.cluster.load(site.keys, ROLL):
            await roll.to(version)
    await check(site, roll)


async def check(site: Rolled, roll: Roll) -> None:
    """Nothing is lost, nothing is done twice, and the order stays."""
    await site.check()
    for key, count in site.cluster.sent.items():
        await site.cluster.check_results(key, list(range(count)))
    await site.cluster.check_alive(*roll.alive)


@pytest.mark.nightly
@pytest.mark.timeout(0)  # CHAOS_MINUTES
async def test_nodes_of_both_versions_that_come_and_go_lose_nothing(site: Rolled) -> None:
    roll = Roll(site.cluster)
    await roll.start(released.version(), NODES + 1)
    end_at = time.monotonic() + SOAK_S

    async def feed() -> None:
        while time.monotonic() < end_at:
            async with site.cluster.load(site.keys, ROLL):
                pass

    async with asyncio.TaskGroup() as group:
        feeding = group.create_task(feed())
        while not feeding.done():
            await roll.to(holdfast.__version__)
            await roll.to(released.version())
    await check(site, roll)
