"""What stands on the devices' side of a broker."""

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable

from holdfast.devices.fleet.mqtt import Connection
from holdfast.devices.rules.topics import Topics
from holdfast.devices.services.mqtt.address import parse
from holdfast.devices.services.mqtt.device import MqttDevices
from holdfast.system.clock import SystemClock
from simulator.proxies.tcp import TcpFaults
from simulator.servers import MosquittoServer

NUMBERS = itertools.count()


class MqttBench:
    """Devices of one test, at topics of its own, and adapters that reach the broker through ``faults``."""

    def __init__(self, server: MosquittoServer, faults: TcpFaults, query: str) -> None:
        self.name = f"t{next(NUMBERS)}"
        self.topics = Topics(
            f"{self.name}/{{device}}", f"{self.name}/{{device}}/Ack", f"{self.name}/{{device}}/beat"
        )
        self.faults = faults
        self.url = f"mqtt://127.0.0.1:{faults.port}?{query}"
        self.made: list[MqttDevices] = []
        self._server = server
        self._version = "3.1.1" if "version=3.1.1" in query else "5"
        self._speaker: Connection | None = None
        self._came: dict[str, asyncio.Queue[tuple[str, bytes]]] = {}
        self._retained: set[str] = set()
        self._listeners: list[Connection] = []

    def devices(
        self, identity: str, *, still_ours: Callable[[], Awaitable[bool]] | None = None, query: str = ""
    ) -> MqttDevices:
        self.made.append(
            MqttDevices(
                parse(self.url + query),
                f"{self.name}-{identity}",
                SystemClock(),
                topics=self.topics,
                still_ours=still_ours,
            )
        )
        return self.made[-1]

    async def connection(self, heard: Callable[[str, bytes, bytes], None]) -> Connection:
        """A device's connection, straight to the broker."""
        connection = Connection(heard, "3.1.1" if self._version == "3.1.1" else "5")
        await connection.connect("127.0.0.1", self._server.port, f"{self.name}-device-{next(NUMBERS)}")
        self._listeners.append(connection)
        return connection

    async def listen(self, device: str) -> None:
        queue = self._came[device] = asyncio.Queue()
        connection = await self.connection(
            lambda _, payload, beside: queue.put_nowait((beside.decode(), payload))
        )
        await connection.subscribe([self.topics.command_to(device)])

    async def command(self, device: str) -> tuple[str, bytes]:
        return await self._came[device].get()

    async def answer(self, device: str, id: str, payload: bytes, *, retained: bool = False) -> None:  # noqa: A002
        await self.say(self.topics.topics_of(device)[0], payload, id, retained=retained)

    async def heartbeat(self, device: str) -> None:
        await self.say(self.topics.topics_of(device)[1], b"{}")

    async def cut(self, identity: str) -> None:
        self.faults.cut()

    async def say(self, topic: str, payload: bytes, id: str = "", *, retained: bool = False) -> None:  # noqa: A002
        """Publish anything; returns when the broker has it."""
        if self._speaker is None:
            self._speaker = await self.connection(lambda *_: None)
        if retained:
            self._retained.add(topic)
        self._speaker.publish(topic, payload, qos=1, correlation=id.encode(), retain=retained)
        self._speaker.flush()
        await self._speaker.subscribe([f"{self.name}/barrier"])

    async def close(self) -> None:
        for topic in self._retained:
            await self.say(topic, b"", retained=True)
        for devices in self.made:
            await devices.close()
        for connection in self._listeners:
            await connection.end()


@contextlib.asynccontextmanager
async def benched(server: MosquittoServer, query: str) -> AsyncIterator[MqttBench]:
    """A bench whose adapters' URLs have ``query``."""
    async with TcpFaults(server.port) as faults:
        bench = MqttBench(server, faults, query)
        try:
            yield bench
        finally:
            await bench.close()
