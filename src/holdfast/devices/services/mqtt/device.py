"""Devices behind an MQTT broker."""

from __future__ import annotations

import asyncio
import re
import zlib
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any

import structlog

from holdfast.devices.ports.device import (
    Accepted,
    Command,
    CommandRefused,
    Connected,
    DeviceAnswer,
    Disconnected,
    Event,
    Lost,
    Seen,
)
from holdfast.devices.rules.dialect import Dialect, JsonDialect, Reading, check_id, read_answer, write_id
from holdfast.devices.rules.topics import Topics
from holdfast.devices.services.mqtt import roundtrip
from holdfast.devices.services.mqtt.address import CONNECTIONS_MAX, MqttAddress
from holdfast.devices.services.mqtt.client import REFUSED
from holdfast.devices.services.mqtt.link import NO_RECEIVER, Extras, Link
from holdfast.errors import ConfigError, InvalidMessage, TooLarge, Unavailable
from holdfast.extend import Clock
from holdfast.extend.tools import Once

EVENTS_MAX = 50_000
"""Unread events at which reading from the broker stops."""
IDENTITY = re.compile(r"[A-Za-z0-9_.\-]{1,100}")
PACKET_SPARE = 512
"""Bytes of a broker's largest packet that are left for a command's topic and properties."""

FINAL = (0x90, 0x95, 0x99)
"""Reason codes for an invalid topic, size or payload."""
BUSY = (0x91, 0x97)
"""Reason codes for a shortage of packet ids or messages."""
NOT_AUTHORIZED = 0x87
"""The reason code for a topic that the broker's access rules forbid."""

TOPICS = Topics()

log = structlog.get_logger(__name__)


class MqttDevices:
    """The devices of one identity.

    Args:
        identity: the client id at the broker. A later connection under it cuts this one off.
        topics: the topics of the devices.
        dialect: how ids are written into payloads, for devices that don't return them beside payloads.
        still_ours: called before every connection. After it has returned False, this one never connects
            again. On MQTT 3.1.1, whose brokers give no reason, this keeps two nodes from cutting off each
            other in turns. May raise Unavailable.
        check: once connected, measure round trips on a second connection, and warn if the broker delays small
            packets.
    """

    def __init__(
        self,
        address: MqttAddress,
        identity: str,
        clock: Clock,
        *,
        topics: Topics = TOPICS,
        dialect: Dialect | None = None,
        still_ours: Callable[[], Awaitable[bool]] | None = None,
        check: bool = False,
    ) -> None:
        if not IDENTITY.fullmatch(identity):
            raise ConfigError(
                f"the identity {identity!r:.100} must be 1 to 100 letters, digits, '_', '.' or '-'"
            )
        self.max_payload = address.max_payload
        self.correlates = address.version == "5"
        self.reports_no_receiver = self.correlates and address.qos == 1
        self.address = address
        self._identity = identity
        self._clock = clock
        self._check = check
        self._topics = topics
        self._dialect = dialect or JsonDialect()
        self._once = Once()
        self._events: list[Event] = []
        self._seen: set[str] = set()
        self._bell = asyncio.Event()
        self._up = False
        self._state: Connected | Disconnected | None = None
        self._closed = False
        self._error: BaseException | None = None
        self._links = [
            Link(
                address,
                identity if number == 0 else f"{identity}-{number}",
                clock,
                self,
                still_ours=still_ours,
                status=address.status if number == 0 else "",
            )
            for number in range(address.connections)
        ]
        self._tasks: set[asyncio.Task[None]] = set()
        self._watched: set[str] = set()

    async def start(self) -> None:
        if self.address.hears == "all":
            sharing = self._links if self._shared else self._links[:1]
            for link in sharing:
                link.subscribe(self._all_device_filters(len(sharing)))
            if self.correlates:
                others = [name for n in range(1, CONNECTIONS_MAX + 1) for name in self._all_device_filters(n)]
                for link in self._links:
                    link.leave(others)
        for link in self._links:
            link.start().add_done_callback(self._ended)

    def watch(self, devices: Iterable[str]) -> None:
        for device in devices:
            self._watched.add(device)
            if self.address.hears == "own":
                self._link(device).subscribe(self._topics.topics_of(device))

    def publish(self, command: Command) -> None:
        topic = self._topics.command_to(command.device)
        check_id(command.id)
        if not self._up:
            reason = self._state.reason if isinstance(self._state, Disconnected) else "connecting"
            raise Unavailable(f"not connected to {self.address}: {reason}")
        payload, extras = write_id(self._dialect, command.payload, command.id), None
        if len(payload) > self.max_payload:
            raise TooLarge(
                f"the payload for device {command.device} has {len(payload)} bytes with its id, more than the"
                f" {self.max_payload} of max_payload in the broker's URL, or of what the broker takes"
            )
        answered_at, *_ = topics = self._topics.topics_of(command.device)
        if self.correlates:
            extras = Extras(
                correlation=command.id.encode(),
                response_topic=answered_at.encode(),
                expires_s=command.expires_s,
                traceparent=command.traceparent.encode(),
            )
        link = self._link(command.device)
        self._watched.add(command.device)
        if self.address.hears == "own":
            link.subscribe(topics)
        link.publish(topic, payload, extras, command)

    async def events(self) -> list[Event]:
        await self._bell.wait()
        events, self._events = self._events, []
        self._seen.clear()
        if self._error is not None:
            raise self._error
        if not self._closed:
            self._bell.clear()
        for link in self._links:
            link.hold(held=False)
        return events

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await self._stop()
        self._closed = True
        self._bell.set()

    # Events of the links

    def up(self) -> None:
        limits = [link.max_packet - PACKET_SPARE for link in self._links if link.connected]
        self.max_payload = max(min(self.address.max_payload, *limits), 0)
        if self.address.hears == "all" and not all(link.shares for link in self._links):
            self._links[0].subscribe(self._topics.all_device_filters())
        if all(link.connected for link in self._links):
            self._up = True
            self._report_state(Connected())
            if self._check:
                self._check = False
                self._spawn(self._measure())

    def down(self, reason: str, *, taken_over: bool) -> None:
        self._up = False
        if isinstance(self._state, Disconnected) and not taken_over:
            return
        self._report_state(Disconnected(reason, taken_over=taken_over))
        if taken_over:
            log.warning("broker identity taken over", identity=self._identity, reason=reason)
            self._spawn(self._stop())

    def confirmed(self, token: object, code: int) -> None:
        assert isinstance(token, Command)
        if code >= REFUSED:
            reason = f"the broker refuses it, reason {code:#x}"
            if code == NOT_AUTHORIZED:
                topic = self._topics.command_to(token.device)
                reason += f": its access rules must let the dispatcher's user write {topic}"
            counts = code not in FINAL + BUSY
            self._report(CommandRefused(token.device, token.id, reason, final=code in FINAL, counts=counts))
        else:
            self._report(Accepted(token.device, token.id, no_receiver=code == NO_RECEIVER))

    def lost(self, token: object, *, sent: bool, first: bool = False) -> None:
        assert isinstance(token, Command)
        if sent:
            self._report(Lost(token.device, token.id, suspect=first))
        else:
            self._report(CommandRefused(token.device, token.id, "the connection ended before it was sent"))

    def received(self, topic: str, payload: bytes, correlation: bytes | None) -> None:
        found = self._topics.read(topic)
        if found is None:
            return
        kind, device = found
        if kind == "heartbeat":
            if device not in self._seen:
                self._seen.add(device)
                self._report(Seen(device))
            return
        try:
            reading = self._read(payload, correlation)
            check_id(reading.id)
        except InvalidMessage as error:
            self._note_unreadable(device, str(error))
        else:
            self._report(DeviceAnswer(device, reading.id, payload, reading.ok))

    def _read(self, payload: bytes, correlation: bytes | None) -> Reading:
        """Read an answer. An id beside the payload has priority over one inside, which may then be
        unreadable."""
        if correlation is None:
            return read_answer(self._dialect, payload)
        beside = correlation.decode("ascii", "replace")
        try:
            return Reading(beside, read_answer(self._dialect, payload).ok)
        except InvalidMessage:
            return Reading(beside)

    def _note_unreadable(self, device: str, reason: str) -> None:
        """Report an unreadable answer as a sign of life, and log it. Devices that never had a command may be
        invented, and share one line of the log."""
        if self._once.first(device if device in self._watched else ""):
            log.warning("unmatched answer ignored", device=device, error=reason)
        if device not in self._seen:
            self._seen.add(device)
            self._report(Seen(device))

    def _report_state(self, state: Connected | Disconnected) -> None:
        self._state = state
        self._report(state)

    def _report(self, event: Event) -> None:
        self._events.append(event)
        self._bell.set()
        if len(self._events) == EVENTS_MAX:
            for link in self._links:
                link.hold(held=True)

    async def _measure(self) -> None:
        try:
            advice = roundtrip.advice(await roundtrip.measure(self.address, self._identity, self._clock))
        except Unavailable as error:
            log.info("cannot measure the broker", identity=self._identity, error=str(error))
            return
        if advice:
            log.warning("slow broker detected", identity=self._identity, fix=advice)

    def _ended(self, life: asyncio.Task[None]) -> None:
        """Have ``events`` raise the error of a link, which is a bug."""
        if not life.cancelled() and (error := life.exception()) is not None:
            self._error = error
            self._bell.set()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _stop(self) -> None:
        await asyncio.gather(*(link.close() for link in self._links))

    @property
    def _shared(self) -> bool:
        """True if several connections share the received messages."""
        return self.address.connections > 1 and self.address.version == "5"

    def _all_device_filters(self, connections: int) -> list[str]:
        """Return the filters for messages of all devices, which ``connections`` share. The number is part
        of the group's name, because the broker keeps the sessions of former connections and would give them a
        share."""
        group = f"$share/{self._identity}:{connections}/" if connections > 1 else ""
        return [group + topic for topic in self._topics.all_device_filters()]

    def _link(self, device: str) -> Link:
        return self._links[zlib.crc32(device.encode()) % len(self._links)]
