"""Presence: which devices are away.

Where devices send heartbeats, a device is away after ``offline_after_s`` of silence; where they don't, after
``silent_tries`` commands in a row without an answer. It is also away if the broker reports that it has no
receiver. Any sign of life ends that at once. A device that was never seen counts as there for the same time.

Times are seconds on one clock, which may be set back: then no device goes away sooner. The cost of a call
doesn't depend on the number of devices.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set

import msgspec

from holdfast.extend.tools import Limit, Seconds, check_settings


class PresenceRules(msgspec.Struct, frozen=True):
    """The settings of when a device counts as away.

    Attributes:
        heartbeats: devices send heartbeats, more often than every ``offline_after_s``.
        silent_tries: unanswered commands in a row after which a device without heartbeats is away; 0: never.
    """

    heartbeats: bool = True
    offline_after_s: Seconds = 90.0
    silent_tries: Limit = 3

    def __post_init__(self) -> None:
        check_settings("presence", self)


class Presence:
    """The presence of many devices, with some hundred bytes for each."""

    def __init__(self, rules: PresenceRules) -> None:
        self._rules = rules
        self._since: dict[str, float] = {}
        """The time at which each present device was seen, or first asked about; the oldest first."""
        self._seen: dict[str, float] = {}
        self._silent: dict[str, int] = {}
        self._not_asked: set[str] = set()
        self._away: set[str] = set()
        self._news: dict[str, float | None] = {}

    @property
    def away(self) -> Set[str]:
        """The devices that are away, as of the last ``settle``."""
        return self._away

    def seen(self, device: str, now: float) -> bool:
        """Note a sign of life. Return whether the device was away until now."""
        back = device in self._away
        self._away.discard(device)
        self._not_asked.discard(device)
        self._silent.pop(device, None)
        self._seen[device] = self._news[device] = now
        self._count_from(device, now)
        return back

    def expect(self, device: str, now: float) -> None:
        """Note that a command goes to this device."""
        if device not in self._since and device not in self._away:
            self._count_from(device, now)

    def restore_away(self, device: str, seen_at: float | None) -> None:
        """Note that an earlier dispatcher knew a device to be away, unless it was seen since."""
        if device not in self._since and device not in self._away:
            self._away.add(device)
            if seen_at is not None:
                self._seen[device] = seen_at

    def silent(self, device: str) -> None:
        """Note a command without an answer in time."""
        if device in self._not_asked:
            self._not_asked.discard(device)
            return
        tries = self._silent[device] = self._silent.get(device, 0) + 1
        if not self._rules.heartbeats and 0 < self._rules.silent_tries <= tries:
            self.mark_away(device)

    def mark_refused(self, device: str) -> None:
        """Note that the broker refused the last command, so that no answer can come."""
        self._not_asked.add(device)

    def mark_away(self, device: str) -> None:
        """Note that the device is away."""
        self._since.pop(device, None)
        if device not in self._away:
            self._away.add(device)
            self._news[device] = self._seen.get(device)

    def settle(self, now: float) -> None:
        """Mark devices as away that have been silent for too long."""
        if not self._rules.heartbeats:
            return
        before = now - self._rules.offline_after_s
        while self._since:
            device = next(iter(self._since))
            if self._since[device] >= before:
                return
            self.mark_away(device)

    def forget(self, device: str) -> None:
        """Forget a device."""
        for known in (self._since, self._seen, self._silent, self._news):
            known.pop(device, None)
        self._away.discard(device)
        self._not_asked.discard(device)

    def last_seen(self, device: str) -> float | None:
        """Return when the device was last seen, if that is known."""
        return self._seen.get(device)

    def known(self) -> Set[str]:
        """Return all known devices."""
        return self._since.keys() | self._seen.keys() | self._away

    def news(self) -> Mapping[str, float | None]:
        """Return the devices that were seen or went away since the last call, and when each was last seen, if
        ever. The caller stores them."""
        news, self._news = self._news, {}
        return news

    def put_back(self, devices: Iterable[str]) -> None:
        """Put back news that couldn't be stored, of devices that are still known."""
        for device in devices:
            if device in self._seen or device in self._away:
                self._news.setdefault(device, self._seen.get(device))

    def _count_from(self, device: str, now: float) -> None:
        self._since.pop(device, None)
        self._since[device] = now
