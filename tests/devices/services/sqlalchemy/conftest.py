"""An outbox in each kind of database, and the business's own connections to it."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine, create_engine

from holdfast.devices.services.sqlalchemy.outbox import SqlOutbox
from holdfast.system.clock import SystemClock
from simulator.servers import PostgresqlServer


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/app.db"
    server: PostgresqlServer = request.getfixturevalue("postgresql_server")
    return server.url


@pytest.fixture
def engine(url: str) -> Iterator[Engine]:
    engine = create_engine(url.replace("postgresql:", "postgresql+psycopg:"))
    yield engine
    engine.dispose()


@pytest.fixture
async def store(url: str) -> AsyncIterator[SqlOutbox]:
    store = SqlOutbox(url, SystemClock())
    await store.prepare("doors", 1)
    yield store
    await store.close()
