"""An app's outboxes, from their declaration to the services that a config names."""

import pytest

from holdfast import App
from holdfast.assembly.checks import check_app, queues_of
from holdfast.config.settings import Config
from holdfast.devices.adapters import open_devices, open_outbox
from holdfast.devices.services.mqtt.device import MqttDevices
from holdfast.errors import ConfigError
from holdfast.wiring.services import Services


async def ours() -> bool:
    return True


def test_an_app_declares_each_outbox_once() -> None:
    app = App("office")
    faces = app.outbox("faces", shards=4)
    assert app.outboxes == {"faces": faces}
    assert faces.spec.shards == 4
    with pytest.raises(ConfigError, match="declared twice"):
        app.outbox("faces")
    with pytest.raises(TypeError, match="colour"):
        app.outbox("doors", colour="red")  # type: ignore[call-arg]


def test_a_missing_setting_is_named() -> None:
    services, faces = Services(Config()), App("office").outbox("faces")
    with pytest.raises(ConfigError, match="outbox_url"):
        open_outbox(services)
    with pytest.raises(ConfigError, match="devices_url"):
        open_devices(services, faces.spec)
    with pytest.raises(ConfigError, match="devices_url is 'amqp://x'"):
        open_devices(Services(Config(devices_url="amqp://x")), faces.spec)


def test_commands_that_no_connection_takes_are_refused_at_the_start() -> None:
    spec = App("office").outbox("faces", max_body=1000).spec
    with pytest.raises(ConfigError, match=r"max_body = 1000.*max_payload = 999"):
        open_devices(Services(Config(devices_url="mqtt://broker?max_payload=999")), spec)


async def test_briefs_go_to_a_queue_of_their_own(services: Services) -> None:
    app = App("office")
    app.outbox("faces", briefs="office-briefs")
    app.outbox("doors", briefs="readings")
    assert set(queues_of(app)) == {"office-briefs", "readings"}
    app.stream("readings", key="meter")(lambda message, context: None)
    with pytest.raises(ConfigError, match="'doors': briefs is 'readings'"):
        check_app(services, app)


@pytest.mark.parametrize("shards, hears", [(1, "all"), (4, "own")])
async def test_devices_are_those_of_the_outbox(shards: int, hears: str) -> None:
    spec = App("office").outbox("faces", shards=shards, max_body=999).spec
    devices = open_devices(Services(Config(devices_url="mqtt://broker?max_payload=999")), spec)("me", ours)
    assert isinstance(devices, MqttDevices)
    assert devices.max_payload == 999
    assert devices.address.hears == hears
