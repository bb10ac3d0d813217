"""What the tests on PostgreSQL share."""

from collections.abc import AsyncIterator, Callable

import pytest

from holdfast.ports.meter import Meter
from holdfast.services.postgres.address import parse
from holdfast.services.postgres.database import PostgresDatabase
from holdfast.services.postgres.messages import PostgresMessages
from holdfast.services.postgres.queue import PostgresQueue
from holdfast.system.clock import SystemClock
from simulator.servers import PostgresqlServer

MakeDatabase = Callable[..., PostgresDatabase]
MakeQueue = Callable[..., PostgresQueue]


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


@pytest.fixture
def make_queue(postgresql_server: PostgresqlServer, make_database: MakeDatabase) -> MakeQueue:
    """Makes queues, each as a process of its own has it."""

    def make(name: str = "q", max_bytes: int = 100_000, parameters: str = "") -> PostgresQueue:
        clock = SystemClock()
        messages = PostgresMessages(make_database(postgresql_server.url + parameters), clock)
        return PostgresQueue(messages, name, clock, max_bytes=max_bytes)

    return make
