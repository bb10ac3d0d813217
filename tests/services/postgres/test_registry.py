"""The registry in PostgreSQL: its promises, and what is its own."""

import asyncio

import psycopg
import pytest

from holdfast.ports.registry import Registry
from holdfast.services.postgres.registry import PostgresRegistry
from holdfast.system.clock import SystemClock
from holdfast.testing.conformance import RegistryConformance
from simulator.servers import PostgresqlServer
from tests.services.postgres.conftest import MakeDatabase

PATIENCE_S = 30.0


def registry_at(make_database: MakeDatabase, server: PostgresqlServer) -> PostgresRegistry:
    return PostgresRegistry(make_database(server.url), SystemClock(), max_bytes=10_000)


class TestOnOneServer(RegistryConformance):
    @pytest.fixture
    def registry(self, postgresql_server: PostgresqlServer, make_database: MakeDatabase) -> Registry:
        return registry_at(make_database, postgresql_server)

    @pytest.fixture
    def other_registry(
        self, postgresql_server: PostgresqlServer, registry: Registry, make_database: MakeDatabase
    ) -> Registry:
        return registry_at(make_database, postgresql_server)


async def test_versions_grow_though_the_server_was_emptied(
    postgresql_server: PostgresqlServer, make_database: MakeDatabase
) -> None:
    registry = registry_at(make_database, postgresql_server)
    before = await registry.put("apps/a", b"one", 0)
    assert before is not None
    await postgresql_server.reset()
    other = registry_at(make_database, postgresql_server)
    assert await other.put("apps/a", b"two", before.version) is None
    after = await other.put("apps/a", b"two", 0)
    assert after is not None
    assert after.version > before.version


@pytest.mark.slow
async def test_who_waits_hears_of_a_change_though_its_listener_was_cut(
    postgresql_server: PostgresqlServer, make_database: MakeDatabase
) -> None:
    registry = registry_at(make_database, postgresql_server)
    database = make_database(postgresql_server.url)
    other = PostgresRegistry(database, SystemClock(), max_bytes=10_000)
    made = await registry.put("apps/a", b"one", 0)
    assert made is not None
    waiting = asyncio.create_task(other.changed("apps/a", made.version, PATIENCE_S))
    await asyncio.wait_for(database.bells.hears.wait(), PATIENCE_S)
    with psycopg.connect(postgresql_server.url, autocommit=True) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'LISTEN%'"
        )
    changed = await registry.put("apps/a", b"two", made.version)
    assert changed is not None
    assert await asyncio.wait_for(waiting, PATIENCE_S) == changed
