"""What the apps on Redis share: the queue is in one of its databases, the results are in another."""

from __future__ import annotations

import os

import redis

QUEUE_URL = f"{os.environ.get('BENCHMARK_REDIS', 'redis://127.0.0.1:6379')}/0"
RESULTS_URL = f"{os.environ.get('BENCHMARK_REDIS', 'redis://127.0.0.1:6379')}/1"


class RedisDriver:
    """Parks by renaming ``keys`` of the queue, and counts results, each of which is a key."""

    keys: tuple[str, ...] = ()

    def __init__(self) -> None:
        self.redis: redis.Redis = redis.Redis.from_url(QUEUE_URL)
        self.results: redis.Redis = redis.Redis.from_url(RESULTS_URL)
        self.expected = 0

    def park(self, count: int) -> None:
        """Enqueue aside."""
        self.results.flushdb()
        self.expected = count
        self.enqueue(count)

    def enqueue(self, count: int) -> None:
        """Enqueue under the names of parked keys."""
        raise NotImplementedError

    def show(self) -> None:
        """Rename them all, atomically."""
        with self.redis.pipeline() as together:
            for key in self.keys:
                together.rename(parked(key), key)
            together.execute()

    def is_done(self) -> bool:
        """True once all have their results and are acknowledged."""
        return int(self.results.dbsize()) >= self.expected and self.unacknowledged() == 0

    def unacknowledged(self) -> int:
        """How many tasks the queue still knows."""
        raise NotImplementedError


def parked(key: str) -> str:
    """Where a queue's tasks wait unseen."""
    return f"parked-{key}"
