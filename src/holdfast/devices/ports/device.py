"""Devices: commands go out to them, and answers and signs of life come back, through a broker.

One ``Devices`` is one identity at the broker: that of a shard of devices. Whoever connects under it later
cuts off whoever held it before, so a dispatcher that lost its shard can't send any more.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Protocol

import msgspec


class Command(msgspec.Struct, frozen=True):
    """One try to have a device do something.

    ``id`` is unique to this try of this message: the answer brings it back, beside the payload where the
    protocol can (``Devices.correlates``), else inside it. Printable ASCII, 128 characters at most.
    A broker that can drops the command if it couldn't deliver it within ``expires_s`` (0: it may keep it).
    ``traceparent`` is its place in a trace, which goes along where the protocol has room for it ("": none).
    """

    device: str
    id: str
    payload: bytes
    expires_s: float = 0.0
    traceparent: str = ""


class Accepted(msgspec.Struct, frozen=True):
    """The broker has taken the command; that says nothing of the device. An answer may come before this.

    ``nobody``: the broker knows of nobody who would get it, so the device isn't there. Not all brokers tell.
    """

    device: str
    id: str
    no_receiver: bool = False


class CommandRefused(msgspec.Struct, frozen=True):
    """The broker didn't take the command: nothing reached the device, and ``reason`` says why. ``final``: it
    never will take this one. ``counts``: it won't unless an operator changes what it allows, so that the try
    counts."""

    device: str
    id: str
    reason: str
    final: bool = False
    counts: bool = False


class Lost(msgspec.Struct, frozen=True):
    """The connection ended before the broker took the command. It may have reached the device; it isn't
    sent again by itself.

    ``suspect``: it is the first that the broker hadn't taken, and so may be what the broker ended the
    connection for: some do where a message is larger than they take, and say no word.
    """

    device: str
    id: str
    suspect: bool = False


class DeviceAnswer(msgspec.Struct, frozen=True):
    """A device answered. ``device`` is where the answer came from, whatever its payload claims; ``id`` is
    what it says it answers, and proves nothing. ``ok`` is False if the device says it couldn't."""

    device: str
    id: str
    payload: bytes
    ok: bool = True


class Seen(msgspec.Struct, frozen=True):
    """A device gave a sign of life (an answer is one too, and not told twice)."""

    device: str


class Connected(msgspec.Struct, frozen=True):
    """Commands can be sent now."""


class Disconnected(msgspec.Struct, frozen=True):
    """Nothing can be sent until ``Connected``. ``taken``: another has connected under the same identity, or
    the owner's word for it is gone; this one stays away for good."""

    reason: str
    taken_over: bool = False


Event = Accepted | CommandRefused | Lost | DeviceAnswer | Seen | Connected | Disconnected


class Devices(Protocol):
    """The devices of one shard.

    Attributes:
        max_payload: largest payload of a command in bytes, as far as known; a broker may lower it when it
            is connected to.
        correlates: the protocol carries a command's ``id`` beside the payload, and devices may bring it
            back so. Where False, and for devices that don't, it travels inside the payload.
        reports_no_receiver: ``Accepted.no_receiver`` can be True.
    """

    max_payload: int
    correlates: bool
    reports_no_receiver: bool

    async def start(self) -> None:
        """Begin to connect; returns at once, ``Connected`` tells. Raises ConfigError for settings that no
        retry can help."""

    def watch(self, devices: Iterable[str]) -> None:
        """Hear what these devices say from now on, in this connection and later ones. A device that a
        command is sent to is watched anyway; an adapter may hear all of them unasked."""

    def publish(self, command: Command) -> None:
        """Send a command, soon; ``Accepted``, ``CommandRefused`` or ``Lost`` follows, once, with its id.

        Never waits. Raises Unavailable while not connected (nothing happens), TooLarge over ``max_payload``,
        InvalidMessage for a device that makes no topic or a payload that can't carry the id.
        """

    async def events(self) -> list[Event]:
        """Wait until something has happened, and return all that has, in order; for one caller at a time.
        Once closed, return what is left, and then nothing, without waiting.

        Answers that are retained, can't be understood or come from no device are not among them.
        """

    async def close(self) -> None:
        """Disconnect in good order and let ``events`` end."""


Connect = Callable[[str, Callable[[], Awaitable[bool]]], Devices]
"""Makes the devices of a shard: given its identity at the broker, and what tells whether it is still ours."""
