"""The registry in Redis: its promises on every kind of server, and what is its own."""

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from holdfast.ports.meter import Meter
from holdfast.ports.registry import Registry
from holdfast.services.redis.connection import RedisConnection, parse
from holdfast.services.redis.registry import RedisRegistry
from holdfast.system.clock import SystemClock
from holdfast.testing.conformance import RegistryConformance
from simulator.servers import RedisServer
from tests.services.redis.places import Cluster, OneServer, Sentinels

MakeRegistry = Callable[[str], RedisRegistry]

PATIENCE_S = 30.0


@pytest.fixture
async def make_registry() -> AsyncIterator[MakeRegistry]:
    """Makes registries at URLs; they end with the test."""
    made = []

    def make(url: str) -> RedisRegistry:
        connection = RedisConnection(parse(url), Meter(), timeout_s=5.0)
        made.append(RedisRegistry(connection, SystemClock(), max_bytes=10_000))
        return made[-1]

    yield make
    for registry in made:
        await registry.close()


class OnRedis(RegistryConformance):
    @pytest.fixture
    def registry(self, url: str, make_registry: MakeRegistry) -> Registry:
        return make_registry(url)

    @pytest.fixture
    def other_registry(self, url: str, registry: Registry, make_registry: MakeRegistry) -> Registry:
        return make_registry(url)


class TestOnOneServer(OneServer, OnRedis):
    pass


@pytest.mark.nightly
class TestWithSentinels(Sentinels, OnRedis):
    pass


@pytest.mark.nightly
class TestInACluster(Cluster, OnRedis):
    pass


async def test_versions_grow_though_the_server_was_emptied(
    redis_server: RedisServer, make_registry: MakeRegistry
) -> None:
    registry = make_registry(redis_server.url)
    before = await registry.put("apps/a", b"one", 0)
    assert before is not None
    await redis_server.reset()
    assert await registry.put("apps/a", b"two", before.version) is None
    after = await registry.put("apps/a", b"two", 0)
    assert after is not None
    assert after.version > before.version


async def test_who_waits_survives_a_restart_of_the_server(
    redis_server: RedisServer, make_registry: MakeRegistry
) -> None:
    registry, other = make_registry(redis_server.url), make_registry(redis_server.url)
    made = await registry.put("apps/a", b"one", 0)
    assert made is not None
    waiting = asyncio.create_task(registry.changed("apps/a", made.version, 3 * PATIENCE_S))
    async with redis_server.client() as redis:
        while not (await redis.pubsub_numsub("{holdfast}:registry:changes"))[0][1]:
            await redis.ping()
        await redis.client_kill_filter(_type="pubsub")
    await other.put("apps/a", b"two", made.version)
    found = await asyncio.wait_for(waiting, PATIENCE_S)
    assert found is not None
    assert found.body == b"two"


async def test_closing_ends_a_waiting_call(redis_server: RedisServer, make_registry: MakeRegistry) -> None:
    registry = make_registry(redis_server.url)
    made = await registry.put("apps/a", b"one", 0)
    assert made is not None
    waiting = asyncio.create_task(registry.changed("apps/a", made.version, 3 * PATIENCE_S))
    async with redis_server.client() as redis:
        while not (await redis.pubsub_numsub("{holdfast}:registry:changes"))[0][1]:
            await redis.ping()
    await registry.close()
    assert await asyncio.wait_for(waiting, PATIENCE_S) == made
