"""Opens what outboxes need: the tables of the business's database, the broker of devices, a node's part."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from holdfast.devices.ports.outbox import OutboxStore
from holdfast.devices.spec import OutboxSpec
from holdfast.errors import ConfigError
from holdfast.urls import by_scheme, extra

if TYPE_CHECKING:
    from holdfast.app import App
    from holdfast.cluster.host import Host
    from holdfast.cluster.node import NodePart
    from holdfast.devices.dispatcher import Connect
    from holdfast.devices.services.mqtt.device import MqttDevices
    from holdfast.wiring import Services


def open_outbox(services: Services) -> OutboxStore:
    """The tables of outboxes in the business's database: one more opening, which its user closes. Raises
    ConfigError without ``outbox_url``."""
    config = services.config
    if not config.outbox_url:
        raise ConfigError(
            "the app has an outbox: set outbox_url to the database that its commands are added in, such"
            " as 'sqlite:///office.db' or 'postgresql://user@host/office'"
        )
    with extra("outbox", "outbox_url"):
        from holdfast.devices.services.sqlalchemy.outbox import SqlOutbox  # noqa: PLC0415
    access = None if services.reads_only else services.access
    return SqlOutbox(config.outbox_url, services.clock, durability=config.durability, access=access)


async def describe_outbox(services: Services) -> str:
    """What the database of outboxes is, in words. Raises ConfigError, Unavailable."""
    store = open_outbox(services)
    try:
        return await store.describe()
    finally:
        await store.close()


async def time_broker(services: Services) -> tuple[float, str]:
    """How long a message takes to the broker of devices and back, the median in milliseconds, and what to
    do about it, if anything. Raises ConfigError, Unavailable."""
    with extra("outbox", "devices_url"):
        from holdfast.devices.services.mqtt import roundtrip  # noqa: PLC0415
        from holdfast.devices.services.mqtt.address import parse  # noqa: PLC0415
    address, clock = parse(services.config.devices_url), services.clock
    times_ms = await roundtrip.measure(address, f"holdfast-doctor-{clock.new_id()}", clock)
    return statistics.median(times_ms), roundtrip.advice(times_ms)


def open_devices(services: Services, spec: OutboxSpec) -> Connect:
    """Makes the devices of an outbox's shards, from ``devices_url``. Raises ConfigError."""
    openers: dict[str, Callable[[str], Connect]] = dict.fromkeys(
        ("mqtt", "mqtts"), lambda url: _mqtt(services, url, spec)
    )
    return by_scheme("devices_url", services.config.devices_url, openers, ("mqtt://localhost",))


def _mqtt(services: Services, url: str, spec: OutboxSpec) -> Connect:
    with extra("outbox", "devices_url"):
        from holdfast.devices.services.mqtt.address import parse  # noqa: PLC0415
        from holdfast.devices.services.mqtt.device import MqttDevices  # noqa: PLC0415
    address = parse(url)
    if spec.max_body > address.max_payload:
        raise ConfigError(
            f"outbox {spec.name!r} takes commands of max_body = {spec.max_body} bytes, and devices_url"
            f" lets none over max_payload = {address.max_payload} pass: lower max_body, or raise"
            " max_payload if the broker takes more"
        )
    if spec.shards > 1:  # else each would hear the answers to all the others
        address = dataclasses.replace(address, hears="own")

    def connect(identity: str, still_ours: Callable[[], Awaitable[bool]]) -> MqttDevices:
        return MqttDevices(
            address,
            identity,
            services.clock,
            topics=spec.topics,
            dialect=spec.dialect,
            still_ours=still_ours,
            check=identity == spec.identity(0),
        )

    return connect


def node_part(services: Services, app: App, host: Host) -> NodePart:
    """The outboxes of an app in a node, and their metrics."""
    from holdfast.cluster.node import NodePart  # noqa: PLC0415

    if not app.outboxes:
        return NodePart()
    from holdfast.devices.metrics import OutboxMetrics  # noqa: PLC0415
    from holdfast.devices.work import DeviceWork  # noqa: PLC0415

    outboxes = [
        DeviceWork(
            host,
            outbox,
            open_outbox(services),
            open_devices(services, outbox.spec),
            app=app.name,
            briefs=services.queue(outbox.spec.briefs) if outbox.spec.briefs else None,
        )
        for outbox in app.outboxes.values()
    ]
    return NodePart(outboxes, [OutboxMetrics(outboxes)])
