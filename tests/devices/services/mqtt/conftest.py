"""One broker for all tests of this folder."""

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest

from simulator.servers import MosquittoServer
from tests.devices.services.mqtt.bench import MqttBench, benched


@pytest.fixture(scope="session")
def kept_mosquitto() -> Iterator[MosquittoServer]:
    server = MosquittoServer()
    asyncio.run(server.start())
    yield server
    asyncio.run(server.stop())


@pytest.fixture
async def mosquitto(kept_mosquitto: MosquittoServer) -> MosquittoServer:
    await kept_mosquitto.heal()
    return kept_mosquitto


@pytest.fixture(params=["5", "3.1.1"])
async def bench(mosquitto: MosquittoServer, request: pytest.FixtureRequest) -> AsyncIterator[MqttBench]:
    async with benched(mosquitto, f"version={request.param}") as bench:
        yield bench
