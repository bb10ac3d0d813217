"""What PostgreSQL's errors become, on a real server; and that no password is shown."""

import re
from collections.abc import AsyncIterator
from urllib.parse import urlsplit

import psycopg
import pytest

from holdfast.errors import (
    ConfigError,
    HoldfastError,
    LoginRefused,
    OperationRefused,
    TakesNoWrites,
    Unavailable,
    UnsupportedStore,
)
from holdfast.ports.queue import Outgoing
from holdfast.services.postgres.lane import Connection
from holdfast.services.postgres.messages import PostgresMessages
from holdfast.services.postgres.queue import PostgresQueue
from holdfast.system.clock import SystemClock
from simulator.servers import PostgresqlServer
from tests.services.postgres.conftest import MakeDatabase

PASSWORD = "se-cret"


async def ask(database: MakeDatabase, url: str, query: str = "SELECT 1") -> None:
    async def run(connection: Connection) -> None:
        await (await connection.execute(query.encode())).fetchall()

    await database(url).lane("state").read(run)


async def refused(database: MakeDatabase, url: str, query: str = "SELECT 1") -> HoldfastError:
    with pytest.raises(HoldfastError) as raised:
        await ask(database, url, query)
    assert PASSWORD not in str(raised.value)
    return raised.value


@pytest.fixture
async def guarded() -> AsyncIterator[PostgresqlServer]:
    """A server with few connections that asks the user ``ann`` for a password."""
    server = PostgresqlServer(settings={"max_connections": "5", "superuser_reserved_connections": "2"})
    async with server:
        with psycopg.connect(server.url, autocommit=True) as connection:
            connection.execute(f"CREATE ROLE ann LOGIN PASSWORD '{PASSWORD}'".encode())
            connection.execute("CREATE ROLE bob LOGIN")
            connection.execute("GRANT CREATE ON DATABASE postgres TO ann")
        (server.data / "pg_hba.conf").write_text(
            "host all postgres 127.0.0.1/32 trust\nhost all ann 127.0.0.1/32 scram-sha-256\n"
        )
        await server.restart()
        yield server


def by(server: PostgresqlServer, user: str, database: str = "postgres") -> str:
    return f"postgresql://{user}@{urlsplit(server.url).netloc.partition('@')[2]}/{database}"


@pytest.mark.slow
async def test_who_may_not_log_in_is_told_so(guarded: PostgresqlServer, make_database: MakeDatabase) -> None:
    await ask(make_database, by(guarded, f"ann:{PASSWORD}"))
    for user in (f"ann:{PASSWORD}x", "ann", "bob"):
        error = await refused(make_database, by(guarded, user))
        assert isinstance(error, LoginRefused), error
    error = await refused(make_database, by(guarded, f"ann:{PASSWORD}", "nowhere"))
    assert isinstance(error, ConfigError), error


@pytest.mark.slow
async def test_a_server_without_room_is_unavailable(
    guarded: PostgresqlServer, make_database: MakeDatabase
) -> None:
    holders = [psycopg.connect(by(guarded, f"ann:{PASSWORD}")) for _ in range(3)]
    try:
        assert isinstance(await refused(make_database, by(guarded, f"ann:{PASSWORD}")), Unavailable)
    finally:
        for holder in holders:
            holder.close()


async def test_a_port_where_nobody_listens_is_unavailable(make_database: MakeDatabase) -> None:
    error = await refused(make_database, f"postgresql://ann:{PASSWORD}@127.0.0.1:1/postgres")
    assert isinstance(error, Unavailable)


async def test_a_server_that_takes_no_writes_is_unavailable(
    postgresql_server: PostgresqlServer, make_database: MakeDatabase
) -> None:
    await make_database(postgresql_server.url).migrate()
    url = f"{postgresql_server.url}?options=-c%20default_transaction_read_only%3Don"
    error = await refused(make_database, url)
    assert isinstance(error, TakesNoWrites)
    assert "name the primary" in str(error)
    url += "&target_session_attrs=any"
    error = await refused(make_database, url, "DELETE FROM holdfast.documents")
    assert isinstance(error, TakesNoWrites)
    assert "name the primary" in str(error)


@pytest.mark.parametrize("encoding", ["SQL_ASCII", "LATIN1"])
async def test_a_database_that_holds_not_every_text_is_refused_at_once(
    postgresql_server: PostgresqlServer, make_database: MakeDatabase, encoding: str
) -> None:
    name = f"in_{encoding.lower()}"
    with psycopg.connect(postgresql_server.url, autocommit=True) as connection:
        connection.execute(f"DROP DATABASE IF EXISTS {name}".encode())
        connection.execute(
            f"CREATE DATABASE {name} ENCODING '{encoding}' LC_COLLATE 'C' LC_CTYPE 'C'"
            " TEMPLATE template0".encode()
        )
        error = await refused(make_database, by(postgresql_server, "postgres", name))
        assert isinstance(error, ConfigError)
        assert f"encoding is {encoding}" in str(error)
        assert "ENCODING 'UTF8'" in str(error)
        connection.execute(f"DROP DATABASE {name}".encode())


async def test_what_a_role_has_set_changes_nothing(
    postgresql_server: PostgresqlServer, make_database: MakeDatabase
) -> None:
    with psycopg.connect(postgresql_server.url, autocommit=True) as connection:
        connection.execute("DROP ROLE IF EXISTS odd")
        connection.execute("CREATE ROLE odd LOGIN SUPERUSER")
        connection.execute("ALTER ROLE odd SET client_encoding = 'SQL_ASCII'")
        connection.execute("ALTER ROLE odd SET array_nulls = off")
    for pooled in ("", "?pooled=yes"):
        database = make_database(by(postgresql_server, "odd") + pooled)
        messages = PostgresMessages(database, SystemClock())
        queue = PostgresQueue(messages, "odd", SystemClock(), max_bytes=1000)
        await queue.send([Outgoing(b"x", {"a": "\N{SNOWMAN}"})])
        [delivery] = await queue.receive(1, 5.0, 30.0, "m")
        assert delivery.attributes == {"a": "\N{SNOWMAN}"}
        assert await queue.delete([delivery.receipt]) == []
        assert (await queue.depth()).in_flight == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    "query, kind, text",
    [
        ("SELECT pg_terminate_backend(pg_backend_pid())", Unavailable, "57P01"),
        ("SET statement_timeout = 1; SELECT pg_sleep(9)", Unavailable, "57014"),
        ("DO $$ BEGIN RAISE serialization_failure; END $$", Unavailable, "in the way"),
        ("DO $$ BEGIN RAISE deadlock_detected; END $$", Unavailable, "in the way"),
        ("DO $$ BEGIN RAISE lock_not_available; END $$", Unavailable, "locked"),
        ("DO $$ BEGIN RAISE disk_full; END $$", Unavailable, "disk"),
        ("DO $$ BEGIN RAISE io_error; END $$", Unavailable, "disk"),
        ("DO $$ BEGIN RAISE data_corrupted; END $$", Unavailable, "damaged"),
        ("DO $$ BEGIN RAISE insufficient_privilege; END $$", ConfigError, "doctor --grants"),
        ("SELECT * FROM holdfast.nothing", Unavailable, "gone"),
        ("SELECT * FROM nothing.nothing", Unavailable, "gone"),
        ("SELECT nothing FROM holdfast.documents", UnsupportedStore, "other columns"),
        ("SELECT 1 / 0", OperationRefused, "22012"),
        ("SELEKT", OperationRefused, "42601"),
    ],
)
async def test_a_refusal_says_what_it_means(
    postgresql_server: PostgresqlServer,
    make_database: MakeDatabase,
    query: str,
    kind: type[HoldfastError],
    text: str,
) -> None:
    url = postgresql_server.url.replace("postgres@", f"postgres:{PASSWORD}@")
    error = await refused(make_database, url, query)
    assert type(error) is kind
    assert re.search(text, str(error)), error
