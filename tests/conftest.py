"""What every test shares: how much Hypothesis tries, and real servers.

The servers are started at first use, one set a pytest process, and end with it. A test gets one that runs,
answers and is empty (queues and buckets stay: give them names of their own), and may do anything to it.
"""

import ast
import asyncio
import functools
import gc
import os
import threading
from collections.abc import Iterator
from typing import Any, TypeVar

import pytest
from hypothesis import settings

from simulator.servers import (
    FauxqsServer,
    Group,
    MotoServer,
    PostgresqlServer,
    RedisCluster,
    RedisSentinel,
    RedisServer,
    Server,
    ZooKeeperEnsemble,
    ZooKeeperServer,
)
from tests import left_behind, left_open

# The same examples on every machine in CI; new ones each run at a developer's.
settings.register_profile("ci", derandomize=True, deadline=None)
settings.register_profile("dev", deadline=None, max_examples=50)
settings.load_profile("ci" if os.environ.get("CI") else "dev")

GARBAGE = (10_000, 20, 20)
"""When Python looks for cycles: seldom, as in a node."""

S = TypeVar("S", bound=Server | Group)

_parse, _parsing = ast.parse, threading.RLock()


@functools.wraps(_parse)
def _parse_alone(*args: Any, **options: Any) -> Any:
    """As ast.parse. Python 3.11 counts for all threads together how deep it is, and calls Hypothesis where
    it collects garbage: then another thread goes on, and may parse too. (pytest parses what nodes of tests
    import in their threads, and a traceback parses its lines.)"""
    with _parsing:
        return _parse(*args, **options)


ast.parse = _parse_alone


def pytest_configure(config: pytest.Config) -> None:
    # As a plugin, for the hooks of a conftest are not asked about fixtures of the whole session.
    config.pluginmanager.register(left_open, "left-open")
    config.pluginmanager.register(left_behind, "left-behind")


def pytest_collection() -> None:
    gc.disable()


def pytest_collection_finish() -> None:
    """What was collected stays to the end: looked through for garbage it would take a tenth of all time."""
    gc.freeze()
    gc.set_threshold(*GARBAGE)
    gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long tests first, so that none is left alone at the end."""
    items.sort(key=_tier)


def _tier(item: pytest.Item) -> int:
    """Return how soon a test runs: 0 for those of the night, 1 for slow ones, 2 for quick ones."""
    if item.get_closest_marker("nightly"):
        return 0
    return 1 if item.get_closest_marker("slow") else 2


def kept(server: S) -> Iterator[S]:
    asyncio.run(server.start())
    yield server
    asyncio.run(server.stop())


@pytest.fixture(scope="session")
def kept_redis() -> Iterator[RedisServer]:
    yield from kept(RedisServer())


@pytest.fixture(scope="session")
def kept_sentinel() -> Iterator[RedisSentinel]:
    yield from kept(RedisSentinel())


@pytest.fixture(scope="session")
def kept_cluster() -> Iterator[RedisCluster]:
    yield from kept(RedisCluster())


@pytest.fixture(scope="session")
def kept_moto() -> Iterator[MotoServer]:
    yield from kept(MotoServer())


@pytest.fixture(scope="session")
def kept_fauxqs() -> Iterator[FauxqsServer]:
    yield from kept(FauxqsServer())


@pytest.fixture(scope="session")
def kept_postgresql() -> Iterator[PostgresqlServer]:
    yield from kept(PostgresqlServer())


@pytest.fixture(scope="session")
def kept_zookeeper() -> Iterator[ZooKeeperServer]:
    yield from kept(ZooKeeperServer())


@pytest.fixture(scope="session")
def kept_ensemble() -> Iterator[ZooKeeperEnsemble]:
    yield from kept(ZooKeeperEnsemble())


@pytest.fixture
async def redis_server(kept_redis: RedisServer) -> RedisServer:
    await kept_redis.reset()
    return kept_redis


@pytest.fixture
async def redis_sentinel(kept_sentinel: RedisSentinel) -> RedisSentinel:
    await kept_sentinel.reset()
    return kept_sentinel


@pytest.fixture
async def redis_cluster(kept_cluster: RedisCluster) -> RedisCluster:
    await kept_cluster.reset()
    return kept_cluster


@pytest.fixture
async def moto_server(kept_moto: MotoServer) -> MotoServer:
    await kept_moto.heal()
    return kept_moto


@pytest.fixture
async def fauxqs_server(kept_fauxqs: FauxqsServer) -> FauxqsServer:
    await kept_fauxqs.heal()
    return kept_fauxqs


@pytest.fixture
async def postgresql_server(kept_postgresql: PostgresqlServer) -> PostgresqlServer:
    await kept_postgresql.reset()
    return kept_postgresql


@pytest.fixture
async def emptied_postgresql(kept_postgresql: PostgresqlServer) -> PostgresqlServer:
    """For tests that all make the same tables, and change none: the tables of the last one may be there."""
    await kept_postgresql.reset(keep_tables=True)
    return kept_postgresql


@pytest.fixture
async def zookeeper_server(kept_zookeeper: ZooKeeperServer) -> ZooKeeperServer:
    await kept_zookeeper.heal()
    return kept_zookeeper


@pytest.fixture
async def zookeeper_ensemble(kept_ensemble: ZooKeeperEnsemble) -> ZooKeeperEnsemble:
    await kept_ensemble.heal()
    return kept_ensemble
