"""PostgreSQL as tests start it."""

import psycopg
import pytest

from simulator.servers import PostgresqlServer


async def test_it_survives_what_tests_do_to_it(postgresql_server: PostgresqlServer) -> None:
    with psycopg.connect(postgresql_server.url) as connection:
        connection.execute("CREATE TABLE kept (n int)")
    await postgresql_server.restart()
    with psycopg.connect(postgresql_server.url) as connection:
        assert connection.execute("SELECT count(*) FROM kept").fetchone() == (0,)
    await postgresql_server.reset()
    with psycopg.connect(postgresql_server.url) as connection, pytest.raises(psycopg.errors.UndefinedTable):
        connection.execute("SELECT count(*) FROM kept")


async def test_it_stands_still_and_goes_on(postgresql_server: PostgresqlServer) -> None:
    with psycopg.connect(postgresql_server.url, autocommit=True) as connection:
        postgresql_server.pause()
        assert not await postgresql_server.answers()
        postgresql_server.resume()
        assert connection.execute("SELECT 1").fetchone() == (1,)
    assert await postgresql_server.answers()


async def test_settings_and_durability_are_as_asked() -> None:
    async with PostgresqlServer(fsync=True, settings={"max_connections": "7"}) as server:
        with psycopg.connect(server.url) as connection:
            assert connection.execute("SHOW fsync").fetchone() == ("on",)
            assert connection.execute("SHOW max_connections").fetchone() == ("7",)
        folder = server.folder
    assert not folder.exists()
