"""The outbox store in SQLite and in PostgreSQL, with transactions of connections and of sessions."""

from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
from sqlalchemy import Engine, create_engine
from sqlalchemy.orm import Session

from holdfast.adapters.sqlalchemy.outbox import SqlOutbox
from holdfast.adapters.sqlalchemy.writer import SqlWriter
from holdfast.adapters.system.clock import SystemClock
from holdfast.testing.conformance import OutboxConformance
from holdfast.testing.conformance.outbox import Begin
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


@contextmanager
def by_session(business: Engine) -> Iterator[SqlWriter]:
    with Session(business) as session, session.begin():
        yield SqlWriter(session)
