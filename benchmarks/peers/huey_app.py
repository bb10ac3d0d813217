"""The Huey app, imported by its consumer. The environment says where its files are."""

from __future__ import annotations

import os
from pathlib import Path

from huey import SqliteHuey

from benchmarks.peers.tally import Tally

PLACE = Path(os.environ["BENCHMARK_PLACE"])
huey = SqliteHuey("bench", filename=str(PLACE / "huey.db"), fsync=True, results=False)
tally = Tally(PLACE / "tally")


def count(key: str, n: int) -> None:
    """Counts, so that it can be seen that it ran."""
    tally.count()


nothing = huey.task()(count)
