"""The apps of tasks that the benchmarks run."""

from __future__ import annotations

import time

import msgspec

from benchmarks.peers.hanging import TIMEOUT_S, work
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


hung = App("hung")


class Work(msgspec.Struct):
    """A task that hangs, or works for a moment."""

    n: int
    hang: bool


@hung.task("work", body=Work, timeout_s=TIMEOUT_S, tries=1)
def hang_or_work(body: Work, job: Job) -> int:
    """As the peers do."""
    return work(body.n, body.hang)


GROUP_LIMIT = 4
"""Of the tasks of one customer, how many may run at once: a quarter of the node's slots."""

grouped = App("grouped")
ungrouped = App("ungrouped")


class Report(msgspec.Struct):
    """A report for a customer, which takes its time."""

    customer: str
    seconds: float


@grouped.task("report", body=Report, group="customer", group_limit=GROUP_LIMIT)
@ungrouped.task("report", body=Report)
def publish(body: Report, job: Job) -> None:
    """Takes so long."""
    time.sleep(body.seconds)
