"""The outbox store in SQLite and in PostgreSQL, with transactions of connections and of sessions."""

from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from unittest import mock

import pytest
from sqlalchemy import Engine, create_engine
from sqlalchemy.orm import Session

from holdfast.adapters.sqlalchemy.outbox import SqlOutbox
from holdfast.adapters.sqlalchemy.rows import COLUMNS
from holdfast.adapters.sqlalchemy.rows import entry as archived
from holdfast.adapters.sqlalchemy.transaction import PostgresqlTransaction
from holdfast.adapters.sqlalchemy.writer import SqlWriter
from holdfast.adapters.system.clock import SystemClock
from holdfast.testing.conformance import OutboxConformance
from holdfast.testing.conformance.outbox import NOW, OUTBOX, Begin, Dispatcher, answer, new
from holdfast.testing.servers import PostgresqlServer


class SqlConformance(OutboxConformance):
    """Two clients of one database, and the business's own engine."""

    @pytest.fixture
    async def url(self) -> str:
        raise NotImplementedError

    @pytest.fixture
    async def store(self, url: str) -> AsyncIterator[SqlOutbox]:
        store = SqlOutbox(url, SystemClock())
        yield store
        await store.close()

    @pytest.fixture
    async def other_store(self, url: str) -> AsyncIterator[SqlOutbox]:
        store = SqlOutbox(url, SystemClock())
        yield store
        await store.close()

    @pytest.fixture
    def business(self, url: str) -> Iterator[Engine]:
        engine = create_engine(url.replace("postgresql:", "postgresql+psycopg:"))
        yield engine
        engine.dispose()

    @pytest.fixture
    def begin(self, business: Engine) -> Begin:
        @contextmanager
        def begin() -> Iterator[SqlWriter]:
            with business.begin() as connection:
                yield SqlWriter(connection)

        return begin

    async def test_the_archive_has_all_of_what_it_has(
        self, dispatcher: Dispatcher, store: SqlOutbox, begin: Begin, business: Engine
    ) -> None:
        with begin() as db:
            [number] = db.add([new("d1", b"\x00body", trace_id="t-1", dedupe_key="k")])
        [sending] = await dispatcher.send()
        await dispatcher.turn(heard=[answer(sending, b"\xffok")])
        entry = await store.command(number)
        await store.expire(OUTBOX, NOW + 1, 10, archive=True)
        with business.connect() as connection:
            [row] = connection.exec_driver_sql(f"SELECT outbox, {COLUMNS} FROM holdfast_outbox_archive")
        assert (row[0], archived(row[1:])) == (OUTBOX, entry)
        assert await store.command(number) is None


class TestSqliteOutbox(SqlConformance):
    @pytest.fixture
    async def url(self, tmp_path: Path) -> str:
        return f"sqlite:///{tmp_path}/app.db"


class TestSqliteOutboxBySessions(TestSqliteOutbox):
    @pytest.fixture
    def begin(self, business: Engine) -> Begin:
        def begin() -> AbstractContextManager[SqlWriter]:
            return by_session(business)

        return begin


class TestPostgresqlOutbox(SqlConformance):
    @pytest.fixture
    async def url(self, postgresql_server: PostgresqlServer) -> str:
        return postgresql_server.url

    async def test_a_turn_is_three_messages(self, dispatcher: Dispatcher, begin: Begin) -> None:
        with begin() as db:
            db.add([new(f"d{n}") for n in range(50)])
            db.add([new("d0"), new("d1", not_before=NOW + 1000.0)])
        spied = mock.patch.object(
            PostgresqlTransaction, "_send", autospec=True, side_effect=PostgresqlTransaction._send
        )
        with spied as sent:
            sendings = await dispatcher.send()
        assert (len(sendings), sent.call_count) == (50, 3)
        with spied as sent:
            turned = await dispatcher.turn(heard=[answer(each) for each in sendings], tell=False)
        assert (len(turned.closed), len(turned.sendings), sent.call_count) == (50, 1, 3)


@contextmanager
def by_session(business: Engine) -> Iterator[SqlWriter]:
    with Session(business) as session, session.begin():
        yield SqlWriter(session)
