"""Devices in memory, behind a broker whose connections can be cut, stopped and taken over."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence

from holdfast.devices.ports.device import (
    Accepted,
    Command,
    Connected,
    DeviceAnswer,
    Devices,
    Disconnected,
    Event,
    Lost,
    Seen,
)
from holdfast.devices.rules.dialect import JsonDialect, check_id
from holdfast.devices.rules.topics import check_device
from holdfast.devices.services.memory.terminal import Behaviour, ScheduledAnswer, Terminal, Work
from holdfast.errors import InvalidMessage, TooLarge, Unavailable
from holdfast.extend import Clock

DIALECT = JsonDialect()

TerminalListener = Callable[[str, bytes], None]
"""Called with a command's id, empty if only the payload has it, and the payload."""


class MemoryBroker:
    """A broker that delivers commands to listening devices, and their messages to all connections.

    ``correlates``: ids are beside payloads, as on MQTT 5; otherwise inside, as on 3.1.1. Every step takes
    ``delay_s``. ``lose`` is called with each command that the broker has taken, and returns whether it
    vanishes.
    """

    def __init__(
        self, clock: Clock, *, correlates: bool = True, max_payload: int = 131_072, delay_s: float = 0.0
    ) -> None:
        self.clock = clock
        self.correlates = correlates
        self.max_payload = max_payload
        self.delay_s = delay_s
        self.lose: Callable[[Command], bool] = lambda _: False
        self.running = True
        self._connected: dict[str, MemoryDevices] = {}
        self._listeners: dict[str, TerminalListener] = {}
        self._bell = asyncio.Event()
        self._line: deque[Callable[[], object]] = deque()
        self._steps: set[asyncio.Task[None]] = set()

    # Calls of devices

    def listen(self, device: str, listener: TerminalListener) -> None:
        """Connect a device."""
        self._listeners[device] = listener

    def leave(self, device: str) -> None:
        """Disconnect a device."""
        self._listeners.pop(device, None)

    def answer(self, device: str, id: str, payload: bytes, *, retained: bool = False) -> None:  # noqa: A002
        """Send a device's answer. A retained message isn't one."""
        if not retained:
            self.later(lambda: self._deliver_answer(device, id, payload))

    def heartbeat(self, device: str) -> None:
        """Send a device's sign of life."""
        self.later(lambda: self._deliver(Seen(device)))

    # Faults

    def cut(self, identity: str, reason: str = "the connection is gone") -> None:
        """End the connection of an identity, which connects again. Messages under way may be lost."""
        if (devices := self._connected.pop(identity, None)) is not None:
            devices.cut_off(reason, taken_over=False)

    def stop(self) -> None:
        """End all connections, and refuse new ones."""
        self.running = False
        for identity in list(self._connected):
            self.cut(identity, "the broker is gone")

    def resume(self) -> None:
        """Accept connections again."""
        self.running = True
        self._bell.set()
        self._bell = asyncio.Event()

    # Calls of the adapter

    async def connect(self, devices: MemoryDevices) -> None:
        """Connect, and cut off an earlier connection under the same identity."""
        while not self.running:
            await self.clock.wait(self._bell, None)
        before = self._connected.pop(devices.identity, None)
        self._connected[devices.identity] = devices
        if before is not None:
            before.cut_off("another connected under the same identity", taken_over=True)

    def disconnect(self, devices: MemoryDevices) -> None:
        """End a connection."""
        if self._connected.get(devices.identity) is devices:
            del self._connected[devices.identity]

    def take(self, devices: MemoryDevices, command: Command, payload: bytes) -> None:
        """Carry a command to the broker, and from there to its device."""

        def arrive() -> None:
            if self._connected.get(devices.identity) is not devices:
                return
            listener = self._listeners.get(command.device)
            devices.accepted(command, no_receiver=listener is None)
            if listener is not None and not self.lose(command):
                self.later(lambda: listener(command.id if self.correlates else "", payload))

        self.later(arrive)

    def later(self, act: Callable[[], object]) -> None:
        """Call ``act`` after ``delay_s``, in order."""

        async def step() -> None:
            await self.clock.sleep(self.delay_s)
            self._line.popleft()()  # timers of the same time may go off in any order

        self._line.append(act)
        task = asyncio.get_running_loop().create_task(step())
        self._steps.add(task)
        task.add_done_callback(self._steps.discard)

    def _deliver_answer(self, device: str, id: str, payload: bytes) -> None:  # noqa: A002
        event: Event
        try:
            reading = DIALECT.read(payload)
            named = id if self.correlates and id else reading.id
            event = DeviceAnswer(device, named, payload, reading.ok) if named else Seen(device)
        except InvalidMessage:
            event = DeviceAnswer(device, id, payload) if self.correlates and id else Seen(device)
        self._deliver(event)

    def _deliver(self, event: Event) -> None:
        for devices in self._connected.values():
            devices.receive(event)


class MemoryDevices(Devices):
    """One identity at a broker in memory. It receives messages of all devices."""

    reports_no_receiver = True

    def __init__(
        self,
        broker: MemoryBroker,
        identity: str,
        *,
        still_ours: Callable[[], Awaitable[bool]] | None = None,
        retry_s: float = 1.0,
    ) -> None:
        self.identity = identity
        self.max_payload = broker.max_payload
        self.correlates = broker.correlates
        self._broker = broker
        self._still_ours = still_ours
        self._retry_s = retry_s
        self._events: list[Event] = []
        self._bell = asyncio.Event()
        self._sent: dict[str, Command] = {}
        self._up = self._closed = False
        self._life: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._connect()

    def watch(self, devices: Iterable[str]) -> None:
        """Do nothing: messages of all devices are received."""

    def publish(self, command: Command) -> None:
        check_device(command.device)
        check_id(command.id)
        if not self._up:
            raise Unavailable("not connected to the broker")
        payload = DIALECT.write(command.payload, command.id)
        if len(payload) > self.max_payload:
            raise TooLarge(f"{len(payload)} bytes are more than max_payload, {self.max_payload}")
        self._sent[command.id] = command
        self._broker.take(self, command, payload)

    async def events(self) -> list[Event]:
        await self._bell.wait()
        events, self._events = self._events, []
        if not self._closed:
            self._bell.clear()
        return events

    async def close(self) -> None:
        self._broker.disconnect(self)
        self.cut_off("closed", taken_over=True)
        self._closed = True
        self._bell.set()

    # Calls of the broker

    def receive(self, event: Event) -> None:
        """Take an event."""
        self._events.append(event)
        self._bell.set()

    def accepted(self, command: Command, *, no_receiver: bool) -> None:
        """Take the broker's confirmation of a command."""
        if self._sent.pop(command.id, None) is not None:
            self.receive(Accepted(command.device, command.id, no_receiver))

    def cut_off(self, reason: str, *, taken_over: bool) -> None:
        """End the connection; connect again unless it was ``taken_over``."""
        if self._life is not None:
            self._life.cancel()
        if self._up:
            for place, command in enumerate(self._sent.values()):
                self.receive(Lost(command.device, command.id, suspect=place == 0))
            self._sent.clear()
            self._up = False
            self.receive(Disconnected(reason, taken_over=taken_over and reason != "closed"))
        if not taken_over:
            self._connect()

    def _connect(self) -> None:
        self._life = asyncio.get_running_loop().create_task(self._until_connected())

    async def _until_connected(self) -> None:
        while self._still_ours is not None:
            try:
                if await self._still_ours():
                    break
                self.receive(Disconnected("another owns it now", taken_over=True))
            except Unavailable:
                await self._broker.clock.sleep(self._retry_s)
            else:
                return
        await self._broker.connect(self)
        self._up = True
        self.receive(Connected())


class MemoryFleet:
    """Simulated devices on a broker in memory."""

    def __init__(
        self,
        broker: MemoryBroker,
        devices: Sequence[str],
        behaviour: Behaviour,
        seed: str,
        work: Work | None = None,
    ) -> None:
        self.terminals = {device: Terminal(device, behaviour, seed, work) for device in devices}
        self._broker = broker
        self._behaviour = behaviour
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """Switch the devices on."""
        for terminal in self.terminals.values():
            self._broker.listen(terminal.device, self._listener(terminal))
            if self._behaviour.heartbeat_s:
                self._spawn(self._beat(terminal))

    def stop(self) -> None:
        """Switch the devices off."""
        for device in self.terminals:
            self._broker.leave(device)
        for task in self._tasks:
            task.cancel()

    def _listener(self, terminal: Terminal) -> TerminalListener:
        def receive(command: str, payload: bytes) -> None:
            named = command or DIALECT.read(payload).id
            for answer in terminal.receive(named, payload, self._broker.clock.monotonic()):
                self._spawn(self._answer(terminal, answer))

        return receive

    async def _answer(self, terminal: Terminal, answer: ScheduledAnswer) -> None:
        await self._broker.clock.sleep(answer.after_s)
        terminal.finish(answer)
        if not terminal.away(self._broker.clock.monotonic()):
            self._broker.answer(terminal.device, answer.id, answer.payload)

    async def _beat(self, terminal: Terminal) -> None:
        while True:
            if not terminal.away(self._broker.clock.monotonic()):
                self._broker.heartbeat(terminal.device)
            await self._broker.clock.sleep(self._behaviour.heartbeat_s)

    def _spawn(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
