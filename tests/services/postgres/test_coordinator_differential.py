"""The coordinator in PostgreSQL against the one in memory: the same calls, the same answers."""

import asyncio
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from holdfast.ports.meter import Meter
from holdfast.services.postgres.address import parse
from holdfast.services.postgres.coordinator import PostgresCoordinator
from holdfast.services.postgres.database import PostgresDatabase
from holdfast.system.clock import SystemClock
from simulator.servers import PostgresqlServer
from tests.services.coordinator_differential import compare, histories


@pytest.mark.nightly
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(history=histories)
def test_the_same_calls_have_the_same_answers(kept_postgresql: PostgresqlServer, history: list[Any]) -> None:
    async def play() -> None:
        await kept_postgresql.reset()
        database = PostgresDatabase(parse(kept_postgresql.url), SystemClock(), Meter())
        real = PostgresCoordinator(database, SystemClock())
        try:
            await compare(real, history)
        finally:
            await real.close()
            await database.close()

    asyncio.run(play())
