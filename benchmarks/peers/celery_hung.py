"""The Celery app with tasks that hang: soft and hard time limits. As a program it sends them, by a Plan."""

from __future__ import annotations

import sys
from typing import Any

from celery import Celery

from benchmarks.peers.hanging import TIMEOUT_S, drive_plain, work
from benchmarks.peers.task_redis import QUEUE_URL, RESULTS_URL

app = Celery("hung", broker=QUEUE_URL, backend=RESULTS_URL)
app.conf.update(
    task_time_limit=TIMEOUT_S,
    task_soft_time_limit=TIMEOUT_S * 0.75,
    task_acks_late=True,
    worker_prefetch_multiplier=1,
    broker_connection_retry_on_startup=True,
)
task: Any = app.task(name="work")(work)


class Driver:
    """Sends, and looks for results."""

    def __init__(self) -> None:
        self._sent: dict[int, Any] = {}

    def send(self, n: int, hang: bool) -> None:
        """Send a task."""
        self._sent[n] = task.delay(n, hang)

    def ended(self) -> list[int]:
        """Those with a result, or that failed."""
        ended = [n for n, result in self._sent.items() if result.ready()]
        for n in ended:
            del self._sent[n]
        return ended


if __name__ == "__main__":
    print(drive_plain(Driver(), sys.argv[1]))
