"""An outbox as a target of effects."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from holdfast import App, devices
from holdfast.config.sources import load
from holdfast.devices.ports.outbox import OutboxStore
from holdfast.devices.target import OutboxTarget
from holdfast.errors import InvalidMessage, TooLarge
from holdfast.extend import OutgoingEffect
from holdfast.wiring.services import Services


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[OutboxStore]:
    async with Services(load({"outbox_url": f"sqlite:///{tmp_path / 'office.db'}"})) as services:
        store = devices.open_outbox(services)
        await store.prepare("doors", 1)
        yield store
        await store.close()


def effect(name: str, device: str, body: bytes = b'{"open":1}') -> OutgoingEffect:
    return OutgoingEffect(name, "doors", device, body, "cameras/gate", "0:1")


async def test_a_repeated_effect_adds_no_second_command(store: OutboxStore) -> None:
    target = OutboxTarget(App("site").outbox("doors"), store)
    await target.take([effect("A", "north")])
    await target.take([effect("A", "north"), effect("B", "north"), effect("C", "south")])
    found = await store.commands("doors")
    assert [(each.device, each.trace_id, each.body) for each in found] == [
        ("north", "A", b'{"open":1}'),
        ("north", "B", b'{"open":1}'),
        ("south", "C", b'{"open":1}'),
    ]


async def test_a_command_that_no_device_could_get_is_refused_before_any_is_added(store: OutboxStore) -> None:
    target = OutboxTarget(App("site").outbox("doors", max_body=100), store)
    with pytest.raises(InvalidMessage, match="device"):
        await target.take([effect("A", "north"), effect("B", "")])
    with pytest.raises(TooLarge, match="max_body of outbox 'doors'"):
        await target.take([effect("A", "north"), effect("B", "north", b'{"name":"%s"}' % (b"x" * 100))])
    with pytest.raises(InvalidMessage):
        await target.take([effect("A", "north", b"not JSON")])
    assert await store.commands("doors") == []
