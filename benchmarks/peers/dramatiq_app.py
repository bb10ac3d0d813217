"""The Dramatiq app, imported by its workers. The environment says where its server and files are."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, cast

import dramatiq
from dramatiq.brokers.redis import RedisBroker

from benchmarks.peers.tally import Tally

broker: Any = cast("Any", RedisBroker)(url=os.environ["BENCHMARK_REDIS"], middleware=[])
dramatiq.set_broker(broker)
tally = Tally(Path(os.environ["BENCHMARK_PLACE"]) / "tally")


def count(key: str, n: int) -> None:
    """Counts, so that it can be seen that it ran."""
    tally.count()


nothing = dramatiq.actor(broker=broker)(count)
