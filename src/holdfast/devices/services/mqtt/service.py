"""The service that URLs of MQTT open: ``mqtt://localhost``, ``mqtts://user:password@broker``."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from holdfast.devices.ports.broker import BrokerService
from holdfast.devices.ports.device import Connect
from holdfast.devices.spec import OutboxSpec
from holdfast.errors import ConfigError
from holdfast.extend import Clock, extra

if TYPE_CHECKING:
    from holdfast.devices.services.mqtt.device import MqttDevices


class MqttService(BrokerService):
    """Brokers that speak MQTT 5 or 3.1.1."""

    example = "mqtt://localhost"

    def devices(self, url: str, spec: OutboxSpec, clock: Clock) -> Connect:
        with extra("outbox", "devices_url"):
            from holdfast.devices.services.mqtt.address import parse  # noqa: PLC0415
            from holdfast.devices.services.mqtt.device import MqttDevices  # noqa: PLC0415
        address = parse(url)
        if spec.max_body > address.max_payload:
            raise ConfigError(
                f"outbox {spec.name!r} takes commands of max_body = {spec.max_body} bytes, more than"
                f" max_payload = {address.max_payload} of devices_url: lower max_body, or raise max_payload"
                " if the broker takes more"
            )
        if spec.shards > 1:  # otherwise each shard would receive the answers to all others
            address = dataclasses.replace(address, hears="own")

        def connect(identity: str, still_ours: Callable[[], Awaitable[bool]]) -> MqttDevices:
            return MqttDevices(
                address,
                identity,
                clock,
                topics=spec.topics,
                dialect=spec.dialect,
                still_ours=still_ours,
                check=identity == spec.identity(0),
            )

        return connect

    async def time_ms(self, url: str, clock: Clock) -> tuple[float, str]:
        with extra("outbox", "devices_url"):
            from holdfast.devices.services.mqtt import roundtrip  # noqa: PLC0415
            from holdfast.devices.services.mqtt.address import parse  # noqa: PLC0415
        times_ms = await roundtrip.measure(parse(url), f"holdfast-doctor-{clock.new_id()}", clock)
        return statistics.median(times_ms), roundtrip.advice(times_ms)


service = MqttService()
