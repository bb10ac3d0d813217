"""A bell that wakes all waiters in this process."""

from __future__ import annotations

import asyncio

from holdfast.ports.clock import Clock

WAIT_MIN_S = 1e-6
"""Minimum seconds of a wait: a shorter one may be rounded to zero, so that a loop of waits never ends."""


class Bell:
    """A bell that is rung at every change. Waiters then check again."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._rung = asyncio.Event()

    def ring(self) -> None:
        """Wake all waiters."""
        self._rung.set()
        self._rung = asyncio.Event()

    async def wait(self, timeout_s: float) -> None:
        """Wait for the next ring, ``timeout_s`` at most."""
        await self._clock.wait(self._rung, max(timeout_s, WAIT_MIN_S))
