"""The attention that a console gets. What it knows of the cluster is kept fresh while somebody looks, and
costs next to nothing while nobody does."""

from __future__ import annotations

import asyncio
import math

from holdfast.console.events import Events
from holdfast.ports.clock import Clock

LOOKS_S = 15.0
"""For how long after a request somebody is taken to look."""


class Attention:
    """Tells the loops of a console how soon they should look again."""

    def __init__(self, events: Events, clock: Clock) -> None:
        self._events = events
        self._clock = clock
        self._asked_at = -math.inf
        self._woken = asyncio.Event()

    @property
    def watched(self) -> bool:
        """True if somebody looks."""
        return len(self._events) > 0 or self._clock.monotonic() - self._asked_at < LOOKS_S

    def asked(self) -> None:
        """Note a request. If nobody had been looking, all loops look at once."""
        if not self.watched:
            self._woken.set()
        self._asked_at = self._clock.monotonic()

    async def pause(self, watched_s: float, idle_s: float) -> None:
        """Wait until it is time to look again: ``idle_s`` is for as long as nobody looks."""
        if self.watched:
            await self._clock.sleep(watched_s)
            return
        self._woken.clear()
        await self._clock.wait(self._woken, idle_s)
