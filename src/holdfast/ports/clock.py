"""The clock: time, sleeping, ids and random numbers, so that a simulation can control them all."""

from __future__ import annotations

import asyncio
from typing import Protocol


class Clock(Protocol):
    """One node's clock."""

    def monotonic(self) -> float:
        """Return seconds on a clock that never goes back, and that counts time while the machine is
        suspended."""

    def wall(self) -> float:
        """Return seconds since 1970. Use it for people and for retention by age, never for safety."""

    def random(self) -> float:
        """Return a random number in [0, 1), for jitter."""

    def new_id(self) -> str:
        """Return a new unique id of at most 32 characters."""

    async def sleep(self, seconds: float) -> None:
        """Sleep for ``seconds``."""

    async def wait(self, event: asyncio.Event, timeout_s: float | None) -> bool:
        """Wait until ``event`` is set (True) or ``timeout_s`` has passed (False)."""
