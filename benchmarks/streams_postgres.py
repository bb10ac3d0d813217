"""Messages a second, ordered, with state and results committed, on PostgreSQL alone: against the embedded
SQLite, and against PgQueuer's jobs, which have no order and no state. What is measured is as in
``benchmarks.streams``.

Run as ``python -m benchmarks.streams_postgres``.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Callable
from statistics import median

from benchmarks.peers.task_queues import POSTGRES, QUEUES
from benchmarks.peers.task_queues import measure as measure_peer
from benchmarks.report import Report
from benchmarks.streams import BUDGET_S, LEAD_S, NODES, holdfast, measure
from simulator.servers import PostgresqlServer


async def on_postgres(messages: int, keys: int, slots: int, lead_s: float) -> float:
    """Messages a second, on a server of its own."""
    async with PostgresqlServer(fsync=True) as server:
        return await holdfast(messages, keys, slots, lead_s, url=server.url)


def main() -> None:
    """Measure and report."""
    parser = argparse.ArgumentParser(prog="benchmarks.streams_postgres", description=__doc__)
    parser.add_argument("--messages", type=int, default=20_000)
    parser.add_argument("--keys", type=int, default=64)
    parser.add_argument("--slots", type=int, default=1, help="of each of the two nodes")
    parser.add_argument("--rounds", type=int, default=3, help="at most; the median counts")
    parser.add_argument("--lead-s", type=float, default=3 * LEAD_S, help="for sending, before all show")
    asked = parser.parse_args()
    processes = NODES * (1 + asked.slots)
    size = (asked.messages, asked.keys, asked.slots, asked.lead_s)
    report = Report("streams-postgres")
    report.say(
        f"streams-postgres: {asked.messages:,} no-op messages of {asked.keys} keys; {processes} processes"
    )
    told = {
        "holdfast": f"{POSTGRES}; results and state are committed before a message is deleted",
        "sqlite": "results and state confirmed by the disk before a message is deleted",
        "pgqueuer": QUEUES["pgqueuer"].settings,
    }
    for name, text in told.items():
        report.say(f"  {name}: {text}")
    contenders: dict[str, Callable[[], float]] = {
        "holdfast": lambda: asyncio.run(on_postgres(*size)),
        "sqlite": lambda: asyncio.run(holdfast(*size)),
        "pgqueuer": lambda: measure_peer(QUEUES["pgqueuer"], asked.messages, processes, 1).per_s,
    }
    rates = measure(contenders, asked.rounds, BUDGET_S, report)
    middle = {name: median(measured) for name, measured in rates.items()}
    report.figure("messages_per_s", middle["holdfast"])
    report.figure("vs_sqlite", middle["holdfast"] / middle["sqlite"], "≥ 0.5")
    report.figure("vs_pgqueuer_jobs", middle["holdfast"] / middle["pgqueuer"], "≥ 1")
    report.end(
        QUEUES["pgqueuer"].packages,
        messages=asked.messages,
        keys=asked.keys,
        nodes=NODES,
        slots_per_node=asked.slots,
        worker_processes=processes,
        rates={name: [round(rate) for rate in measured] for name, measured in rates.items()},
        durability=told,
    )


if __name__ == "__main__":
    main()
