"""The devices of a node's shards: their presence, and how long their answers take."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Set
from typing import Any

from holdfast.devices.dispatcher.clocks import ListeningClock
from holdfast.devices.dispatcher.counts import DispatcherCounts
from holdfast.devices.ports.outbox import KnownDevice
from holdfast.devices.rules.device_queue import Correlation, Patience, shard_of
from holdfast.devices.rules.presence import Presence
from holdfast.devices.spec import OutboxSpec
from holdfast.extend import Clock
from holdfast.extend.tools import Once

SENT_MAX = 100_000
"""Tries whose time of sending is remembered, at most."""

SLOW_DECAY = 0.9
"""Part of a device's answer time that remains after a quicker answer."""


class DeviceRegister:
    """The devices that have had commands. Messages of other devices are ignored, because they can be
    invented.

    Attributes:
        listening: the clock of the devices' silence.
        answer_times: how long answers take.
    """

    def __init__(self, spec: OutboxSpec, clock: Clock, log: Any, counts: DispatcherCounts) -> None:
        self._spec = spec
        self._clock = clock
        self._log = log
        self._counts = counts
        self._presence = Presence(spec.presence)
        self._devices: set[str] = set()
        self.listening = ListeningClock(clock)
        self.answer_times = AnswerTimes(spec.name, spec.patience, clock, log)

    @property
    def away(self) -> Set[str]:
        """The devices that are away."""
        return self._presence.away

    def add_shard(self, known: Iterable[KnownDevice]) -> None:
        """Take over the devices of a shard, with the presence that an earlier dispatcher stored."""
        now, listened_s = self._clock.wall(), self.listening.now()
        for each in known:
            self._devices.add(each.device)
            if each.away:
                seen_at = None if each.seen_at is None else listened_s - (now - each.seen_at)
                self._presence.restore_away(each.device, seen_at)

    def drop_shard(self, number: int) -> None:
        """Forget the devices of a shard."""
        for device in {*self._devices, *self._presence.known()}:
            if shard_of(device, self._spec.shards) == number:
                self._presence.forget(device)
                self._devices.discard(device)
                self.answer_times.forget(device)

    def sent(self, device: str, correlation: Correlation) -> None:
        """Note a try; after the first it shows that the earlier one got no answer."""
        self._devices.add(device)
        self._presence.expect(device, self.listening.now())
        if correlation.tries > 1:
            self._presence.silent(device)

    def seen(self, device: str) -> tuple[bool, bool]:
        """Note a sign of life. Return whether the device is known, and whether its held commands may go: it
        was away, or an earlier dispatcher may have held them."""
        if device not in self._devices:
            self._note_unknown_device(device)
            return False, False
        is_new = self._presence.last_seen(device) is None
        was_away = self._presence.seen(device, self.listening.now())
        return True, was_away or is_new

    def mark_away(self, device: str) -> None:
        """Note that the broker has no receiver for a device."""
        self._presence.mark_away(device)

    def mark_refused(self, device: str) -> None:
        """Note that the broker refused the last command for a device."""
        self._presence.mark_refused(device)

    def settle(self) -> None:
        """Mark devices as away that have been silent for too long."""
        self._presence.settle(self.listening.now())

    def news(self, now: float) -> dict[str, float | None]:
        """Return the devices that were seen or went away since the last call, each with the wall time at
        which it was last seen, if ever."""
        listened_s = self.listening.now()
        return {
            device: None if at is None else now - (listened_s - at)
            for device, at in self._presence.news().items()
        }

    def put_back(self, news: Iterable[str]) -> None:
        """Put back news that couldn't be stored."""
        self._presence.put_back(news)

    def _note_unknown_device(self, device: str) -> None:
        self._counts.unknown_devices += 1
        if self._counts.unknown_devices == 1:
            self._log.warning(
                "unknown device ignored",
                outbox=self._spec.name,
                device=device,
            )


class AnswerTimes:
    """The answer times of devices. A device that answers late is waited for longer."""

    def __init__(self, outbox: str, patience: Patience, clock: Clock, log: Any) -> None:
        self._outbox = outbox
        self._patience = patience
        self._clock = clock
        self._log = log
        self._logged = Once()
        self._sent_at: dict[Correlation, float] = {}
        self._slow: dict[str, float] = {}

    def slow(self) -> Mapping[str, float]:
        """Return the answer times, in seconds, of devices that answer later than they would be waited for."""
        return dict(self._slow)

    def sent(self, correlation: Correlation, monotonic: float) -> None:
        """Note when a try was sent."""
        self._sent_at[correlation] = monotonic
        if len(self._sent_at) > SENT_MAX:
            del self._sent_at[next(iter(self._sent_at))]

    def answered(self, device: str, correlation: Correlation, *, was_away: bool) -> None:
        """Note the answer to a try, unless the device was away."""
        sent_at = self._sent_at.pop(correlation, None)
        if sent_at is not None and not was_away:
            self._note(device, self._clock.monotonic() - sent_at)

    def forget(self, device: str) -> None:
        """Forget a device."""
        self._slow.pop(device, None)

    def _note(self, device: str, took_s: float) -> None:
        waited_s = self._patience.interval_s(1, 0.0)
        before_s = self._slow.pop(device, 0.0) * SLOW_DECAY
        # One answer that took many minutes must not count for many answers.
        slow_s = max(min(took_s, self._patience.slowest_s), before_s)
        if slow_s <= waited_s:
            return
        self._slow[device] = slow_s
        if took_s > waited_s and self._logged.first(int(math.log2(took_s))):
            self._log.warning(
                "late answers detected",
                outbox=self._outbox,
                device=device,
                after_s=round(took_s, 1),
                retry_s=self._patience.retry_s,
                fix="raise retry_s of the outbox's patience above what answers take, or commands go twice",
            )
