"""The time that a message takes to the broker and back, and what it says of the broker.

A broker that keeps Nagle's algorithm on holds back its second small packet until the first is acknowledged,
and the receiver's system delays that by 40 ms: one device then takes 11 commands a second instead of 2,400.
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
"""Enough for the system to stop acknowledging at once, as it does on young connections."""
TIMEOUT_S = 5.0
DELAYED_ACK_MS = (30.0, 90.0)
"""What a delayed acknowledgement adds: 40 ms on Linux, more on a busy machine."""
DELAYED_SHARE = 0.3
"""Of round trips, at least; often it is every second one."""


class _Echo:
    """Sends to itself, one message at a time."""

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

    def taken(self, token: object, code: int) -> None:
        """Its own word says nothing of the way back."""

    def lost(self, token: object, *, sent: bool, first: bool = False) -> None:
        """``down`` follows."""

    def heard(self, topic: str, payload: bytes, correlation: bytes | None) -> None:
        self.times_ms.append((self._clock.monotonic() - self._sent_at) * 1000)
        if len(self.times_ms) == ROUNDS:
            self.done.set()
        else:
            self._send()

    def _send(self) -> None:
        self._sent_at = self._clock.monotonic()
        self.link.publish(self._topic, b"echo", None, None)


async def measure(address: MqttAddress, identity: str, clock: Clock, *, topic: str = "") -> list[float]:
    """Milliseconds of each of ``ROUNDS`` round trips on a connection of its own, at ``topic``, which this
    user must be allowed to write and read; by default ``holdfast/echo/{identity}``.

    Raises Unavailable if the broker can't be reached or nothing comes back.
    """
    topic = topic or f"holdfast/echo/{identity}"
    echo = _Echo(topic, clock)
    address = replace(address, session_s=0)  # nothing of it is to stay there
    echo.link = Link(address, f"{identity}-echo", clock, echo)
    echo.link.hear([topic])
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
    """Return what to do about round trips that took so long; empty if nothing. A far broker is no fault: what
    counts is how many took longer than the fastest by a delayed acknowledgement."""
    fastest = min(times_ms)
    least, most = DELAYED_ACK_MS
    delayed = [time_ms for time_ms in times_ms if least <= time_ms - fastest <= most]
    if len(delayed) < DELAYED_SHARE * len(times_ms):
        return ""
    return (
        f"a round trip to the broker takes {fastest:.1f} ms, but {statistics.median(delayed):.0f} ms whenever"
        " it holds back a small packet: switch off its Nagle's algorithm (Mosquitto: set_tcp_nodelay true;"
        " EMQX: nodelay = true)"
    )
