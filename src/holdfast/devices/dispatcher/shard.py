"""A shard that a node serves, and the tries that its broker hasn't confirmed."""

from __future__ import annotations

import asyncio
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

from holdfast.devices.ports.device import Devices
from holdfast.devices.rules.device_turn import Sending

if TYPE_CHECKING:
    from holdfast.extend.tracing import OpenSpan

UNCONFIRMED_S = 60.0
"""Seconds after which a try counts as never confirmed."""

CONNECTION_LOST = "the connection to the broker ended first"
NEVER_CONFIRMED = "the broker never confirmed it"


class Unconfirmed(NamedTuple):
    """A try that the broker may not have yet. ``at`` is the beginning of the turn that marked it."""

    at: float
    sending: Sending
    span: OpenSpan | None = None


class ServedShard:
    """A shard that this node serves.

    Attributes:
        epoch: the epoch under which it is open.
        in_doubt: a turn of unknown outcome may still happen under ``epoch``.
        opening: held while it is opened again, when its new epoch is current and not known here.
        connected: it has a connection to its broker.
        away: why it has no connection, if that is known.
        sends_from: the monotonic time from which it sends.
    """

    def __init__(self, number: int, epoch: int, member: str) -> None:
        self.number = number
        self.epoch = epoch
        self.member = member
        self.devices: Devices
        self.reading: asyncio.Task[Any] | None = None
        self.in_doubt = False
        self.opening = asyncio.Lock()
        self.connected = False
        self._was_connected = False
        self.away = ""
        self.sends_from = 0.0
        self._unconfirmed: dict[str, Unconfirmed] = {}
        """In order of time."""
        self._lost: list[Sending] = []
        """Tries that an earlier connection may still deliver, until there is a new one."""

    def is_sendable(self, monotonic: float, late_s: float) -> bool:
        """Return whether it is connected, and the broker confirms tries in time."""
        moves = all(oldest.at >= monotonic - late_s for oldest in islice(self._unconfirmed.values(), 1))
        return self.connected and self.sends_from <= monotonic and moves

    def connect(self) -> bool:
        """Note a connection; return whether it is the first one."""
        is_first = not self._was_connected
        self.connected = self._was_connected = True
        self.away = ""
        return is_first

    def disconnect(self, reason: str) -> None:
        """Note the end of the connection, and why it ended."""
        self.connected = False
        self.away = reason

    def sent(self, command: str, began_at: float, sending: Sending, span: OpenSpan | None) -> None:
        """Note a try that the broker has to confirm."""
        self._unconfirmed[command] = Unconfirmed(began_at, sending, span)

    def confirmed(self, command: str, error: str | None = None) -> Unconfirmed | None:
        """Take out a try that the broker has, or with ``error`` hasn't; None if it was taken out before."""
        if (found := self._unconfirmed.pop(command, None)) is not None and found.span is not None:
            found.span.end(error)
        return found

    def lose(self, command: str) -> Unconfirmed | None:
        """Take out a try with which the connection ended. It may still reach its device."""
        if (found := self.confirmed(command, CONNECTION_LOST)) is not None:
            self._lost.append(found.sending)
        return found

    def take_lost(self) -> list[Sending]:
        """Take out the tries that earlier connections may have delivered until now."""
        lost, self._lost = self._lost, []
        return lost

    def take_unconfirmed(self, monotonic: float) -> list[Sending]:
        """Take out tries that the broker never confirmed, so that the shard sends again."""
        old = [name for name, each in self._unconfirmed.items() if monotonic - each.at > UNCONFIRMED_S]
        given_up = [self.confirmed(name, NEVER_CONFIRMED) for name in old]
        return [each.sending for each in given_up if each is not None]

    def end(self) -> None:
        """End the spans of unconfirmed tries."""
        for name in list(self._unconfirmed):
            self.confirmed(name, CONNECTION_LOST)
