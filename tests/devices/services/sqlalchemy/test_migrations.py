"""The tables as plain SQL, as Alembic makes them, and as the store makes them are the same."""

from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.operations import Operations
from sqlalchemy import Connection, Engine, create_engine, insert, inspect
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.schema import CreateIndex, CreateTable

from holdfast.devices.services.sqlalchemy import tables
from holdfast.devices.services.sqlalchemy.migrations import (
    LATEST,
    alembic_0001_outbox,
    alembic_0002_outbox,
    dialect_of,
    statements,
)
from holdfast.devices.services.sqlalchemy.outbox import SqlOutbox
from holdfast.errors import ConfigError, Unavailable
from holdfast.system.clock import SystemClock
from simulator.servers import PostgresqlServer

DIALECTS = {"sqlite": sqlite.dialect(), "postgresql": postgresql.dialect()}  # type: ignore[no-untyped-call]


def words(sql: str) -> list[str]:
    lines = [line for line in sql.splitlines() if not line.startswith("--")]
    return " ".join(lines).split()


@pytest.mark.parametrize("name", DIALECTS)
@pytest.mark.parametrize("number", [1, LATEST])
def test_the_sql_is_what_the_store_makes(name: str, number: int) -> None:
    made: list[str] = []
    for table in tables.metadata.sorted_tables:
        if table.info.get("migration", 1) == number:
            made.append(str(CreateTable(table, if_not_exists=number > 1).compile(dialect=DIALECTS[name])))
        for index in sorted(table.indexes, key=lambda index: str(index.name)):
            if index.info.get("migration", 1) == number:
                sql = CreateIndex(index, if_not_exists=number > 1)
                made.append(str(sql.compile(dialect=DIALECTS[name])))
    written = statements(number, "sqlite" if name == "sqlite" else "postgresql")
    kinds = (["CREATE", "TABLE"], ["CREATE", "INDEX"], ["CREATE", "UNIQUE"])
    shown = [sql for sql in map(words, written) if sql[:2] in kinds]
    assert shown == list(map(words, made))


def test_alembic_makes_and_drops_them(engine: Engine) -> None:
    with engine.begin() as connection:
        _run(connection, alembic_0001_outbox.upgrade)
        _run(connection, alembic_0002_outbox.upgrade)
        context = MigrationContext.configure(connection)
        assert compare_metadata(context, tables.metadata) == []
        _run(connection, alembic_0002_outbox.downgrade)
        _run(connection, alembic_0001_outbox.downgrade)
        assert inspect(connection).get_table_names() == []
        assert inspect(connection).get_view_names() == []


async def test_a_store_brings_tables_of_the_first_migration_up_to_date(engine: Engine, url: str) -> None:
    with engine.begin() as connection:
        for statement in statements(1, dialect_of(connection)):
            connection.exec_driver_sql(statement)
        connection.execute(insert(tables.shard), {"outbox": "doors", "shard": 0})
        row = {"outbox": "doors", "device": "d1", "shard": 0, "body": b"{}"}
        connection.execute(insert(tables.command), row)
    store = SqlOutbox(url, SystemClock())
    for read in (store.devices, store.paused):
        with pytest.raises(
            ConfigError, match=r"holdfast_outbox_pause(.|\n)*start a node of this version once"
        ):
            await read("doors")
    await store.prepare("doors", 1)
    assert await store.devices("doors") == []
    assert [entry.device for entry in await store.commands("doors")] == ["d1"]
    await store.close()
    with engine.begin() as connection:
        assert compare_metadata(MigrationContext.configure(connection), tables.metadata) == []


async def test_a_store_may_try_again_while_the_business_keeps_it_from_making_tables(
    engine: Engine, url: str
) -> None:
    """An open transaction that has added a command holds up the indexes of the second migration."""
    with engine.begin() as connection:
        for statement in statements(1, dialect_of(connection)):
            connection.exec_driver_sql(statement)
    hurried = SqlOutbox(url, SystemClock(), busy_timeout_s=0.05)
    with engine.begin() as connection:
        row = {"outbox": "doors", "device": "d1", "shard": 0, "body": b"{}"}
        connection.execute(insert(tables.command), row)
        with pytest.raises(Unavailable):
            await hurried.prepare("doors", 1)
    await hurried.close()
    store = SqlOutbox(url, SystemClock())
    await store.prepare("doors", 1)
    assert [entry.device for entry in await store.commands("doors")] == ["d1"]
    await store.close()


async def test_a_store_whose_user_may_make_nothing_says_so(postgresql_server: PostgresqlServer) -> None:
    only_reads = "?options=-c%20default_transaction_read_only%3Don"
    store = SqlOutbox(postgresql_server.url + only_reads, SystemClock())
    with pytest.raises(ConfigError, match=r"read-only transaction(.|\n)*let a user who may make its tables"):
        await store.prepare("doors", 1)
    await store.close()


def _run(connection: Connection, step: object) -> None:
    with Operations.context(MigrationContext.configure(connection)):
        assert callable(step)
        step()


async def test_a_store_may_be_told_to_make_nothing(tmp_path: Path) -> None:
    store = SqlOutbox(f"sqlite:///{tmp_path}/app.db", SystemClock(), create=False)
    with pytest.raises(ConfigError, match="migrations"):
        await store.prepare("doors", 1)
    engine = create_engine(f"sqlite:///{tmp_path}/app.db")
    with engine.begin() as connection:
        for number in range(1, LATEST + 1):
            for statement in statements(number, "sqlite"):
                connection.exec_driver_sql(statement)
    engine.dispose()
    await store.prepare("doors", 1)
    assert await store.epochs("doors") == {0: 0}
    await store.close()
