"""Messages a second, ordered and committed, against task queues that promise less.

One rule for all: the messages are enqueued, the workers run and are warm, and then all messages show at one
instant. The clock stops when the last one is done and off the queue. Every contender has the same number
of worker processes; Holdfast's are its nodes and their slots. With ``--on postgres`` PostgreSQL
is the only service.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import math
import time
from collections.abc import Callable, Mapping
from functools import partial
from statistics import median
from typing import Any

from benchmarks.cluster import Cluster, Spent, cluster
from benchmarks.peers.task_queues import POSTGRES, QUEUES
from benchmarks.peers.task_queues import measure as measure_queue
from benchmarks.report import Report
from simulator.servers import PostgresqlServer

PEERS = {
    "huey_sqlite": "benchmarks.peers.huey_sqlite",
    "dramatiq_redis": "benchmarks.peers.dramatiq_redis",
}
TARGETS = {"huey_sqlite": "≥ 5", "dramatiq_redis": "≥ 1"}
POSTGRES_TARGETS = {"sqlite": "≥ 0.5", "pgqueuer_jobs": "≥ 1"}
PGQUEUER = QUEUES["pgqueuer"]

NODES = 2
TIMEOUT_S = 120.0
BUDGET_S = 45.0
LEAD_S = 1.0
"""Time from sending to the instant at which all messages show; a busy machine takes more."""


async def holdfast(
    messages: int,
    keys: int,
    slots: int,
    lead_s: float,
    spent: Spent | None = None,
    attributes: Callable[[bool], dict[str, str]] = lambda measured: {},
    **settings: Any,
) -> float:
    """Return messages a second, after a check that all results are there and in order. ``settings`` are those
    of the nodes; ``spent`` is from when the messages show until they are done. ``attributes`` returns those
    of a message, which is a measured one or not."""
    async with cluster("benchmarks.apps:noop", slots=slots, **settings) as nodes:
        await nodes.start_all(NODES)
        await nodes.send("noop", (_body(key, 0) for key in range(keys)), attributes=lambda: attributes(False))
        await nodes.drained("noop", TIMEOUT_S)
        numbers = range(keys, keys + messages)
        begin_at = await show(nodes, numbers, keys, lead_s, lambda: attributes(True))
        if spent is not None:
            spent.begin()
        end_at = await nodes.drained("noop", TIMEOUT_S)
        if spent is not None:
            spent.end()
        await verify(nodes, messages + keys, keys)
        return messages / (end_at - begin_at)


async def on_a_server(messages: int, keys: int, slots: int, lead_s: float) -> float:
    """Messages a second on PostgreSQL alone, on a server of its own."""
    async with PostgresqlServer(fsync=True) as server:
        return await holdfast(messages, keys, slots, lead_s, url=server.url)


async def show(
    nodes: Cluster,
    numbers: range,
    keys: int,
    lead_s: float,
    attributes: Callable[[], dict[str, str]] = dict,
) -> float:
    """Send messages that all become visible together, and wait for that; returns its monotonic time."""
    clock = nodes.services.clock
    with nodes.sending(lead_s) as begin_at:
        bodies = (_body(n % keys, n // keys) for n in numbers)
        await nodes.send("noop", bodies, begin_at, attributes=attributes)
    await clock.sleep(begin_at - clock.monotonic())
    return begin_at


def _body(key: int, n: int) -> bytes:
    return b'{"key":"k%d","n":%d}' % (key, n)


async def verify(nodes: Cluster, messages: int, keys: int) -> None:
    """Every message has one result, and the results of each key are in order without gaps."""
    expected = [0] * keys
    async for logged in nodes.results():
        key = int(logged.key.rpartition("k")[2])
        if int(logged.result.body) != expected[key]:
            raise AssertionError(f"{logged.key}: result {logged.result.body!r} follows {expected[key] - 1}")
        expected[key] += 1
    if sum(expected) != messages:
        raise AssertionError(f"{sum(expected)} results for {messages} messages")


def main() -> None:
    """Measure and report."""
    parser = argparse.ArgumentParser(prog="benchmarks streams", description=__doc__)
    parser.add_argument("--on", choices=["sqlite", "postgres"], default="sqlite")
    parser.add_argument("--full", action="store_true", help="more rounds")
    parser.add_argument("--messages", type=int, default=20_000)
    parser.add_argument("--keys", type=int, default=64)
    parser.add_argument("--slots", type=int, default=1, help="of each of the two nodes")
    parser.add_argument("--rounds", type=int, help="at most; the median counts (default 3, with --full 7)")
    parser.add_argument("--lead-s", type=float, help="for sending, before all show (default 1, or 3)")
    parser.add_argument("--alone", action="store_true", help="measure no peer")
    asked = parser.parse_args()
    on_postgres = asked.on == "postgres"
    processes = NODES * (1 + asked.slots)
    size = (asked.messages, asked.keys, asked.slots, asked.lead_s or (3 if on_postgres else 1) * LEAD_S)
    report = Report("streams-postgres" if on_postgres else "streams")
    report.say(
        f"{report.name}: {asked.messages:,} no-op messages of {asked.keys} keys; {processes} processes each"
        f" (Holdfast: {NODES} nodes with {asked.slots} slot(s))"
    )
    contenders: dict[str, Callable[[], float]] = {"holdfast": lambda: asyncio.run(holdfast(*size))}
    durable = {"holdfast": "SQLite; results and state confirmed by the disk before a message is deleted"}
    if on_postgres:
        contenders |= {"sqlite": contenders["holdfast"], "holdfast": lambda: asyncio.run(on_a_server(*size))}
        durable |= {"sqlite": durable["holdfast"], "holdfast": f"{POSTGRES}; state and results, as on SQLite"}
    targets = (POSTGRES_TARGETS if on_postgres else TARGETS) if not asked.alone else {}
    if on_postgres and not asked.alone:
        contenders["pgqueuer_jobs"] = lambda: measure_queue(PGQUEUER, asked.messages, processes, 1).per_s
        durable["pgqueuer_jobs"] = PGQUEUER.settings
    elif not asked.alone:
        for name, module in PEERS.items():
            peer = importlib.import_module(module)  # only here: they are installed for benchmarks alone
            contenders[name] = partial(peer.measure, asked.messages, processes)
            durable[name] = peer.SETTINGS
    for name in contenders:
        report.say(f"  {name}: {durable[name]}")
    rounds = asked.rounds or (7 if asked.full else 3)
    rates = measure(contenders, rounds, math.inf if asked.full else BUDGET_S, report)
    middle = {name: median(measured) for name, measured in rates.items()}
    report.figure("messages_per_s", middle["holdfast"])
    for name, target in targets.items():
        report.figure(f"vs_{name}", middle["holdfast"] / middle[name], target)
    report.end(
        ["huey", "dramatiq", "redis", "pgqueuer", "psycopg"],
        messages=asked.messages,
        keys=asked.keys,
        nodes=NODES,
        slots_per_node=asked.slots,
        worker_processes=processes,
        rates={name: [round(rate) for rate in measured] for name, measured in rates.items()},
        durability=durable,
    )


def measure(
    contenders: Mapping[str, Callable[[], float]], rounds: int, budget_s: float, report: Report
) -> dict[str, list[float]]:
    """Measure all contenders in turn, for as many rounds as fit into ``budget_s``, at least one."""
    begun_at = time.monotonic()
    rates: dict[str, list[float]] = {name: [] for name in contenders}
    for done in range(rounds):
        if done and (time.monotonic() - begun_at) * (done + 1) / done > budget_s:
            break
        for name, contend in contenders.items():
            rates[name].append(contend())
            report.say(f"    {name} {rates[name][-1]:,.0f}/s")
    return rates
