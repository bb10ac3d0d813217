"""The holders of old versions of rows, as doctor reports them."""

import psycopg
import pytest

from holdfast.services.postgres import horizon
from simulator.servers import PostgresqlServer
from tests.services.postgres.conftest import MakeDatabase


async def test_a_transaction_that_is_open_for_long_is_told_of(
    postgresql_server: PostgresqlServer, make_database: MakeDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = make_database(postgresql_server.url)
    await database.migrate()
    assert await horizon.check(database) == []
    with psycopg.connect(postgresql_server.url, application_name="reports") as holder:
        holder.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        holder.execute("SELECT 1")
        assert await horizon.check(database) == [], "not yet"
        monkeypatch.setattr(horizon, "LONG_S", 0)
        [found] = [risk for risk in await horizon.check(database) if "reports" in risk.text]
        assert found.verdict == "warning"
        assert f"process {holder.info.backend_pid}" in found.text
        assert "idle_in_transaction_session_timeout" in found.fix
    assert not any("reports" in risk.text for risk in await horizon.check(database))


@pytest.mark.nightly
async def test_a_slot_that_nobody_reads_is_told_of(
    make_database: MakeDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"wal_level": "logical", "max_wal_senders": "2", "max_prepared_transactions": "2"}
    async with PostgresqlServer(settings=settings) as server:
        database = make_database(server.url)
        await database.migrate()
        with psycopg.connect(server.url, autocommit=True) as connection:
            connection.execute("SELECT pg_create_logical_replication_slot('forgotten', 'test_decoding')")
            connection.execute("BEGIN")
            connection.execute("CREATE TABLE waits ()")
            connection.execute("PREPARE TRANSACTION 'half done'")
        monkeypatch.setattr(horizon, "BEHIND", -1)
        monkeypatch.setattr(horizon, "LONG_S", 0)
        found = {holder.kind: holder.who for holder in (await horizon.look(database))[0]}
        await database.close()
    assert found["slot"] == "forgotten"
    assert found["prepared"] == "half done"


async def test_a_table_of_old_versions_is_told_of(
    postgresql_server: PostgresqlServer, make_database: MakeDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(horizon, "DEAD_ROWS", 50)
    database = make_database(postgresql_server.url)
    await database.migrate()
    with psycopg.connect(postgresql_server.url, autocommit=True) as connection:
        connection.execute("ALTER TABLE holdfast.documents SET (autovacuum_enabled = off)")
        connection.execute(
            "INSERT INTO holdfast.documents SELECT i::text, 1, '' FROM generate_series(1, 100) AS i"
        )
        connection.execute("DELETE FROM holdfast.documents")
        connection.execute("ANALYZE holdfast.documents")
    [risk] = await horizon.check(database)
    assert "documents has 100 old versions" in risk.text


@pytest.mark.nightly
async def test_metrics_are_told_who_holds_the_oldest_snapshot_and_how_many_rows_are_dead(
    make_database: MakeDatabase,
) -> None:
    settings = {"wal_level": "logical", "max_wal_senders": "2", "max_prepared_transactions": "2"}
    async with PostgresqlServer(settings=settings) as server:
        database = make_database(server.url)
        await database.migrate()
        before = await horizon.health(database)
        assert set(before.snapshot_s) == {"transaction", "prepared"}
        assert set(before.snapshot_transactions) == set(horizon.NAMES)
        assert before.snapshot_s["prepared"] == 0.0
        assert "documents" in before.dead_rows
        with (
            psycopg.connect(server.url, autocommit=True) as connection,
            psycopg.connect(server.url, application_name="reports") as holder,
        ):
            connection.execute("SELECT pg_create_logical_replication_slot('forgotten', 'test_decoding')")
            connection.execute("BEGIN")
            connection.execute("CREATE TABLE waits ()")
            connection.execute("PREPARE TRANSACTION 'half done'")
            holder.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            holder.execute("SELECT 1")
            connection.execute("ALTER TABLE holdfast.documents SET (autovacuum_enabled = off)")
            connection.execute(
                "INSERT INTO holdfast.documents SELECT i::text, 1, '' FROM generate_series(1, 100) AS i"
            )
            connection.execute("DELETE FROM holdfast.documents WHERE name <> '1'")
            connection.execute("SELECT pg_stat_force_next_flush()")
            held = await horizon.health(database)
        await database.close()
    assert held.snapshot_s["transaction"] > 0.0
    assert held.snapshot_s["prepared"] > 0.0
    assert held.snapshot_transactions["transaction"] > 0
    assert held.snapshot_transactions["slot"] > 0
    assert (held.dead_rows["documents"], held.live_rows["documents"]) == (99, 1)
