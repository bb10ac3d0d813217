"""paho's client on a given connection, with a quick way for the most frequent packets.

paho makes a table of all properties for each packet of MQTT 5, which takes longer than the rest. Here PUBLISH
of QoS 0 and 1 and PUBACK are read in place; paho reads all other packets.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from paho.mqtt.client import Client, MQTTMessage
from paho.mqtt.enums import CallbackAPIVersion, MQTTErrorCode, MQTTProtocolVersion
from paho.mqtt.exception import MalformedPacket

from holdfast.devices.services.mqtt.packets import MalformedProperties, read_properties
from holdfast.devices.services.mqtt.wire import Wire

REFUSED = 0x80
"""Reason codes from here on are errors."""

OnReceived = Callable[[str, bytes, bytes | None, bool], None]
"""Called with topic, payload, correlation data and whether the message was retained."""
OnConfirmed = Callable[[int, int], None]
"""Called with a packet's id and the broker's reason code."""


class QuickClient(Client):
    """A client that calls ``on_received`` in place of ``on_message``, and ``on_confirmed`` in place of
    ``on_publish``."""

    wire: Wire

    def __init__(
        self, client_id: str, *, five: bool, clean: bool, on_received: OnReceived, on_confirmed: OnConfirmed
    ) -> None:
        super().__init__(
            CallbackAPIVersion.VERSION2,
            client_id,
            clean_session=None if five else clean,
            protocol=MQTTProtocolVersion.MQTTv5 if five else MQTTProtocolVersion.MQTTv311,
            reconnect_on_failure=False,
        )
        self._five = five
        self._on_received = on_received
        self._on_confirmed = on_confirmed
        # The link has the window, because paho goes through all messages in flight at each step.
        self.max_inflight_messages_set(0)
        self.on_message = self._on_message_twice
        self.on_publish = lambda _, __, mid, code, ___: on_confirmed(mid, code.value)

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
        except MalformedProperties as error:
            raise MalformedPacket(str(error)) from None
        self._on_received(topic, bytes(packet[at:]), correlation, bool(header & 0x01))
        return self._send_puback(mid) if qos else MQTTErrorCode.MQTT_ERR_SUCCESS

    def _on_message_twice(self, _: Client, __: object, message: MQTTMessage) -> None:
        """Take a message of QoS 2, which paho has read."""
        try:
            topic = message.topic
        except UnicodeDecodeError:
            return
        correlation = getattr(message.properties, "CorrelationData", None)
        self._on_received(topic, bytes(message.payload), correlation, message.retain)

    def _handle_pubrec(self) -> MQTTErrorCode:
        """Take a refusal at QoS 2 as final. paho would answer it as a confirmation."""
        packet = self._in_packet["packet"]
        if not self._five or len(packet) < 3 or packet[2] < REFUSED:
            return super()._handle_pubrec()
        self._confirm(packet)
        return MQTTErrorCode.MQTT_ERR_SUCCESS

    def _handle_pubackcomp(self, cmd: Literal["PUBACK", "PUBCOMP"]) -> MQTTErrorCode:
        if cmd != "PUBACK":
            return super()._handle_pubackcomp(cmd)
        packet = self._in_packet["packet"]
        if len(packet) < 2:
            raise MalformedPacket("an acknowledgement of nothing")
        self._confirm(packet)
        return MQTTErrorCode.MQTT_ERR_SUCCESS

    def _confirm(self, packet: bytes | bytearray) -> None:
        mid = packet[0] << 8 | packet[1]
        if self._out_messages.pop(mid, None) is not None:
            self._inflight_messages -= 1
            self._on_confirmed(mid, packet[2] if len(packet) > 2 else 0)
