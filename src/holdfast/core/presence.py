"""Presence: which devices are there, and when something may be sent to those that aren't.

A device is offline once it was silent for ``offline_after_s``, where devices give heartbeats; once
``silent_tries`` commands in a row got no answer, where they don't; or once the broker says that nobody
listens. An offline device gets one command every ``probe_every_s``, which uses up no try. Any sign of life
ends that at once. A device that nothing is known of counts as there, for as long as one that was just seen.

Times are seconds on one monotonic clock.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

import msgspec

from holdfast.errors import ConfigError


class PresenceRules(msgspec.Struct, frozen=True):
    """When a device counts as offline, and how often it is tried all the same.

    ``heartbeats``: devices give signs of life by themselves, more often than every ``offline_after_s``.
    ``silent_tries`` is for those that don't; 0 means that they never count as offline for that.
    """

    heartbeats: bool = True
    offline_after_s: float = 90.0
    silent_tries: int = 3
    probe_every_s: float = 60.0

    def __post_init__(self) -> None:
        for name in ("offline_after_s", "probe_every_s"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"presence.{name} must be above 0, but is {getattr(self, name)}")
        if self.silent_tries < 0:
            raise ConfigError(f"presence.silent_tries can't be below 0, but is {self.silent_tries}")


class Standing(enum.Enum):
    """What is known of a device."""

    UNKNOWN = "unknown"
    ONLINE = "online"
    OFFLINE = "offline"


@dataclass(slots=True)
class _Device:
    since: float
    """When it was last seen, or when it was first asked about."""
    seen: bool = False
    gone: bool = False
    """Said to be away, whatever the time."""
    silent: int = 0
    probed_at: float = float("-inf")


class Presence:
    """Of many devices. Takes events and the time; keeps some hundred bytes a device."""

    def __init__(self, rules: PresenceRules) -> None:
        self._rules = rules
        self._devices: dict[str, _Device] = {}

    def seen(self, device: str, now: float) -> bool:
        """A sign of life; True if the device was offline until now, so that its queue may start at once."""
        known = self._devices.get(device)
        if known is None:
            self._devices[device] = _Device(now, seen=True)
            return False
        back = self._offline(known, now)
        known.since, known.seen, known.gone, known.silent = max(now, known.since), True, False, 0
        return back

    def remember(self, device: str, seen_at: float) -> None:
        """What an earlier dispatcher knew: last seen at ``seen_at``. Later news stands."""
        known = self._devices.get(device)
        if known is None:
            self._devices[device] = _Device(seen_at, seen=True)
        elif not known.seen:
            known.since, known.seen = seen_at, True

    def silent(self, device: str, now: float) -> None:
        """A command got no answer in its time."""
        known = self._device(device, now)
        known.silent += 1
        if not self._rules.heartbeats and 0 < self._rules.silent_tries <= known.silent:
            known.gone = True

    def nobody(self, device: str, now: float) -> None:
        """The broker says that nobody listens there."""
        self._device(device, now).gone = True

    def forget(self, device: str) -> None:
        """Keep nothing of it."""
        self._devices.pop(device, None)

    def send_at(self, device: str, now: float) -> float:
        """The earliest time to send something: ``now``, or the next probe's."""
        known = self._device(device, now)
        if not self._offline(known, now):
            return now
        return max(now, known.probed_at + self._rules.probe_every_s)

    def sent(self, device: str, now: float) -> bool:
        """A command goes out; True if it uses up a try, False if it is but a probe."""
        known = self._device(device, now)
        if not self._offline(known, now):
            return True
        known.probed_at = now
        return False

    def standing(self, device: str, now: float) -> Standing:
        """Where the device stands now."""
        known = self._devices.get(device)
        if known is None:
            return Standing.UNKNOWN
        if self._offline(known, now):
            return Standing.OFFLINE
        return Standing.ONLINE if known.seen else Standing.UNKNOWN

    def last_seen(self, device: str) -> float | None:
        """When it last gave a sign of life, as far as known."""
        known = self._devices.get(device)
        return known.since if known is not None and known.seen else None

    def _device(self, device: str, now: float) -> _Device:
        known = self._devices.get(device)
        if known is None:
            known = self._devices[device] = _Device(now)
        return known

    def _offline(self, known: _Device, now: float) -> bool:
        return known.gone or (self._rules.heartbeats and now - known.since > self._rules.offline_after_s)
