"""The bare broker and client: commands to devices and their answers, with no table, no ids, no care.

paho-mqtt as it is fastest: TCP_NODELAY on the client's socket (the broker has it too), no window of its own,
payloads made in advance, its loop in this thread. One command is in flight a device; the answer brings out
the next. QoS 1 both ways.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Sequence

from paho.mqtt.client import Client, MQTTMessage
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion

SETTINGS = "paho-mqtt, TCP_NODELAY on both sides, no window, QoS 1"

COMMAND, ANSWERS = "dev/face/{}", "dev/face/+/Ack"
PAYLOAD = b'{"messageId":"1.1.1","operator":"EditPerson","info":{"personId":"951","name":"A. Person"}}'
VERSIONS = {"5": MQTTProtocolVersion.MQTTv5, "3.1.1": MQTTProtocolVersion.MQTTv311}


def measure(
    host: str, port: int, devices: Sequence[str], seconds: float, *, version: str = "5", warm_s: float = 0.5
) -> float:
    """Answers a second over ``seconds``, after ``warm_s`` that don't count. Blocks."""
    client = Client(CallbackAPIVersion.VERSION2, "raw", protocol=VERSIONS[version])
    client.max_inflight_messages_set(0)
    topics = {f"dev/face/{device}/Ack": COMMAND.format(device) for device in devices}
    answers = 0

    def on_socket_open(_: Client, __: object, sock: socket.socket) -> None:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def on_message(_: Client, __: object, message: MQTTMessage) -> None:
        nonlocal answers
        answers += 1
        client.publish(topics[message.topic], PAYLOAD, 1)

    def on_subscribe(*_: object) -> None:
        for topic in topics.values():
            client.publish(topic, PAYLOAD, 1)

    client.on_socket_open = on_socket_open  # type: ignore[assignment]
    client.on_message = on_message
    client.on_subscribe = on_subscribe
    client.on_connect = lambda *_: client.subscribe(ANSWERS, 1)  # type: ignore[assignment]
    client.connect(host, port)
    begun_at = time.monotonic()
    counted, since = 0, begun_at
    while (now := time.monotonic()) < begun_at + warm_s + seconds:
        if not counted and now >= begun_at + warm_s and answers:
            counted, since = answers, now
        client.loop(0.1)
    client.disconnect()
    return (answers - counted) / (time.monotonic() - since)
