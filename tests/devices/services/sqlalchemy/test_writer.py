"""Adding with every kind of session and connection that SQLAlchemy has, in the business's transaction."""

import time
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.exc import DBAPIError, OperationalError
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from holdfast import App
from holdfast.devices.conformance.outbox_bench import Driver
from holdfast.devices.outbox import Outbox
from holdfast.devices.rules.dialect import PlainDialect
from holdfast.devices.services.sqlalchemy import tables
from holdfast.devices.services.sqlalchemy.bell import CHANNEL
from holdfast.devices.services.sqlalchemy.engine import lacks_tables
from holdfast.devices.services.sqlalchemy.outbox import SqlOutbox
from holdfast.errors import ConfigError
from holdfast.system.clock import SystemClock
from simulator.servers import PostgresqlServer

PATIENCE_S = 30.0


@pytest.fixture
def engine(engine: Engine, store: SqlOutbox) -> Engine:
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE person (id INTEGER PRIMARY KEY, name TEXT)"))
    return engine


@pytest.fixture
async def async_engine(url: str, engine: Engine) -> AsyncIterator[AsyncEngine]:
    driver = url.replace("postgresql:", "postgresql+psycopg:").replace("sqlite:", "sqlite+aiosqlite:")
    async_engine = create_async_engine(driver)
    yield async_engine
    await async_engine.dispose()


@pytest.fixture
def outbox() -> Outbox:
    return App("office").outbox("doors", dialect=PlainDialect())


async def bodies(store: SqlOutbox) -> list[bytes]:
    return [entry.body for entry in await store.commands("doors")]


INSERT = text("INSERT INTO person (id, name) VALUES (:id, 'A. Person')")


async def test_commands_are_added_by_connections_and_sessions(
    store: SqlOutbox, engine: Engine, outbox: Outbox
) -> None:
    with engine.begin() as connection:
        connection.execute(INSERT, {"id": 1})
        first = outbox.add(connection, device="d1", command=b"1")
    with Session(engine) as session:
        session.execute(INSERT, {"id": 2})
        second = outbox.add(session, device="d1", command=b"2")
        session.commit()
        third = outbox.add(session, device="d1", command=b"3")
        session.rollback()
        fourth = outbox.add(session, device="d1", command=b"4")
        session.commit()
    assert isinstance(third, int)
    assert await bodies(store) == [b"1", b"2", b"4"]
    assert [e.id for e in await store.commands("doors")] == [first, second, fourth]
    with engine.connect() as connection:
        assert connection.execute(text("SELECT count(*) FROM person")).scalar() == 2


async def test_commands_are_added_by_async_connections_and_sessions(
    store: SqlOutbox, async_engine: AsyncEngine, outbox: Outbox
) -> None:
    async with async_engine.begin() as connection:
        await connection.execute(INSERT, {"id": 1})
        await outbox.add(connection, device="d1", command=b"1")
    async with AsyncSession(async_engine) as session:
        await outbox.add(session, device="d1", command=b"lost")
        await session.rollback()
        await outbox.add_many(session, [{"device": f"d{n}", "command": b"%d" % n} for n in (2, 3)])
        await session.commit()
    assert await bodies(store) == [b"1", b"2", b"3"]


async def test_a_savepoint_that_fails_takes_its_commands_along(
    store: SqlOutbox, engine: Engine, outbox: Outbox
) -> None:
    with Session(engine) as session, session.begin():
        outbox.add(session, device="d1", command=b"kept")
        inner = session.begin_nested()
        outbox.add(session, device="d1", command=b"lost")
        inner.rollback()
    # pysqlite as it comes begins no transaction before a savepoint: what is in it is then its own.
    assert (await bodies(store))[0] == b"kept"


async def test_a_rolled_back_savepoint_notifies_no_dispatcher(
    store: SqlOutbox, outbox: Outbox, engine: Engine, postgresql_server: PostgresqlServer
) -> None:
    if engine.dialect.name == "sqlite":
        pytest.skip("its bell is rung by the commit, whatever the savepoints were")
    with psycopg.connect(postgresql_server.url, autocommit=True) as listening:
        listening.execute(f"LISTEN {CHANNEL}")
        with Session(engine) as session, session.begin():
            inner = session.begin_nested()
            outbox.add(session, device="d1", command=b"lost")
            inner.rollback()
            outbox.add(session, device="d1", command=b"kept")
        [notice] = listening.notifies(timeout=PATIENCE_S, stop_after=1)
    assert notice.payload == "doors"


@pytest.mark.slow
async def test_many_commands_leave_one_mark_a_device(
    store: SqlOutbox, engine: Engine, outbox: Outbox
) -> None:
    with engine.begin() as connection:
        ids = outbox.add_many(
            connection, ({"device": f"d{n % 50}", "command": b"%d" % n} for n in range(5_000))
        )
        marks = connection.execute(text("SELECT count(*) FROM holdfast_outbox_arrival")).scalar_one()
    assert marks <= 50
    assert ids == sorted(ids)
    assert await bodies(store) == [b"%d" % n for n in range(100)]


async def test_a_commit_wakes_and_a_rollback_may(store: SqlOutbox, engine: Engine, outbox: Outbox) -> None:
    await store.wait_for_arrival("doors", 0.01)
    with Session(engine) as session:
        for n in range(3):
            outbox.add(session, device="d1", command=b"%d" % n)
        session.commit()
    clock = SystemClock()
    begun_at = clock.monotonic()
    await store.wait_for_arrival("doors", PATIENCE_S)
    assert clock.monotonic() - begun_at < PATIENCE_S


def test_tables_that_are_not_there_are_named(url: str, outbox: Outbox) -> None:
    engine = create_engine(url.replace("postgresql:", "postgresql+psycopg:"))
    additions: list[Callable[[Session], int]] = [
        lambda db: outbox.add(db, device="d1", command=b"1"),
        lambda db: outbox.add_rollout(db, "firmware", ["d1"], b"1"),
    ]
    for add in additions:
        with (
            Session(engine) as session,
            pytest.raises(ConfigError, match="start a node of this version once"),
        ):
            add(session)
    engine.dispose()


@pytest.mark.parametrize(
    "said, codes, lacks",
    [
        ("no such table: holdfast_outbox_pause", {}, True),
        ("table holdfast_outbox_command has no column named x", {}, True),
        ("no such table: doors", {}, False),
        ("UNIQUE constraint failed: holdfast_outbox_command.id", {}, False),
        ('relation "holdfast_outbox_pause" does not exist', {"sqlstate": "42P01"}, True),
        ('relation "holdfast_outbox_pause" does not exist', {"pgcode": "42P01"}, True),
        ("permission denied for table holdfast_outbox_pause", {"sqlstate": "42501"}, True),
        ('relation "doors" does not exist', {"sqlstate": "42P01"}, False),
        ('deadlock: tuple in relation "holdfast_outbox_shard"', {"pgcode": "40P01"}, False),
    ],
)
def test_missing_tables_are_recognized_with_every_driver(
    said: str, codes: dict[str, str], lacks: bool
) -> None:
    origin = Exception(said)
    vars(origin).update(codes)
    assert lacks_tables(DBAPIError("SELECT", {}, origin)) is lacks


def test_a_transient_error_of_the_database_is_raised_unchanged(
    outbox: Outbox, postgresql_server: PostgresqlServer
) -> None:
    """PostgreSQL names the table that it waited for, too: that is no table that is missing."""
    engine = create_engine(postgresql_server.url.replace("postgresql:", "postgresql+psycopg:"))
    tables.metadata.create_all(engine)
    with Session(engine) as first, Session(engine) as second:
        outbox.add(first, device="d1", command=b"1", dedupe_key="k")
        second.execute(text("SET LOCAL lock_timeout = '10ms'"))
        with pytest.raises(OperationalError, match=f"lock timeout(.|\n)*{tables.PREFIX}"):
            outbox.add(second, device="d1", command=b"1", dedupe_key="k")
    engine.dispose()


def test_an_outbox_in_another_kind_of_database_is_refused(outbox: Outbox) -> None:
    db: Any = SimpleNamespace(dialect=SimpleNamespace(name="mysql"))
    with pytest.raises(ConfigError, match="mysql: outboxes are in SQLite or PostgreSQL"):
        outbox.add(db, device="d1", command=b"1")


async def test_a_business_pauses_and_takes_back_with_its_own_change(
    store: SqlOutbox, engine: Engine, async_engine: AsyncEngine, outbox: Outbox
) -> None:
    with Session(engine) as db, db.begin():
        number = outbox.add(db, device="d1", command=b"1")
        outbox.add(db, device="d1", command=b"2", supersede_key="951")
    with Session(engine) as db:
        assert outbox.cancel(db, command=number) == 1
        outbox.pause(db)
        db.rollback()
    assert await store.paused("doors") == {}
    async with AsyncSession(async_engine) as session, session.begin():
        assert await outbox.cancel(session, device="d1", supersede_key="951") == 1
        assert await outbox.cancel(session, command=number) == 1
        await outbox.pause(session, "d1")
        await outbox.pause(session)
    assert list(await store.paused("doors")) == ["", "d1"]
    driver = Driver(store, shards=1)
    await driver.open()
    driver.now = time.time()
    result = await driver.take_turn()
    assert ([entry.reason for entry in result.closed], result.paused) == (["cancelled"] * 2, True)
    async with AsyncSession(async_engine) as session, session.begin():
        assert await outbox.resume(session)
        assert await outbox.resume(session, "d1")
        assert not await outbox.resume(session, "d1")
    assert await store.paused("doors") == {}
