"""What goes over the wire."""

import asyncio
import socket

import pytest
import uvloop
from hypothesis import given
from hypothesis import strategies as st
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from holdfast.devices.services.mqtt.link import Extras
from holdfast.devices.services.mqtt.packets import MalformedProperties, read_properties
from holdfast.devices.services.mqtt.wire import Wire
from simulator.servers import MosquittoServer


@given(st.binary(max_size=128), st.text("aB/é", max_size=300), st.floats(0, 1e12))
def test_properties_are_as_the_library_reads_them(correlation: bytes, topic: str, expires_s: float) -> None:
    packed = Extras(correlation=correlation, response_topic=topic.encode(), expires_s=expires_s).pack()
    read = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
    _, size = read.unpack(packed + b"payload")  # type: ignore[no-untyped-call]
    assert size == len(packed)
    assert vars(read)["CorrelationData"] == correlation
    assert vars(read)["ResponseTopic"] == topic
    assert hasattr(read, "MessageExpiryInterval") == (expires_s > 0)


@given(st.binary(max_size=200), st.text("aB/é", max_size=300), st.floats(0, 1e9), st.binary(max_size=10))
def test_properties_of_a_packet_are_read(
    correlation: bytes, topic: str, expires_s: float, payload: bytes
) -> None:
    packed = Extras(correlation=correlation, response_topic=topic.encode(), expires_s=expires_s).pack()
    assert read_properties(packed + payload, 0) == (len(packed), correlation)


def test_all_properties_of_a_message_are_known() -> None:
    written = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
    written.PayloadFormatIndicator = 1
    written.MessageExpiryInterval = 7
    written.ContentType = "text"
    written.ResponseTopic = "answer"
    written.SubscriptionIdentifier = 300
    written.TopicAlias = 5
    written.UserProperty = [("a", "b"), ("c", "d")]
    written.CorrelationData = b"1.2.3"
    packed = written.pack()  # type: ignore[no-untyped-call]
    assert read_properties(packed, 0) == (len(packed), b"1.2.3")
    assert read_properties(b"\0payload", 0) == (1, None)


@given(st.binary(max_size=60))
def test_garbage_in_place_of_properties_is_refused_or_ends_within_the_packet(packet: bytes) -> None:
    try:
        end, _ = read_properties(packet, 0)
    except (MalformedProperties, IndexError):
        return
    assert end <= len(packet)


@pytest.mark.parametrize(
    "factory", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"]
)
def test_a_small_packet_is_sent_without_delay(kept_mosquitto: MosquittoServer, factory: type) -> None:
    async def connect() -> int:
        wire = Wire(lambda: None, lambda: None)
        loop = asyncio.get_running_loop()
        transport, _ = await loop.create_connection(lambda: wire, "127.0.0.1", kept_mosquitto.port)
        nodelay = transport.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        wire.close()
        await wire.closed.wait()
        return int(nodelay)

    with asyncio.Runner(loop_factory=factory) as runner:
        assert runner.run(connect())
