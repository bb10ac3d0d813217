"""One connection to the broker under one client id, kept up until it is closed or taken over.

paho makes and reads the packets; asyncio owns the connection. Unconfirmed messages are reported and forgotten
when a connection ends: only the owner of the device decides whether they are sent again.
"""

from __future__ import annotations

import asyncio
import struct
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from typing import Protocol, cast

import structlog
from paho.mqtt.client import (
    MQTT_CLEAN_START_FIRST_ONLY,
    Client,
    ConnectFlags,
    DisconnectFlags,
)
from paho.mqtt.enums import MQTTErrorCode
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode

from holdfast.devices.services.mqtt.address import MqttAddress, tls_context
from holdfast.devices.services.mqtt.client import REFUSED, QuickClient
from holdfast.devices.services.mqtt.wire import Wire
from holdfast.errors import HoldfastError, TooLarge, Unavailable
from holdfast.extend import Clock
from holdfast.extend.tools import Backoff
from holdfast.extend.tracing import TRACEPARENT

CONNECT_TIMEOUT_S = 10.0
GOODBYE_S = 2.0
CLOSED = "closed"
READ_PACKETS_MAX = 500
"""Packets that are handled before other tasks run."""
FILTERS_PER_SUBSCRIBE = 500
STABLE_S = 10.0
"""Seconds of a connection after which failures are counted from 0."""
FAILURES_TO_LOG = 5
BACKOFF = Backoff(first_s=0.2, max_s=15.0, floor=0.0)
PACKET_MAX = 268_435_455
"""MQTT's own limit."""
UNSTABLE = "is the broker there and does it let this user in; does another program use the same client id?"
AT_REFUSAL = (
    ", at a message that it refused: Mosquitto does so with max_queued_messages 0, so give it a number"
)
HEADERS_BYTES = 16
"""Of a PUBLISH packet, beside topic, properties and payload."""
NO_RECEIVER = 0x10
TAKEN_OVER = 0x8E
FOREVER_S = 0xFFFFFFFF
USER_PROPERTY = struct.pack("!BH", 0x26, len(TRACEPARENT)) + TRACEPARENT.encode()
"""The property of a command's place in a trace, up to the value."""

log = structlog.get_logger(__name__)


class LinkListener(Protocol):
    """A listener to the events of a link."""

    def up(self) -> None:
        """The link is connected."""

    def down(self, reason: str, *, taken_over: bool) -> None:
        """The connection has ended, or could not be made."""

    def confirmed(self, token: object, code: int) -> None:
        """The broker confirmed a message: 0, ``NO_RECEIVER``, or from ``REFUSED`` on an error."""

    def lost(self, token: object, *, sent: bool, first: bool = False) -> None:
        """The connection ended before the confirmation. Not ``sent``: nothing of the message has left.
        ``first``: it was the next to be confirmed."""

    def received(self, topic: str, payload: bytes, correlation: bytes | None) -> None:
        """A message came that wasn't retained."""


class Extras:
    """The properties of a command in the wire's form, which paho's own take far longer to make."""

    def __init__(
        self, *, correlation: bytes, response_topic: bytes, expires_s: float, traceparent: bytes = b""
    ) -> None:
        self._bytes = (
            struct.pack("!BH", 0x08, len(response_topic))
            + response_topic
            + struct.pack("!BH", 0x09, len(correlation))
            + correlation
        )
        if expires_s > 0:
            self._bytes += struct.pack("!BI", 0x02, min(max(round(expires_s), 1), FOREVER_S))
        if traceparent:
            self._bytes += USER_PROPERTY + struct.pack("!H", len(traceparent)) + traceparent

    def pack(self) -> bytes:
        """Return the properties after their length."""
        size, length = len(self._bytes), bytearray()
        while True:
            size, digit = divmod(size, 128)
            length.append(digit | (0x80 if size else 0))
            if not size:
                return bytes(length) + self._bytes


class Link:
    """A connection of one owner in one loop. ``start`` begins to connect; nothing is sent before ``up``."""

    def __init__(
        self,
        address: MqttAddress,
        client_id: str,
        clock: Clock,
        owner: LinkListener,
        *,
        still_ours: Callable[[], Awaitable[bool]] | None = None,
        status: str = "",
        backoff: Backoff = BACKOFF,
    ) -> None:
        self.client_id = client_id
        self.connected = False
        self.max_packet = PACKET_MAX
        self.shares = address.version == "5"
        self._address = address
        self._clock = clock
        self._owner = owner
        self._still_ours = still_ours
        self._status = status
        self._backoff = backoff
        self._tls = tls_context(address)
        self._window = address.window
        self._welcome = False
        self._refused_last = False
        """True if a refusal was the broker's last confirmation. Some end the connection with it."""
        self._asked: set[int | None] = set()
        """Subscriptions that the broker hasn't answered yet."""
        self._sent: dict[int, object] = {}
        self._waiting: deque[tuple[str, bytes, Extras | None, object]] = deque()
        self._filters: dict[str, None] = {}
        self._left: list[str] = []
        self._held = False
        self._reading = False
        self._closing = asyncio.Event()
        self._changed = asyncio.Event()
        self._reason = ""
        self._taken = False
        self._task: asyncio.Task[None] | None = None
        self._client = self._make_client()

    def start(self) -> asyncio.Task[None]:
        """Connect, and again whenever the connection ends, in a task that ends by ``close`` or a takeover."""
        self._task = asyncio.get_running_loop().create_task(self._run())
        return self._task

    async def close(self) -> None:
        """Disconnect, and end."""
        self._closing.set()
        self._changed.set()
        if self._task is not None:
            if not self.connected:  # don't wait for a missing broker
                self._task.cancel()
            await asyncio.wait([self._task])

    def subscribe(self, filters: Iterable[str]) -> None:
        """Subscribe, now and in every later connection."""
        new = [topic for topic in filters if topic not in self._filters]
        self._filters.update(dict.fromkeys(new))
        if self._welcome:
            self._subscribe(new)

    def leave(self, filters: Iterable[str]) -> None:
        """Unsubscribe, in every later connection, from ``filters`` that aren't subscribed to: the broker's
        session may have them from other settings."""
        self._left = list(filters)

    def publish(self, topic: str, payload: bytes, extras: Extras | None, token: object) -> None:
        """Send at once, or when there is room in the window. Raises Unavailable while not connected,
        TooLarge."""
        if not self.connected:
            raise Unavailable(f"not connected to {self._address}: {self._reason or 'connecting'}")
        size = HEADERS_BYTES + len(topic) + len(payload) + (len(extras.pack()) if extras is not None else 0)
        if size > self.max_packet:
            raise TooLarge(f"a command of {len(payload)} bytes is more than {self._address} takes")
        if self._waiting or self._wire.full or len(self._sent) >= self._window:
            self._waiting.append((topic, payload, extras, token))
        else:
            self._send(topic, payload, extras, token)

    def hold(self, *, held: bool) -> None:
        """Stop reading, or go on."""
        if held != self._held:
            self._held = held
            if self.connected:
                self._wire.hold(held=held)
                if not held:
                    asyncio.get_running_loop().call_soon(self._read)

    # Connecting

    async def _run(self) -> None:
        failures = 0
        while not self._closing.is_set():
            if await self._may_connect():
                since = self._clock.monotonic()
                if await self._connect():
                    await self._until_down()
                    if self._reason != CLOSED or not await self._clock.wait(self._wire.closed, GOODBYE_S):
                        self._wire.abort()
                    self._account()
                    failures = 0 if self._clock.monotonic() - since > STABLE_S else failures
            self._owner.down(self._reason, taken_over=self._taken)
            if self._taken:
                return
            failures += 1
            if failures == FAILURES_TO_LOG and not self._closing.is_set():
                log.error(
                    "broker connection unstable",
                    client=self.client_id,
                    error=self._reason,
                    fix=UNSTABLE,
                )
            await self._clock.wait(self._closing, self._backoff.delay_s(failures, self._clock.random()))

    async def _may_connect(self) -> bool:
        """Return whether this node owns the client id; False also if that is unknown. On MQTT 3.1.1 only this
        distinguishes a takeover from a broken connection."""
        if self._still_ours is None:
            return True
        try:
            ours = await self._still_ours()
        except HoldfastError as error:
            self._reason = f"can't ask who owns {self.client_id}: {error}"
            return False
        if not ours:
            self._taken, self._reason = True, f"another owns {self.client_id} now"
        return ours

    async def _connect(self) -> bool:
        loop = asyncio.get_running_loop()
        self._reading = False
        self._reason = ""
        self._changed.clear()
        if self._closing.is_set():
            return False
        address, wire = self._address, Wire(self._read, self._pump)
        self._wire = self._client.wire = wire
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                await loop.create_connection(lambda: wire, address.host, address.port, ssl=self._tls)
                self._client.reconnect()
                self._read()  # the end, if it came so soon
                await self._changed.wait()
        except TimeoutError:
            self._reason = f"{address} doesn't answer"
        except (OSError, UnicodeError) as error:  # the latter for a host that can't be one
            self._reason = f"{address}: {error}"
        finally:
            if not self.connected:
                wire.abort()
        if not self.connected:
            log.info("cannot connect to the broker", client=self.client_id, error=self._reason)
        return self.connected

    async def _until_down(self) -> None:
        """Wait for the end of the connection, and test it while it is silent."""
        tick_s = max(self._address.keepalive_s / 4, 0.25)
        while self.connected:
            if self._closing.is_set():
                self._leave()
                return
            if not self._held:  # while nothing is read, silence is normal
                self._client.loop_misc()
            self._changed.clear()
            await self._clock.wait(self._changed, tick_s)

    def _leave(self) -> None:
        if self._status:
            self._client.publish(self._status, b"offline", min(self._address.qos, 1), retain=True)
        self._reason = CLOSED
        self._client.disconnect()
        self._client.loop_write()

    def _account(self) -> None:
        """Report all messages in flight as lost, and forget them."""
        self._client.drop_out_messages()
        sent, waiting = list(self._sent.values()), [token for *_, token in self._waiting]
        self._sent.clear()
        self._waiting.clear()
        for place, token in enumerate(sent):
            self._owner.lost(token, sent=True, first=place == 0 and not self._refused_last)
        for token in waiting:
            self._owner.lost(token, sent=False)

    # Callbacks of paho

    def _make_client(self) -> QuickClient:
        address = self._address
        five = address.version == "5"
        clean = address.session_s == 0
        client = QuickClient(
            self.client_id,
            five=five,
            clean=clean,
            on_received=self._on_message,
            on_confirmed=self._on_confirmed,
        )
        if address.username:
            client.username_pw_set(address.username, address.password or None)
        if self._status:
            client.will_set(self._status, b"offline", min(address.qos, 1), retain=True)
        session = None
        if five:
            session = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
            session.SessionExpiryInterval = address.session_s
        client.connect_async(
            address.host,
            address.port,
            address.keepalive_s,
            clean_start=clean if five else MQTT_CLEAN_START_FIRST_ONLY,
            properties=session,
        )
        client.on_connect = self._on_connect
        client.on_disconnect = self._on_disconnect
        client.on_subscribe = self._on_subscribe
        client.on_socket_register_write = self._on_wants_write
        return client

    def _on_connect(
        self,
        client: Client,
        userdata: object,
        flags: ConnectFlags,
        code: ReasonCode,
        properties: Properties | None,
    ) -> None:
        if code.is_failure:
            self._reason = f"{self._address} refuses: {code}"
            log.error("broker connection refused", client=self.client_id, error=self._reason)
            self._changed.set()
            return
        self._window = min(self._address.window, getattr(properties, "ReceiveMaximum", FOREVER_S))
        self.max_packet = getattr(properties, "MaximumPacketSize", PACKET_MAX)
        self.shares = self._address.version == "5" and (
            getattr(properties, "SharedSubscriptionAvailable", 1) == 1
        )
        self._welcome = True
        self._refused_last = False
        self._asked.clear()
        if flags.session_present:
            self._unsubscribe([topic for topic in self._left if topic not in self._filters])
        self._subscribe(list(self._filters))
        if self._status:
            client.publish(self._status, b"online", min(self._address.qos, 1), retain=True)
        self._wire.hold(held=self._held)
        self._settle()

    def _settle(self) -> None:
        """Report the connection once all is subscribed, so that no answer is missed."""
        if not (self._asked or self.connected):
            self.connected = True
            self._changed.set()
            self._owner.up()

    def _on_disconnect(
        self, client: Client, userdata: object, flags: DisconnectFlags, code: ReasonCode, properties: object
    ) -> None:
        if flags.is_disconnect_packet_from_server:
            self._taken = code.value == TAKEN_OVER
            self._reason = f"{self._address} ended the connection: {code}"
        elif not self._reason:
            self._reason = f"the connection to {self._address} is gone"
            self._reason += AT_REFUSAL if self._refused_last else ""
        self.connected = self._welcome = False
        self._changed.set()

    def _on_confirmed(self, mid: int, code: int) -> None:
        self._refused_last = code >= REFUSED
        if (token := self._sent.pop(mid, None)) is not None:
            self._owner.confirmed(token, code)
            if self._waiting:
                self._pump()
        elif code >= REFUSED:
            log.warning(
                "status message refused",
                client=self.client_id,
                error=f"{code:#x}",
                fix=f"let this user write {self._status}",
            )

    def _on_subscribe(
        self, client: Client, userdata: object, mid: int, codes: list[ReasonCode], properties: object
    ) -> None:
        if refused := [str(code) for code in codes if code.is_failure]:
            log.error(
                "subscription refused",
                client=self.client_id,
                error=refused[0],
                count=len(refused),
                fix="let this user read the topics of answers and heartbeats",
            )
        self._asked.discard(mid)
        self._settle()

    def _on_message(self, topic: str, payload: bytes, correlation: bytes | None, retained: bool) -> None:
        if not retained:
            self._owner.received(topic, payload, correlation)

    def _on_wants_write(self, client: Client, userdata: object, sock: object) -> None:
        """Write all at once, at the end of the loop's round."""
        asyncio.get_running_loop().call_soon(self._write)

    # Packets

    def _read(self) -> None:
        """Handle packets that have come, up to ``READ_PACKETS_MAX`` at once."""
        wire, packets = self._wire, 0
        while wire.pending and wire is self._client.socket() and not (self._held and self.connected):
            if packets == READ_PACKETS_MAX:
                if not self._reading:
                    wire.hold(held=True)
                self._reading = True
                asyncio.get_running_loop().call_soon(self._read)
                return
            packets += 1
            if self._client.loop_read() != MQTTErrorCode.MQTT_ERR_SUCCESS:
                return
        if self._reading:
            self._reading = False
            wire.hold(held=self._held)

    def _write(self) -> None:
        self._client.loop_write()
        self._wire.flush()

    def _send(self, topic: str, payload: bytes, extras: Extras | None, token: object) -> None:
        qos = self._address.qos
        properties = cast("Properties | None", extras)  # all that paho asks of them is to pack themselves
        info = self._client.publish(topic, payload, qos, properties=properties)
        while info.rc == MQTTErrorCode.MQTT_ERR_QUEUE_SIZE:  # that packet id is still in use
            info = self._client.publish(topic, payload, qos, properties=properties)
        if qos:
            self._sent[info.mid] = token
        else:
            self._owner.confirmed(token, 0)

    def _pump(self) -> None:
        """Send messages that waited for room in the window."""
        while self._waiting and self.connected and not self._wire.full and len(self._sent) < self._window:
            self._send(*self._waiting.popleft())

    def _subscribe(self, filters: list[str]) -> None:
        qos: int = self._address.qos
        for first in range(0, len(filters), FILTERS_PER_SUBSCRIBE):
            part = filters[first : first + FILTERS_PER_SUBSCRIBE]
            self._asked.add(self._client.subscribe([(topic, qos) for topic in part])[1])

    def _unsubscribe(self, filters: list[str]) -> None:
        for first in range(0, len(filters), FILTERS_PER_SUBSCRIBE):
            self._client.unsubscribe(filters[first : first + FILTERS_PER_SUBSCRIBE])
