"""Who keeps old versions of rows from being removed, as doctor tells it."""

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
