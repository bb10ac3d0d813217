"""The Celery app, imported by its workers. The environment says where its server is."""

from __future__ import annotations

from celery import Celery

from benchmarks.peers.task_redis import QUEUE_URL, RESULTS_URL, RedisDriver, parked

app = Celery("bench", broker=QUEUE_URL, backend=RESULTS_URL)
app.conf.update(
    task_acks_late=True,
    worker_prefetch_multiplier=64,
    task_serializer="json",
    result_serializer="json",
    worker_send_task_events=False,
    broker_pool_limit=10,
    broker_connection_retry_on_startup=True,
)


def nothing(n: int) -> int:
    """Does nothing."""
    return n


task = app.task(name="nothing")(nothing)


class Driver(RedisDriver):
    """As ``task_driver`` needs it."""

    keys = ("celery",)

    def enqueue(self, count: int) -> None:
        """As the client does, over one connection."""
        with app.producer_or_acquire() as producer:
            for n in range(count):
                task.apply_async((n,), queue=parked("celery"), producer=producer)

    def unacknowledged(self) -> int:
        """Celery stores a delivered message until it is acknowledged."""
        return int(self.redis.hlen("unacked")) + int(self.redis.llen("celery"))

    def once(self, n: int) -> None:
        """Send one, and wait for its result."""
        task.delay(n).get(timeout=30)
