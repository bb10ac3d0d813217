"""A small client of MQTT for very many simulated devices on one connection.

Source: MQTT 3.1.1 and 5.0, OASIS standards. Packets are read in place and acknowledged together, so that a
benchmark doesn't measure the devices. QoS 2 is granted as 1.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
from collections.abc import Callable, Sequence
from typing import Literal, cast

from holdfast.devices.services.mqtt.packets import CORRELATION, read_properties
from holdfast.errors import Unavailable

Version = Literal["5", "3.1.1"]
OnReceived = Callable[[str, bytes, bytes], None]
"""Called with the topic, the payload, and the correlation data (empty if there are none)."""

CONNECT, CONNACK, PUBLISH, PUBACK, SUBSCRIBE, SUBACK, PINGREQ, DISCONNECT = (
    0x10, 0x20, 0x30, 0x40, 0x82, 0x90, 0xC0, 0xE0,
)  # fmt: skip
_U16 = struct.Struct("!H")
KEEPALIVE_S = 30
TIMEOUT_S = 10.0


class Connection(asyncio.Protocol):
    """One client of a broker, for one loop. ``lost`` is set at its end."""

    def __init__(self, on_received: OnReceived, version: Version = "5") -> None:
        self.lost = asyncio.Event()
        self._on_received = on_received
        self._five = version == "5"
        self._transport: asyncio.Transport | None = None
        self._in = b""
        self._out: list[bytes] = []
        self._answers: dict[int, asyncio.Future[bytes]] = {}
        self._id = 0
        self._pinger: asyncio.TimerHandle | None = None

    async def connect(
        self,
        host: str,
        port: int,
        client_id: str,
        *,
        username: str = "",
        password: str = "",
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """Begin a new session. Raises Unavailable if the broker can't be reached or refuses."""
        loop = asyncio.get_running_loop()
        welcome = self._answers[0] = loop.create_future()
        flags = 0x02 | (0x80 if username else 0) | (0x40 if password else 0)
        body = text("MQTT") + bytes((5 if self._five else 4, flags)) + _U16.pack(KEEPALIVE_S)
        body += (b"\0" if self._five else b"") + text(client_id)
        body += b"".join(text(given) for given in (username, password) if given)
        try:
            async with asyncio.timeout(TIMEOUT_S):
                await loop.create_connection(lambda: self, host, port, ssl=tls)
                self._write(packet(CONNECT, body))
                answer = await welcome
        except (OSError, TimeoutError) as error:
            await self.end()
            raise Unavailable(f"no broker at {host}:{port}: {error}") from None
        if answer[1:2] != b"\0":
            await self.end()
            raise Unavailable(f"the broker at {host}:{port} refuses {client_id}: code {answer[1:2].hex()}")
        self._ping()

    async def subscribe(self, filters: Sequence[str], qos: int = 1) -> None:
        """Return once the broker has granted the subscription. Raises Unavailable if it refuses."""
        number = self._next_id()
        granted = self._answers[number] = asyncio.get_running_loop().create_future()
        body = _U16.pack(number) + (b"\0" if self._five else b"")
        body += b"".join(text(topic) + bytes((qos,)) for topic in filters)
        self._write(packet(SUBSCRIBE, body))
        async with asyncio.timeout(TIMEOUT_S):
            codes = (await granted)[2 + self._five :]
        if any(code >= 0x80 for code in codes):
            raise Unavailable(f"the broker grants no subscription to {filters[0]}: {codes.hex()}")

    def publish(
        self, topic: str, payload: bytes, *, qos: int = 0, correlation: bytes = b"", retain: bool = False
    ) -> None:
        """Send with the next ``flush``, which comes soon by itself."""
        body = text(topic) + (_U16.pack(self._next_id()) if qos else b"")
        if self._five:
            properties = (
                bytes((CORRELATION,)) + _U16.pack(len(correlation)) + correlation if correlation else b""
            )
            body += varint(len(properties)) + properties
        if not self._out:
            asyncio.get_running_loop().call_soon(self.flush)
        self._out.append(packet(PUBLISH | qos << 1 | retain, body + payload))

    def flush(self) -> None:
        """Send the published messages."""
        if self._out:
            self._write(b"".join(self._out))
            self._out.clear()

    async def end(self) -> None:
        """Disconnect, and wait for the end."""
        if self._transport is None:
            return
        self.flush()
        self._write(bytes((DISCONNECT, 0)))
        self._transport.close()
        try:
            async with asyncio.timeout(TIMEOUT_S):
                await self.lost.wait()
        except TimeoutError:
            self._transport.abort()

    # Callbacks of asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.set()
        if self._pinger is not None:
            self._pinger.cancel()
        for waiting in self._answers.values():
            if not waiting.done():
                waiting.set_exception(ConnectionResetError("the broker ended the connection"))
        self._answers.clear()

    def data_received(self, data: bytes) -> None:
        data = self._in + data
        at, end = 0, len(data)
        while at + 1 < end:
            size, shift, body = 0, 0, at + 1
            while body < end:
                digit = data[body]
                body += 1
                size |= (digit & 0x7F) << shift
                shift += 7
                if digit < 0x80:
                    break
            else:
                break
            if body + size > end:
                break
            self._handle(data[at], data, body, body + size)
            at = body + size
        self._in = data[at:]
        self.flush()

    def _handle(self, kind: int, data: bytes, at: int, end: int) -> None:
        if kind & 0xF0 == PUBLISH:
            size = data[at] << 8 | data[at + 1]
            topic = data[at + 2 : at + 2 + size].decode()
            at += 2 + size
            if kind & 0x06:
                self._out.append(b"\x40\x02" + data[at : at + 2])
                at += 2
            correlation = None
            if self._five:
                at, correlation = read_properties(data, at)
            self._on_received(topic, data[at:end], correlation or b"")
        elif kind == CONNACK:
            self._resolve(0, data[at:end])
        elif kind == SUBACK:
            self._resolve(_U16.unpack_from(data, at)[0], data[at:end])

    def _resolve(self, number: int, body: bytes) -> None:
        waiting = self._answers.pop(number, None)
        if waiting is not None and not waiting.done():
            waiting.set_result(body)

    def _next_id(self) -> int:
        self._id = self._id % 65535 + 1
        return self._id

    def _write(self, data: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def _ping(self) -> None:
        self._write(bytes((PINGREQ, 0)))
        self._pinger = asyncio.get_running_loop().call_later(KEEPALIVE_S / 2, self._ping)


def packet(kind: int, body: bytes) -> bytes:
    """Return a packet with its header."""
    return bytes((kind,)) + varint(len(body)) + body


def text(value: str) -> bytes:
    """Return a text after its length."""
    encoded = value.encode()
    return _U16.pack(len(encoded)) + encoded


def varint(number: int) -> bytes:
    """Return a number of variable length."""
    if number < 0x80:
        return bytes((number,))
    digits = bytearray()
    while True:
        number, digit = number >> 7, number & 0x7F
        digits.append(digit | (0x80 if number else 0))
        if not number:
            return bytes(digits)
