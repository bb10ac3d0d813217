"""Devices behind a broker: they get commands, and send answers and signs of life.

A ``Devices`` is one identity at the broker, that of a shard. A later connection under it cuts off the earlier
one, so a dispatcher that lost its shard can't send any more.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Protocol

import msgspec


class Command(msgspec.Struct, frozen=True):
    """One try of a command.

    Attributes:
        id: unique to the try. The answer returns it, beside the payload if the protocol can
            (``Devices.correlates``), else inside. Printable ASCII, 128 characters at most.
        expires_s: the broker drops the command after these seconds if it can; 0: it may keep it.
        traceparent: its place in a trace, for protocols with room for it; empty if it has none.
    """

    device: str
    id: str
    payload: bytes
    expires_s: float = 0.0
    traceparent: str = ""


class Accepted(msgspec.Struct, frozen=True):
    """The broker has taken the command. An answer may come before this event. ``no_receiver``: the broker
    reports that no device gets it; not all brokers do."""

    device: str
    id: str
    no_receiver: bool = False


class CommandRefused(msgspec.Struct, frozen=True):
    """The broker didn't take the command, so it didn't reach the device. ``final``: it never will take it.
    ``counts``: it won't before an operator changes its rules, so that the try counts."""

    device: str
    id: str
    reason: str
    final: bool = False
    counts: bool = False


class Lost(msgspec.Struct, frozen=True):
    """The connection ended before the broker took the command, which may have reached the device.
    ``suspect``: it was the first such command, and the broker may have ended the connection because of it.
    Some do that, without a reason, if a message is too large."""

    device: str
    id: str
    suspect: bool = False


class DeviceAnswer(msgspec.Struct, frozen=True):
    """A device answered. ``device`` is the sender, whatever the payload has; ``id`` is as the device sent it,
    and proves nothing. ``ok`` is False if the device reports a failure."""

    device: str
    id: str
    payload: bytes
    ok: bool = True


class Seen(msgspec.Struct, frozen=True):
    """A device gave a sign of life other than an answer."""

    device: str


class Connected(msgspec.Struct, frozen=True):
    """Commands can be sent now."""


class Disconnected(msgspec.Struct, frozen=True):
    """Nothing can be sent until ``Connected``. ``taken_over``: another has connected under the same identity
    or owns the shard, and this one never connects again."""

    reason: str
    taken_over: bool = False


Event = Accepted | CommandRefused | Lost | DeviceAnswer | Seen | Connected | Disconnected


class Devices(Protocol):
    """The devices of one shard.

    Attributes:
        max_payload: the largest payload in bytes, as far as known; a connected broker may lower it.
        correlates: the protocol has a command's ``id`` beside the payload, and devices may return it so.
            Otherwise it is inside the payload.
        reports_no_receiver: ``Accepted.no_receiver`` can be True.
    """

    max_payload: int
    correlates: bool
    reports_no_receiver: bool

    async def start(self) -> None:
        """Begin to connect, without waiting for it. Raises ConfigError for settings that can't work."""

    def watch(self, devices: Iterable[str]) -> None:
        """Receive messages of these devices, in this connection and later ones. A device with a sent command
        is watched anyway, and an adapter may receive messages of all devices."""

    def publish(self, command: Command) -> None:
        """Send a command soon, without waiting. ``Accepted``, ``CommandRefused`` or ``Lost`` follows once,
        with its id. Raises Unavailable while not connected, TooLarge over ``max_payload``, InvalidMessage for
        an invalid device id or a payload that can't carry the command's id."""

    async def events(self) -> list[Event]:
        """Wait for events, and return them in order, to one caller at a time. After ``close``, return the
        remaining ones and then none, without waiting. Retained and unreadable answers are left out."""

    async def close(self) -> None:
        """Disconnect in good order, and end ``events``."""


Connect = Callable[[str, Callable[[], Awaitable[bool]]], Devices]
"""Makes the devices of a shard, given its identity at the broker and a function that returns whether this
node still owns it."""
