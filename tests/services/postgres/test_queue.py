"""The queue in PostgreSQL: its promises, and what is its own."""

import pytest

from holdfast.ports.queue import Queue
from holdfast.services.postgres.messages import PostgresMessages
from holdfast.services.postgres.queue import PostgresQueue
from holdfast.system.clock import SystemClock
from holdfast.testing.conformance import QueueConformance
from simulator.servers import PostgresqlServer
from tests.services.postgres.conftest import MakeDatabase

PATIENCE_S = 30.0
LONG_S = 60.0


def queue_at(
    make_database: MakeDatabase, server: PostgresqlServer, name: str = "q", max_bytes: int = 100_000
) -> PostgresQueue:
    """A queue as a process of its own has it."""
    clock = SystemClock()
    messages = PostgresMessages(make_database(server.url), clock)
    return PostgresQueue(messages, name, clock, max_bytes=max_bytes)


class TestOnOneServer(QueueConformance):
    @pytest.fixture
    def queue(self, postgresql_server: PostgresqlServer, make_database: MakeDatabase) -> Queue:
        return queue_at(make_database, postgresql_server)

    @pytest.fixture
    def other_queue(
        self, postgresql_server: PostgresqlServer, queue: Queue, make_database: MakeDatabase
    ) -> Queue:
        return queue_at(make_database, postgresql_server)
