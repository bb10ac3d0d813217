"""The state store in PostgreSQL: its promises, and what is its own."""

import asyncio
import itertools

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from holdfast.ports.meter import Meter
from holdfast.ports.state import StateStore
from holdfast.services.postgres.address import parse
from holdfast.services.postgres.database import PostgresDatabase
from holdfast.services.postgres.state import PostgresState
from holdfast.system.clock import SystemClock
from holdfast.testing.conformance import StateConformance
from holdfast.testing.conformance.oracle import StateMachine
from simulator.servers import PostgresqlServer
from tests.services.postgres.conftest import MakeDatabase

KEY = "s/k"
PATIENCE_S = 30.0


def state_at(make_database: MakeDatabase, server: PostgresqlServer) -> PostgresState:
    return PostgresState(make_database(server.url), SystemClock(), max_state_bytes=2 << 20)


class TestOnOneServer(StateConformance):
    @pytest.fixture
    def state(self, postgresql_server: PostgresqlServer, make_database: MakeDatabase) -> StateStore:
        return state_at(make_database, postgresql_server)

    @pytest.fixture
    def other_state(
        self, postgresql_server: PostgresqlServer, state: StateStore, make_database: MakeDatabase
    ) -> StateStore:
        return state_at(make_database, postgresql_server)


def test_it_decides_as_the_ledger_does(kept_postgresql: PostgresqlServer) -> None:
    numbers = itertools.count()

    class PostgresMachine(StateMachine):
        async def make(self) -> StateStore:
            self.url = f"{kept_postgresql.url}?schema=machine_{next(numbers)}"
            return self.begin_at_url()

        async def reopen(self, store: StateStore) -> StateStore:
            await self.database.close()
            return self.begin_at_url()

        def begin_at_url(self) -> StateStore:
            self.database = PostgresDatabase(parse(self.url), SystemClock(), Meter())
            return PostgresState(self.database, SystemClock())

        def teardown(self) -> None:
            if hasattr(self, "database"):
                self._run(self.database.close())
            super().teardown()

    asyncio.run(kept_postgresql.heal())
    run_state_machine_as_test(
        PostgresMachine, settings=settings(max_examples=20, stateful_step_count=30, deadline=None)
    )
