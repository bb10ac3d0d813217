"""The times at which the owners of a node wake up."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable, Mapping

from holdfast.ports.clock import Clock
from holdfast.streams.owned import OwnedStream

SPARE_ALARMS = 1000
"""The heap is compacted beyond this number of entries plus 4 for each owner."""


class Alarms:
    """The alarms of some owned keys, one for each at most."""

    def __init__(self, clock: Clock, entries: Mapping[str, OwnedStream], spare: int = SPARE_ALARMS) -> None:
        self._clock = clock
        self._entries = entries
        self._spare = spare
        self._heap: list[tuple[float, str]] = []
        self._sooner = asyncio.Event()

    def __len__(self) -> int:
        return len(self._heap)

    def set(self, entry: OwnedStream, at: float) -> None:
        """Set the alarm of an owned key, instead of the one that it has."""
        entry.timer_at = at
        heapq.heappush(self._heap, (at, entry.key))
        if len(self._heap) > self._spare + 4 * len(self._entries):
            self._compact()
        if self._heap[0][0] == at:
            self._sooner.set()

    def _compact(self) -> None:
        """Keep one time of each owner. What was set before would stay until its time, which may be days."""
        self._heap = [
            (entry.timer_at, entry.key) for entry in self._entries.values() if entry.timer_at is not None
        ]
        heapq.heapify(self._heap)

    async def serve(self, ring: Callable[[OwnedStream, float], None]) -> None:
        """Call ``ring`` with each owned key whose time has come, and with the time now."""
        while True:
            self._sooner.clear()
            timeout_s = None
            if self._heap:
                timeout_s = max(0.0, self._heap[0][0] - self._clock.monotonic())
            await self._clock.wait(self._sooner, timeout_s)
            now = self._clock.monotonic()
            while self._heap and self._heap[0][0] <= now:
                at, key = heapq.heappop(self._heap)
                entry = self._entries.get(key)
                if entry is not None and entry.timer_at == at:
                    entry.timer_at = None
                    ring(entry, now)
