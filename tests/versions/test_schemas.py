"""A schema that a version to come has changed, and what nodes of the last release do then."""

import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import closing

import psycopg
import pytest

from holdfast.common.migrations import Migration
from holdfast.services.postgres import schema as postgres_schema
from holdfast.services.sqlite import schema as sqlite_schema
from simulator.servers import PostgresqlServer
from tests.nodes.cluster import Cluster
from tests.nodes.conftest import MakeCluster
from tests.versions import released

KEYS = ["cam-1", "cam-2"]
EACH = 20

Migrate = Callable[[Cluster, bool], Awaitable[None]]


@pytest.fixture(params=["sqlite", "postgresql"])
async def postgresql(request: pytest.FixtureRequest) -> AsyncIterator[PostgresqlServer | None]:
    """A server, or None for SQLite."""
    if request.param == "sqlite":
        yield None
        return
    async with PostgresqlServer() as server:
        yield server


@pytest.fixture
def migrate(postgresql: PostgresqlServer | None, monkeypatch: pytest.MonkeyPatch) -> Migrate:
    """Apply a migration that adds, and then one that removes, as a version to come would."""

    def to_come(known: list[Migration], table: str) -> list[Migration]:
        number = len(known) + 1
        return [
            *known,
            Migration(number, f"ALTER TABLE {table} ADD COLUMN colour text;"),
            Migration(number + 1, f"ALTER TABLE {table} DROP COLUMN colour;", contracts=True),
        ]

    async def migrate(cluster: Cluster, contract: bool) -> None:
        if postgresql is None:
            known = to_come(sqlite_schema.migrations(), "checkpoints")
            with monkeypatch.context() as later:
                later.setattr(sqlite_schema, "migrations", lambda: known)
                file = cluster.place / "holdfast.db"
                with closing(sqlite3.connect(file, isolation_level=None, timeout=60.0)) as connection:
                    if contract:
                        connection.execute("BEGIN IMMEDIATE")
                        sqlite_schema.contract(connection)
                        connection.execute("COMMIT")
                    else:
                        sqlite_schema.migrate(connection)
            return
        known = to_come(postgres_schema.migrations(), "{schema}.checkpoints")
        with monkeypatch.context() as later:
            later.setattr(postgres_schema, "migrations", lambda: known)
            async with await psycopg.AsyncConnection.connect(postgresql.url, autocommit=True) as connected:
                await postgres_schema.migrate(connected, "holdfast", contract=contract)

    return migrate


async def handled(cluster: Cluster) -> None:
    """Send more, and return once it is handled."""
    await cluster.send_each(KEYS, EACH)
    for key in KEYS:
        await cluster.until_count(key, cluster.sent[key])


@pytest.mark.nightly
async def test_nodes_of_the_last_release_use_what_was_expanded_and_refuse_what_was_contracted(
    make_cluster: MakeCluster, postgresql: PostgresqlServer | None, migrate: Migrate
) -> None:
    settings = {"url": postgresql.url} if postgresql else {}
    cluster = make_cluster(module="acting_app", visibility_s=6.0, **settings)
    await cluster.start("running", python=released.python())
    await handled(cluster)
    await migrate(cluster, False)
    await cluster.start("started", python=released.python())
    await handled(cluster)
    await migrate(cluster, True)
    refused = cluster.spawn("refused", released.python())
    assert await refused.ended() != 0
    said = "\n".join(entry["event"] for entry in refused.events)
    assert "made by a newer Holdfast" in said
    assert "upgrade Holdfast" in said
    assert "Traceback" not in said
