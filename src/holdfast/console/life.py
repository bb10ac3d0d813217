"""What a console has seen happen to streams since it began: they were claimed, moved, parked, skipped."""

from __future__ import annotations

from collections import deque

import msgspec

MOST = 20_000


class StreamEvent(msgspec.Struct, frozen=True, gc=False):
    """Something that happened to a stream, at a wall time."""

    key: str
    at: float
    text: str


class StreamEvents:
    """The last events of all streams together."""

    def __init__(self, most: int = MOST) -> None:
        self._events: deque[StreamEvent] = deque(maxlen=most)

    def add(self, key: str, at: float, text: str) -> None:
        """Note an event."""
        self._events.append(StreamEvent(key, at, text))

    def of(self, key: str) -> list[StreamEvent]:
        """Return the events of one stream, newest first."""
        return [event for event in reversed(self._events) if event.key == key]
