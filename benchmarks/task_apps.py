"""The apps of tasks that the benchmarks run."""

from __future__ import annotations

import msgspec

from holdfast import App
from holdfast.tasks.handler import Job


class Number(msgspec.Struct):
    """A task that says no more than which it is."""

    n: int


bare = App("bare")


@bare.task("noop", body=Number)
def nothing(body: Number, job: Job) -> int:
    """Does nothing."""
    return body.n
