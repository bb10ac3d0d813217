"""A bell: wakes everyone who waits for something new."""

from __future__ import annotations

import asyncio

from holdfast.ports.clock import Clock


class Bell:
    """Rung at every change; who waits looks again."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._rung = asyncio.Event()

    def ring(self) -> None:
        """Wake all that wait now."""
        self._rung.set()
        self._rung = asyncio.Event()

    async def wait(self, timeout_s: float | None) -> bool:
        """Wait for the next ring (True), or until ``timeout_s`` has passed (False)."""
        return await self._clock.wait(self._rung, timeout_s)
