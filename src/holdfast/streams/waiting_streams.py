"""Finds streams that wait, for what and since when, and logs one line for each that waits long."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any, get_args

import msgspec

from holdfast.common.text import duration
from holdfast.ports.clock import Clock
from holdfast.rules.streams.wait_reason import WaitKind, WaitReason
from holdfast.streams.owned import OwnedStream
from holdfast.streams.placing import Unplaced

LOG_AFTER_S = 5.0
"""After how long a stream that waits for one kind of thing is logged."""

COMMIT_S = 1.0
"""Seconds before a stream is shown as waiting for its state store or its slot."""

SHORT_KINDS: tuple[WaitKind, ...] = ("store", "slot")
"""The kinds of waits that every message may have for a moment."""

KEPT_WAITING = WaitReason(
    "suspect", "a message of another stream, which was at work when nodes ended and runs alone here"
)

LINES_MAX = 20
"""The most streams that are logged at once; the rest are counted in one line."""


class StreamWait(msgspec.Struct):
    """A stream that waits. ``left_s`` is for how long it will still wait, if that is known."""

    key: str
    kind: str
    text: str
    since_s: float
    left_s: float | None
    messages: int

    @property
    def sentence(self) -> str:
        """The wait in words."""
        left = "" if self.left_s is None else f", {duration(self.left_s)} left"
        return f"{self.text}{left}" if self.kind in ("parked", "model") else f"waits for {self.text}{left}"


class KnownWait(msgspec.Struct):
    """Since when a stream waits for one kind of thing, and whether that was logged."""

    kind: str
    since: float
    is_logged: bool = False

    def goes_on(self, stands: WaitReason) -> bool:
        """Return True if it still waits for the same, and not for the next of a kind."""
        return self.kind == stands.kind and stands.since in (None, self.since)


class WaitingStreams:
    """The waiting streams of one node. ``owned`` returns the streams that may wait, ``unplaced`` the streams
    that no node takes, and ``archive_error`` the error of a stream's archive."""

    def __init__(
        self,
        owned: Callable[[], Iterable[OwnedStream]],
        unplaced: Callable[[], Mapping[str, Unplaced]],
        archive_error: Callable[[str], str],
        clock: Clock,
        log: Any,
    ) -> None:
        self._owned = owned
        self._unplaced = unplaced
        self._archive_error = archive_error
        self._clock = clock
        self._log = log
        self._known: dict[str, KnownWait] = {}

    def look(self) -> None:
        """Note which streams wait, and log the long waits."""
        now = self._clock.monotonic()
        before, self._known = self._known, {}
        late: list[StreamWait] = []
        for entry in self._owned():
            if (stands := self._wait_reason(entry, now)) is None:
                continue
            known = before.get(entry.key)
            if known is None or not known.goes_on(stands):
                known = KnownWait(stands.kind, now if stands.since is None else stands.since)
            self._known[entry.key] = known
            if not known.is_logged and now - known.since >= LOG_AFTER_S:
                known.is_logged = True
                late.append(self._waits(entry, stands, now))
        for waits in late[:LINES_MAX]:
            self._log.warning("stream waits", key=waits.key, reason=waits.sentence, messages=waits.messages)
        if len(late) > LINES_MAX:
            kinds = dict(Counter(waits.kind for waits in late[LINES_MAX:]))
            self._log.warning("more streams wait", streams=len(late) - LINES_MAX, **kinds)

    def of(self, entry: OwnedStream) -> StreamWait | None:
        """Return what one stream waits for; None if it doesn't wait."""
        now = self._clock.monotonic()
        stands = self._wait_reason(entry, now)
        return self._waits(entry, stands, now) if stands is not None else None

    def all(self) -> list[StreamWait]:
        """Return the waiting streams, longest wait first."""
        found = [waits for entry in self._owned() if (waits := self.of(entry)) is not None]
        now = self._clock.monotonic()
        found += [
            StreamWait(
                key, "room", f"a node that takes it: {known.reason}", now - known.since, None, known.messages
            )
            for key, known in self._unplaced().items()
        ]
        return sorted(found, key=lambda waits: (-waits.since_s, waits.key))

    def counts(self) -> dict[str, int]:
        """Return how many streams wait for each kind of thing."""
        now = self._clock.monotonic()
        counts = dict.fromkeys(get_args(WaitKind), 0)
        for entry in self._owned():
            if (stands := self._wait_reason(entry, now)) is not None:
                counts[stands.kind] += 1
        counts["room"] += len(self._unplaced())
        return counts

    def longest(self) -> dict[str, float]:
        """Return for how long the stream has waited that waits longest for each kind of thing, in seconds."""
        longest = dict.fromkeys(get_args(WaitKind), 0.0)
        for waits in self.all():
            longest[waits.kind] = max(longest[waits.kind], waits.since_s)
        return longest

    def _waits(self, entry: OwnedStream, stands: WaitReason, now: float) -> StreamWait:
        known = self._known.get(entry.key)
        if stands.since is not None:
            since = stands.since
        else:
            since = known.since if known is not None and known.goes_on(stands) else now
        left_s = None if stands.until is None else max(0.0, stands.until - now)
        return StreamWait(entry.key, stands.kind, stands.text, now - since, left_s, len(entry.owner.inbox))

    def _wait_reason(self, entry: OwnedStream, now: float) -> WaitReason | None:
        stands = wait_of(entry, now)
        if (
            stands is not None
            and stands.kind == "archive"
            and (error := self._archive_error(entry.spec.name))
        ):
            return msgspec.structs.replace(stands, text=f"{stands.text}: {error}")
        return stands


def wait_of(entry: OwnedStream, now: float) -> WaitReason | None:
    """Return what a stream waits for; None if it doesn't wait, or only for a moment."""
    if entry.kept_waiting:
        return KEPT_WAITING
    stands = _slot_wait(entry, now) or entry.owner.wait_reason()
    if stands is None or (stands.kind in SHORT_KINDS and now - (stands.since or 0.0) < COMMIT_S):
        return None
    return stands


def _slot_wait(entry: OwnedStream, now: float) -> WaitReason | None:
    """Return the wait of a stream whose slot works at something else; None if it works at the stream, or if
    the stream needs no slot."""
    handle = entry.handle
    runs = entry.owner.runs
    if handle is None or not (runs.running or runs.loading):
        return None  # its slot isn't called
    call = handle.at_work
    if call is not None and call.of == entry.key:
        return None
    if call is None and handle.is_there:
        return None  # its call is on the way
    return WaitReason("slot", handle.busy_with(now), since=entry.called_at)
