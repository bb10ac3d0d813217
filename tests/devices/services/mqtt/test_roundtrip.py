"""Round trips, and Nagle's algorithm seen in them."""

from collections.abc import MutableMapping
from typing import Any

import pytest
from structlog.testing import capture_logs

from holdfast.devices.conformance.device import LIMIT_S
from holdfast.devices.services.mqtt.address import parse
from holdfast.devices.services.mqtt.device import MqttDevices
from holdfast.devices.services.mqtt.roundtrip import ROUNDS, advice, measure
from holdfast.errors import Unavailable
from holdfast.system.clock import SystemClock
from simulator.servers import MosquittoServer
from simulator.servers.server import until


@pytest.mark.nightly
async def test_a_broker_with_nagle_is_named() -> None:
    async with MosquittoServer(nodelay=False) as server:
        times_ms = await measure(parse(server.url), "me", SystemClock())
    assert len(times_ms) == ROUNDS
    assert max(times_ms) > 20, "the 40 ms of a delayed acknowledgement"
    assert "Nagle" in advice([0.3, 43.0] * 20)
    assert "Nagle" in advice([0.3, *([41.5] * 39)])
    assert "Nagle" in advice([80.3, 122.0] * 20), "far away, and Nagle"


@pytest.mark.nightly
async def test_who_is_connected_is_warned_of_it() -> None:
    async with MosquittoServer(nodelay=False) as server:
        devices = MqttDevices(parse(server.url), "me", SystemClock(), check=True)
        with capture_logs() as logs:
            await devices.start()
            await until(lambda: logged(logs), "it is warned of", LIMIT_S)
        await devices.close()


async def logged(logs: list[MutableMapping[str, Any]]) -> bool:
    return any("Nagle" in line.get("fix", "") for line in logs)


async def test_a_broker_without_delay_gets_no_advice(mosquitto: MosquittoServer) -> None:
    times_ms = await measure(parse(mosquitto.url), "me", SystemClock())
    assert len(times_ms) == ROUNDS
    assert not advice([0.4] * 37 + [42.0] * 3), "a busy machine"
    assert not advice([42.0, 43.0, 41.0]), "far away"


async def test_a_missing_broker_is_reported() -> None:
    with pytest.raises(Unavailable, match="mqtt:"):
        await measure(parse("mqtt://127.0.0.1:1"), "me", SystemClock())
