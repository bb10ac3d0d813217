"""The SAQ app, imported by its workers. The environment says where its server is."""

from __future__ import annotations

import asyncio
from typing import Any

import uvloop
from saq import Queue

from benchmarks.peers.task_redis import QUEUE_URL, RedisDriver, parked

asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())

CONCURRENCY = 50
AT_ONCE = 20
CHECK_S = 0.001

queue: Any = Queue.from_url(QUEUE_URL)


async def nothing(context: Any, *, n: int) -> int:
    """Does nothing."""
    return n


settings = {"queue": queue, "functions": [("nothing", nothing)], "concurrency": CONCURRENCY}


class Driver(RedisDriver):
    """As ``task_driver`` needs it. A job's key stays, with its result in it."""

    keys = ("saq:default:queued",)

    def __init__(self) -> None:
        super().__init__()
        self._runner = asyncio.Runner()
        self._aside: Any = Queue.from_url(QUEUE_URL)
        self._aside._queued = parked(self._aside._queued)

    def enqueue(self, count: int) -> None:
        """As the client does."""
        self._runner.run(self._enqueue(count))

    async def _enqueue(self, count: int) -> None:
        numbers = iter(range(count))

        async def some() -> None:
            for n in numbers:
                await self._aside.enqueue("nothing", n=n)

        await asyncio.gather(*(some() for _ in range(AT_ONCE)))

    def is_done(self) -> bool:
        """True once none is incomplete."""
        return self.unacknowledged() == 0

    def unacknowledged(self) -> int:
        """SAQ counts what is not complete."""
        return int(self.redis.zcard("saq:default:incomplete"))

    def once(self, n: int) -> None:
        """Send one, and poll for its result: ``Queue.apply`` misses the news of quick jobs, and looks again
        only after a second."""
        self._runner.run(_once(n))


async def _once(n: int) -> None:
    job = await queue.enqueue("nothing", n=n)
    while not job.completed:
        await asyncio.sleep(CHECK_S)
        await job.refresh()
