"""Locks in Redis, one a key, as two libraries make them: each is acquired, then renewed once.

Arguments: ``python-redis-lock`` or ``redis-py``; the server's port; how many keys; how many threads or tasks.
Prints the seconds that both took.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import redis
import redis_lock
import uvloop
from redis.asyncio import BlockingConnectionPool, Redis

TTL_S = 600


def with_python_redis_lock(port: int, keys: int, threads: int) -> float:
    """In threads over one pool of connections."""
    with redis.Redis(port=port) as client, ThreadPoolExecutor(threads) as pool:
        locks = [redis_lock.Lock(client, f"key-{n}", expire=TTL_S) for n in range(keys)]

        def acquire(lock: redis_lock.Lock) -> None:
            if not lock.acquire(blocking=False):
                raise RuntimeError("the lock is taken")

        begin_at = time.monotonic()
        list(pool.map(acquire, locks))
        list(pool.map(redis_lock.Lock.extend, locks))
        return time.monotonic() - begin_at


async def with_redis_py(port: int, keys: int, tasks: int) -> float:
    """In tasks, each with a connection."""
    pool = BlockingConnectionPool(port=port, max_connections=tasks)
    async with Redis(connection_pool=pool) as client:
        locks = [client.lock(f"key-{n}", timeout=TTL_S) for n in range(keys)]

        async def acquire(remaining: Iterator[object]) -> None:
            for lock in remaining:
                if not await lock.acquire(blocking=False):  # type: ignore[attr-defined]
                    raise RuntimeError("the lock is taken")

        async def renew(remaining: Iterator[object]) -> None:
            for lock in remaining:
                await lock.extend(TTL_S, replace_ttl=True)  # type: ignore[attr-defined]

        begin_at = time.monotonic()
        for step in (acquire, renew):
            remaining = iter(locks)
            await asyncio.gather(*(step(remaining) for _ in range(tasks)))
        return time.monotonic() - begin_at


def main() -> None:
    """Measure one library."""
    name, port, keys, workers = sys.argv[1], *map(int, sys.argv[2:5])
    if name == "python-redis-lock":
        print(with_python_redis_lock(port, keys, workers))
    else:
        print(uvloop.run(with_redis_py(port, keys, workers)))


if __name__ == "__main__":
    main()
