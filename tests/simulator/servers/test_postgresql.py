"""PostgreSQL as tests start it."""

import asyncio

import psycopg
import pytest

from simulator.servers import PostgresqlServer


@pytest.mark.nightly
async def test_it_survives_what_tests_do_to_it(postgresql_server: PostgresqlServer) -> None:
    with psycopg.connect(postgresql_server.url) as connection:
        connection.execute("CREATE TABLE kept (n int)")
    await postgresql_server.restart()
    with psycopg.connect(postgresql_server.url) as connection:
        assert connection.execute("SELECT count(*) FROM kept").fetchone() == (0,)
    await postgresql_server.reset()
    with psycopg.connect(postgresql_server.url) as connection, pytest.raises(psycopg.errors.UndefinedTable):
        connection.execute("SELECT count(*) FROM kept")


@pytest.mark.nightly
async def test_it_stands_still_and_goes_on(postgresql_server: PostgresqlServer) -> None:
    with psycopg.connect(postgresql_server.url, autocommit=True) as connection:
        postgresql_server.pause()
        assert not await postgresql_server.answers()
        postgresql_server.resume()
        assert connection.execute("SELECT 1").fetchone() == (1,)
    assert await postgresql_server.answers()


@pytest.mark.nightly
async def test_settings_and_durability_are_as_asked() -> None:
    async with PostgresqlServer(fsync=True, settings={"max_connections": "7"}) as server:
        with psycopg.connect(server.url) as connection:
            assert connection.execute("SHOW fsync").fetchone() == ("on",)
            assert connection.execute("SHOW max_connections").fetchone() == ("7",)
        folder = server.folder
    assert not folder.exists()


@pytest.mark.nightly
async def test_its_end_tells_of_a_deadlock() -> None:
    server = PostgresqlServer(settings={"deadlock_timeout": "10ms"})
    await server.start()
    with psycopg.connect(server.url) as one, psycopg.connect(server.url) as other:
        one.execute("SELECT pg_advisory_xact_lock(1)")
        other.execute("SELECT pg_advisory_xact_lock(2)")
        async with asyncio.TaskGroup() as group:
            both = [
                group.create_task(asyncio.to_thread(locked, connection, number))
                for connection, number in ((one, 2), (other, 1))
            ]
        assert sorted(task.result() for task in both) == [False, True]
    with pytest.raises(AssertionError, match="deadlock detected"):
        await server.stop()
    assert not server.alive


def locked(connection: psycopg.Connection, number: int) -> bool:
    """Whether the lock of this number was got."""
    try:
        connection.execute("SELECT pg_advisory_xact_lock(%s)", (number,))
    except psycopg.errors.DeadlockDetected:
        connection.rollback()
        return False
    connection.commit()
    return True


@pytest.mark.nightly
async def test_tables_are_kept_only_by_who_asks_for_those_of_others_who_did(
    kept_postgresql: PostgresqlServer,
) -> None:
    async def found(keep_tables: bool) -> tuple[list[str], int]:
        """What there is after a reset, and the first number of a table that is made if it is missing."""
        await kept_postgresql.reset(keep_tables=keep_tables)
        with psycopg.connect(kept_postgresql.url) as connection:
            query = "SELECT tablename FROM pg_tables WHERE schemaname = 'public'"
            tables = [name for (name,) in connection.execute(query)]
            connection.execute("CREATE TABLE IF NOT EXISTS made (number serial, text text)")
            row = connection.execute("INSERT INTO made (text) VALUES ('a') RETURNING number").fetchone()
            assert row is not None
            assert connection.execute("SELECT count(*) FROM made").fetchone() == (1,)
            return tables, row[0]

    await found(keep_tables=False)
    assert await found(keep_tables=True) == ([], 1)
    assert await found(keep_tables=True) == (["made"], 1)
    assert await found(keep_tables=False) == ([], 1)
