"""The devices of the shards that a node serves: whether each is there, and how long its answers take."""

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
"""Tries whose time is remembered, to see how long devices take to answer."""

SLOW_DECAY = 0.9
"""Part of a device's answer time that stays where its next answer comes sooner."""


class DeviceRegister:
    """The devices that have had commands. Others are not listened to: anybody may invent devices.

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
        """The devices that are known to be away."""
        return self._presence.away

    def add_shard(self, known: Iterable[KnownDevice]) -> None:
        """Take over what an earlier dispatcher knew: devices that were away use up no tries now, either."""
        now, listened_s = self._clock.wall(), self.listening.now()
        for each in known:
            self._devices.add(each.device)
            if each.away:
                seen_at = None if each.seen_at is None else listened_s - (now - each.seen_at)
                self._presence.restore_away(each.device, seen_at)

    def drop_shard(self, number: int) -> None:
        """Keep nothing of the devices of a shard."""
        for device in {*self._devices, *self._presence.known()}:
            if shard_of(device, self._spec.shards) == number:
                self._presence.forget(device)
                self._devices.discard(device)
                self.answer_times.forget(device)

    def sent(self, device: str, correlation: Correlation) -> None:
        """Note that a try goes to a device; a later one, that the earlier got no answer."""
        self._devices.add(device)
        self._presence.expect(device, self.listening.now())
        if correlation.tries > 1:
            self._presence.silent(device)

    def seen(self, device: str) -> tuple[bool, bool]:
        """Note a sign of life. Return whether the device is known, and whether what was held for it may go
        now: it was away, or an earlier dispatcher may have held it."""
        if device not in self._devices:
            self._note_unknown_device(device)
            return False, False
        is_new = self._presence.last_seen(device) is None
        was_away = self._presence.seen(device, self.listening.now())
        return True, was_away or is_new

    def mark_away(self, device: str) -> None:
        """Note the broker's word that the device isn't there."""
        self._presence.mark_away(device)

    def mark_refused(self, device: str) -> None:
        """Note that the broker refused the last command for the device: its silence says nothing."""
        self._presence.mark_refused(device)

    def settle(self) -> None:
        """Find the devices that have been silent for too long."""
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
                "a device speaks that never had a command, and perhaps others; it is not listened to",
                outbox=self._spec.name,
                device=device,
            )


class AnswerTimes:
    """The times that devices take to answer. One that answers late, but does, is waited for longer."""

    def __init__(self, outbox: str, patience: Patience, clock: Clock, log: Any) -> None:
        self._outbox = outbox
        self._patience = patience
        self._clock = clock
        self._log = log
        self._logged = Once()
        self._sent_at: dict[Correlation, float] = {}
        self._slow: dict[str, float] = {}

    def slow(self) -> Mapping[str, float]:
        """Return the seconds that answers have taken, of devices that answer later than they would be waited
        for."""
        return dict(self._slow)

    def sent(self, correlation: Correlation, monotonic: float) -> None:
        """Note when a try was sent."""
        self._sent_at[correlation] = monotonic
        if len(self._sent_at) > SENT_MAX:
            del self._sent_at[next(iter(self._sent_at))]

    def answered(self, device: str, correlation: Correlation, *, was_away: bool) -> None:
        """Note the answer to a try; that of a device that was away says nothing of how quick it is."""
        sent_at = self._sent_at.pop(correlation, None)
        if sent_at is not None and not was_away:
            self._note(device, self._clock.monotonic() - sent_at)

    def forget(self, device: str) -> None:
        """Keep nothing of a device."""
        self._slow.pop(device, None)

    def _note(self, device: str, took_s: float) -> None:
        waited_s = self._patience.interval_s(1, 0.0)
        before_s = self._slow.pop(device, 0.0) * SLOW_DECAY
        # An answer that was on its way for many minutes must not be remembered for as many answers.
        slow_s = max(min(took_s, self._patience.slowest_s), before_s)
        if slow_s <= waited_s:
            return
        self._slow[device] = slow_s
        if took_s > waited_s and self._logged.first(int(math.log2(took_s))):
            self._log.warning(
                "devices answer later than they are waited for",
                outbox=self._outbox,
                device=device,
                after_s=round(took_s, 1),
                retry_s=self._patience.retry_s,
                fix="raise retry_s of the outbox's patience above what answers take, or commands go twice",
            )
