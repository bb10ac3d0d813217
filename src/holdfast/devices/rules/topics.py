"""Topics of devices: from a template and a device's id to a topic, and back.

A device's id is checked before a topic is made of it. The device of an answer is read from the topic alone,
because a broker controls who writes to a topic, and not what.
"""

from __future__ import annotations

import re
from typing import Literal

import msgspec

from holdfast.errors import ConfigError, InvalidMessage
from holdfast.extend.tools import check_settings

Kind = Literal["answer", "heartbeat"]

DEVICE = "{device}"
DEVICE_ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:\-]{0,127}")
TOPIC_BYTES_MAX = 65_535
"""MQTT's own limit."""

_REASONS = {
    "/": "it would end a level of the topic",
    "+": "it is a wildcard of MQTT",
    "#": "it is a wildcard of MQTT",
    "$": "it begins the broker's own topics",
    "\0": "MQTT allows no NUL",
}


def check_device(device: str) -> str:
    """Return ``device``. Raises InvalidMessage unless it has 1 to 128 of A-Z, a-z, 0-9, ``_``, ``.``, ``:``
    and ``-``, the first none of the last three."""
    if not isinstance(device, str):
        raise InvalidMessage(f"device is a {type(device).__name__}; give the device's id as text", "device")
    if DEVICE_ID.fullmatch(device):
        return device
    for character, reason in _REASONS.items():
        if character in device:
            raise InvalidMessage(f"device id {device!r:.200} has {character!r} in it: {reason}", "device")
    raise InvalidMessage(
        f"device id {device!r:.200} must be 1 to 128 letters, digits, '_', '.', ':' or '-',"
        " the first a letter, a digit or '_'",
        "device",
    )


class Topics(msgspec.Struct, frozen=True):
    """Templates of the topics of one kind of device. ``{device}`` is one whole level of each.

    Attributes:
        command: the topic that a device listens to.
        answer: the topic that it answers on.
        heartbeat: the topic of its heartbeats; empty if it sends none.

    Raises ConfigError for a template that can't work.
    """

    command: str = "dev/face/{device}"
    answer: str = "dev/face/{device}/Ack"
    heartbeat: str = "dev/face/{device}/heartbeat"

    def __post_init__(self) -> None:
        check_settings("topics", self)
        given = {name: getattr(self, name) for name in ("command", "answer", "heartbeat")}
        if not self.heartbeat:
            del given["heartbeat"]
        for name, template in given.items():
            _check_template(name, template)
        if len(set(given.values())) < len(given):
            raise ConfigError(f"topics: command, answer and heartbeat must differ, but are {given}")

    def command_to(self, device: str) -> str:
        """Return the topic of commands to a device. Raises InvalidMessage for an invalid id."""
        return self.command.replace(DEVICE, check_device(device))

    def topics_of(self, device: str) -> list[str]:
        """Return the topics of a device's answers and heartbeats. Raises InvalidMessage for an invalid id."""
        return [template.replace(DEVICE, check_device(device)) for template in self._sent()]

    def all_device_filters(self) -> list[str]:
        """Return the filters that match answers and heartbeats of all devices."""
        return [template.replace(DEVICE, "+") for template in self._sent()]

    def read(self, topic: str) -> tuple[Kind, str] | None:
        """Return the kind and the device of a message on a topic; None for another topic."""
        for kind, template in zip(("answer", "heartbeat"), self._sent(), strict=False):
            before, _, after = template.partition(DEVICE)
            if topic.startswith(before) and topic.endswith(after):
                device = topic[len(before) : len(topic) - len(after)]
                if DEVICE_ID.fullmatch(device):
                    return ("answer" if kind == "answer" else "heartbeat"), device
        return None

    def _sent(self) -> list[str]:
        return [self.answer, self.heartbeat] if self.heartbeat else [self.answer]


def _check_template(name: str, template: str) -> None:
    if template.split("/").count(DEVICE) != 1 or template.count(DEVICE) != 1:
        raise ConfigError(
            f"topics.{name} = {template!r}: {DEVICE} must stand in it once, as a level of its own,"
            " as in 'dev/face/{device}'"
        )
    if wrong := set("+#\0") & set(template):
        raise ConfigError(f"topics.{name} = {template!r}: {min(wrong)!r} can't be part of a topic")
    if template.startswith("$"):
        raise ConfigError(f"topics.{name} = {template!r}: topics that begin with '$' are the broker's own")
    if len(template.encode(errors="replace")) + 128 > TOPIC_BYTES_MAX:
        raise ConfigError(f"topics.{name} is longer than MQTT allows")
