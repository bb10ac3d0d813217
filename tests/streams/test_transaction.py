"""Messages that are sent in a transaction of the caller's."""

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker
from structlog.testing import capture_logs

from holdfast import AsyncClient, Client, StreamMessage
from holdfast.config.settings import Config
from holdfast.errors import ConfigError, InvalidMessage, TooLarge
from holdfast.services.sqlite.database import Database
from holdfast.system.clock import SystemClock
from holdfast.wiring.services import Services
from simulator.servers import PostgresqlServer
from simulator.servers.server import until

INSERT = "INSERT INTO orders (name) VALUES ('one')"
PATIENCE_S = 30.0


class SqlitePlace:
    """A file with a table of the caller's, and the queue of the stream ``orders``."""

    messages = "messages"
    django = "django.db.backends.sqlite3"
    safety = "holdfast.services.sqlite.queue.SAFETY_S"

    def __init__(self, file: Path) -> None:
        self.url = self.engine_url = f"sqlite:///{file}"
        self.async_url = f"sqlite+aiosqlite:///{file}"

    async def bodies(self) -> list[bytes]:
        """What can be received now."""
        async with Services(Config(url=self.url)) as services:
            found = await services.queue("orders").receive(100, 0.0, 60.0, "m")
            return [delivery.body for delivery in found]

    async def is_awaited(self, queue: Any) -> bool:
        """Whether a receive of this process waits for a bell."""
        database = Database.open(self.engine_url.removeprefix("sqlite:///"), SystemClock())
        try:
            return database.doorbell.is_awaited
        finally:
            await database.close()

    def count(self, table: str) -> int:
        """The rows that are committed."""
        with sa.create_engine(self.engine_url, poolclass=sa.NullPool).connect() as connection:
            return int(connection.execute(sa.text(f"SELECT count(*) FROM {table}")).scalar_one())

    def connect(self) -> Any:
        """A connection of the driver, which commits at the end of its block."""
        return sqlite3.connect(self.engine_url.removeprefix("sqlite:///"))

    def connect_elsewhere(self) -> Any:
        """The same to another database."""
        return sqlite3.connect(f"{self.engine_url.removeprefix('sqlite:///')}.other")

    def connect_without_transaction(self) -> Any:
        """The same, where each statement commits by itself."""
        return sqlite3.connect(self.engine_url.removeprefix("sqlite:///"), isolation_level=None)

    async def make(self) -> None:
        """Make the tables."""
        async with Services(Config(url=self.url)) as services:
            await services.queue("orders").depth()
        with sa.create_engine(self.engine_url, poolclass=sa.NullPool).begin() as connection:
            connection.execute(sa.text("CREATE TABLE orders (name TEXT)"))


class PostgresPlace(SqlitePlace):
    """The same in a database of a server."""

    messages = "holdfast.messages"
    django = "django.db.backends.postgresql"
    safety = "holdfast.services.postgres.queue.SAFETY_S"

    def __init__(self, server: PostgresqlServer) -> None:
        self.server = server
        self.url = server.url
        self.engine_url = self.async_url = server.url.replace("postgresql:", "postgresql+psycopg:")

    def connect(self) -> Any:
        return psycopg.connect(self.url)

    def connect_elsewhere(self) -> Any:
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute("DROP DATABASE IF EXISTS elsewhere")
            connection.execute("CREATE DATABASE elsewhere")
        return psycopg.connect(self.elsewhere())

    def elsewhere(self) -> str:
        """The URL of the other database."""
        return f"{self.url.rpartition('/')[0]}/elsewhere"

    def connect_without_transaction(self) -> Any:
        return psycopg.connect(self.url, autocommit=True)

    async def is_awaited(self, queue: Any) -> bool:
        return bool(queue.messages.database.bells.is_awaited)


Place = SqlitePlace | PostgresPlace


@pytest.fixture
async def sqlite_place(tmp_path: Path) -> SqlitePlace:
    made = SqlitePlace(tmp_path / "shop.db")
    await made.make()
    return made


@pytest.fixture
async def postgres_place(postgresql_server: PostgresqlServer) -> PostgresPlace:
    made = PostgresPlace(postgresql_server)
    await made.make()
    return made


@pytest.fixture(params=["sqlite", "postgres"])
def place(request: pytest.FixtureRequest) -> Place:
    found: Place = request.getfixturevalue(f"{request.param}_place")
    return found


# --- each kind of connection: a block that changes and sends, and commits at its end


@contextmanager
def a_session(place: Place) -> Iterator[Any]:
    with Session(sa.create_engine(place.engine_url, poolclass=sa.NullPool)) as session, session.begin():
        session.execute(sa.text(INSERT))
        yield session


@contextmanager
def a_fresh_session(place: Place) -> Iterator[Any]:
    with Session(sa.create_engine(place.engine_url, poolclass=sa.NullPool)) as session, session.begin():
        yield session
        session.execute(sa.text(INSERT))


@contextmanager
def a_scoped_session(place: Place) -> Iterator[Any]:
    sessions = scoped_session(sessionmaker(sa.create_engine(place.engine_url, poolclass=sa.NullPool)))
    with sessions.begin():
        sessions.execute(sa.text(INSERT))
        yield sessions
    sessions.remove()


@contextmanager
def an_sqlalchemy_connection(place: Place) -> Iterator[Any]:
    with sa.create_engine(place.engine_url, poolclass=sa.NullPool).begin() as connection:
        yield connection
        connection.execute(sa.text(INSERT))


@contextmanager
def a_driver_connection(place: Place) -> Iterator[Any]:
    with place.connect() as connection:
        yield connection
        connection.execute(INSERT)


@contextmanager
def a_django_connection(place: Place) -> Iterator[Any]:
    from django.db import transaction

    connection = django_connection(place)
    try:
        with transaction.atomic(using=connection.alias):
            with connection.cursor() as cursor:
                cursor.execute(INSERT)
            yield connection
    finally:
        connection.close()


def django_connection(place: Place) -> Any:
    """As Django gives it to a view."""
    import django
    from django.conf import settings
    from django.db import connections

    if not settings.configured:
        settings.configure(DATABASES={})
        django.setup()
    url = sa.make_url(place.engine_url)
    connections.databases["shop"] = connections.configure_settings(
        {
            "default": {},
            "shop": {
                "ENGINE": place.django,
                "NAME": url.database,
                "USER": url.username or "",
                "HOST": url.host or "",
                "PORT": url.port or "",
            },
        }
    )["shop"]
    return connections["shop"]


KINDS = [
    a_session,
    a_fresh_session,
    a_scoped_session,
    an_sqlalchemy_connection,
    a_driver_connection,
    a_django_connection,
]


@pytest.mark.parametrize("kind", KINDS)
async def test_a_message_is_sent_when_the_caller_commits(place: Place, kind: Any) -> None:
    def send() -> None:
        with Client("shop", url=place.url) as client, kind(place) as connection:
            sent = client.stream("orders").send(b"one", connection=connection)
            assert sent.isdigit()
            client.stream("orders").send_many(
                [StreamMessage(b"two"), StreamMessage(b"three")], connection=connection
            )
            assert place.count(place.messages) == 0

    await asyncio.to_thread(send)
    assert place.count("orders") == 1
    assert await place.bodies() == [b"one", b"two", b"three"]


@asynccontextmanager
async def an_async_session(place: Place) -> AsyncIterator[Any]:
    engine = create_async_engine(place.async_url, poolclass=sa.NullPool)
    async with AsyncSession(engine) as session, session.begin():
        yield session
        await session.execute(sa.text(INSERT))
    await engine.dispose()


@asynccontextmanager
async def an_async_connection(place: Place) -> AsyncIterator[Any]:
    engine = create_async_engine(place.async_url, poolclass=sa.NullPool)
    async with engine.begin() as connection:
        await connection.execute(sa.text(INSERT))
        yield connection
    await engine.dispose()


@asynccontextmanager
async def an_async_driver_connection(place: Place) -> AsyncIterator[Any]:
    if isinstance(place, PostgresPlace):
        async with await psycopg.AsyncConnection.connect(place.url) as connection:
            yield connection
            await connection.execute(INSERT)
    else:  # of those of SQLite only SQLAlchemy's is known
        async with an_async_connection(place) as of_sqlalchemy:
            yield of_sqlalchemy


ASYNC_KINDS = [an_async_driver_connection, an_async_session, an_async_connection]


@pytest.mark.parametrize("kind", ASYNC_KINDS)
async def test_a_message_is_sent_when_an_asynchronous_caller_commits(place: Place, kind: Any) -> None:
    async with AsyncClient("shop", url=place.url) as client:
        async with kind(place) as connection:
            await client.stream("orders").send(b"one", connection=connection)
            await client.stream("orders").send(b"two", connection=connection)
            assert await asyncio.to_thread(place.count, place.messages) == 0
        assert place.count("orders") == 1
        assert await place.bodies() == [b"one", b"two"]


@pytest.mark.parametrize("kind", KINDS)
async def test_a_message_vanishes_when_the_caller_rolls_back(place: Place, kind: Any) -> None:
    def send() -> None:
        with (
            Client("shop", url=place.url) as client,
            suppress(ZeroDivisionError),
            kind(place) as connection,
        ):
            client.stream("orders").send(b"one", connection=connection)
            raise ZeroDivisionError

    await asyncio.to_thread(send)
    assert place.count("orders") == place.count(place.messages) == 0
    assert await place.bodies() == []


@pytest.mark.parametrize("kind", [a_session, a_django_connection])
async def test_who_waits_is_woken_by_the_commit(
    place: Place, kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(place.safety, 2 * PATIENCE_S)
    async with Services(Config(url=place.url)) as services:
        queue = services.queue("orders")
        await queue.depth()
        receiving = asyncio.create_task(queue.receive(1, 2 * PATIENCE_S, 60.0, "m"))
        await until(partial(place.is_awaited, queue), "a receive that waits")
        client = Client("shop", url=place.url)

        def send() -> None:
            with kind(place) as connection:
                client.stream("orders").send(b"one", connection=connection)

        try:
            await asyncio.to_thread(send)
            [delivery] = await asyncio.wait_for(receiving, PATIENCE_S)
        finally:
            await asyncio.to_thread(client.close)
        assert delivery.body == b"one"


async def test_a_delayed_message_waits_after_the_commit(place: Place) -> None:
    def send() -> None:
        with Client("shop", url=place.url) as client, an_sqlalchemy_connection(place) as connection:
            client.stream("orders").send(b"one", connection=connection, delay_s=600.0)

    await asyncio.to_thread(send)
    async with Services(Config(url=place.url)) as services:
        depth = await services.queue("orders").depth()
    assert (depth.ready, depth.delayed) == (0, 1)


async def test_a_connection_to_another_database_is_refused(place: Place) -> None:
    def send() -> None:
        with Client("shop", url=place.url) as client, place.connect_elsewhere() as connection:
            client.stream("orders").send(b"one", connection=connection)

    with pytest.raises(ConfigError, match=r"connection is to .* the queue"):
        await asyncio.to_thread(send)
    assert await place.bodies() == []


@pytest.fixture
async def shop_place(postgres_place: PostgresPlace) -> AsyncIterator[PostgresPlace]:
    """For a role that may only send messages, and change the table of its own."""
    async with Services(Config(url=postgres_place.url)) as services:
        granted = services.grants("shop", only_to_send=True)
    with psycopg.connect(postgres_place.url, autocommit=True) as connection:
        connection.execute("CREATE ROLE shop LOGIN")
        connection.execute("GRANT USAGE ON SCHEMA public TO shop; GRANT INSERT ON orders TO shop")
        for statement in granted:
            connection.execute(statement.encode())
    made = PostgresPlace(postgres_place.server)
    made.url = made.url.replace("postgres@", "shop@")
    made.engine_url = made.async_url = made.engine_url.replace("postgres@", "shop@")
    yield made
    with psycopg.connect(postgres_place.url, autocommit=True) as connection:
        connection.execute("DROP OWNED BY shop; DROP ROLE shop")


@pytest.mark.slow
@pytest.mark.parametrize("block", [a_session, a_driver_connection, a_django_connection])
async def test_a_role_that_may_only_send_sends(
    shop_place: PostgresPlace, postgres_place: PostgresPlace, block: Callable[[Place], Any]
) -> None:
    def sell() -> None:
        with Client("shop", url=shop_place.url) as client:
            with block(shop_place) as connection:
                client.stream("orders").send({"order": 1}, key="a", connection=connection)
            client.stream("orders").send({"order": 2}, key="a", delay_s=0.001)

    await asyncio.to_thread(sell)
    assert len(await postgres_place.bodies()) == 2
    assert postgres_place.count("orders") == 1
    for forbidden in ("SELECT body FROM holdfast.messages", "DELETE FROM holdfast.messages"):
        with shop_place.connect() as connection:  # noqa: SIM117 (the inner one fails)
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(forbidden)


@pytest.mark.slow
async def test_another_database_with_the_same_schema_is_refused(postgres_place: PostgresPlace) -> None:
    await asyncio.to_thread(lambda: postgres_place.connect_elsewhere().close())
    other = postgres_place.elsewhere()
    async with Services(Config(url=other)) as services:
        await services.queue("orders").depth()

        def send() -> None:
            with Client("shop", url=postgres_place.url) as client, psycopg.connect(other) as connection:
                client.stream("orders").send(b"one", connection=connection)

        with pytest.raises(ConfigError, match="another database than that of the queue"):
            await asyncio.to_thread(send)
        assert (await services.queue("orders").depth()).ready == 0


async def test_a_connection_that_commits_each_statement_is_refused(place: Place) -> None:
    def driver(client: Client) -> None:
        with place.connect_without_transaction() as connection:
            client.stream("orders").send(b"one", connection=connection)

    def sqlalchemy(client: Client) -> None:
        engine = sa.create_engine(place.engine_url, isolation_level="AUTOCOMMIT", poolclass=sa.NullPool)
        with engine.connect() as connection:
            client.stream("orders").send(b"one", connection=connection)

    def django(client: Client) -> None:
        connection = django_connection(place)
        try:
            client.stream("orders").send(b"one", connection=connection)
        finally:
            connection.close()

    def send(by: Callable[[Client], None]) -> None:
        with Client("shop", url=place.url) as client, pytest.raises(ConfigError, match="autocommit"):
            by(client)

    for by in (driver, sqlalchemy, django):
        await asyncio.to_thread(send, by)
    assert await place.bodies() == []


async def test_what_is_no_connection_is_refused(place: Place) -> None:
    async with AsyncClient("shop", url=place.url) as client:
        with pytest.raises(ConfigError, match=r"connection is a str; give a Session"):
            await client.stream("orders").send(b"one", connection="sqlite:///shop.db")


async def test_a_client_without_a_loop_refuses_an_asynchronous_connection(place: Place) -> None:
    async with an_async_session(place) as session:

        def send() -> None:
            with Client("shop", url=place.url) as client, pytest.raises(ConfigError, match="asynchronous"):
                client.stream("orders").send(b"one", connection=session)

        await asyncio.to_thread(send)


async def test_a_queue_in_no_database_refuses_a_connection() -> None:
    with sqlite3.connect(":memory:") as connection:
        async with AsyncClient("shop", url="redis://127.0.0.1:1") as client:
            with pytest.raises(ConfigError, match=r"stream 'orders'.*in no database.*queue_url"):
                await client.stream("orders").send(b"one", connection=connection)


@pytest.mark.slow
async def test_a_message_that_is_too_large_leaves_the_transaction_usable(place: Place) -> None:
    def send() -> None:
        with (
            Client("shop", url=place.url, max_message_bytes=1024) as client,
            an_sqlalchemy_connection(place) as connection,
        ):
            with pytest.raises(TooLarge):
                client.stream("orders").send(bytes(2000), connection=connection)
            with pytest.raises(InvalidMessage):
                client.stream("orders").send(object(), connection=connection)
            client.stream("orders").send(b"one", connection=connection)

    await asyncio.to_thread(send)
    assert place.count("orders") == 1
    assert await place.bodies() == [b"one"]


@pytest.mark.slow
async def test_a_role_that_may_only_send_hears_of_no_look_for_nodes_and_keeps_no_connection_for_it(
    shop_place: PostgresPlace, postgres_place: PostgresPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.streams.declared.CLOSE_S", PATIENCE_S)

    async def one_is_open() -> bool:
        with postgres_place.connect() as connection:
            found = connection.execute("SELECT count(*) FROM pg_stat_activity WHERE usename = 'shop'")
            return bool(found.fetchall() == [(1,)])

    async def look_is_over() -> bool:
        return "holdfast-look" not in {thread.name for thread in threading.enumerate()}

    with capture_logs() as logged:
        async with AsyncClient("shop", url=shop_place.url) as client:
            await client.stream("orders").send({"order": 1}, key="a")
            await until(look_is_over, "an end of the look")
            await until(one_is_open, "an end of the look's connection")
            await client.stream("orders").send({"order": 2}, key="a")
    assert logged == []
