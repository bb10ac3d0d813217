"""The device port over a real broker."""

from collections.abc import AsyncIterator

import pytest

from holdfast.devices.conformance import DeviceConformance
from simulator.servers import MosquittoServer
from tests.devices.services.mqtt.bench import MqttBench, benched

QUERIES = {
    "5": "version=5",
    "3.1.1": "version=3.1.1",
    "exactly-once-own": "version=5&qos=2&hears=own&session_s=0",
    "three-connections": "version=5&connections=3",
}


class TestMqttDevices(DeviceConformance):
    @pytest.fixture(params=list(QUERIES.values()), ids=list(QUERIES))
    async def bench(
        self, mosquitto: MosquittoServer, request: pytest.FixtureRequest
    ) -> AsyncIterator[MqttBench]:
        async with benched(mosquitto, f"{request.param}&max_payload=10000") as bench:
            yield bench
