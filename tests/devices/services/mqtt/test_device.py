"""Devices behind a real broker, when things go wrong."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from holdfast.devices.conformance.device import BODY, LIMIT_S, DeviceEvents
from holdfast.devices.ports.device import (
    Accepted,
    Command,
    CommandRefused,
    Connected,
    DeviceAnswer,
    Devices,
    Disconnected,
    Lost,
    Seen,
)
from holdfast.devices.rules.dialect import PlainDialect
from holdfast.devices.services.mqtt import device as module
from holdfast.devices.services.mqtt.address import parse
from holdfast.devices.services.mqtt.device import MqttDevices
from holdfast.devices.services.mqtt.link import CONNECT_TIMEOUT_S
from holdfast.errors import ConfigError, TooLarge
from holdfast.system.clock import SystemClock
from simulator.servers import MosquittoServer
from simulator.servers.server import until
from tests.devices.services.mqtt.bench import MqttBench, benched


async def connected(devices: Devices) -> DeviceEvents:
    events = DeviceEvents(devices)
    await devices.start()
    await events.until(Connected)
    return events


@pytest.fixture
async def five(mosquitto: MosquittoServer) -> AsyncIterator[MqttBench]:
    async with benched(mosquitto, "version=5") as bench:
        yield bench


@pytest.mark.parametrize("qos", [0, 1, 2])
async def test_commands_and_answers_pass_at_every_quality_of_service(bench: MqttBench, qos: int) -> None:
    await bench.listen("7")
    devices = bench.devices("me", query=f"&qos={qos}")
    events = await connected(devices)
    devices.publish(Command("7", "1.1.1", BODY))
    await bench.command("7")
    assert (await events.until(Accepted)).id == "1.1.1"
    await bench.answer("7", "", b'{"messageId":"1.1.1"}')
    assert (await events.until(DeviceAnswer)).id == "1.1.1"


@pytest.mark.slow
async def test_a_broker_that_was_killed_is_found_again(bench: MqttBench, mosquitto: MosquittoServer) -> None:
    devices = bench.devices("me")
    events = await connected(devices)
    devices.publish(Command("7", "1.1.1", BODY))
    await events.until(Accepted)
    mosquitto.kill()
    assert not (await events.until(Disconnected)).taken_over
    await mosquitto.start()
    assert isinstance(await events.next(), Connected), "an outage is reported once"
    await bench.answer("7", "", b'{"messageId":"1.1.1"}')
    assert (await events.until(DeviceAnswer)).id == "1.1.1"


async def test_a_broker_that_starts_later_is_found(five: MqttBench) -> None:
    five.faults.refuse()
    devices = five.devices("me")
    events = DeviceEvents(devices)
    await devices.start()
    assert "127.0.0.1" in (await events.until(Disconnected)).reason
    await five.faults.accept()
    await events.until(Connected)


@pytest.mark.slow
async def test_a_connection_that_only_seems_to_stand_is_given_up(five: MqttBench) -> None:
    devices = five.devices("me", query="&keepalive_s=1")
    events = await connected(devices)
    five.faults.freeze()
    devices.publish(Command("7", "1.1.1", BODY))
    assert await events.next() == Lost("7", "1.1.1", suspect=True)
    assert isinstance(await events.next(), Disconnected)
    five.faults.thaw()
    await events.until(Connected)


async def test_an_answer_given_while_disconnected_is_received_later(bench: MqttBench) -> None:
    devices = bench.devices("me")
    events = await connected(devices)
    bench.faults.refuse()
    await events.until(Disconnected)
    await bench.answer("7", "", b'{"messageId":"1.1.1"}')
    await bench.faults.accept()
    assert (await events.until(DeviceAnswer)).id == "1.1.1"


async def test_a_connection_that_was_taken_over_is_not_made_again() -> None:
    """By a broker of MQTT 5 that says so; Mosquitto 2.0 only closes the connection."""
    came = []

    async def broker(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        came.append(await reader.read(100))
        writer.write(bytes.fromhex("2003000000 e0018e"))
        await reader.read()
        writer.close()

    async with await asyncio.start_server(broker, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        devices = MqttDevices(parse(f"mqtt://127.0.0.1:{port}?hears=own"), "shard-3", SystemClock())
        events = await connected(devices)
        reported = await events.until(Disconnected)
        assert reported.taken_over
        assert "taken over" in reported.reason
        await devices.close()
    assert len(came) == 1


async def test_a_former_owner_is_not_connected_again_after_a_takeover(bench: MqttBench) -> None:
    owner = ["a"]
    first = bench.devices("shard-3", still_ours=lambda: owned_by("a"))
    second = bench.devices("shard-3", still_ours=lambda: owned_by("b"))

    async def owned_by(name: str) -> bool:
        return owner == [name]

    events = await connected(first)
    owner[0] = "b"
    later = await connected(second)
    while not (await events.until(Disconnected)).taken_over:
        pass
    accepted = bench.faults.accepted
    second.publish(Command("7", "2.1.1", BODY))
    await later.until(Accepted)
    assert bench.faults.accepted == accepted, "nobody came back to take it over in turn"


async def test_the_window_is_kept_and_waiting_commands_are_not_sent(bench: MqttBench) -> None:
    devices = bench.devices("me", query="&window=5")
    events = await connected(devices)
    bench.faults.freeze()
    for number in range(20):
        devices.publish(Command("7", f"1.{number}.1", BODY))
    await asyncio.sleep(0)
    bench.faults.cut()
    bench.faults.thaw()
    reported = [await events.next() for _ in range(20)]
    assert reported[:5] == [Lost("7", f"1.{number}.1", suspect=number == 0) for number in range(5)]
    assert {type(event) for event in reported[5:]} == {CommandRefused}
    await events.until(Connected)
    for number in range(20):
        devices.publish(Command("7", f"1.{number}.2", BODY))
    assert {(await events.until(Accepted)).id for _ in range(20)} == {f"1.{number}.2" for number in range(20)}


async def test_commands_keep_to_the_limits_that_the_broker_sets() -> None:
    settings = {"max_packet_size": "2000", "max_inflight_messages": "3"}
    async with (
        MosquittoServer(settings=settings) as server,
        # A broker notices one command too many only of QoS 2.
        benched(server, "version=5&qos=2&max_payload=5000") as bench,
    ):
        devices = bench.devices("me")
        assert devices.max_payload == 5000
        events = await connected(devices)
        assert devices.max_payload < 2000
        with pytest.raises(TooLarge, match="max_payload"):
            devices.publish(Command("7", "1.1.1", b'{"x":"%s"}' % (b"x" * 2000)))
        for number in range(20):
            devices.publish(Command("7", f"1.{number}.2", BODY))
        assert len({(await events.until(Accepted)).id for _ in range(20)}) == 20


async def test_a_limit_that_a_broker_keeps_to_itself_costs_the_connection() -> None:
    async with (
        MosquittoServer(settings={"message_size_limit": "1000", "max_queued_messages": "0"}) as server,
        benched(server, "version=5") as bench,
    ):
        devices = bench.devices("me")
        events = await connected(devices)
        devices.publish(Command("7", "1.2.1", b'{"x":"%s"}' % (b"x" * 1200)))
        assert await events.next() in (
            Lost("7", "1.2.1", suspect=True),
            CommandRefused("7", "1.2.1", "the broker refuses it, reason 0x95", final=True),
        )
        await events.until(Connected)
        devices.publish(Command("7", "1.2.2", BODY))
        assert (await events.until(Accepted)).id == "1.2.2"


@pytest.mark.parametrize("qos", [1, 2])
async def test_a_command_that_access_rules_forbid_is_refused_alone(tmp_path: Path, qos: int) -> None:
    async with refusing_broker(tmp_path) as server, benched(server, f"version=5&qos={qos}") as bench:
        devices = bench.devices("me")
        events = await connected(devices)
        devices.publish(Command("denied", "1.1.1", BODY))
        devices.publish(Command("7", "1.2.1", BODY))
        refused = await events.next()
        assert isinstance(refused, CommandRefused)
        assert (refused.device, refused.final, refused.counts) == ("denied", False, True)
        assert "access rules" in refused.reason
        taken = await events.next()
        assert isinstance(taken, Accepted)
        assert taken.device == "7"


async def test_a_connection_that_ends_at_a_refusal_casts_suspicion_on_no_other(tmp_path: Path) -> None:
    """Mosquitto 2.0 ends it where it has no limit of what it keeps."""
    async with (
        refusing_broker(tmp_path, max_queued_messages="0") as server,
        benched(server, "version=5") as bench,
    ):
        devices = bench.devices("me")
        events = await connected(devices)
        devices.publish(Command("denied", "1.1.1", BODY))
        devices.publish(Command("7", "1.2.1", BODY))
        assert isinstance(await events.next(), CommandRefused)
        assert await events.next() == Lost("7", "1.2.1", suspect=False)
        assert "max_queued_messages" in (await events.until(Disconnected)).reason


def refusing_broker(folder: Path, **settings: str) -> MosquittoServer:
    """A broker that lets nobody write to the device ``denied``."""
    access = folder / "access"
    access.write_text("topic readwrite #\npattern deny +/denied\ntopic deny +/denied\n")
    access.chmod(0o600)
    return MosquittoServer(settings={"acl_file": str(access), **settings})


async def test_late_double_and_foreign_answers_are_reported(bench: MqttBench) -> None:
    """Which of them count is for who knows what is out."""
    events = await connected(bench.devices("me"))
    for device, command in (("7", "1.1.1"), ("7", "1.1.1"), ("8", "1.1.1"), ("7", "0.0.0")):
        await bench.answer(device, "", b'{"messageId":"%s"}' % command.encode())
        event = await events.next()
        assert isinstance(event, DeviceAnswer)
        assert (event.device, event.id) == (device, command)


async def test_messages_on_other_topics_are_ignored(bench: MqttBench) -> None:
    events = await connected(bench.devices("me"))
    for topic in (
        f"{bench.name}/a b/Ack",
        f"{bench.name}/x/y/Ack",
        f"{bench.name}/-/beat",
        f"{bench.name}/7",
    ):
        await bench.say(topic, b'{"messageId":"1.1.1"}')
    await bench.heartbeat("8")
    assert await events.next() == Seen("8")


async def test_garbage_is_logged_once_a_device(bench: MqttBench) -> None:
    devices = bench.devices("me")
    devices.watch(["7", "9"])
    events = await connected(devices)
    with capture_logs() as logs:
        for device in ("7", "7", "9", *(f"invented-{n}" for n in range(20))):
            await bench.answer(device, "", b"secret garbage")
            assert await events.next() == Seen(device)
    odd = [line["device"] for line in logs if line["event"] == "unmatched answer ignored"]
    assert odd == ["7", "9", "invented-0"], "devices that somebody invents share one line"
    assert "secret" not in str(logs)


async def test_ids_beside_the_payload_leave_it_alone(five: MqttBench) -> None:
    await five.listen("7")
    devices = MqttDevices(parse(five.url), "plain", SystemClock(), topics=five.topics, dialect=PlainDialect())
    five.made.append(devices)
    events = await connected(devices)
    devices.publish(Command("7", "1.1.1", b"\x00\xff"))
    assert await five.command("7") == ("1.1.1", b"\x00\xff")
    await five.answer("7", "1.1.1", b"\xff")
    assert await events.until(DeviceAnswer) == DeviceAnswer("7", "1.1.1", b"\xff")


async def test_many_connections_send_and_share_the_answers(bench: MqttBench) -> None:
    devices = bench.devices("me", query="&connections=3")
    events = await connected(devices)
    for number in range(9):
        devices.publish(Command(f"{number}", f"0.{number}.1", BODY))
    assert {(await events.until(Accepted)).id for _ in range(9)} == {f"0.{number}.1" for number in range(9)}
    assert bench.faults.accepted == 3
    for number in range(30):
        await bench.answer("7", "", b'{"messageId":"1.%d.1"}' % number)
    heard = sorted([(await events.until(DeviceAnswer)).id for _ in range(30)])
    await bench.heartbeat("8")
    assert heard == sorted(f"1.{number}.1" for number in range(30))
    assert await events.next() == Seen("8"), "each was heard once"


@pytest.mark.parametrize("now", [1, 2])
async def test_fewer_connections_than_before_hear_all_and_each_once(five: MqttBench, now: int) -> None:
    before = five.devices("me", query="&connections=4")
    await connected(before)
    await before.close()
    events = await connected(five.devices("me", query=f"&connections={now}"))
    for number in range(40):
        await five.answer("7", "", b'{"messageId":"1.%d.1"}' % number)
    await five.heartbeat("8")
    heard = [await events.next() for _ in range(41)]
    assert len({answer.id for answer in heard if isinstance(answer, DeviceAnswer)}) == 40
    assert heard.count(Seen("8")) == 1


async def test_a_reader_that_is_slow_holds_back_the_broker(
    five: MqttBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "EVENTS_MAX", 10)
    devices = five.devices("me")
    events = await connected(devices)
    for number in range(60):
        await five.answer("7", "", b'{"messageId":"1.%d.1"}' % number)
    async with asyncio.timeout(LIMIT_S):
        first = await devices.events()
    assert len(first) <= 10
    rest = [(await events.until(DeviceAnswer)).id for _ in range(60 - len(first))]
    assert rest[-1] == "1.59.1"


async def test_the_status_topic_shows_who_is_connected(bench: MqttBench) -> None:
    said: asyncio.Queue[bytes] = asyncio.Queue()
    watcher = await bench.connection(lambda _, payload, __: said.put_nowait(payload))
    await watcher.subscribe([f"{bench.name}/status"])
    devices = bench.devices("me", query=f"&status={bench.name}/status")
    events = await connected(devices)
    assert await said.get() == b"online"
    bench.faults.cut()
    assert await said.get() == b"offline"
    await events.until(Connected)
    assert await said.get() == b"online"
    await devices.close()
    assert await said.get() == b"offline"
    await bench.say(f"{bench.name}/status", b"", retained=True)


@pytest.mark.parametrize("version", ["5", "3.1.1"])
async def test_passwords_and_client_certificates_are_used(version: str) -> None:
    server = MosquittoServer(tls=True, client_certificates=True, users={"me": "p@ss"})
    async with server:
        shown = f"version={version}&ca={server.certificate}&cert={server.certificate}&key={server.key}"
        url = f"mqtts://me:p%40ss@{server.address}?{shown}"
        good = MqttDevices(parse(url), "good", SystemClock())
        await connected(good)
        good.publish(Command("7", "1.1.1", BODY))
        assert isinstance((await good.events())[0], Accepted)
        await good.close()
        wrong = {
            "password": url.replace("p%40ss", "wrong"),
            "no certificate": url.replace(f"&cert={server.certificate}&key={server.key}", ""),
            "unknown authority": url.replace(f"ca={server.certificate}&", ""),
        }
        for what, bad in wrong.items():
            devices = MqttDevices(parse(bad), "bad", SystemClock())
            await devices.start()
            reported = await DeviceEvents(devices).until(Disconnected)
            assert reported.reason, what
            assert "wrong" not in reported.reason
            await devices.close()


def test_settings_that_cannot_work_are_refused_at_once() -> None:
    with pytest.raises(ConfigError, match="identity"):
        MqttDevices(parse("mqtt://broker"), "a/b", SystemClock())
    with pytest.raises(ConfigError, match="files"):
        MqttDevices(parse("mqtts://broker?ca=/nowhere"), "me", SystemClock())


async def test_closing_does_not_wait_for_a_broker_that_says_nothing(five: MqttBench) -> None:
    five.faults.freeze()
    devices = five.devices("me")
    await devices.start()

    async def came() -> bool:
        return five.faults.accepted > 0

    await until(came, "it has connected", LIMIT_S)
    begun_at = SystemClock().monotonic()
    await devices.close()
    assert SystemClock().monotonic() - begun_at < CONNECT_TIMEOUT_S / 2
    assert not [event for event in await devices.events() if isinstance(event, Connected)]


async def test_a_bug_in_the_ownership_check_is_raised(five: MqttBench) -> None:
    async def bug() -> bool:
        raise ZeroDivisionError

    devices = five.devices("me", still_ours=bug)
    await devices.start()
    with pytest.raises(ZeroDivisionError):
        await DeviceEvents(devices).next()
