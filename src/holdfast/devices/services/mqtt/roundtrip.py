"""The time that a message takes to the broker and back, and advice if it is too long.

With Nagle's algorithm on, a broker delays its second small packet until the first is acknowledged, which the
receiver's system does after 40 ms: a device then takes 11 commands a second instead of 2,400.
"""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Sequence
from dataclasses import replace

from holdfast.devices.services.mqtt.address import MqttAddress
from holdfast.devices.services.mqtt.link import Link
from holdfast.errors import Unavailable
from holdfast.extend import Clock

ROUNDS = 40
"""Round trips, enough to outlast the first ones of a connection, which are acknowledged at once."""
TIMEOUT_S = 5.0
DELAYED_ACK_MS = (30.0, 90.0)
"""Milliseconds of a delayed acknowledgement: 40 on Linux, more on a busy machine."""
DELAYED_SHARE = 0.3
"""Share of delayed round trips from which the broker is to blame. Often every second one is delayed."""


class _Echo:
    """A listener that sends messages to itself, one at a time."""

    def __init__(self, topic: str, clock: Clock) -> None:
        self.times_ms: list[float] = []
        self.done = asyncio.Event()
        self.reason = ""
        self.link: Link
        self._topic = topic
        self._clock = clock
        self._sent_at = 0.0

    def up(self) -> None:
        self._send()

    def down(self, reason: str, *, taken_over: bool) -> None:
        self.reason = reason
        self.done.set()

    def confirmed(self, token: object, code: int) -> None:
        pass

    def lost(self, token: object, *, sent: bool, first: bool = False) -> None:
        pass

    def received(self, topic: str, payload: bytes, correlation: bytes | None) -> None:
        self.times_ms.append((self._clock.monotonic() - self._sent_at) * 1000)
        if len(self.times_ms) == ROUNDS:
            self.done.set()
        else:
            self._send()

    def _send(self) -> None:
        self._sent_at = self._clock.monotonic()
        self.link.publish(self._topic, b"echo", None, None)


async def measure(address: MqttAddress, identity: str, clock: Clock, *, topic: str = "") -> list[float]:
    """Return the milliseconds of each of ``ROUNDS`` round trips, on a connection of its own. The user must be
    allowed to write and read ``topic``, by default ``holdfast/echo/{identity}``. Raises Unavailable if the
    broker can't be reached or no message comes back."""
    topic = topic or f"holdfast/echo/{identity}"
    echo = _Echo(topic, clock)
    address = replace(address, session_s=0)
    echo.link = Link(address, f"{identity}-echo", clock, echo)
    echo.link.subscribe([topic])
    echo.link.start()
    try:
        if not await clock.wait(echo.done, TIMEOUT_S) and len(echo.times_ms) < ROUNDS // 2:
            raise Unavailable(f"{address} didn't send back what was sent to {topic}: may this user read it?")
        if not echo.times_ms:
            raise Unavailable(echo.reason)
    finally:
        await echo.link.close()
    return echo.times_ms


def advice(times_ms: Sequence[float]) -> str:
    """Return advice on slow round trips; empty if they are fine. A far broker is fine: only round trips count
    that took longer than the fastest by a delayed acknowledgement."""
    fastest = min(times_ms)
    least, most = DELAYED_ACK_MS
    delayed = [time_ms for time_ms in times_ms if least <= time_ms - fastest <= most]
    if len(delayed) < DELAYED_SHARE * len(times_ms):
        return ""
    return (
        f"a round trip to the broker takes {fastest:.1f} ms, but {statistics.median(delayed):.0f} ms when it"
        " delays a small packet: switch off its Nagle's algorithm (Mosquitto: set_tcp_nodelay true;"
        " EMQX: nodelay = true)"
    )
