"""Streams that wait: for what, since when, and one line of log for each that waits for long."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, get_args

import msgspec

from holdfast.ports.clock import Clock
from holdfast.streams.rules.owner import Standstill, StandstillKind

if TYPE_CHECKING:
    from holdfast.streams.owners import Owned

TOLD_AFTER_S = 5.0
"""A stream that has waited for so long, for one kind of thing, is logged."""

LINES_MAX = 20
"""Streams that one look logs at most; the rest are counted in one line."""


class Waits(msgspec.Struct):
    """One stream that waits. ``left_s`` is how long it will, where that is known."""

    key: str
    kind: str
    text: str
    since_s: float
    left_s: float | None
    messages: int

    @property
    def sentence(self) -> str:
        """For people."""
        left = "" if self.left_s is None else f", {self.left_s:.0f} s left"
        return f"{self.text}{left}" if self.kind in ("parked", "model") else f"waits for {self.text}{left}"


class KnownStandstill(msgspec.Struct):
    """Since when a stream waits for one kind of thing, and whether that was told."""

    kind: str
    since: float
    told: bool = False


class Standstills:
    """Those of one node; ``owned`` gives the streams that may wait."""

    def __init__(self, owned: Callable[[], Iterable[Owned]], clock: Clock, log: Any) -> None:
        self._owned = owned
        self._clock = clock
        self._log = log
        self._known: dict[str, KnownStandstill] = {}

    def look(self) -> None:
        """Note who waits, and log who has done so for long."""
        now = self._clock.monotonic()
        before, self._known = self._known, {}
        late: list[Waits] = []
        for entry in self._owned():
            stands = entry.owner.standstill()
            if stands is None:
                continue
            known = before.get(entry.key)
            if known is None or known.kind != stands.kind:
                known = KnownStandstill(stands.kind, now)
            self._known[entry.key] = known
            if not known.told and now - known.since >= TOLD_AFTER_S:
                known.told = True
                late.append(self._waits(entry, stands, now))
        for waits in late[:LINES_MAX]:
            self._log.warning("a stream waits", key=waits.key, reason=waits.sentence, messages=waits.messages)
        if len(late) > LINES_MAX:
            kinds = dict(Counter(waits.kind for waits in late[LINES_MAX:]))
            self._log.warning("more streams wait", streams=len(late) - LINES_MAX, **kinds)

    def of(self, entry: Owned) -> Waits | None:
        """What one stream waits for."""
        stands = entry.owner.standstill()
        return self._waits(entry, stands, self._clock.monotonic()) if stands is not None else None

    def all(self) -> list[Waits]:
        """The streams that wait, the longest first."""
        found = [waits for entry in self._owned() if (waits := self.of(entry)) is not None]
        return sorted(found, key=lambda waits: (-waits.since_s, waits.key))

    def counts(self) -> dict[str, int]:
        """How many streams wait, by the kind of what for."""
        counts = dict.fromkeys(get_args(StandstillKind), 0)
        for entry in self._owned():
            if (stands := entry.owner.standstill()) is not None:
                counts[stands.kind] += 1
        return counts

    def _waits(self, entry: Owned, stands: Standstill, now: float) -> Waits:
        known = self._known.get(entry.key)
        since = known.since if known is not None and known.kind == stands.kind else now
        left_s = None if stands.until is None else max(0.0, stands.until - now)
        return Waits(entry.key, stands.kind, stands.text, now - since, left_s, entry.owner.waiting)
