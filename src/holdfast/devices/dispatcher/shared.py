"""The state that the parts of a dispatcher share."""

from __future__ import annotations

import asyncio

from holdfast.devices.dispatcher.clocks import ClockWatch
from holdfast.devices.dispatcher.counts import DispatcherCounts
from holdfast.devices.dispatcher.limits import InFlight, NodeLimits
from holdfast.devices.dispatcher.pending import Pending
from holdfast.devices.dispatcher.register import DeviceRegister
from holdfast.devices.dispatcher.shard import ServedShard
from holdfast.devices.ports.outbox import OutboxStore
from holdfast.devices.spec import OutboxSpec
from holdfast.extend.products import Host


class TurnSignals:
    """The signals of turns.

    Attributes:
        wake: a turn is needed.
        idle: no turn is under way.
        next_ended: is set when the next turn to begin has ended; then another event takes its place.
    """

    def __init__(self) -> None:
        self.wake = asyncio.Event()
        self.idle = asyncio.Event()
        self.idle.set()
        self.next_ended = asyncio.Event()

    def begin(self) -> asyncio.Event:
        """Begin a turn; return the event to be set at its end."""
        self.wake.clear()
        ended, self.next_ended = self.next_ended, asyncio.Event()
        return ended


class Shared:
    """The shared state of one dispatcher's parts. ``shards`` are the served ones, by number."""

    def __init__(self, spec: OutboxSpec, store: OutboxStore, host: Host) -> None:
        self.spec = spec
        self.clock, self.log = host.clock, host.log
        self.signals = TurnSignals()
        self.counts = DispatcherCounts()
        self.pending = Pending(spec.shards)
        self.register = DeviceRegister(spec, host.clock, host.log, self.counts)
        self.limits = NodeLimits(spec, host.log)
        self.in_flight = InFlight(spec.name, store)
        self.clock_watch = ClockWatch(host.clock)
        self.shards: dict[int, ServedShard] = {}


class Part:
    """A part of a dispatcher, with the shared state."""

    def __init__(self, shared: Shared) -> None:
        self._spec = shared.spec
        self._clock, self._log = shared.clock, shared.log
        self._signals = shared.signals
        self._pending = shared.pending
        self._register = shared.register
        self._limits = shared.limits
        self._in_flight = shared.in_flight
        self._clock_watch = shared.clock_watch
        self._shards = shared.shards
