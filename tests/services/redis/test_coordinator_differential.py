"""The coordinator in Redis against the one in memory: the same calls, the same answers."""

import asyncio
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from holdfast.ports.meter import Meter
from holdfast.services.redis.connection import RedisConnection, parse
from holdfast.services.redis.coordinator import RedisCoordinator
from holdfast.system.clock import SystemClock
from simulator.servers import RedisServer
from tests.services.coordinator_differential import compare, histories


@pytest.mark.nightly
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(history=histories)
def test_the_same_calls_have_the_same_answers(kept_redis: RedisServer, history: list[Any]) -> None:
    async def play() -> None:
        connection = RedisConnection(parse(kept_redis.url), Meter())
        await connection.everywhere("FLUSHALL")
        real = RedisCoordinator(connection, SystemClock())
        try:
            await compare(real, history)
        finally:
            await real.close()

    asyncio.run(play())
