"""The tables as plain SQL, as Alembic makes them, and as the store makes them are the same."""

from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.operations import Operations
from sqlalchemy import Connection, Engine, create_engine, insert, inspect
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session
from sqlalchemy.schema import CreateIndex, CreateTable

from holdfast import App
from holdfast.devices.conformance.outbox_bench import Driver
from holdfast.devices.services.sqlalchemy import tables
from holdfast.devices.services.sqlalchemy.migrations import (
    LATEST,
    alembic_0001_outbox,
    alembic_0002_outbox,
    alembic_0003_outbox,
    alembic_0004_outbox,
    statements,
    steps,
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
@pytest.mark.parametrize("number", [1, 2])
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
    renamed = [sql.replace("job", "rollout") for sql in written]  # as the third migration does
    shown = [sql for sql in map(words, renamed) if sql[:2] in kinds]
    added = " traceparent VARCHAR(64) DEFAULT '' NOT NULL,"  # by the fourth
    assert sorted(shown) == sorted(words(" ".join(sql.split()).replace(added, "")) for sql in made)


def names(connection: Connection) -> set[str]:
    """Of the tables, columns, indexes, sequences, views and functions."""
    inspector = inspect(connection)
    named = {
        f"{table}.{column['name']}"
        for table in inspector.get_table_names()
        for column in inspector.get_columns(table)
    }
    if connection.dialect.name == "sqlite":
        listed = "SELECT name FROM sqlite_master WHERE name LIKE 'holdfast%'"
    else:
        listed = (
            "SELECT relname FROM pg_class WHERE relname ~ '^holdfast'"
            " UNION ALL SELECT proname FROM pg_proc WHERE proname ~ '^holdfast'"
        )
    return named | {row[0] for row in connection.exec_driver_sql(listed)}


def migrate(connection: Connection, last: int) -> None:
    for number in range(1, last + 1):
        for step in steps(number, connection):
            connection.execute(step)


@pytest.mark.slow
def test_alembic_makes_and_drops_what_the_store_makes(engine: Engine) -> None:
    migrations = [alembic_0001_outbox, alembic_0002_outbox, alembic_0003_outbox, alembic_0004_outbox]
    with engine.begin() as connection:
        tables.metadata.create_all(connection)
        made = names(connection)
        for each in reversed(migrations):
            _run(connection, each.downgrade)
        assert names(connection) == set()
        stood = []
        for each in migrations:
            stood.append(names(connection))
            _run(connection, each.upgrade)
        assert names(connection) == made
        assert compare_metadata(MigrationContext.configure(connection), tables.metadata) == []
        for each in reversed(migrations):
            _run(connection, each.downgrade)
            assert names(connection) == stood.pop()


async def test_a_store_brings_tables_of_the_first_migration_up_to_date(engine: Engine, url: str) -> None:
    with engine.begin() as connection:
        migrate(connection, 1)
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


@pytest.mark.nightly
async def test_the_jobs_of_an_outbox_made_before_are_rollouts_that_go_on(engine: Engine, url: str) -> None:
    with engine.begin() as connection:
        migrate(connection, 2)
        for sql in JOBS_BEFORE.split(";"):
            connection.exec_driver_sql(sql)
    early = SqlOutbox(url, SystemClock())
    with pytest.raises(ConfigError, match=r"rollout(.|\n)*start a node of this version once"):
        await early.commands("doors")
    await early.close()
    store = SqlOutbox(url, SystemClock())
    await store.prepare("doors", 1)
    await store.prepare("doors", 1)  # as the next node does
    known = [
        (each.id, each.name, each.done, each.failed, each.aborted) for each in await store.rollouts("doors")
    ]
    assert known == [(1, "firmware", 1, 1, False), (3, "faces", 0, 1, True)]
    assert [each.rollout for each in await store.commands("doors")] == [1, 3, None]
    driver = Driver(store, shards=1)
    await driver.open()
    driver.now = 1e9
    result = await driver.take_turn(sweep=True)
    assert [(each.id, each.reason) for each in result.closed] == [(2, "its rollout was aborted")]
    await store.close()
    outbox = App("office").outbox("doors")
    with Session(engine) as db, db.begin():
        assert outbox.add_rollout(db, "badges", ["d9"], b"{}") == 5, "no id is used twice"
    with engine.begin() as connection:
        assert compare_metadata(MigrationContext.configure(connection), tables.metadata) == []
        archived = connection.exec_driver_sql("SELECT rollout FROM holdfast_outbox_archive")
        assert archived.scalars().all() == [1]


@pytest.mark.nightly
async def test_commands_added_before_there_were_places_in_traces_go_on(engine: Engine, url: str) -> None:
    with engine.begin() as connection:
        migrate(connection, 3)
        connection.execute(insert(tables.shard), {"outbox": "doors", "shard": 0})
        columns, values = "outbox, device, shard, body", "'doors', 'd1', 0, '{}'"
        connection.exec_driver_sql(f"INSERT INTO holdfast_outbox_command ({columns}) VALUES ({values})")
    cautious = SqlOutbox(url, SystemClock(), create=False)
    lacks = r"holdfast_outbox_command.traceparent, holdfast_outbox_archive.traceparent"
    with pytest.raises(ConfigError, match=rf"has no {lacks}: .*migrations"):
        await cautious.prepare("doors", 1)
    assert f"no {lacks}: " in await cautious.describe()
    await cautious.close()
    with (
        Session(engine) as db,
        pytest.raises(ConfigError, match=r"traceparent(.|\n)*start a node of this version once"),
    ):
        App("office").outbox("doors").add(db, device="d1", command={})
    store = SqlOutbox(url, SystemClock())
    await store.prepare("doors", 1)
    await store.prepare("doors", 1)  # as the next node does
    assert [(each.device, each.traceparent) for each in await store.commands("doors")] == [("d1", "")]
    await store.close()
    with engine.begin() as connection:
        assert compare_metadata(MigrationContext.configure(connection), tables.metadata) == []


JOBS_BEFORE = """
INSERT INTO holdfast_outbox_shard (outbox, shard) VALUES ('doors', 0);
INSERT INTO holdfast_outbox_job (outbox, name, total, abort_share, done, failed, aborted, created_at) VALUES
    ('doors', 'firmware', 4, 1.0, 1, 1, false, 1.0),
    ('lifts', 'firmware', 1, 1.0, 0, 0, false, 1.0),
    ('doors', 'faces', 2, 0.1, 0, 1, true, 1.0),
    ('doors', 'dropped', 0, 1.0, 0, 0, false, 1.0);
DELETE FROM holdfast_outbox_job WHERE name = 'dropped';
INSERT INTO holdfast_outbox_command (outbox, device, shard, body, not_before, job) VALUES
    ('doors', 'd1', 0, '{}', 2e9, 1),
    ('doors', 'd2', 0, '{}', 2e9, 3),
    ('doors', 'd3', 0, '{}', 2e9, NULL);
INSERT INTO holdfast_outbox_archive (id, outbox, device, shard, body, job) VALUES
    (-1, 'doors', 'd0', 0, '{}', 1)
"""


async def test_a_store_may_try_again_while_the_business_keeps_it_from_making_tables(
    engine: Engine, url: str
) -> None:
    """An open transaction that has added a command holds up the indexes of the second migration."""
    with engine.begin() as connection:
        migrate(connection, 1)
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


async def test_a_store_may_be_forbidden_to_create_tables(tmp_path: Path) -> None:
    store = SqlOutbox(f"sqlite:///{tmp_path}/app.db", SystemClock(), create=False)
    with pytest.raises(ConfigError, match="migrations"):
        await store.prepare("doors", 1)
    engine = create_engine(f"sqlite:///{tmp_path}/app.db")
    with engine.begin() as connection:
        migrate(connection, LATEST)
    engine.dispose()
    await store.prepare("doors", 1)
    assert await store.epochs("doors") == {0: 0}
    await store.close()
