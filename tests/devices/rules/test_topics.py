"""Topics made of device ids, and read back."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.devices.rules.topics import DEVICE_ID, Topics, check_device
from holdfast.errors import ConfigError, InvalidMessage

TOPICS = Topics()


def test_a_device_has_topics_of_its_own() -> None:
    assert TOPICS.command_to("2042253") == "dev/face/2042253"
    assert TOPICS.topics_of("2042253") == ["dev/face/2042253/Ack", "dev/face/2042253/heartbeat"]
    assert TOPICS.all_device_filters() == ["dev/face/+/Ack", "dev/face/+/heartbeat"]


@given(st.from_regex(DEVICE_ID, fullmatch=True))
def test_a_topic_names_its_device(device: str) -> None:
    answer, heartbeat = TOPICS.topics_of(device)
    assert TOPICS.read(answer) == ("answer", device)
    assert TOPICS.read(heartbeat) == ("heartbeat", device)
    assert TOPICS.read(TOPICS.command_to(device)) is None


@given(st.text())
def test_no_device_comes_of_any_other_text(text: str) -> None:
    found = TOPICS.read(f"dev/face/{text}/Ack")
    assert found == (("answer", text) if DEVICE_ID.fullmatch(text) else None)
    assert TOPICS.read(text) is None


@pytest.mark.parametrize(
    "device, reason",
    [
        ("a/b", "end a level"),
        ("a+", "wildcard"),
        ("#", "wildcard"),
        ("$SYS", "broker's own"),
        ("a\0", "NUL"),
        ("", "1 to 128"),
        ("a b", "1 to 128"),
        ("..", "1 to 128"),
        ("é", "1 to 128"),
        ("7\n", "1 to 128"),
        ("x" * 129, "1 to 128"),
    ],
)
def test_an_id_that_makes_no_topic_is_refused_with_the_reason(device: str, reason: str) -> None:
    with pytest.raises(InvalidMessage, match=reason):
        check_device(device)
    with pytest.raises(InvalidMessage):
        TOPICS.command_to(device)
    with pytest.raises(InvalidMessage):
        TOPICS.topics_of(device)


@pytest.mark.parametrize("device", [2042253, None, b"2042253", 7.0])
def test_an_id_that_is_no_text_is_refused_with_its_type(device: Any) -> None:
    with pytest.raises(
        InvalidMessage, match=f"device is a {type(device).__name__}; give .* as text"
    ) as refused:
        check_device(device)
    assert refused.value.field == "device"


@pytest.mark.parametrize(
    "template",
    [
        "",
        "dev/face",
        "dev/face{device}",
        "{device}/{device}",
        "a/+/{device}",
        "a/#/{device}",
        "$SYS/{device}",
    ],
)
def test_a_template_that_cannot_work_is_refused(template: str) -> None:
    for name in ("command", "answer"):
        with pytest.raises(ConfigError, match=rf"topics\.{name}"):
            Topics(**{name: template})


def test_the_topics_of_answers_and_commands_must_differ() -> None:
    with pytest.raises(ConfigError, match="must differ"):
        Topics(command="a/{device}", answer="a/{device}")


def test_without_a_heartbeat_topic_heartbeats_are_ignored() -> None:
    quiet = Topics(heartbeat="")
    assert quiet.all_device_filters() == ["dev/face/+/Ack"]
    assert quiet.read("dev/face/7/heartbeat") is None


def test_a_template_over_what_mqtt_allows_is_refused() -> None:
    with pytest.raises(ConfigError, match="longer than MQTT allows"):
        Topics(command="x" * 65_500 + "/{device}")
