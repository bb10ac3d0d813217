"""The conformance suite of brokers of devices."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

import msgspec
import pytest

from holdfast.devices.ports.device import (
    Accepted,
    Command,
    Connected,
    DeviceAnswer,
    Devices,
    Disconnected,
    Event,
    Seen,
)
from holdfast.errors import InvalidMessage, TooLarge, Unavailable

LIMIT_S = 30.0
BODY = b'{"operator":"EditPerson"}'
E = TypeVar("E", bound=Event)


class DeviceBench(Protocol):
    """The other side: devices, and what happens to connections."""

    def devices(self, identity: str, *, still_ours: Callable[[], Awaitable[bool]] | None = None) -> Devices:
        """A new adapter, not started; closed with the bench."""

    async def listen(self, device: str) -> None:
        """Have a device wait for commands."""

    async def command(self, device: str) -> tuple[str, bytes]:
        """The next command that came to it: the id beside the payload ("" without one) and the
        payload."""

    async def answer(self, device: str, id: str, payload: bytes, *, retained: bool = False) -> None:  # noqa: A002
        """Have a device answer, with an id beside the payload where the protocol has one."""

    async def heartbeat(self, device: str) -> None:
        """Have a device give a sign of life."""

    async def cut(self, identity: str) -> None:
        """End the connection of an identity; it can be made again."""


class DeviceEvents:
    """Reads the events of an adapter one by one."""

    def __init__(self, devices: Devices) -> None:
        self._devices = devices
        self._events: list[Event] = []

    async def next(self) -> Event:
        """The next event."""
        while not self._events:
            async with asyncio.timeout(LIMIT_S):
                self._events = await self._devices.events()
        return self._events.pop(0)

    async def until(self, kind: type[E]) -> E:
        """The next event of this kind, past others."""
        while True:
            event = await self.next()
            if isinstance(event, kind):
                return event


@pytest.mark.asyncio
class DeviceConformance:
    """Every promise of the device port. Fixture: ``bench``."""

    @pytest.fixture
    def bench(self) -> DeviceBench:
        """Override: make the other side."""
        raise NotImplementedError("define the fixture bench")

    async def start(self, bench: DeviceBench, identity: str = "me") -> tuple[Devices, DeviceEvents]:
        devices = bench.devices(identity)
        events = DeviceEvents(devices)
        devices.watch(["7", "8"])
        await devices.start()
        await events.until(Connected)
        return devices, events

    async def test_a_command_reaches_its_device_and_the_answer_comes_back(self, bench: DeviceBench) -> None:
        await bench.listen("7")
        await bench.listen("8")
        devices, events = await self.start(bench)
        devices.publish(Command("7", "1.5.1", BODY))
        beside, payload = await bench.command("7")
        assert beside == ("1.5.1" if devices.correlates else "")
        assert msgspec.json.decode(payload) == {"messageId": "1.5.1", "operator": "EditPerson"}
        assert await events.until(Accepted) == Accepted("7", "1.5.1")
        await bench.answer("7", beside, b'{"messageId":"1.5.1","code":200}')
        assert await events.until(DeviceAnswer) == DeviceAnswer(
            "7", "1.5.1", b'{"messageId":"1.5.1","code":200}'
        )

    async def test_a_device_that_brings_the_id_back_only_inside_is_understood(
        self, bench: DeviceBench
    ) -> None:
        await bench.listen("7")
        devices, events = await self.start(bench)
        devices.publish(Command("7", "1.5.1", BODY))
        await bench.command("7")
        await bench.answer("7", "", b'{"messageId":"1.5.1"}')
        assert (await events.until(DeviceAnswer)).id == "1.5.1"

    async def test_commands_to_a_device_arrive_in_order(self, bench: DeviceBench) -> None:
        await bench.listen("7")
        devices, events = await self.start(bench)
        for number in range(50):
            devices.publish(Command("7", f"1.{number}.1", BODY))
        came = [msgspec.json.decode((await bench.command("7"))[1])["messageId"] for _ in range(50)]
        assert came == [f"1.{number}.1" for number in range(50)]
        accepted = {(await events.until(Accepted)).id for _ in range(50)}
        assert accepted == set(came)

    async def test_a_heartbeat_is_a_sign_of_life(self, bench: DeviceBench) -> None:
        _, events = await self.start(bench)
        await bench.heartbeat("8")
        assert await events.next() == Seen("8")

    async def test_the_device_of_an_answer_is_where_it_came_from(self, bench: DeviceBench) -> None:
        _, events = await self.start(bench)
        await bench.answer("8", "", b'{"messageId":"1.5.1","device":"7"}')
        assert await events.until(DeviceAnswer) == DeviceAnswer(
            "8", "1.5.1", b'{"messageId":"1.5.1","device":"7"}'
        )

    async def test_a_retained_answer_is_ignored(self, bench: DeviceBench) -> None:
        await bench.answer("7", "", b'{"messageId":"1.4.1"}', retained=True)
        _, events = await self.start(bench)
        await bench.answer("7", "", b'{"messageId":"1.5.1"}')
        assert await events.next() == DeviceAnswer("7", "1.5.1", b'{"messageId":"1.5.1"}')

    @pytest.mark.parametrize("garbage", [b"", b"\xff\x00", b"{", b"[]", b"{}", b'{"messageId":["1.5.1"]}'])
    async def test_garbage_is_a_sign_of_life_and_nothing_more(
        self, bench: DeviceBench, garbage: bytes
    ) -> None:
        _, events = await self.start(bench)
        await bench.answer("7", "", garbage)
        await bench.heartbeat("8")
        assert [await events.next(), await events.next()] == [Seen("7"), Seen("8")]

    async def test_an_invalid_command_is_refused_at_once(self, bench: DeviceBench) -> None:
        devices, _ = await self.start(bench)
        for device in ("", "a/b", "a+", "#", "$SYS", "a\0"):
            with pytest.raises(InvalidMessage):
                devices.publish(Command(device, "1.1.1", BODY))
        for command in ("", "a b", "é", "\0", "x" * 129):
            with pytest.raises(InvalidMessage):
                devices.publish(Command("7", command, BODY))
        with pytest.raises(InvalidMessage):
            devices.publish(Command("7", "1.1.1", b"no JSON"))
        with pytest.raises(TooLarge, match="max_payload"):
            devices.publish(Command("7", "1.1.1", msgspec.json.encode({"x": "x" * devices.max_payload})))

    async def test_a_payload_of_the_largest_size_reaches_the_device(self, bench: DeviceBench) -> None:
        await bench.listen("7")
        devices, events = await self.start(bench)
        overhead = len(b'{"messageId":"1.1.1","x":""}')
        devices.publish(Command("7", "1.1.1", b'{"x":"%s"}' % (b"x" * (devices.max_payload - overhead))))
        assert len((await bench.command("7"))[1]) == devices.max_payload
        assert (await events.until(Accepted)).id == "1.1.1"

    async def test_nothing_can_be_sent_while_not_connected(self, bench: DeviceBench) -> None:
        devices = bench.devices("me")
        with pytest.raises(Unavailable):
            devices.publish(Command("7", "1.1.1", BODY))

    async def test_a_broken_connection_is_reported_and_made_again(self, bench: DeviceBench) -> None:
        await bench.listen("7")
        devices, events = await self.start(bench)
        await bench.cut("me")
        assert not (await events.until(Disconnected)).taken_over
        with pytest.raises(Unavailable):
            devices.publish(Command("7", "1.1.1", BODY))
        await events.until(Connected)
        devices.publish(Command("7", "1.1.2", BODY))
        assert msgspec.json.decode((await bench.command("7"))[1])["messageId"] == "1.1.2"
        await bench.answer("7", "", b'{"messageId":"1.1.2"}')
        assert (await events.until(DeviceAnswer)).id == "1.1.2"

    async def test_a_broken_connection_reports_each_command_once(self, bench: DeviceBench) -> None:
        await bench.listen("7")
        devices, events = await self.start(bench)
        sent = [f"1.{number}.1" for number in range(20)]
        for command in sent:
            devices.publish(Command("7", command, BODY))
        await bench.cut("me")
        reported = []
        while not isinstance(event := await events.next(), Connected):
            if not isinstance(event, Disconnected | Seen | DeviceAnswer):
                reported.append(event.id)
        assert sorted(reported) == sorted(sent)

    async def test_a_later_connection_of_an_identity_cuts_off_the_earlier(self, bench: DeviceBench) -> None:
        await bench.listen("7")
        owner = ["first"]

        async def first_owns() -> bool:
            return owner[0] == "first"

        first = bench.devices("shard-1", still_ours=first_owns)
        events = DeviceEvents(first)
        await first.start()
        await events.until(Connected)
        owner[0] = "second"
        second, later_events = await self.start(bench, "shard-1")
        while not (await events.until(Disconnected)).taken_over:
            pass
        with pytest.raises(Unavailable):
            first.publish(Command("7", "1.1.1", BODY))
        second.publish(Command("7", "2.1.2", BODY))
        assert msgspec.json.decode((await bench.command("7"))[1])["messageId"] == "2.1.2"
        await bench.answer("7", "", b'{"messageId":"2.1.2"}')
        assert (await later_events.until(DeviceAnswer)).id == "2.1.2"

    async def test_a_former_owner_does_not_connect(self, bench: DeviceBench) -> None:
        async def no() -> bool:
            return False

        devices = bench.devices("me", still_ours=no)
        await devices.start()
        assert (await DeviceEvents(devices).until(Disconnected)).taken_over

    async def test_an_unanswered_ownership_check_is_repeated(self, bench: DeviceBench) -> None:
        asked = []

        async def soon() -> bool:
            asked.append(1)
            if len(asked) < 3:
                raise Unavailable("not now")
            return True

        devices = bench.devices("me", still_ours=soon)
        await devices.start()
        await DeviceEvents(devices).until(Connected)

    async def test_identities_do_not_disturb_each_other(self, bench: DeviceBench) -> None:
        await bench.listen("7")
        one, events = await self.start(bench, "one")
        two, other_events = await self.start(bench, "two")
        for number, devices in enumerate((one, two)):
            devices.publish(Command("7", f"{number}.1.1", BODY))
            await bench.command("7")
        assert (await events.until(Accepted)).id == "0.1.1"
        assert (await other_events.until(Accepted)).id == "1.1.1"

    async def test_the_broker_may_know_that_a_device_has_no_receiver(self, bench: DeviceBench) -> None:
        await bench.listen("7")
        devices, events = await self.start(bench)
        devices.publish(Command("7", "1.1.1", BODY))
        devices.publish(Command("404", "1.2.1", BODY))
        reported = {
            event.id: event.no_receiver
            for event in [await events.until(Accepted), await events.until(Accepted)]
        }
        assert reported == {"1.1.1": False, "1.2.1": devices.reports_no_receiver}

    async def test_closing_ends_the_events_and_refuses_commands(self, bench: DeviceBench) -> None:
        devices, events = await self.start(bench)
        waiting = asyncio.ensure_future(events.until(Disconnected))
        await devices.close()
        assert not (await waiting).taken_over
        async with asyncio.timeout(LIMIT_S):
            while await devices.events():
                pass
        with pytest.raises(Unavailable):
            devices.publish(Command("7", "1.1.1", BODY))
        await devices.close()

    async def test_nothing_is_sent_again_by_itself(self, bench: DeviceBench) -> None:
        await bench.listen("7")
        devices, events = await self.start(bench)
        devices.publish(Command("7", "1.1.1", BODY))
        await bench.cut("me")
        await events.until(Connected)
        devices.publish(Command("7", "1.2.1", BODY))
        came = msgspec.json.decode((await bench.command("7"))[1])["messageId"]
        if came == "1.1.1":  # it had left before the connection broke
            came = msgspec.json.decode((await bench.command("7"))[1])["messageId"]
        assert came == "1.2.1"
