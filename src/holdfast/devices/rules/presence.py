"""Presence: which devices are away.

A device is away once it was silent for ``offline_after_s``, where devices give heartbeats; once
``silent_tries`` commands in a row got no answer, where they don't; or once the broker says that nobody
listens. Any sign of life ends that at once. A device that was never seen counts as there for as long as one
that was just seen.

Times are seconds on one clock, which may be set back: then nothing goes away sooner. Each call costs the same
however many devices there are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set

import msgspec

from holdfast.extend.tools import Limit, Seconds, check_settings


class PresenceRules(msgspec.Struct, frozen=True):
    """The settings that say when a device counts as away.

    ``heartbeats``: devices give signs of life by themselves, more often than every ``offline_after_s``.
    ``silent_tries`` is for those that don't; with 0 they are never away for that.
    """

    heartbeats: bool = True
    offline_after_s: Seconds = 90.0
    silent_tries: Limit = 3

    def __post_init__(self) -> None:
        check_settings("presence", self)


class Presence:
    """Of many devices; keeps some hundred bytes of each."""

    def __init__(self, rules: PresenceRules) -> None:
        self._rules = rules
        self._since: dict[str, float] = {}
        """Of those that are there: seen at, or first asked about at; the longest ago first."""
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
        """A sign of life; True if the device was away until now, so that its queue may start at once."""
        back = device in self._away
        self._away.discard(device)
        self._not_asked.discard(device)
        self._silent.pop(device, None)
        self._seen[device] = self._news[device] = now
        self._count_from(device, now)
        return back

    def expect(self, device: str, now: float) -> None:
        """There is something for this device, whatever is known of it."""
        if device not in self._since and device not in self._away:
            self._count_from(device, now)

    def restore_away(self, device: str, seen_at: float | None) -> None:
        """An earlier dispatcher knew it to be away, last seen at ``seen_at``. What was heard since stands."""
        if device not in self._since and device not in self._away:
            self._away.add(device)
            if seen_at is not None:
                self._seen[device] = seen_at

    def silent(self, device: str) -> None:
        """A command got no answer in its time."""
        if device in self._not_asked:
            self._not_asked.discard(device)
            return
        tries = self._silent[device] = self._silent.get(device, 0) + 1
        if not self._rules.heartbeats and 0 < self._rules.silent_tries <= tries:
            self.mark_away(device)

    def mark_refused(self, device: str) -> None:
        """The broker didn't take its last command: its silence says nothing."""
        self._not_asked.add(device)

    def mark_away(self, device: str) -> None:
        """The broker, or its silence, says that nobody is there."""
        self._since.pop(device, None)
        if device not in self._away:
            self._away.add(device)
            self._news[device] = self._seen.get(device)

    def settle(self, now: float) -> None:
        """Find those that have been silent for too long."""
        if not self._rules.heartbeats:
            return
        before = now - self._rules.offline_after_s
        while self._since:
            device = next(iter(self._since))
            if self._since[device] >= before:
                return
            self.mark_away(device)

    def forget(self, device: str) -> None:
        """Keep nothing of it."""
        for known in (self._since, self._seen, self._silent, self._news):
            known.pop(device, None)
        self._away.discard(device)
        self._not_asked.discard(device)

    def last_seen(self, device: str) -> float | None:
        """Return when the device last gave a sign of life; None if that isn't known."""
        return self._seen.get(device)

    def known(self) -> Set[str]:
        """All devices that anything is kept of."""
        return self._since.keys() | self._seen.keys() | self._away

    def news(self) -> Mapping[str, float | None]:
        """The devices that were seen or went away since the last call, and when they were last seen, if
        ever: what is to be stored."""
        news, self._news = self._news, {}
        return news

    def put_back(self, devices: Iterable[str]) -> None:
        """Put back news of these devices that couldn't be stored, unless nothing is kept of them."""
        for device in devices:
            if device in self._seen or device in self._away:
                self._news.setdefault(device, self._seen.get(device))

    def _count_from(self, device: str, now: float) -> None:
        self._since.pop(device, None)
        self._since[device] = now
