"""The bare broker and client: commands to devices and their answers, with no table, no ids, no care.

paho-mqtt as it is fastest: TCP_NODELAY on the client's socket (the broker has it too), no window of its own,
payloads made in advance, its loop in this thread. One command is in flight a device; the answer brings out
the next. QoS 1 both ways.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Sequence
from itertools import pairwise
from statistics import median

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
    came_at_s = answers(host, port, devices, warm_s + seconds, version=version)
    counted = [at_s for at_s in came_at_s if at_s >= came_at_s[0] + warm_s]
    return (len(counted) - 1) / (counted[-1] - counted[0])


def round_trip_ms(host: str, port: int, device: str, seconds: float) -> float:
    """From publishing to the answer, with this device alone: the median. Blocks."""
    came_at_s = answers(host, port, [device], seconds)
    return median(after - before for before, after in pairwise(came_at_s)) * 1e3


def answers(
    host: str, port: int, devices: Sequence[str], seconds: float, *, version: str = "5"
) -> list[float]:
    """When answers came."""
    client = Client(CallbackAPIVersion.VERSION2, "raw", protocol=VERSIONS[version])
    client.max_inflight_messages_set(0)
    topics = {f"dev/face/{device}/Ack": COMMAND.format(device) for device in devices}
    came_at_s: list[float] = []

    def on_socket_open(_: Client, __: object, sock: socket.socket) -> None:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def on_message(_: Client, __: object, message: MQTTMessage) -> None:
        came_at_s.append(time.monotonic())
        client.publish(topics[message.topic], PAYLOAD, 1)

    def on_subscribe(*_: object) -> None:
        for topic in topics.values():
            client.publish(topic, PAYLOAD, 1)

    client.on_socket_open = on_socket_open  # type: ignore[assignment]
    client.on_message = on_message
    client.on_subscribe = on_subscribe
    client.on_connect = lambda *_: client.subscribe(ANSWERS, 1)  # type: ignore[assignment]
    client.connect(host, port)
    begun_at_s = time.monotonic()
    while time.monotonic() < begun_at_s + seconds:
        client.loop(0.1)
    client.disconnect()
    return came_at_s
