"""Round trips, and Nagle's algorithm seen in them."""

import pytest

from holdfast.adapters.mqtt.address import parse
from holdfast.adapters.mqtt.roundtrip import ROUNDS, advice, measure
from holdfast.adapters.system.clock import SystemClock
from holdfast.errors import Unavailable
from holdfast.testing.servers import MosquittoServer


async def test_a_broker_with_nagle_is_named() -> None:
    async with MosquittoServer(nodelay=False) as server:
        times_ms = await measure(parse(server.url), "me", SystemClock())
    assert len(times_ms) == ROUNDS
    assert "Nagle" in advice([42.0] * ROUNDS)
    assert max(times_ms) > 20, "the 40 ms of a delayed acknowledgement"


async def test_a_broker_without_is_not(mosquitto: MosquittoServer) -> None:
    times_ms = await measure(parse(mosquitto.url), "me", SystemClock())
    assert len(times_ms) == ROUNDS
    assert not advice([0.4, 3.0, 42.0])
    assert not advice([150.0])


async def test_a_broker_that_is_not_there_is_told() -> None:
    with pytest.raises(Unavailable, match="mqtt:"):
        await measure(parse("mqtt://127.0.0.1:1"), "me", SystemClock())
