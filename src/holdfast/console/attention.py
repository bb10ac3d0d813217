"""Paces a console: it reads the cluster often while it is watched, and rarely while it isn't."""

from __future__ import annotations

import asyncio
import math

from holdfast.console.events import Events
from holdfast.ports.clock import Clock

LOOKS_S = 15.0
"""Seconds after a request for which the console counts as watched."""


class Attention:
    """Paces the loops of a console."""

    def __init__(self, events: Events, clock: Clock) -> None:
        self._events = events
        self._clock = clock
        self._asked_at = -math.inf
        self._woken = asyncio.Event()

    @property
    def watched(self) -> bool:
        """True while pages are open or were just requested."""
        return len(self._events) > 0 or self._clock.monotonic() - self._asked_at < LOOKS_S

    def asked(self) -> None:
        """Note a request. If the console wasn't watched, all loops read at once."""
        if not self.watched:
            self._woken.set()
        self._asked_at = self._clock.monotonic()

    async def pause(self, watched_s: float, idle_s: float) -> None:
        """Wait ``watched_s``; or while the console isn't watched, up to ``idle_s``."""
        if self.watched:
            await self._clock.sleep(watched_s)
            return
        self._woken.clear()
        await self._clock.wait(self._woken, idle_s)
