"""The Dramatiq app with tasks that hang: a time limit. As a program it sends them, by a Plan."""

from __future__ import annotations

import sys
from typing import Any, cast

import dramatiq
from dramatiq.brokers.redis import RedisBroker
from dramatiq.middleware import TimeLimit
from dramatiq.results import ResultFailure, ResultMissing, Results
from dramatiq.results.backends import RedisBackend

from benchmarks.peers.hanging import TIMEOUT_S, drive_plain, work
from benchmarks.peers.task_redis import QUEUE_URL, RESULTS_URL

LOOK_MS = 100
"""How often Dramatiq looks for tasks over their time."""

limits = TimeLimit(time_limit=round(1000 * TIMEOUT_S), interval=LOOK_MS)
results = Results(backend=RedisBackend(url=RESULTS_URL))
broker: Any = cast("Any", RedisBroker)(url=QUEUE_URL, middleware=[limits, results])
dramatiq.set_broker(broker)
actor: Any = dramatiq.actor(broker=broker, store_results=True)(work)


class Driver:
    """Sends, and looks for results."""

    def __init__(self) -> None:
        self._sent: dict[int, Any] = {}

    def send(self, n: int, hang: bool) -> None:
        """Send a task."""
        self._sent[n] = actor.send(n, hang)

    def ended(self) -> list[int]:
        """Those with a result, or that failed."""
        ended = [n for n, message in self._sent.items() if _has_ended(message)]
        for n in ended:
            del self._sent[n]
        return ended


def _has_ended(message: Any) -> bool:
    try:
        message.get_result()
    except ResultMissing:
        return False
    except ResultFailure:
        return True
    return True


if __name__ == "__main__":
    print(drive_plain(Driver(), sys.argv[1]))
