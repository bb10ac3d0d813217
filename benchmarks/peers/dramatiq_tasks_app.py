"""The Dramatiq app with results, imported by its workers. The environment says where its server is."""

from __future__ import annotations

from typing import Any, cast
from uuid import uuid4

import dramatiq
from dramatiq.brokers.redis import RedisBroker
from dramatiq.results import Results
from dramatiq.results.backends import RedisBackend

from benchmarks.peers.task_redis import QUEUE_URL, RESULTS_URL, RedisDriver, parked

results = Results(backend=RedisBackend(url=RESULTS_URL))
broker: Any = cast("Any", RedisBroker)(url=QUEUE_URL, middleware=[results])
dramatiq.set_broker(broker)


def nothing(n: int) -> int:
    """Does nothing."""
    return n


actor: Any = dramatiq.actor(broker=broker, store_results=True)(nothing)


class Driver(RedisDriver):
    """As ``task_driver`` needs it."""

    keys = ("dramatiq:default.msgs", "dramatiq:default")

    def enqueue(self, count: int) -> None:
        """What the broker does for each message, without a round trip for each."""
        with self.redis.pipeline() as together:
            for n in range(count):
                name = str(uuid4())
                message = actor.message(n).copy(options={"redis_message_id": name})
                together.hset(parked("dramatiq:default.msgs"), name, message.encode())
                together.rpush(parked("dramatiq:default"), name)
            together.execute()

    def unacknowledged(self) -> int:
        """Dramatiq stores each message until it is acknowledged."""
        return int(self.redis.hlen("dramatiq:default.msgs"))

    def once(self, n: int) -> None:
        """Send one, and wait for its result."""
        actor.send(n).get_result(block=True, timeout=30_000)
