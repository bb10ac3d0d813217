"""No-op tasks a second on PostgreSQL alone, and the time from sending one to its outcome, against two task
queues on the same server at the same durability. What is measured is as in ``benchmarks.tasks``.

Run as ``python -m benchmarks.tasks_postgres``.
"""

from __future__ import annotations

import argparse
import asyncio
from functools import partial
from statistics import median

from benchmarks.peers.task_queues import QUEUES
from benchmarks.peers.task_queues import measure as measure_peer
from benchmarks.report import Report, percentile
from benchmarks.tasks import BUDGET_S, DURABLE, Contend, holdfast, measure

PEERS = ("procrastinate", "pgqueuer")


def main() -> None:
    """Measure and report."""
    parser = argparse.ArgumentParser(prog="benchmarks.tasks_postgres", description=__doc__)
    parser.add_argument("--tasks", type=int, default=10_000, help="of Holdfast; slower ones get fewer")
    parser.add_argument("--ones", type=int, default=200, help="tasks that are sent one by one")
    parser.add_argument("--nodes", type=int, default=2, help="the peers have as many processes as all nodes")
    parser.add_argument("--slots", type=int, default=1, help="of each node")
    parser.add_argument("--rounds", type=int, default=3, help="at most; the median counts")
    asked = parser.parse_args()
    processes = asked.nodes * (1 + asked.slots)
    report = Report("tasks-postgres")
    report.say(f"tasks-postgres: {asked.tasks:,} no-op tasks; {processes} processes each")
    told = {"holdfast": DURABLE["postgres"]} | {name: QUEUES[name].settings for name in PEERS}
    for name, text in told.items():
        report.say(f"  {name}: {text}")
    ours = partial(holdfast, "postgres", asked.tasks, asked.nodes, asked.slots, asked.ones)
    contenders: dict[str, Contend] = {"holdfast": lambda: asyncio.run(ours())}
    for name in PEERS:
        contenders[name] = partial(measure_peer, QUEUES[name], asked.tasks, processes, asked.ones)
    found = measure(contenders, asked.rounds, BUDGET_S, report)
    report.figure("tasks_per_s", found["holdfast"].per_s)
    report.figure("vs_procrastinate", found["holdfast"].per_s / found["procrastinate"].per_s, "≥ 3")
    report.figure("vs_pgqueuer", found["holdfast"].per_s / found["pgqueuer"].per_s, "≥ 1.2")
    report.figure("pick_up_p50_ms", median(found["holdfast"].pick_ups_ms), "< 10")
    report.figure("p50_ms", median(found["holdfast"].latencies_ms))
    report.figure("p99_ms", percentile(found["holdfast"].latencies_ms, 99))
    for name in PEERS:
        report.figure(f"{name}_p50_ms", median(found[name].latencies_ms))
    report.end(
        sorted({package for name in PEERS for package in QUEUES[name].packages}),
        tasks=asked.tasks,
        nodes=asked.nodes,
        slots=asked.slots,
        worker_processes=processes,
        measured={name: rounds.told() for name, rounds in found.items()},
        durability=told,
    )


if __name__ == "__main__":
    main()
