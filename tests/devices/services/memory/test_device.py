"""Devices in memory, and how badly they can behave."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from holdfast.devices.conformance import DeviceConformance
from holdfast.devices.conformance.device import DeviceEvents
from holdfast.devices.ports.device import Command, Connected, DeviceAnswer, Seen
from holdfast.devices.services.memory.device import MemoryBroker, MemoryDevices, MemoryFleet
from holdfast.devices.services.memory.terminal import Behaviour, Terminal
from holdfast.errors import ConfigError
from holdfast.ports.clock import Clock

BODY = b"{}"


class MemoryBench:
    def __init__(self, clock: Clock, *, correlates: bool) -> None:
        self.broker = MemoryBroker(clock, correlates=correlates, max_payload=10_000, delay_s=0.01)
        self.made: list[MemoryDevices] = []
        self.came: dict[str, asyncio.Queue[tuple[str, bytes]]] = {}

    def devices(
        self, identity: str, *, still_ours: Callable[[], Awaitable[bool]] | None = None
    ) -> MemoryDevices:
        self.made.append(MemoryDevices(self.broker, identity, still_ours=still_ours))
        return self.made[-1]

    async def listen(self, device: str) -> None:
        queue = self.came[device] = asyncio.Queue()
        self.broker.listen(device, lambda beside, payload: queue.put_nowait((beside, payload)))

    async def command(self, device: str) -> tuple[str, bytes]:
        return await self.came[device].get()

    async def answer(self, device: str, id: str, payload: bytes, *, retained: bool = False) -> None:  # noqa: A002
        self.broker.answer(device, id, payload, retained=retained)

    async def heartbeat(self, device: str) -> None:
        self.broker.heartbeat(device)

    async def cut(self, identity: str) -> None:
        self.broker.cut(identity)


@pytest.mark.parametrize("correlates", [True, False], ids=["beside", "inside"])
class TestMemoryDevices(DeviceConformance):
    @pytest.fixture
    async def bench(self, clock: Clock, correlates: bool) -> AsyncIterator[MemoryBench]:
        bench = MemoryBench(clock, correlates=correlates)
        yield bench
        for devices in bench.made:
            await devices.close()


async def test_a_stopped_broker_takes_connections_when_it_is_back(clock: Clock) -> None:
    broker = MemoryBroker(clock)
    devices = MemoryDevices(broker, "me")
    events = DeviceEvents(devices)
    await devices.start()
    await events.until(Connected)
    broker.stop()
    await clock.sleep(60)
    broker.resume()
    await events.until(Connected)
    await devices.close()


async def test_a_fleet_lives_as_its_seed_says(clock: Clock) -> None:
    async def life(seed: str) -> list[str]:
        broker = MemoryBroker(clock)
        behaviour = Behaviour(
            latency_s=0.1, spread=0.5, loss=0.1, answer_loss=0.1, duplicate=0.2, late=0.1, garbage=0.1,
            foreign=0.1, crash=0.05, crash_s=4.77, heartbeat_s=10,
        )  # fmt: skip
        names = [str(number) for number in range(20)]
        fleet = MemoryFleet(broker, names, behaviour, seed)
        devices = MemoryDevices(broker, "me")
        fleet.start()
        await devices.start()
        await DeviceEvents(devices).until(Connected)
        for number in range(400):
            devices.publish(Command(names[number % 20], f"1.{number}.1", BODY))
            await clock.sleep(0.05)
        await clock.sleep(60)
        fleet.stop()
        story = sorted(f"{event}" for event in await devices.events())
        await devices.close()
        return [*story, *(f"{t.received} {t.crowded}" for t in fleet.terminals.values())]

    first = await life("a")
    assert first == await life("a")
    assert first != await life("b")
    assert any("DeviceAnswer" in event for event in first)
    assert any("Seen" in event for event in first)


@pytest.mark.parametrize(
    "behaviour, ids",
    [
        (Behaviour(), ["1.2.1"]),
        (Behaviour(loss=1), []),
        (Behaviour(answer_loss=1), []),
        (Behaviour(silent=1), []),
        (Behaviour(crash=1), []),
        (Behaviour(duplicate=1), ["1.2.1", "1.2.1"]),
        (Behaviour(garbage=1), [""]),
        (Behaviour(foreign=1), ["0.0.0"]),
        (Behaviour(late=1, late_s=7), ["1.2.1"]),
    ],
)
def test_a_simulated_device_misbehaves_as_configured(behaviour: Behaviour, ids: list[str]) -> None:
    terminal = Terminal("7", behaviour, "seed")
    said = terminal.receive("1.2.1", BODY, 0)
    assert [answer.id for answer in said] == ids
    assert all(answer.after_s == 7 * behaviour.late for answer in said)


def test_a_device_does_one_thing_at_a_time() -> None:
    terminal = Terminal("7", Behaviour(latency_s=1), "seed")
    (answer,) = terminal.receive("a", BODY, 0)
    assert terminal.receive("b", BODY, 0.5) == []
    assert (terminal.received, terminal.crowded, terminal.at_once) == (2, 1, 2)
    terminal.finish(answer)
    assert [answer.id for answer in terminal.receive("c", BODY, 1)] == ["c"]


def test_a_device_that_crashed_is_away_for_a_while() -> None:
    terminal = Terminal("7", Behaviour(crash=1, crash_s=5), "seed")
    assert terminal.receive("a", BODY, 0) == []
    assert terminal.away(4.9)
    assert not terminal.away(5)


def test_behaviour_that_makes_no_sense_is_refused() -> None:
    for setting in ({"loss": 1.5}, {"latency_s": -1.0}, {"crash_s": float("nan")}):
        with pytest.raises(ConfigError, match=next(iter(setting))):
            Behaviour(**setting)


async def test_who_listens_hears_of_others_too(clock: Clock) -> None:
    broker = MemoryBroker(clock)
    devices = MemoryDevices(broker, "me")
    await devices.start()
    events = DeviceEvents(devices)
    await events.until(Connected)
    broker.answer("9", "1.1.1", b"anything")
    broker.heartbeat("9")
    assert await events.next() == DeviceAnswer("9", "1.1.1", b"anything")
    assert await events.next() == Seen("9")
    await devices.close()
