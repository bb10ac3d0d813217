"""Queues of Redis as targets of effects."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from holdfast.config.sources import load
from holdfast.ports.target import OutgoingEffect
from holdfast.wiring.services import Services
from holdfast.wiring.target_urls import TargetUrls
from simulator.servers import RedisServer


@pytest.fixture
async def services(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Services]:
    monkeypatch.chdir(tmp_path)
    async with Services(load()) as services:
        yield services


async def test_each_target_gets_its_own_effects(services: Services, redis_server: RedisServer) -> None:
    open_url, names = TargetUrls(services), ("one", "two")
    for name in names:
        target = open_url(f"{redis_server.url}?namespace={name}#alerts")
        await target.take([OutgoingEffect("id", "", "", name.encode(), "cameras/gate", "0:1")])
    for name in names:
        async with Services(load({"url": f"{redis_server.url}?namespace={name}"})) as there:
            found = await there.queue("alerts").receive(10, 0.0, 30.0, "reader")
        assert [delivery.body for delivery in found] == [name.encode()]
