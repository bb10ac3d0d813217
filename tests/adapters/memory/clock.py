"""A clock for services in memory."""

import asyncio
import contextlib
import itertools
import time


class LoopClock:
    """The event loop's time, counted ids, no chance."""

    def __init__(self) -> None:
        self._ids = itertools.count(1)

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()

    def wall(self) -> float:
        return time.time()

    def random(self) -> float:
        return 0.5

    def new_id(self) -> str:
        return f"id-{next(self._ids)}"

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def wait(self, event: asyncio.Event, timeout_s: float | None) -> bool:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                return await event.wait()
        return False
