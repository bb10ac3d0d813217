"""A database in a fresh directory."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from holdfast.ports.clock import Clock
from holdfast.services.sqlite.database import Database
from holdfast.system.clock import SystemClock


@pytest.fixture
def clock() -> Clock:
    return SystemClock()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "hold.db"


@pytest.fixture
async def database(path: Path, clock: Clock) -> AsyncIterator[Database]:
    database = Database.open(path, clock)
    yield database
    await database.close()
