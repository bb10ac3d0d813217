"""What waiting commands cost: 10 thousand, 100 thousand and a million rows in the table.

The same as ``benchmarks.outbox`` on SQLite, with so many commands waiting all the time: as many are added
as are closed. Once with all devices answering, and once while 99.9 % of five times as many are silent, so
that nearly all heads are in flight and few are ready. The rate must not depend on how much waits.
"""

from __future__ import annotations

import argparse
import asyncio
import sqlite3
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.dispatching import DURABILITY, Dispatching, dispatching
from benchmarks.fleet import devices_named, fleet
from benchmarks.report import Report
from holdfast import App
from holdfast.devices.rules.device_queue import CommandState, Patience, StoredCommand
from holdfast.devices.rules.presence import PresenceRules
from holdfast.devices.services.sqlalchemy.outbox import SqlOutbox
from holdfast.devices.spec import CommandFields
from holdfast.system.clock import SystemClock
from simulator.servers import MosquittoServer

DEPTHS = (10_000, 100_000, 1_000_000)
SILENT = 0.999
REFILL_S = 0.1
WARM_S = 1.0
AHEAD = 100
PATIENCE = Patience(retry_s=3600.0, retry_max_s=7200.0)
NO_PRESENCE = PresenceRules(heartbeats=False, silent_tries=0)

FILL = """
WITH RECURSIVE n (n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM n LIMIT ?)
INSERT INTO holdfast_outbox_command (outbox, device, shard, body, created_at)
SELECT 'faces', d.device, 0,
    CAST('{"operator":"EditPerson","info":{"personId":"951","name":"A. Person"}}' AS BLOB), 1.7e9
FROM n CROSS JOIN devices d ON d.number = n.n % ?"""
MARK = """
INSERT INTO holdfast_outbox_arrival (outbox, shard, device) SELECT 'faces', 0, device FROM devices"""


async def fill(path: Path, depth: int, devices: Sequence[str]) -> None:
    """Let commands wait, as ``Outbox.add`` leaves them; those of one device lie far apart."""
    store = SqlOutbox(f"sqlite:///{path}", SystemClock())
    await store.prepare("faces", 1)
    await store.close()
    connection = sqlite3.connect(path)
    connection.execute("CREATE TEMP TABLE devices (number INTEGER PRIMARY KEY, device TEXT)")
    connection.executemany("INSERT INTO devices VALUES (?, ?)", enumerate(devices))
    connection.execute(FILL, (depth, len(devices)))
    connection.execute(MARK)
    connection.commit()
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")  # the filling is no part of what is measured
    connection.close()


async def refill(running: Dispatching, closed: list[str]) -> None:
    """Add a command for each that is closed, until cancelled."""
    while True:
        await asyncio.sleep(REFILL_S)
        some, closed[:] = closed[:], []
        await running.store.add(running.outbox.new({"device": device, "command": b"{}"} for device in some))


async def rate(path: Path, devices: Sequence[str], silent: float, seconds: float) -> float:
    """Commands closed a second."""
    outbox = App("office").outbox("faces", patience=PATIENCE, presence=NO_PRESENCE)
    answered: list[str] = []
    failed: list[str] = []
    seen: dict[str, None] = {}

    def on_result(_: object, command: StoredCommand) -> None:
        if command.state is not CommandState.ACKNOWLEDGED:
            failed.append(f"command {command.id} was not sent and answered: {command.reason}")
        answered.append(command.device)
        seen[command.device] = None

    outbox.on_result(on_result)
    async with (
        MosquittoServer() as server,
        fleet(server.url, len(devices), "--silent", str(silent)),
        dispatching(f"sqlite:///{path}", server.url, outbox, [], 0) as running,
    ):
        refilling = asyncio.create_task(refill(running, answered))
        while running.dispatcher.counts.sent < len(devices):  # noqa: ASYNC110 - there is no event for it
            await asyncio.sleep(REFILL_S)
        await asyncio.sleep(WARM_S)
        if silent:  # those that do answer must not run out of commands
            lively: list[CommandFields] = [{"device": device, "command": b"{}"} for device in seen]
            for _ in range(AHEAD):
                await running.store.add(outbox.new(lively))
        closed = await running.rate(seconds)
        refilling.cancel()
        if failed:
            raise AssertionError(failed[0])
        return closed


async def measure(depth: int, devices: int, silent: float, seconds: float) -> dict[str, float]:
    """Rates with all devices answering, and with few."""
    rates = {}
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder:
        for name, share in (("ready", 0.0), ("silent", silent)):
            names = devices_named(devices * (5 if share else 1))
            path = Path(folder) / f"{name}.db"
            await fill(path, depth, names)
            rates[name] = await rate(path, names, share, seconds)
    return rates


def main() -> None:
    """Measure and report."""
    parser = argparse.ArgumentParser(prog="benchmarks outbox-depth", description=__doc__)
    parser.add_argument("--full", action="store_true", help="longer, and thrice")
    parser.add_argument("--devices", type=int, default=1_000)
    parser.add_argument("--rows", type=int, nargs="+", default=DEPTHS, help="that wait, the fewest first")
    parser.add_argument("--silent", type=float, default=SILENT, help="share of devices that never answer")
    parser.add_argument("--seconds", type=float, help="measured each (default 1.5, with --full 10)")
    asked = parser.parse_args()
    seconds = asked.seconds or (10.0 if asked.full else 1.5)
    report = Report("outbox-depth")
    report.say(
        f"outbox_depth: {asked.devices:,} devices on SQLite, all answering;"
        f" and {5 * asked.devices:,} devices, {asked.silent:.1%} of them silent"
    )
    best: dict[int, dict[str, float]] = {depth: {} for depth in asked.rows}
    for _ in range(3 if asked.full else 1):
        for depth in asked.rows:
            rates_now = asyncio.run(measure(depth, asked.devices, asked.silent, seconds))
            best[depth] = {name: max(value, best[depth].get(name, 0.0)) for name, value in rates_now.items()}
            rates = ", ".join(f"{name} {value:,.0f}/s" for name, value in rates_now.items())
            report.say(f"    {depth:,} rows: {rates}")
    least, *_, most = best.values()
    report.figure("rate_1m_vs_10k", most["ready"] / least["ready"], "≥ 0.85")
    report.figure("rate_1m_vs_10k_silent", most["silent"] / least["silent"], "≥ 0.85")
    report.end(
        ["paho-mqtt", "sqlalchemy"],
        devices=asked.devices,
        durability={"holdfast": DURABILITY},
        rates={
            str(depth): {name: round(value, 1) for name, value in rates_now.items()}
            for depth, rates_now in best.items()
        },
    )
