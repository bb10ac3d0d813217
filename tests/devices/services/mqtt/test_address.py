"""URLs of brokers."""

import pytest

from holdfast.devices.services.mqtt.address import MqttAddress, parse
from holdfast.errors import ConfigError


def test_a_url_needs_only_a_host() -> None:
    assert parse("mqtt://broker") == MqttAddress("broker")
    assert parse("mqtts://broker") == MqttAddress("broker", 8883, tls=True)
    assert parse("mqtt://[::1]:1999").host == "::1"


def test_every_setting_of_a_url_is_parsed() -> None:
    address = parse(
        "mqtts://me:p%40ss@broker:1?version=3.1.1&qos=2&connections=3&hears=own&keepalive_s=5&session_s=0"
        "&window=7&max_payload=1000&status=a/b&ca=/ca&cert=/cert&key=/key"
    )
    assert address == MqttAddress(
        "broker", 1, "me", "p@ss", tls=True, version="3.1.1", qos=2, connections=3, hears="own",
        keepalive_s=5, session_s=0, window=7, max_payload=1000, status="a/b",
        ca="/ca", cert="/cert", key="/key",
    )  # fmt: skip
    assert "p@ss" not in repr(address) + str(address)
    assert str(address) == "mqtts://me@broker:1"


@pytest.mark.parametrize(
    "url, said",
    [
        ("http://broker", "not MQTT"),
        ("", "not MQTT"),
        ("mqtt://", "HOST"),
        ("mqtt://a,b", "HOST"),
        ("mqtt://broker:0", "HOST"),
        ("mqtt://broker:70000", "HOST"),
        ("mqtt://broker/topic", "between HOST"),
        ("mqtt://u:a/b@broker", "percent-encode"),
        ("mqtt://broker?qoss=1", "did you mean qos"),
        ("mqtt://broker?qos=3", "0 to 2"),
        ("mqtt://broker?window=0", "1 to 32767"),
        ("mqtt://broker?version=4", "5 or 3.1.1"),
        ("mqtt://broker?hears=none", "all or own"),
        ("mqtt://broker?ca=", "ca is empty"),
        ("mqtt://broker?ca=/ca", "mqtts"),
        ("mqtts://broker?cert=/c", "go together"),
        ("mqtt://broker?status=a/%23", "status"),
    ],
)
def test_errors_name_what_is_wrong_in_a_url(url: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        parse(url)
