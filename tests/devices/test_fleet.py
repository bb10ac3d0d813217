"""Simulated devices on a real broker."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace

import pytest
from structlog.testing import capture_logs

from holdfast.devices.conformance.device import BODY, LIMIT_S, DeviceEvents
from holdfast.devices.fleet import Behaviour, Fleet
from holdfast.devices.fleet.mqtt import Connection, varint
from holdfast.devices.ports.device import Command, Connected, DeviceAnswer, Seen
from holdfast.devices.rules.dialect import Reading
from holdfast.devices.rules.topics import Topics
from holdfast.devices.services.mqtt.address import MqttAddress, parse
from holdfast.devices.services.mqtt.device import MqttDevices
from holdfast.errors import Unavailable
from holdfast.system.clock import SystemClock
from simulator.servers import MosquittoServer

NAMES = [f"d{number}" for number in range(30)]


@pytest.fixture(scope="module")
def broker() -> Iterator[MosquittoServer]:
    server = MosquittoServer()
    asyncio.run(server.start())
    yield server
    asyncio.run(server.stop())


@pytest.fixture(params=["5", "3.1.1"])
def address(broker: MosquittoServer, request: pytest.FixtureRequest) -> MqttAddress:
    return parse(f"{broker.url}?version={request.param}&session_s=0")


@pytest.fixture
async def devices(address: MqttAddress) -> AsyncIterator[MqttDevices]:
    devices = MqttDevices(address, "me", SystemClock())
    await devices.start()
    yield devices
    await devices.close()


@pytest.fixture
async def events(devices: MqttDevices) -> DeviceEvents:
    """The events of connected devices."""
    events = DeviceEvents(devices)
    await events.until(Connected)
    return events


async def test_every_device_answers_what_it_was_asked(
    address: MqttAddress, devices: MqttDevices, events: DeviceEvents
) -> None:
    async with Fleet(address, NAMES, SystemClock()) as fleet:
        for round_ in range(5):
            for name in NAMES:
                devices.publish(Command(name, f"1.{round_}.{name}", BODY))
            heard = [await events.until(DeviceAnswer) for _ in NAMES]
            assert {(answer.device, answer.id) for answer in heard} == {
                (name, f"1.{round_}.{name}") for name in NAMES
            }
        counts = fleet.counts
    assert (counts.devices, counts.received, counts.answered) == (30, 150, 150)
    assert (counts.crowded, counts.at_once) == (0, 1)


async def test_a_device_takes_its_time_and_one_command_at_a_time(
    address: MqttAddress, devices: MqttDevices, events: DeviceEvents
) -> None:
    async with Fleet(address, NAMES, SystemClock(), behaviour=Behaviour(latency_s=0.2)) as fleet:
        for number in range(3):
            devices.publish(Command("d1", f"1.{number}.1", BODY))
        assert (await events.until(DeviceAnswer)).id == "1.0.1"
        assert (fleet.counts.received, fleet.counts.crowded, fleet.counts.at_once) == (3, 2, 2)


async def test_every_device_of_a_fleet_gives_signs_of_life(
    address: MqttAddress, devices: MqttDevices, events: DeviceEvents
) -> None:
    async with Fleet(address, NAMES[:3], SystemClock(), behaviour=Behaviour(heartbeat_s=0.1)):
        seen: set[str] = set()
        while seen != set(NAMES[:3]):
            seen.add((await events.until(Seen)).device)


async def test_work_is_done_by_the_device_that_was_asked(
    address: MqttAddress, devices: MqttDevices, events: DeviceEvents
) -> None:
    def work(device: str, command: str, payload: bytes) -> bytes:
        return b'{"messageId":"%s","at":"%s","was":%s}' % (command.encode(), device.encode(), payload)

    async with Fleet(address, NAMES, SystemClock(), work=work):
        devices.publish(Command("d1", "1.1.1", b'{"a":1}'))
        assert (await events.until(DeviceAnswer)).payload == (
            b'{"messageId":"1.1.1","at":"d1","was":{"messageId":"1.1.1","a":1}}'
        )


async def test_work_that_fails_costs_no_other_device_its_connection(
    address: MqttAddress, devices: MqttDevices, events: DeviceEvents
) -> None:
    def work(device: str, command: str, payload: bytes) -> bytes:
        if device == "d1":
            raise LookupError(device)
        return payload

    with capture_logs() as logs:
        async with Fleet(address, NAMES, SystemClock(), work=work) as fleet:
            connection = fleet.connection
            for number, name in enumerate(("d1", "d1", "d2")):
                devices.publish(Command(name, f"1.{number}.1", BODY))
            assert (await events.until(DeviceAnswer)).id == "1.2.1"
            assert fleet.connection is connection
            assert not connection.lost.is_set()
    [logged] = [entry for entry in logs if entry["log_level"] == "error"]
    assert (logged["device"], logged["error"]) == ("d1", "LookupError")


class Careless:
    """A user's own dialect, which reads what it is given as JSON."""

    def write(self, payload: bytes, id: str) -> bytes:  # noqa: A002
        return payload

    def read(self, payload: bytes) -> Reading:
        return Reading(json.loads(payload)["id"])


async def test_a_command_that_a_fleet_s_dialect_fails_at_costs_no_device_its_connection(
    address: MqttAddress, devices: MqttDevices, events: DeviceEvents
) -> None:
    async with Fleet(address, NAMES, SystemClock(), dialect=Careless()) as fleet:
        connection = fleet.connection
        for payload in (b"no JSON", b'{"id":7}', b'{"id":"1.1.1"}'):
            connection.publish(Topics().command_to("d1"), payload)
        connection.flush()
        assert (await events.until(DeviceAnswer)).id == "1.1.1"
        assert fleet.connection is connection
        assert fleet.counts.received == 1


async def test_the_fleet_comes_back_when_the_broker_does(broker: MosquittoServer) -> None:
    address = parse(f"{broker.url}?session_s=0")
    devices = MqttDevices(address, "me", SystemClock())
    async with Fleet(address, NAMES, SystemClock()) as fleet:
        await broker.restart()
        await devices.start()
        events = DeviceEvents(devices)
        await events.until(Connected)
        async with asyncio.timeout(LIMIT_S):
            number = 0
            while not fleet.counts.answered:
                number += 1
                devices.publish(Command("d1", f"1.{number}.1", BODY))
                await devices.events()
        await devices.close()


async def test_a_missing_broker_is_reported() -> None:
    with pytest.raises(Unavailable, match="no broker at"):
        await Fleet(parse("mqtt://127.0.0.1:1"), NAMES, SystemClock()).start()


async def test_a_refused_login_is_reported() -> None:
    async with MosquittoServer(tls=True, users={"fleet": "secret"}) as server:
        good = parse(server.url.replace("mqtts://", "mqtts://fleet:secret@"))
        async with Fleet(good, NAMES, SystemClock()):
            pass
        with pytest.raises(Unavailable, match="refuses") as refused:
            await Fleet(replace(good, password="wrong"), NAMES, SystemClock()).start()
        assert "wrong" not in str(refused.value)


@pytest.mark.parametrize("number", [0, 127, 128, 16_383, 16_384, 2_097_152, 268_435_455])
def test_numbers_of_variable_length_are_read_back(number: int) -> None:
    """From the outside: a packet of that length is taken apart where it ends."""
    value, shift = 0, 0
    for digit in varint(number):
        value |= (digit & 0x7F) << shift
        shift += 7
    assert value == number


def test_packets_may_come_in_any_pieces() -> None:
    heard: list[tuple[str, bytes, bytes]] = []

    async def feed(size: int) -> None:
        connection = Connection(lambda *said: heard.append(said))
        stream = b""
        for number in range(20):
            payload = b"x" * (number * 40)
            properties = b"\x02\0\0\0\x09" + b"\x26\0\x01k\0\x02vv" + b"\x09\0\x02ab" + b"\x08\0\x01r"
            body = b"\0\x01t" + varint(len(properties)) + properties + payload
            stream += b"\x30" + varint(len(body)) + body
        for first in range(0, len(stream), size):
            connection.data_received(stream[first : first + size])

    for size in (1, 2, 3, 7, 1000, 100_000):
        heard.clear()
        asyncio.run(feed(size))
        assert heard == [("t", b"x" * (number * 40), b"ab") for number in range(20)]
