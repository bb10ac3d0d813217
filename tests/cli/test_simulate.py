"""``holdfast devices simulate``."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from holdfast.testing.servers import MosquittoServer


@pytest.fixture(scope="module")
def broker() -> Iterator[MosquittoServer]:
    server = MosquittoServer()
    asyncio.run(server.start())
    yield server
    asyncio.run(server.stop())


def test_devices_are_simulated_for_a_while(holdfast: Any, broker: MosquittoServer) -> None:
    ran = holdfast("devices", "simulate", broker.url, "--count", "20", "--for-s", "0.1", "--json")
    assert ran.code == 0, ran.err
    ready, counts = ran.lines
    assert ready == {"ready": 20}
    assert counts.pop("devices") == 20
    assert set(counts.values()) == {0}
    assert {"heard", "said", "lost", "crashes", "crowded", "at_once", "away"} == set(counts)
    ran = holdfast("devices", "simulate", broker.url, "--for-s", "0.1", "--heartbeat-s", "0.05")
    assert ran.code == 0, ran.err
    assert "ready: 100 devices listen" in ran.out
    assert "heard" in ran.out


@pytest.mark.parametrize(
    "arguments, said, code",
    [
        (["mqtt://127.0.0.1:1"], "no broker", 3),
        (["http://x"], "no MQTT", 2),
        (["mqtt://x", "--loss", "2"], "loss is a share", 2),
        (["mqtt://x", "--count", "0"], "--count", 2),
        (["mqtt://x", "--topic", "a/b"], "topics.command", 2),
    ],
)
def test_what_is_wrong_is_named(holdfast: Any, arguments: list[str], said: str, code: int) -> None:
    ran = holdfast("devices", "simulate", *arguments)
    assert ran.code == code
    assert said in ran.err
