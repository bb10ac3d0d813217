"""The taskiq app, imported by its workers. The environment says where its server is."""

from __future__ import annotations

import asyncio
from typing import Any

from taskiq import TaskiqMessage
from taskiq_redis import RedisAsyncResultBackend, RedisStreamBroker

from benchmarks.peers.task_redis import QUEUE_URL, RESULTS_URL, RedisDriver

STREAM = "taskiq"
WAIT_CHECK_S = 0.001

backend: Any = RedisAsyncResultBackend(RESULTS_URL)
broker: Any = RedisStreamBroker(QUEUE_URL, queue_name=STREAM).with_result_backend(backend)


async def nothing(n: int) -> int:
    """Does nothing."""
    return n


task: Any = broker.task(task_name="nothing")(nothing)


class Driver(RedisDriver):
    """As ``task_driver`` needs it."""

    def __init__(self) -> None:
        super().__init__()
        self._runner = asyncio.Runner()
        self._runner.run(broker.startup())
        self._bodies: list[bytes] = []

    def enqueue(self, count: int) -> None:
        """Ready to be added to the stream: what is in it is before the workers at once."""
        self.redis.xtrim(STREAM, maxlen=0)
        self._bodies = [_body(n) for n in range(count)]

    def show(self) -> None:
        """Add all in one transaction."""
        with self.redis.pipeline() as together:
            for body in self._bodies:
                together.xadd(STREAM, {b"data": body})
            together.execute()

    def unacknowledged(self) -> int:
        """Redis knows what a group was given and has not acknowledged."""
        (group,) = self.redis.xinfo_groups(STREAM)
        return int(group["pending"])

    def once(self, n: int) -> None:
        """Send one, and wait for its result."""
        self._runner.run(_once(n))


def _body(n: int) -> bytes:
    message = TaskiqMessage(
        task_id=broker.id_generator(), task_name="nothing", labels={}, args=[n], kwargs={}
    )
    body: bytes = broker.formatter.dumps(message).message
    return body


async def _once(n: int) -> None:
    sent = await task.kiq(n)
    await sent.wait_result(check_interval=WAIT_CHECK_S, timeout=30)
