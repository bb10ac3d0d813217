"""The coordinator in PostgreSQL: its promises, and what is its own."""

import pytest

from holdfast.ports.coordinator import Coordinator
from holdfast.services.postgres.coordinator import PostgresCoordinator
from holdfast.system.clock import SystemClock
from holdfast.testing.conformance import CoordinatorConformance
from simulator.servers import PostgresqlServer
from tests.services.postgres.conftest import MakeDatabase


def coordinator_at(make_database: MakeDatabase, server: PostgresqlServer) -> PostgresCoordinator:
    return PostgresCoordinator(make_database(server.url), SystemClock())


class TestOnOneServer(CoordinatorConformance):
    tick_s = 0.25

    @pytest.fixture
    def coordinator(self, postgresql_server: PostgresqlServer, make_database: MakeDatabase) -> Coordinator:
        return coordinator_at(make_database, postgresql_server)

    @pytest.fixture
    def other_coordinator(
        self, postgresql_server: PostgresqlServer, coordinator: Coordinator, make_database: MakeDatabase
    ) -> Coordinator:
        return coordinator_at(make_database, postgresql_server)
