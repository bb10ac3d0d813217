"""The events of streams that a console has seen since its start: claimed, moved, parked, skipped."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

import msgspec

MOST = 20_000


class StreamEvent(msgspec.Struct, frozen=True, gc=False):
    """An event of a stream at a wall time, or 0 if that is unknown. ``node`` is the node where it happened,
    or to which the stream came; empty if unknown."""

    key: str
    at: float
    text: str
    node: str = ""


class SeenOpening(msgspec.Struct, frozen=True, gc=False):
    """An opening of a stream by a node that was seen at the wall times ``since`` and ``until``, so that it
    stood between them too."""

    key: str
    node: str
    since: float
    until: float


def node_at(openings: Iterable[SeenOpening], at: float) -> str:
    """Return the node whose opening of a stream stood at a wall time. It is empty if no opening was seen both
    before and after that time, because another may have stood then, and if clocks differ by enough that
    several nodes may have had the stream."""
    nodes = {opening.node for opening in openings if opening.since <= at <= opening.until}
    return nodes.pop() if len(nodes) == 1 else ""


def on(node: str) -> str:
    """Return the node of an event as part of a sentence; empty if unknown."""
    return f" on {node}" if node else ""


class StreamEvents:
    """The last events of all streams together, and the last openings that have ended."""

    def __init__(self, most: int = MOST) -> None:
        self._events: deque[StreamEvent] = deque(maxlen=most)
        self._openings: deque[SeenOpening] = deque(maxlen=most)

    def add(self, key: str, at: float, text: str, node: str = "") -> None:
        """Add an event."""
        self._events.append(StreamEvent(key, at, text, node))

    def stood(self, opening: SeenOpening) -> None:
        """Add an opening that has ended."""
        self._openings.append(opening)

    def of(self, key: str) -> list[StreamEvent]:
        """Return the events of one stream, newest first."""
        return [event for event in reversed(self._events) if event.key == key]

    def openings(self, key: str) -> list[SeenOpening]:
        """Return the openings of one stream that have ended, newest first."""
        return [opening for opening in reversed(self._openings) if opening.key == key]
