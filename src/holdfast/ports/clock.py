"""The clock: time, sleeping, ids and randomness, so that a simulation can own them all."""

from __future__ import annotations

import asyncio
from typing import Protocol


class Clock(Protocol):
    """One node's clock."""

    def monotonic(self) -> float:
        """Seconds on a clock that never goes back and counts time spent suspended."""

    def wall(self) -> float:
        """Seconds since 1970. For people and for retention by age; never for safety."""

    def random(self) -> float:
        """A number in [0, 1), for jitter."""

    def new_id(self) -> str:
        """A new unique id of 32 characters at most."""

    async def sleep(self, seconds: float) -> None:
        """Return ``seconds`` later."""

    async def wait(self, event: asyncio.Event, timeout_s: float | None) -> bool:
        """Wait until ``event`` is set (True) or ``timeout_s`` has passed (False)."""
