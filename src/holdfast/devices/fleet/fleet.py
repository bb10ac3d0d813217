"""A fleet of simulated devices."""

from __future__ import annotations

import asyncio
import heapq
import traceback
from collections.abc import Sequence
from typing import Self

import msgspec
import structlog

from holdfast.devices.fleet.mqtt import Connection
from holdfast.devices.rules.dialect import Dialect, JsonDialect, read_answer
from holdfast.devices.rules.topics import DEVICE, Topics
from holdfast.devices.services.memory.terminal import Behaviour, ScheduledAnswer, Terminal, Work
from holdfast.devices.services.mqtt.address import MqttAddress, parse, tls_context
from holdfast.errors import InvalidMessage, Unavailable
from holdfast.extend import Clock, SystemClock
from holdfast.extend.tools import Once

log = structlog.get_logger(__name__)

RECONNECT_S = 0.2
TICK_S = 0.005
"""Seconds within which due answers are sent together."""


class FleetCounts(msgspec.Struct, frozen=True):
    """The counts of a fleet's commands. ``crowded`` came while their device was busy; ``at_once`` is the most
    that a device had at a time. ``lost`` are lost commands and answers."""

    devices: int
    received: int
    answered: int
    lost: int
    crashes: int
    crowded: int
    at_once: int
    away: int


class Fleet:
    """Simulated devices behind one broker, as an asynchronous context manager. It connects again when the
    broker is back.

    Args:
        address: the broker's address, or its URL, such as ``mqtt://localhost``.
        devices: the ids of the devices.
        clock: the system's clock, unless given.
        work: as for ``Terminal``.
    """

    def __init__(
        self,
        address: MqttAddress | str,
        devices: Sequence[str],
        clock: Clock | None = None,
        *,
        topics: Topics | None = None,
        behaviour: Behaviour | None = None,
        seed: str = "0",
        work: Work | None = None,
        dialect: Dialect | None = None,
        name: str = "holdfast-fleet",
    ) -> None:
        self.behaviour = behaviour or Behaviour()
        self.terminals = {device: Terminal(device, self.behaviour, seed, work) for device in devices}
        self._address = parse(address) if isinstance(address, str) else address
        self._clock = clock or SystemClock()
        self._topics = topics or Topics()
        self._dialect = dialect or JsonDialect()
        self._name = name
        self._once = Once(100)
        self.connection = Connection(self._receive, self._address.version)
        self._by_topic = {self._topics.command_to(device): t for device, t in self.terminals.items()}
        self._answers = {device: self._topics.topics_of(device)[0] for device in devices}
        self._due: list[tuple[float, int, Terminal, ScheduledAnswer]] = []
        self._number = 0
        self._answered = 0
        self._bell = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Return once all devices listen. Raises Unavailable if the broker can't be reached."""
        await self._connect()
        spawn = asyncio.get_running_loop().create_task
        self._tasks = [spawn(self._keep()), spawn(self._send_due())]
        if self.behaviour.heartbeat_s and self._topics.heartbeat:
            self._tasks.append(spawn(self._beat()))

    async def stop(self) -> None:
        """Switch all devices off."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.connection.end()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    @property
    def counts(self) -> FleetCounts:
        """The counts until now."""
        now, all_of_them = self._clock.monotonic(), self.terminals.values()
        return FleetCounts(
            devices=len(self.terminals),
            received=sum(terminal.received for terminal in all_of_them),
            answered=self._answered,
            lost=sum(terminal.lost for terminal in all_of_them),
            crashes=sum(terminal.crashes for terminal in all_of_them),
            crowded=sum(terminal.crowded for terminal in all_of_them),
            at_once=max((terminal.at_once for terminal in all_of_them), default=0),
            away=sum(terminal.away(now) for terminal in all_of_them),
        )

    async def _connect(self) -> None:
        address = self._address
        connection = Connection(self._receive, address.version)
        await connection.connect(
            address.host,
            address.port,
            self._name,
            username=address.username,
            password=address.password,
            tls=tls_context(address),
        )
        self.connection = connection
        try:
            await connection.subscribe([self._topics.command.replace(DEVICE, "+")], min(address.qos, 1))
        except BaseException:
            await connection.end()
            raise

    async def _keep(self) -> None:
        while True:
            await self.connection.lost.wait()
            try:
                await self._connect()
            except (Unavailable, OSError, TimeoutError):
                await self._clock.sleep(RECONNECT_S)

    def _receive(self, topic: str, payload: bytes, correlation: bytes) -> None:
        terminal = self._by_topic.get(topic)
        if terminal is None:
            return
        try:
            command = correlation.decode() if correlation else read_answer(self._dialect, payload).id
        except (InvalidMessage, UnicodeDecodeError):
            return
        now = self._clock.monotonic()
        try:
            answers = terminal.receive(command, payload, now)
        except Exception as error:  # noqa: BLE001 - the work is the user's, and may fail in any way
            # The error would end the connection of all devices.
            at = traceback.extract_tb(error.__traceback__)[-1]
            kind, place = type(error).__name__, f"{at.filename}:{at.lineno}"
            if self._once.first((kind, place)):
                log.error(
                    "work function failed",
                    device=terminal.device,
                    error=kind,
                    at=place,
                )
            return
        for answer in answers:
            if answer.after_s <= 0:
                self._send(terminal, answer)
            else:
                self._number += 1
                if not self._due or now + answer.after_s < self._due[0][0]:
                    self._bell.set()
                heapq.heappush(self._due, (now + answer.after_s, self._number, terminal, answer))

    def _send(self, terminal: Terminal, answer: ScheduledAnswer) -> None:
        terminal.finish(answer)
        self._answered += 1
        self.connection.publish(
            self._answers[terminal.device],
            answer.payload,
            qos=min(self._address.qos, 1),
            correlation=answer.id.encode(),
        )

    async def _send_due(self) -> None:
        """Send answers when they are due."""
        while True:
            now = self._clock.monotonic()
            while self._due and self._due[0][0] <= now:
                _, _, terminal, answer = heapq.heappop(self._due)
                if terminal.away(now):
                    terminal.finish(answer)
                else:
                    self._send(terminal, answer)
            self._bell.clear()
            wait_s = max(self._due[0][0] - now, TICK_S) if self._due else None
            await self._clock.wait(self._bell, wait_s)

    async def _beat(self) -> None:
        """Send heartbeats, spread over their interval."""
        beats = {device: self._topics.topics_of(device)[-1] for device in self.terminals}
        step_s = max(self.behaviour.heartbeat_s / len(beats), 0.05)
        at_once = max(round(len(beats) * step_s / self.behaviour.heartbeat_s), 1)
        devices = list(beats)
        while True:
            for first in range(0, len(devices), at_once):
                now = self._clock.monotonic()
                for device in devices[first : first + at_once]:
                    if not self.terminals[device].away(now):
                        self.connection.publish(beats[device], b"{}")
                await self._clock.sleep(step_s)
