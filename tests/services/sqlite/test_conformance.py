"""The SQLite adapters keep the promises of their ports."""

import pytest

from holdfast.ports.clock import Clock
from holdfast.services.sqlite.coordinator import SqliteCoordinator
from holdfast.services.sqlite.database import Database
from holdfast.services.sqlite.queue import SqliteQueue
from holdfast.services.sqlite.registry import SqliteRegistry
from holdfast.services.sqlite.state import SqliteState
from holdfast.services.sqlite.tasks import SqliteTasks
from holdfast.testing.conformance import (
    CoordinatorConformance,
    KeyedQueueConformance,
    QueueConformance,
    QueueTransferConformance,
    RegistryConformance,
    StateConformance,
    StateTransferConformance,
    TasksConformance,
    TasksTransferConformance,
)


class TestSqliteQueue(KeyedQueueConformance, QueueConformance, QueueTransferConformance):
    @pytest.fixture
    def queue(self, database: Database, clock: Clock) -> SqliteQueue:
        return SqliteQueue(database, "q", clock, max_bytes=100_000)

    @pytest.fixture
    def other_queue(self, queue: SqliteQueue, database: Database, clock: Clock) -> SqliteQueue:
        return SqliteQueue(database, "q", clock)


class TestSqliteCoordinator(CoordinatorConformance):
    @pytest.fixture
    def coordinator(self, database: Database, clock: Clock) -> SqliteCoordinator:
        return SqliteCoordinator(database, clock)

    @pytest.fixture
    def other_coordinator(
        self, coordinator: SqliteCoordinator, database: Database, clock: Clock
    ) -> SqliteCoordinator:
        return SqliteCoordinator(database, clock)


class TestSqliteState(StateConformance, StateTransferConformance):
    @pytest.fixture
    def state(self, database: Database, clock: Clock) -> SqliteState:
        return SqliteState(database, clock, max_state_bytes=1_000_000)

    @pytest.fixture
    def other_state(self, state: SqliteState, database: Database, clock: Clock) -> SqliteState:
        return SqliteState(database, clock)


class TestSqliteTasks(TasksConformance, TasksTransferConformance):
    @pytest.fixture
    def tasks(self, database: Database, clock: Clock) -> SqliteTasks:
        return SqliteTasks(database, "app", clock)

    @pytest.fixture
    def other_tasks(self, tasks: SqliteTasks, database: Database, clock: Clock) -> SqliteTasks:
        return SqliteTasks(database, "app", clock)


class TestSqliteRegistry(RegistryConformance):
    @pytest.fixture
    def registry(self, database: Database, clock: Clock) -> SqliteRegistry:
        return SqliteRegistry(database, clock, max_bytes=10_000)

    @pytest.fixture
    def other_registry(self, registry: SqliteRegistry, database: Database, clock: Clock) -> SqliteRegistry:
        return SqliteRegistry(database, clock)
