"""Commands to devices, end to end, against the bare broker and client.

A command is added in a transaction, marked as published in another, sent, answered, and closed in a third
together with the device's next one. What the business and devices have said is on disk before it counts; that
a command was published need not be. Beside it: the same broker, client library and devices with no table at
all, one command in flight each.

And what the table adds to the time of a command when there is no other: from the commit that adds it, by
another connection, to the commit that closes it, less a round trip of the bare client. One wait for the disk
is in that; how long one takes here is shown beside it, and so is the time from the begin of the transaction
that adds, which has two.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, create_engine

from benchmarks.dispatching import COMMAND, DURABILITY, dispatching
from benchmarks.fleet import devices_named, fleet
from benchmarks.peers import raw_mqtt
from benchmarks.report import Report, percentile
from holdfast import App
from holdfast.devices.outbox import Outbox
from holdfast.devices.rules.device_queue import Patience
from holdfast.devices.rules.presence import PresenceRules
from simulator.servers import MosquittoServer, PostgresqlServer

PATIENCE = Patience(retry_s=30.0, retry_max_s=60.0)
NO_PRESENCE = PresenceRules(heartbeats=False, silent_tries=0)
WARM_S = 1.0
SYNCS = 200


@contextlib.asynccontextmanager
async def database(kind: str) -> AsyncIterator[str]:
    """The URL of an empty database that confirms commits by the disk."""
    if kind == "sqlite":
        with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder:
            yield f"sqlite:///{Path(folder) / 'app.db'}"
    else:
        async with PostgresqlServer(fsync=True) as server:
            yield server.url


async def rate(kind: str, server: MosquittoServer, devices: int, seconds: float, each: int) -> float:
    """Commands closed a second, all devices busy."""
    outbox = App("office").outbox("faces", patience=PATIENCE, presence=NO_PRESENCE)
    async with (
        database(kind) as url,
        dispatching(url, server.url, outbox, devices_named(devices), each) as running,
    ):
        await asyncio.sleep(WARM_S)
        closed = await running.rate(seconds)
        if await running.store.count_waiting("faces", 1) == 0:
            raise RuntimeError("the commands ran out; give each device more of them")
        return closed


async def latency(kind: str, server: MosquittoServer, count: int) -> tuple[list[float], list[float]]:
    """Milliseconds until the transaction that closes a command is committed: since the one that adds it was,
    and since that began. One command at a time, to 100 devices in turn."""
    outbox = App("office").outbox("faces", patience=PATIENCE, presence=NO_PRESENCE)
    since_commit, since_begin = [], []
    async with (
        database(kind) as url,
        dispatching(url, server.url, outbox, [], 0) as running,
        business(url) as engine,
    ):
        await asyncio.sleep(WARM_S)
        for n in range(count):
            running.store.closed.clear()
            begun_at_s, added_at_s = await asyncio.to_thread(_add, engine, outbox, f"{n % 100:07d}")
            await running.store.closed.wait()
            since_commit.append((running.store.closed_at_s - added_at_s) * 1e3)
            since_begin.append((running.store.closed_at_s - begun_at_s) * 1e3)
    return since_commit[count // 10 :], since_begin[count // 10 :]


@contextlib.asynccontextmanager
async def business(url: str) -> AsyncIterator[Engine]:
    """The connections of who adds commands."""
    engine = create_engine(url.replace("postgresql:", "postgresql+psycopg:"))
    yield engine
    engine.dispose()


def _add(engine: Engine, outbox: Outbox, device: str) -> tuple[float, float]:
    begun_at_s = time.perf_counter()
    with engine.begin() as db:
        outbox.add(db, device=device, command=COMMAND)
    return begun_at_s, time.perf_counter()


def sync_ms() -> float:
    """What the disk takes to confirm a few hundred bytes, as a commit does; the median."""
    took = []
    with tempfile.TemporaryFile() as file:
        for _ in range(SYNCS):
            file.write(bytes(300))
            file.flush()
            begun_at_s = time.perf_counter()
            os.fdatasync(file.fileno())
            took.append((time.perf_counter() - begun_at_s) * 1e3)
    return percentile(took, 50)


def main() -> None:
    """Measure and report."""
    parser = argparse.ArgumentParser(prog="benchmarks outbox", description=__doc__)
    parser.add_argument("--full", action="store_true", help="10,000 devices too, longer, and thrice")
    parser.add_argument("--devices", type=int, default=1_000, help="without --full")
    parser.add_argument("--seconds", type=float, help="measured each (default 2, with --full 10)")
    parser.add_argument("--rounds", type=int, help="the best counts (default 2, with --full 3)")
    asked = parser.parse_args()
    seconds, rounds = asked.seconds or (10.0 if asked.full else 2.0), asked.rounds or (3 if asked.full else 2)
    report = Report("outbox")
    report.say("outbox: one command in flight a device, QoS 1, commits confirmed by the disk")
    report.say(f"  raw: {raw_mqtt.SETTINGS}")
    detail: dict[str, Any] = {}
    counts = (1_000, 10_000) if asked.full else (asked.devices,)
    for devices in counts:
        detail[f"{devices} devices"] = asyncio.run(_measure(devices, seconds, rounds, report))
    rates = detail[f"{counts[0]} devices"]
    for kind in ("sqlite", "postgres"):
        report.figure(f"vs_raw_mqtt_{kind}", max(rates[kind]) / max(rates["raw"]), "≥ 0.5")
    raw_ms, took = asyncio.run(_latencies(2_000 if asked.full else round(100 * seconds)))
    report.say(f"    raw: {raw_ms:.2f} ms")
    for kind, (since_commit, since_begin) in took.items():
        p50, p99, whole = (
            percentile(since_commit, 50),
            percentile(since_commit, 99),
            percentile(since_begin, 50),
        )
        report.say(f"    {kind}: p50 {p50:.2f} ms, p99 {p99:.2f} ms; since the begin p50 {whole:.2f} ms")
    waits_ms = sync_ms()
    report.say(f"    the disk confirms a write in {waits_ms:.2f} ms")
    added = {kind: percentile(since_commit, 50) - raw_ms for kind, (since_commit, _) in took.items()}
    report.figure("added_p50_ms", added["sqlite"], "≤ 5")
    report.figure("added_p50_ms_postgres", added["postgres"], "≤ 5")
    report.end(
        ["paho-mqtt", "sqlalchemy", "psycopg"],
        rates=detail,
        durability={"holdfast": DURABILITY},
        sync_ms=round(waits_ms, 2),
        raw_ms=round(raw_ms, 2),
        p99_ms={kind: round(percentile(since_commit, 99), 2) for kind, (since_commit, _) in took.items()},
        since_begin_p50_ms={kind: round(percentile(since, 50), 2) for kind, (_, since) in took.items()},
    )


async def _measure(devices: int, seconds: float, rounds: int, report: Report) -> dict[str, list[float]]:
    rates: dict[str, list[float]] = {"raw": [], "sqlite": [], "postgres": []}
    each = max(3, round(15_000 * (seconds + WARM_S) / devices))
    async with MosquittoServer() as server, fleet(server.url, devices):
        names = devices_named(devices)
        for _ in range(rounds):
            for kind, measured in rates.items():
                if kind == "raw":
                    raw = asyncio.to_thread(raw_mqtt.measure, "127.0.0.1", server.port, names, seconds)
                    measured.append(round(await raw))
                else:
                    measured.append(round(await rate(kind, server, devices, seconds, each)))
                report.say(f"    {devices:,} devices, {kind}: {measured[-1]:,}/s")
    return rates


async def _latencies(count: int) -> tuple[float, dict[str, tuple[list[float], list[float]]]]:
    async with MosquittoServer() as server, fleet(server.url, 100):
        raw = asyncio.to_thread(raw_mqtt.round_trip_ms, "127.0.0.1", server.port, "0000000", 1.0)
        return await raw, {kind: await latency(kind, server, count) for kind in ("sqlite", "postgres")}
