"""Commands to devices, end to end, against the bare broker and client.

A command is added in a transaction, marked as published in another, sent, answered, and closed in a third
together with the device's next one; every commit is on disk before it counts. Beside it: the same broker,
client library and devices with no table at all, one command in flight each. And what the table adds to the
time from adding a command to knowing that it is done, with one device at a time.

Run as ``python -m benchmarks.outbox``.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from benchmarks.dispatching import COMMAND, Dispatching, dispatching
from benchmarks.fleet import broker, devices_named, fleet
from benchmarks.peers import raw_mqtt
from benchmarks.report import Report, percentile
from holdfast.core.device_queue import Patience
from holdfast.core.presence import PresenceRules
from holdfast.devices.outbox import Outbox
from holdfast.testing.servers import MosquittoServer, PostgresqlServer

PATIENCE = Patience(retry_s=30.0, retry_max_s=60.0)
NO_PRESENCE = PresenceRules(heartbeats=False, silent_tries=0)
WARM_S = 1.0
LOOK_S = 0.0002


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
    outbox = Outbox("faces", patience=PATIENCE, presence=NO_PRESENCE)
    async with (
        database(kind) as url,
        dispatching(url, server.url, outbox, devices_named(devices, ""), each) as running,
    ):
        await asyncio.sleep(WARM_S)
        closed = await running.rate(seconds)
        if await running.store.waiting("faces", 1) == 0:
            raise RuntimeError("the commands ran out; give each device more of them")
        return closed


async def latency(kind: str, server: MosquittoServer, count: int) -> list[float]:
    """Milliseconds from the begin of the adding transaction until the closing one is committed; one command
    at a time."""
    outbox, took = Outbox("faces", patience=PATIENCE, presence=NO_PRESENCE), []
    async with (
        database(kind) as url,
        dispatching(url, server.url, outbox, [], 0) as running,
    ):
        await asyncio.sleep(WARM_S)
        for n in range(count):
            begun_at = time.perf_counter()
            await running.store.add(outbox.new([{"device": f"{n % 100:07d}", "command": COMMAND}]))
            await _closed(running, n + 1)
            took.append((time.perf_counter() - begun_at) * 1e3)
    return took[count // 10 :]


async def _closed(running: Dispatching, count: int) -> None:
    while running.dispatcher.counts.closed < count:  # noqa: ASYNC110 - it tells nobody
        await asyncio.sleep(LOOK_S)


def main() -> None:
    """Measure and report."""
    parser = argparse.ArgumentParser(prog="benchmarks.outbox", description=__doc__)
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
    took = asyncio.run(_latencies(2_000 if asked.full else round(100 * seconds)))
    for name, measured in took.items():
        report.say(
            f"    {name}: p50 {percentile(measured, 50):.2f} ms, p99 {percentile(measured, 99):.2f} ms"
        )
    added = {
        kind: percentile(took[kind], 50) - percentile(took["raw"], 50) for kind in ("sqlite", "postgres")
    }
    report.figure("added_p50_ms", added["sqlite"], "≤ 5")
    report.figure("added_p50_ms_postgres", added["postgres"], "≤ 5")
    report.end(
        ["paho-mqtt", "sqlalchemy", "psycopg"],
        rates=detail,
        p99_ms={name: round(percentile(measured, 99), 2) for name, measured in took.items()},
    )


async def _measure(devices: int, seconds: float, rounds: int, report: Report) -> dict[str, list[float]]:
    rates: dict[str, list[float]] = {"raw": [], "sqlite": [], "postgres": []}
    each = max(3, round(15_000 * (seconds + WARM_S) / devices))
    async with broker() as server, fleet(server.url, devices):
        names = devices_named(devices, "")
        for _ in range(rounds):
            for kind, measured in rates.items():
                if kind == "raw":
                    raw = asyncio.to_thread(raw_mqtt.measure, "127.0.0.1", server.port, names, seconds)
                    measured.append(round(await raw))
                else:
                    measured.append(round(await rate(kind, server, devices, seconds, each)))
                report.say(f"    {devices:,} devices, {kind}: {measured[-1]:,}/s")
    return rates


async def _latencies(count: int) -> dict[str, list[float]]:
    async with broker() as server, fleet(server.url, 100):
        raw = await asyncio.to_thread(_raw_latency, server.port, count)
        return {"raw": raw} | {kind: await latency(kind, server, count) for kind in ("sqlite", "postgres")}


def _raw_latency(port: int, count: int) -> list[float]:
    """Milliseconds from publishing to the answer, one device at a time, by the mean of its rate."""
    per_s = raw_mqtt.measure("127.0.0.1", port, ["0000000"], max(1.0, count / 1_000))
    return [1e3 / per_s]


if __name__ == "__main__":
    main()
