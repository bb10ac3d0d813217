"""paho's client, on a connection that is there already, and quick with the packets that nearly all are.

For each packet of MQTT 5 paho makes a table of all properties there are, which takes longer than all the
rest. Here PUBLISH of QoS 0 and 1 and PUBACK are read in place; everything else is paho's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from paho.mqtt.client import Client, MQTTMessage
from paho.mqtt.enums import CallbackAPIVersion, MQTTErrorCode, MQTTProtocolVersion
from paho.mqtt.exception import MalformedPacket

from holdfast.devices.services.mqtt.wire import Wire

CORRELATION = 0x09
REFUSED = 0x80
"""Reason codes from here on are errors."""
_SIZES = {0x01: 1, 0x02: 4, 0x23: 2}
"""Of the properties of PUBLISH that have a fixed size."""
_TEXTS = {0x03: 1, 0x08: 1, CORRELATION: 1, 0x26: 2}
"""Of those that are texts with their length before them: how many."""
_NUMBER = 0x0B
"""The one that is a number of variable length."""

Heard = Callable[[str, bytes, bytes | None, bool], None]
"""Takes topic, payload, correlation data and whether the message was retained."""
Taken = Callable[[int, int], None]
"""Takes a packet's id and the broker's reason code."""


class QuickClient(Client):
    """``heard`` gets what comes in, in place of ``on_message``; ``taken`` the broker's words for what was
    published, in place of ``on_publish``."""

    wire: Wire

    def __init__(self, client_id: str, *, five: bool, clean: bool, heard: Heard, taken: Taken) -> None:
        super().__init__(
            CallbackAPIVersion.VERSION2,
            client_id,
            clean_session=None if five else clean,
            protocol=MQTTProtocolVersion.MQTTv5 if five else MQTTProtocolVersion.MQTTv311,
            reconnect_on_failure=False,
        )
        self._five = five
        self._heard = heard
        self._taken = taken
        # Our window is the link's: paho looks through all that is under way at each step.
        self.max_inflight_messages_set(0)
        self.on_message = self._on_message_twice
        self.on_publish = lambda _, __, mid, code, ___: taken(mid, code.value)

    def _create_socket(self) -> Any:
        return self.wire

    def _handle_publish(self) -> MQTTErrorCode:
        header, packet = self._in_packet["command"], self._in_packet["packet"]
        qos = header >> 1 & 0x03
        if qos > 1:
            return super()._handle_publish()
        mid, correlation = 0, None
        try:
            at = 2 + (packet[0] << 8 | packet[1])
            topic = packet[2:at].decode(errors="replace")
            if qos:
                mid = packet[at] << 8 | packet[at + 1]
                at += 2
            if self._five:
                at, correlation = read_properties(packet, at)
        except IndexError:
            raise MalformedPacket("a message shorter than its parts") from None
        self._heard(topic, bytes(packet[at:]), correlation, bool(header & 0x01))
        return self._send_puback(mid) if qos else MQTTErrorCode.MQTT_ERR_SUCCESS

    def _on_message_twice(self, _: Client, __: object, message: MQTTMessage) -> None:
        """A message of QoS 2, as paho has read it."""
        try:
            topic = message.topic
        except UnicodeDecodeError:
            return
        correlation = getattr(message.properties, "CorrelationData", None)
        self._heard(topic, bytes(message.payload), correlation, message.retain)

    def _handle_pubrec(self) -> MQTTErrorCode:
        """Take a refusal at QoS 2 as the last word, which paho answers as if it were none."""
        packet = self._in_packet["packet"]
        if not self._five or len(packet) < 3 or packet[2] < REFUSED:
            return super()._handle_pubrec()
        self._last_word(packet)
        return MQTTErrorCode.MQTT_ERR_SUCCESS

    def _handle_pubackcomp(self, cmd: Literal["PUBACK", "PUBCOMP"]) -> MQTTErrorCode:
        if cmd != "PUBACK":
            return super()._handle_pubackcomp(cmd)
        packet = self._in_packet["packet"]
        if len(packet) < 2:
            raise MalformedPacket("an acknowledgement of nothing")
        self._last_word(packet)
        return MQTTErrorCode.MQTT_ERR_SUCCESS

    def _last_word(self, packet: bytes | bytearray) -> None:
        mid = packet[0] << 8 | packet[1]
        if self._out_messages.pop(mid, None) is not None:
            self._inflight_messages -= 1
            self._taken(mid, packet[2] if len(packet) > 2 else 0)


def read_properties(packet: bytes | bytearray, at: int) -> tuple[int, bytes | None]:
    """Return where the payload begins, and the correlation data. Raises IndexError or MalformedPacket."""
    size, at = _number(packet, at)
    end, correlation = at + size, None
    if end > len(packet):
        raise MalformedPacket("properties longer than their packet")
    while at < end:
        name = packet[at]
        at += 1
        if name in _TEXTS:
            for _ in range(_TEXTS[name]):
                length = packet[at] << 8 | packet[at + 1]
                if name == CORRELATION:
                    correlation = bytes(packet[at + 2 : at + 2 + length])
                at += 2 + length
        elif name in _SIZES:
            at += _SIZES[name]
        elif name == _NUMBER:
            _, at = _number(packet, at)
        else:
            raise MalformedPacket(f"no message has the property {name:#x}")
    if at != end:
        raise MalformedPacket("a property longer than its place")
    return end, correlation


def _number(packet: bytes | bytearray, at: int) -> tuple[int, int]:
    """A number of variable length, and what follows it."""
    value = shift = 0
    while True:
        digit = packet[at]
        at += 1
        value |= (digit & 0x7F) << shift
        if digit < 0x80:
            return value, at
        shift += 7
        if shift > 21:
            raise MalformedPacket("a number longer than MQTT has them")
