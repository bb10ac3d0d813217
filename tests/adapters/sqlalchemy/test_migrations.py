"""The tables as plain SQL, as Alembic makes them, and as the store makes them are the same."""

from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.operations import Operations
from sqlalchemy import Connection, Engine, create_engine, inspect
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.schema import CreateIndex, CreateTable

from holdfast.adapters.sqlalchemy import tables
from holdfast.adapters.sqlalchemy.migrations import alembic_0001_outbox, statements
from holdfast.adapters.sqlalchemy.outbox import SqlOutbox
from holdfast.adapters.system.clock import SystemClock
from holdfast.errors import ConfigError

DIALECTS = {"sqlite": sqlite.dialect(), "postgresql": postgresql.dialect()}  # type: ignore[no-untyped-call]


def words(sql: str) -> list[str]:
    lines = [line for line in sql.splitlines() if not line.startswith("--")]
    return " ".join(lines).split()


@pytest.mark.parametrize("name", DIALECTS)
def test_the_sql_is_what_the_store_makes(name: str) -> None:
    made: list[str] = []
    for table in tables.metadata.sorted_tables:
        made.append(str(CreateTable(table).compile(dialect=DIALECTS[name])))
        indexes = sorted(table.indexes, key=lambda index: str(index.name))
        made += [str(CreateIndex(index).compile(dialect=DIALECTS[name])) for index in indexes]
    written = statements(1, "sqlite" if name == "sqlite" else "postgresql")
    assert [words(sql) for sql in written] == [words(sql) for sql in made]


def test_alembic_makes_and_drops_them(engine: Engine) -> None:
    with engine.begin() as connection:
        _run(connection, alembic_0001_outbox.upgrade)
        context = MigrationContext.configure(connection)
        assert compare_metadata(context, tables.metadata) == []
        _run(connection, alembic_0001_outbox.downgrade)
        assert inspect(connection).get_table_names() == []


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
        for statement in statements(1, "sqlite"):
            connection.exec_driver_sql(statement)
    engine.dispose()
    await store.prepare("doors", 1)
    assert await store.epochs("doors") == {0: 0}
    await store.close()
