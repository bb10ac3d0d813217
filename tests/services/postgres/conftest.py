"""What the tests on PostgreSQL share."""

from collections.abc import AsyncIterator, Callable

import pytest

from holdfast.ports.meter import Meter
from holdfast.services.postgres.address import parse
from holdfast.services.postgres.database import PostgresDatabase
from holdfast.system.clock import SystemClock

MakeDatabase = Callable[..., PostgresDatabase]


@pytest.fixture
async def make_database() -> AsyncIterator[MakeDatabase]:
    """Makes databases at URLs, as processes of their own would; they end with the test."""
    made = []

    def make(url: str, timeout_s: float = 10.0, lock_timeout_s: float = 2.0) -> PostgresDatabase:
        made.append(
            PostgresDatabase(
                parse(url), SystemClock(), Meter(), timeout_s=timeout_s, lock_timeout_s=lock_timeout_s
            )
        )
        return made[-1]

    yield make
    for database in made:
        await database.close()
