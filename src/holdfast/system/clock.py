"""The machine's clock."""

from __future__ import annotations

import asyncio
import os
import random
import time
from functools import partial


class SystemClock:
    """Time, random numbers and sleep of the machine. All processes of a host share ``monotonic``."""

    # For each message the time is asked some twenty times, so these are no functions of Python. Linux stops
    # its ordinary monotonic clock while the machine is suspended; macOS does not.
    monotonic = staticmethod(
        partial(time.clock_gettime, getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))
    )
    wall = staticmethod(time.time)

    def random(self) -> float:
        return random.random()  # noqa: S311 - for jitter, not for secrets

    def new_id(self) -> str:
        """Return 32 hex digits that sort by the millisecond of creation. They use no counter, so forked
        processes differ."""
        return f"{time.time_ns() // 1_000_000:012x}{os.urandom(10).hex()}"

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def wait(self, event: asyncio.Event, timeout_s: float | None) -> bool:
        if event.is_set():
            return True
        if timeout_s is not None and timeout_s <= 0:
            return False
        try:
            async with asyncio.timeout(None if timeout_s == float("inf") else timeout_s):
                return await event.wait()
        except TimeoutError:
            return event.is_set()
